"""What would stop a study in the night that can be seen before: leases, room on disks, weights."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

from autotune.demo import resolve_model
from autotune.errors import EnvironmentFault
from autotune.lease import device_lock, lease, study_lock
from autotune.settings import TuneSettings
from autotune.study.doctor.holders import leases_in
from autotune.study.job import Job
from storage.database import sqlite_path
from storage.errors import StorageError
from storage.leases import study_resource

LOGS_BYTES = 100_000_000
"""For the logs of a night's engines."""

_BYTES_PER_REQUEST = 100
_BYTES_PER_TOKEN = 24
"""Of a replay as it is stored: an upper bound, as arrays are compressed."""

_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")


def check_leases(url: str, name: str, devices: Iterable[str]) -> None:
    """Return if nobody else has the study or the GPUs; nothing is made or kept.

    Raises:
        LeaseHeld: another process has one of them.
        EnvironmentFault: a lock is no regular file.
    """
    locks = {study_lock(url, name): f"study {name!r}"}
    locks |= {device_lock(uuid): f"GPU {uuid}" for uuid in sorted(devices)}
    with ExitStack() as stack:
        for path, what in locks.items():
            if path.exists():
                stack.enter_context(lease(path, what))


def leases_elsewhere(url: str, name: str) -> list[str]:
    """Return who holds the study by its row, in sentences; one that has ended gives it back."""
    with suppress(StorageError):
        return [
            f"study {name!r} is leased by process {owner.pid} on {owner.host} since {since}; "
            "it can be taken over a minute after that one's last sign of life"
            for resource, owner, since in leases_in(url)
            if resource == study_resource(name) and not owner.is_gone
        ]
    return []


def check_room(job: Job, url: str) -> None:
    """Return if there is room for what a study stores and for the logs of its engines.

    Raises:
        EnvironmentFault: there is not; the message says how much is missing.
    """
    tokens = int(job.trace.output_lengths.sum())
    each = len(job.trace.requests) * _BYTES_PER_REQUEST + tokens * _BYTES_PER_TOKEN
    needs = [(job.settings.log_folder, LOGS_BYTES, "--log-folder")]
    file = sqlite_path(url)
    if file is not None:
        needs.append((file.parent, each * job.settings.trials, "--storage"))
    for folder, needed, option in needs:
        _check_free(folder, needed, option)


def _check_free(folder: Path, needed_bytes: int, option: str) -> None:
    place = folder.absolute()
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    free_bytes = found.f_bavail * found.f_frsize
    if free_bytes < needed_bytes:
        raise EnvironmentFault(
            f"{place} has {free_bytes / 1e6:.0f} MB free, and the study may take "
            f"{needed_bytes / 1e6:.0f} MB there",
            hint=f"make room, or name another place with {option}",
        )


def check_weights(settings: TuneSettings, environ: Mapping[str, str]) -> None:
    """Return unless an engine would look for weights on a hub that it may not ask.

    Raises:
        EnvironmentFault: the hub is off limits, and no weights of the model are here.
    """
    offline = next((name for name in _OFFLINE if environ.get(name, "") not in ("", "0")), None)
    dummy = settings.engine_args.get("load_format") == "dummy"
    model = str(resolve_model(settings.model))
    if settings.simulated or dummy or offline is None or Path(model).exists():
        return
    folder = _hub_folder(environ) / f"models--{model.replace('/', '--')}" / "snapshots"
    if not any(found for each in _WEIGHTS for found in folder.glob(f"*/{each}")):
        raise EnvironmentFault(
            f"{offline} is set, and {folder.parent} holds no weights of {model}",
            hint="download it before, or unset the variable",
        )


def _hub_folder(environ: Mapping[str, str]) -> Path:
    home = Path(environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(environ.get("HF_HUB_CACHE") or home / "hub")
