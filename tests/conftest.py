"""What holds for all tests: a skip is a failure, and recorded traces may be absent."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.storage.postgres import Server

# Read when numpy is imported, which is why nothing of ours is imported above. Matrices are small
# here, and threads that wait for each other on a busy machine make twenty milliseconds of one.
os.environ["OPENBLAS_NUM_THREADS"] = "1"
# Compiling takes longer than the simulations of all tests in plain Python.
os.environ["AUTOTUNE_COMPILE"] = "0"

SHARED = Path(__file__).resolve().parents[1].parent / "shared" / "data"


def pytest_collectstart() -> None:
    _give_hypothesis_no_deadline()


@cache
def _give_hypothesis_no_deadline() -> None:
    """How long an example takes says nothing about it."""
    # Not above, since the process that only hands out the tests need not load it.
    from hypothesis import settings

    settings.register_profile("patient", deadline=None)
    settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that read recorded traces where there are none, and say so."""
    if SHARED.is_dir():
        return
    absent = [item for item in items if item.get_closest_marker("shared")]
    if absent:
        config.hook.pytest_deselected(items=absent)
        items[:] = [item for item in items if item not in absent]


def pytest_collection_finish() -> None:
    """Spare Python from looking through all that is imported whenever it looks for garbage."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _no_terminal_is_described() -> Iterator[None]:
    """Output is as wide and as plain as where nobody has said anything else.

    Readline, which pytest imports, describes a terminal to every process that is started
    afterwards, and so to those of pytest-xdist.
    """
    names = ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.delenv(name, raising=False)
        yield


@pytest.fixture(autouse=True, scope="session")
def _no_signal_is_ignored() -> Iterator[None]:
    """What a background job or nohup has us ignore, all that we start would ignore as well."""
    meanings: dict[signal.Signals, Any] = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGHUP: signal.SIG_DFL,
    }
    ignored = [each for each in meanings if signal.getsignal(each) is signal.SIG_IGN]
    for each in ignored:
        signal.signal(each, meanings[each])
    yield
    for each in ignored:
        signal.signal(each, signal.SIG_IGN)


@pytest.fixture(autouse=True, scope="session")
def _other_runs_are_left_alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A job of the tests looks for what killed runs have left, but not on the whole machine."""
    from autotune.engine import run_folder
    from autotune.study import session

    with pytest.MonkeyPatch.context() as patch:
        here = partial(run_folder.end_left_over, tmp_path_factory.mktemp("runs"))
        patch.setattr(session, "end_left_over", here)
        yield


@pytest.fixture(autouse=True, scope="session")
def _migrations_are_loaded_once() -> Iterator[None]:
    """Optuna has alembic run a dozen of its files anew for each database that is opened."""
    import alembic.util

    load = alembic.util.load_python_file
    load_once = cache(load)

    def load_script(folder: str | Path, name: str) -> ModuleType:
        # What is called env.py does its work when it is run.
        return load(folder, name) if name == "env.py" else load_once(folder, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(alembic.util, "load_python_file", load_script)
        yield


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A PostgreSQL server, for tests that are marked ``wire``."""
    from tests.storage.postgres import running

    with running() as server:
        yield server


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not SHARED.is_dir():
        terminalreporter.write_line(f"no recorded traces at {SHARED}: their tests were left out")


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A test that was skipped has shown nothing: the run fails."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    skipped = [] if reporter is None else reporter.stats.get("skipped", [])
    if skipped and session.exitstatus == pytest.ExitCode.OK:
        print(f"\n{len(skipped)} tests were skipped, which counts as failure")  # noqa: T201
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
