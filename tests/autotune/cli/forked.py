"""Commands, each in a process of its own, forked from one that has imported what they need.

A fresh interpreter would spend half a second a command on imports alone.
"""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn, Self

ROOT = Path(__file__).resolve().parents[3]
VARIABLES = ("AUTOTUNE_STORAGE", "OPTUNA_STORAGE", "COLUMNS")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command left behind."""

    code: int
    out: str
    err: str


class Commands:
    """The ``autotune`` command in forked processes; a context manager."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-m", "tests.autotune.cli.forked"],
            cwd=ROOT,
            env={k: v for k, v in os.environ.items() if k not in VARIABLES},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._server.communicate()

    def run(self, arguments: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> Ran:
        """Run ``autotune`` with these arguments in a folder."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        request = {"arguments": arguments, "folder": str(folder), "environ": dict(environ)}
        print(json.dumps(request), file=self._server.stdin, flush=True)
        answer = json.loads(self._server.stdout.readline())
        return Ran(answer["code"], answer["out"], answer["err"])


def run_fresh(arguments: Sequence[str], *, folder: Path, environ: Mapping[str, str]) -> Ran:
    """Run ``python -m autotune`` with these arguments in a folder, in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-m", "autotune", *arguments],
        cwd=folder,
        env={
            **{k: v for k, v in os.environ.items() if k not in VARIABLES},
            "PYTHONPATH": str(ROOT),
            **environ,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def _serve() -> None:
    _import_what_commands_need()
    for line in sys.stdin:
        request = json.loads(line)
        files = [os.memfd_create(name) for name in ("out", "err")]
        child = os.fork()
        if child == 0:
            _become(request, *files)
        _, status = os.waitpid(child, 0)
        out, err = (_content(file) for file in files)
        answer = {"code": os.waitstatus_to_exitcode(status), "out": out, "err": err}
        print(json.dumps(answer), flush=True)  # noqa: T201


def _become(request: Mapping[str, Any], out: int, err: int) -> NoReturn:
    """Be the command; without the tidying up of all that was imported, which takes longer."""
    from autotune.cli.main import run

    null = os.open(os.devnull, os.O_RDONLY)
    for descriptor, standard in ((null, 0), (out, 1), (err, 2)):
        os.dup2(descriptor, standard)
    os.chdir(request["folder"])
    os.environ.update(request["environ"])
    sys.argv = ["autotune", *request["arguments"]]
    code = 1
    try:
        run()
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 1
    finally:
        if sys.exception() is not None:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _content(file: int) -> str:
    size = os.fstat(file).st_size
    try:
        return os.pread(file, size, 0).decode()
    finally:
        os.close(file)


def _import_what_commands_need() -> None:
    import alembic.command  # noqa: F401
    import numpy.ma
    import numpy.random  # noqa: F401
    import rich.table  # noqa: F401
    import sqlalchemy.dialects.sqlite  # noqa: F401
    import typer.main

    import autotune.cli.main
    import autotune.cli.watch
    import autotune.export.render
    import autotune.study.checkup
    import autotune.study.single
    import autotune.traffic.inspect
    import autotune.traffic.picture
    import autotune.traffic.synth
    import autotune.tuning

    # Typer makes its commands anew for every call, which is half of what most of them cost.
    get_command = functools.cache(typer.main.get_command)
    get_command(autotune.cli.main.app)
    typer.main.get_command = get_command
    # A collection in a fork would copy the memory of all that it visits.
    gc.collect()
    gc.freeze()


if __name__ == "__main__":
    _serve()
