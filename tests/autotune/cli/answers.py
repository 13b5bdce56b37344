"""Runs a case of bad input, says what is wrong with the answer, and writes it down as a row."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tests.autotune.cli.bad_cases import Case
from tests.autotune.cli.forked import Ran

_DOCUMENTED = re.compile(r".*\.lock|autotune-logs(/.*)?")
"""Files that may be left behind: docs/storage.md says so of locks and logs."""

_LONGEST = 120


class Run(Protocol):
    """Runs ``autotune`` in a folder."""

    def __call__(
        self, arguments: Sequence[str], *, folder: Path, environ: Mapping[str, str]
    ) -> Ran: ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command answered, and what became of its folder.

    Attributes:
        ran: exit code and output; where the folder is does not show.
        made: new files that nothing documents.
        lost: files that were there and are gone or have changed.
        running: command lines of processes that still work in the folder.
    """

    ran: Ran
    made: tuple[str, ...]
    lost: tuple[str, ...]
    running: tuple[str, ...]


def answer_to(case: Case, run: Run, *, folder: Path, studies: Path) -> Answer:
    """Set a case up in an empty folder, and run it there."""
    case.setup(folder, studies)
    before = _files(folder)
    ran = run(case.command, folder=folder, environ=case.environ)
    after = _files(folder)
    neutral = Ran(ran.code, _neutral(ran.out, folder), _neutral(ran.err, folder))
    return Answer(
        ran=neutral,
        made=tuple(n for n in after if n not in before and not _DOCUMENTED.fullmatch(n)),
        lost=tuple(name for name, digest in before.items() if after.get(name) != digest),
        running=_processes_in(folder),
    )


def objections(case: Case, answer: Answer) -> list[str]:
    """Return what is wrong with an answer, nothing if all is as documented."""
    ran, lines = answer.ran, answer.ran.err.splitlines()
    found = [
        f"{name}: {value}"
        for name, value in (
            ("made", answer.made),
            ("lost", answer.lost),
            ("running", answer.running),
        )
        if value
    ]
    if ran.code != case.code:
        found.append(f"exit code {ran.code}, not {case.code}")
    if not all(each.isprintable() or each == "\n" for each in ran.err):
        found.append("control characters on stderr")
    if "Traceback" in ran.err:
        found.append("a traceback")
    if "hunter2" in ran.out + ran.err:
        found.append("a secret is shown")
    if case.code == 0:
        return found if case.error in ran.err else [*found, "the note is missing"]
    if ran.out:
        found.append("output on stdout")
    marks = [line.partition(" ")[0] for line in lines if line.startswith(("error:", "hint:"))]
    if marks != ["error:", "hint:"] or not lines[-1].startswith("hint: "):
        return [*found, "not one line of error and one of hint at the end"]
    if case.error not in lines[-2]:
        found.append(f"the error does not say {case.error!r}")
    if case.hint not in lines[-1]:
        found.append(f"the hint does not say {case.hint!r}")
    return found


def row(case: Case, ran: Ran) -> str:
    """Return the answer as a row of the table."""
    variables = [f"{name}={value}" for name, value in case.environ.items()]
    command = " ".join([*variables, "autotune", *map(_quoted, case.command)])
    said = [line for line in ran.err.splitlines() if line.startswith(("error: ", "hint: "))]
    if case.code == 0:
        said = ran.err.splitlines() or ["accepted"]
    cells = (case.what, _code(command), str(ran.code), "<br>".join(map(_code, said)))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _quoted(word: str) -> str:
    """Return a word as a shell takes it, if it is not too long to show."""
    shown = word if len(word) <= _LONGEST else f"{word[:8]}…"
    if shown.isprintable():
        return shlex.quote(shown)
    return "$'" + shown.encode("unicode_escape").decode() + "'"


def _code(text: str) -> str:
    """Write text as code, which may hold backticks itself."""
    fence = "``" if "`" in text else "`"
    pad = " " if "`" in text else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def _neutral(text: str, folder: Path) -> str:
    return text.replace(str(folder.resolve()), "/home/me").replace(str(folder), "/home/me")


def _files(folder: Path) -> dict[str, str]:
    """Return a digest of every file, and none of folders."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(
            path.read_bytes() if path.is_file() else b""
        ).hexdigest()
        for path in sorted(folder.rglob("*"))
    }


def _processes_in(folder: Path) -> tuple[str, ...]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink() == folder.resolve():
                found.append((entry / "cmdline").read_text().replace("\0", " ").strip())
        except OSError:
            continue
    return tuple(found)
