"""Profiles: what an engine said of itself and its steps take, to simulate it anywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from autotune.engine.protocol import EngineInfo
from autotune.errors import UsageError
from autotune.forecast.step_times import StepTimes
from autotune.forecast.sweep import Calibrated
from autotune.settings import SIMULATED
from autotune.simulated.profile_checks import check_profile, check_values, parsed
from autotune.user_files import read_small
from objectives.errors import nearest

VERSION = 1
_SHIPPED = Path(__file__).parent / "profiles"
_MAKE = "autotune calibrate --save makes one"
_SHORT = 12
_LEAST_REPEATS = 3

OF_THE_HOST = frozenset(
    {
        "allowed_local_media_path",
        "data_parallel_rpc_port",
        "download_dir",
        "hf_config_path",
        "master_addr",
        "master_port",
        "model",
        "model_weights",
        "scheduler_cls",
        "served_model_name",
        "tokenizer",
        "worker_cls",
        "worker_extension_cls",
    }
)
"""Resolved arguments that name something of the machine, or of how it was watched."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What a profile was measured on.

    ``words`` say what of it was measured how, for people.
    """

    device: str
    vllm_version: str
    model: str
    date: str
    words: str


@dataclass(frozen=True, slots=True)
class Noise:
    """By how much repeats differ; without any an engine always takes as long.

    Attributes:
        run: relative standard deviation of the pace of a whole replay.
        step: relative standard deviation of single steps.
        stalls: share of the steps that stall.
        stall_factor: how many times as long these take.
    """

    run: float = 0.0
    step: float = 0.0
    stalls: float = 0.0
    stall_factor: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Profile:
    """An engine that can be simulated.

    Attributes:
        name: by which results name it.
        measured_on: the real engine.
        info: what that said of itself, with nothing of its machine in it but the device's name.
        step_times: of its steps.
        delivery_s: from the end of a step until a client has its tokens.
        noise: of replays and steps.
        start_s: that its start took.
    """

    name: str
    measured_on: Origin
    info: EngineInfo
    step_times: StepTimes
    delivery_s: float
    noise: Noise
    start_s: float

    @property
    def identity(self) -> str:
        """Name and digest: equal only for profiles that say the same."""
        digest = hashlib.blake2b(self.to_text().encode(), digest_size=_SHORT // 2).hexdigest()
        return f"{SIMULATED}{self.name}@{digest}"

    def to_text(self) -> str:
        """Return it as JSON that people can read."""
        data = {
            "version": VERSION,
            "name": self.name,
            "measured_on": asdict(self.measured_on),
            "delivery_s": self.delivery_s,
            "noise": asdict(self.noise),
            "start_s": self.start_s,
            "info": self.info.to_json(),
            "step_times": self.step_times.to_json(),
        }
        return _readable(data) + "\n"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Return the profile that JSON values say; ``check_values`` has passed them."""
        return cls(
            name=str(data["name"]),
            measured_on=Origin(**data["measured_on"]),
            info=EngineInfo.from_json(data["info"]),
            step_times=StepTimes.from_json(data["step_times"]),
            delivery_s=float(data["delivery_s"]),
            noise=Noise(**data["noise"]),
            start_s=float(data["start_s"]),
        )


def load_profile(engine: str) -> Profile:
    """Read the profile that ``sim:NAME``, a shipped one, or ``sim:PATH`` means.

    What has a slash or ends in ``.json`` is a path.

    Raises:
        UsageError: there is none of that name, or the file is no profile.
    """
    given = engine.removeprefix(SIMULATED)
    if "/" in given or given.endswith(".json"):
        return _read(Path(given))
    known = shipped()
    if given not in known:
        raise UsageError(
            f"no profile {given!r} is shipped",
            hint=nearest(given, known) or f"there is {', '.join(known)}; {_MAKE}, named by a path",
        )
    return _read(_SHIPPED / f"{given}.json")


def spelt(path: Path) -> str:
    """Return how ``--engine`` names the profile of a file."""
    return f"{SIMULATED}{path if '/' in str(path) or path.suffix == '.json' else f'./{path}'}"


def name_in(identity: str) -> str:
    """Return the name of the profile that an identity is of."""
    return identity.removeprefix(SIMULATED).rpartition("@")[0]


def shipped() -> tuple[str, ...]:
    """Return the names of the profiles that come with autotune."""
    return tuple(sorted(path.stem for path in _SHIPPED.glob("*.json")))


def _read(path: Path) -> Profile:
    try:
        text = read_small(path)
    except OSError as error:
        raise UsageError(
            f"cannot read the profile {path}: {error.strerror}", hint=_MAKE
        ) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is no JSON: it is not UTF-8", hint=_MAKE) from error
    try:
        data = parsed(text)
    except ValueError as error:
        raise UsageError(f"{path} is no JSON: {error}", hint=_MAKE) from error
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION or not isinstance(version, int) or isinstance(version, bool):
        found = "it has no version" if version is None else f"its version is {version!r}"
        raise UsageError(f"{path} is no profile of this autotune: {found}", hint=_MAKE)
    try:
        check_values(data)
        profile = Profile.from_json(data)
        check_profile(profile)
    except ValueError as error:
        raise UsageError(f"{path} is no profile: {error}", hint=_MAKE) from error
    return profile


def profile_of(
    calibrated: Calibrated, info: EngineInfo, *, name: str, model: str, start_s: float, date: str
) -> Profile:
    """Return the profile of an engine of which there is a sweep alone.

    A sweep sees no client and is run once: nothing is delivered late, and replays repeat exactly.
    What single steps vary by is in it.

    Args:
        calibrated: the sweep.
        info: of the engine that was swept.
        name: of the profile.
        model: its name, without a path.
        start_s: that the start took.
        date: of the sweep.

    Raises:
        ValueError: no step was measured.
    """
    limits = info.resolved
    times = StepTimes.fit(
        calibrated.steps,
        capture_sizes=info.capture_sizes,
        max_tokens=int(limits["max_num_batched_tokens"]),
        max_seqs=int(limits["max_num_seqs"]),
    )
    words = f"{len(calibrated.steps)} steps of a calibration sweep, one at a time"
    return Profile(
        name=name,
        measured_on=Origin(info.device, info.vllm_version, model, date, words),
        info=neutral(info, model),
        step_times=times,
        delivery_s=0.0,
        noise=Noise(step=_step_sigma(calibrated)),
        start_s=start_s,
    )


def neutral(info: EngineInfo, model: str) -> EngineInfo:
    """Return what an engine says of itself without what names its machine."""
    resolved = {
        name: value
        for name, value in info.resolved.items()
        if name not in OF_THE_HOST and not name.startswith("_")
    }
    return replace(info, model=model, device_uuids=(), resolved=resolved)


def _step_sigma(calibrated: Calibrated) -> float:
    """Return what steps that were repeated vary by, in the middle."""
    found = calibrated.calibration
    rows = [(each.spread_ms, each.median_ms, each.repeats) for each in found.points]
    rows += [(each.spread_ms, each.median_ms, each.repeats) for each in found.batches]
    shares = [spread / median for spread, median, repeats in rows if repeats >= _LEAST_REPEATS]
    return float(np.median(shares)) if shares else 0.0


def _readable(value: Any, indent: str = "") -> str:
    """Return JSON in which mappings have a line for each key, and lists one in all."""
    if not isinstance(value, Mapping) or not value:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    inner = indent + "  "
    lines = [f"{inner}{json.dumps(key)}: {_readable(each, inner)}" for key, each in value.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
