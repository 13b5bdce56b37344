"""All checks of a machine in their order, each with the facts that it goes by."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from autotune.engine.run_folder import RUNS
from autotune.study.doctor.clocks import clock_results, gather_clock
from autotune.study.doctor.databases import database_results
from autotune.study.doctor.environment import environment_results, hub_cache
from autotune.study.doctor.gpus import Driver, gather_driver, gpu_results
from autotune.study.doctor.holders import lease_results, leftover_results
from autotune.study.doctor.packages import Packages, gather_packages, package_results
from autotune.study.doctor.places import gather_place, place_results
from autotune.study.doctor.processors import gather_machine, machine_results
from autotune.study.doctor.results import Check, Result, run_checks
from autotune.study.doctor.sockets import socket_results
from storage.database import sqlite_path
from storage.errors import StorageError, UnknownStudy
from storage.repository import open_repository


@dataclass(frozen=True, slots=True)
class Subject:
    """What is examined.

    Attributes:
        url: of the database.
        study: a name in it, None for all that there are.
        log_folder: where engines log.
        environ: the environment.
    """

    url: str
    study: str | None
    log_folder: Path
    environ: Mapping[str, str]


def examine(subject: Subject) -> Iterator[Result]:
    """Yield what all checks find, each as soon as it is known; nothing that they make is left."""
    driver = gather_driver()
    packages = gather_packages(driver.cuda)
    yield from run_checks(_checks(subject, driver, packages))


def _checks(subject: Subject, driver: Driver, packages: Packages) -> dict[str, Check]:
    needs_gpu = packages.torch_cuda is not None and "vllm" in packages.versions
    return {
        "packages": lambda: package_results(packages),
        "gpus": lambda: gpu_results(driver, needs_gpu=needs_gpu),
        "cpu": lambda: machine_results(gather_machine()),
        "disk": lambda: _places(subject),
        "database": lambda: database_results(subject.url),
        "study": lambda: _study(subject),
        "leases": lambda: lease_results(
            subject.url, _names(subject), [gpu.uuid for gpu in driver.gpus]
        ),
        "leftovers": leftover_results,
        "clock": lambda: clock_results(gather_clock()),
        "environment": lambda: environment_results(subject.environ, compiles=needs_gpu),
        "sockets": socket_results,
    }


def _places(subject: Subject) -> Iterator[Result]:
    """Look at each folder that is written to, once where several are the same."""
    file = _file(subject.url)
    wanted = {
        "disk of logs": subject.log_folder,
        "temporary": Path(gettempdir()),
        "run folders": RUNS,
        "hub cache": hub_cache(subject.environ),
    }
    if file is not None:
        yield from place_results("disk of database", gather_place(file.parent), of_database=True)
    seen = set()
    for name, folder in wanted.items():
        real = os.path.realpath(folder)
        if real not in seen:
            seen.add(real)
            # A cache that others fill may be read-only.
            yield from place_results(name, gather_place(folder), needed=name != "hub cache")


def _file(url: str) -> Path | None:
    """Return the SQLite file of a URL; what is wrong with one is said elsewhere."""
    try:
        return sqlite_path(url)
    except StorageError:
        return None


def _study(subject: Subject) -> Iterator[Result]:
    """Say how the study stands that was named."""
    if subject.study is None:
        return
    try:
        with open_repository(subject.url, create=False) as repository:
            study = repository.study(subject.study)
            count = len(repository.trials(study.id))
    except UnknownStudy as error:
        yield Result("study", "fail", error.message, error.hint)
    except StorageError as error:
        yield Result("study", "warn", error.message, error.hint)
    else:
        words = f"{study.name!r} is {study.state}, with {count} trials"
        yield Result("study", "ok", f"{words}, last written {study.updated_at}")


def _names(subject: Subject) -> list[str]:
    """Return the studies whose leases are looked at; the database may hold none yet."""
    if subject.study is not None:
        return [subject.study]
    try:
        with open_repository(subject.url, create=False) as repository:
            return [each.name for each in repository.studies()]
    except StorageError:
        return []
