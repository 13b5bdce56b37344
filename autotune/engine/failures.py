"""From the text that an engine left behind to the class of its failure and its evidence."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autotune.engine.protocol import Failure, FailureClass

_Rule = tuple[re.Pattern[str], FailureClass]

_NO_MEMORY = re.compile(
    r"out of memory|OutOfMemoryError|Cannot allocate memory"
    # Libraries that ask the driver themselves have words of their own.
    r"|CUBLAS_STATUS_ALLOC_FAILED|Failed to CUDA calloc",
    re.I,
)
_NOT_FREE = re.compile(r"(Free memory on device|Available memory on node) .* is less than", re.I)

# The first rule that matches any line wins, so that a consequence never hides its cause.
_START_RULES: Sequence[_Rule] = (
    (re.compile(r"larger than the available KV cache memory", re.I), "no_kv_room"),
    (re.compile(r"No available memory for the cache blocks", re.I), "no_kv_room"),
    # Somebody else has the memory, now: no fault of the candidate.
    (_NOT_FREE, "unknown"),
    (_NO_MEMORY, "oom_start"),
    (re.compile(r"validation errors? for \w*(Args|Config)", re.I), "refused_argument"),
)
_RUN_RULES: Sequence[_Rule] = ((_NO_MEMORY, "oom_run"),)
# No fault is what vLLM says first of all: "non-default args: …".
_CAUSE = re.compile(r"^\S*(Error|Exception|(?<!de)Fault)\b.*:|\berror:", re.I)
# What the other processes say when one of them has failed.
_CONSEQUENCE = re.compile(
    r"root cause|EngineDeadError|died unexpectedly|Error: cancelled|See stack trace", re.I
)
# A worker that ends without a word; its own error, if it had one, comes before this.
_LOST_WORKER = re.compile(r"Worker proc \S+ died unexpectedly", re.I)
_PYDANTIC_HEADING = re.compile(r"validation errors? for \w+", re.I)
_EVIDENCE_CHARACTERS = 400
_TAIL_BYTES = 256 * 1024


def read_tail(path: Path, *, after: int = 0) -> str:
    """Return the last part of a log file from byte ``after`` on, '' if there is none.

    One that is shorter by now was cut since, and ends with what came later.
    """
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(after if after <= size else 0, size - _TAIL_BYTES))
            return file.read().decode("utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def classify_start(log_text: str, message: str, *, ended: Sequence[str] = ()) -> Failure:
    """Class a failed start by the engine's output, else by the exception's own ``message``.

    ``ended`` says how processes of the engine ended, which tells more than the error of the
    process that waited for them, and less than an error of their own.
    """
    return _classify(_START_RULES, log_text, message, ended, otherwise="unknown")


def classify_run(log_text: str, message: str, *, ended: Sequence[str] = ()) -> Failure:
    """Class an engine that died under a replay; see ``classify_start``."""
    return _classify(_RUN_RULES, log_text, message, ended, otherwise="engine_dead")


def lacks_memory(failure: Failure) -> bool:
    """Whether an engine had less memory than it needed, be it another's fault."""
    if failure.failure_class == "unknown":
        return _NOT_FREE.search(failure.evidence) is not None
    return failure.failure_class in ("oom_start", "oom_run", "no_kv_room")


def _classify(
    rules: Sequence[_Rule],
    log_text: str,
    message: str,
    ended: Sequence[str],
    *,
    otherwise: FailureClass,
) -> Failure:
    lines = [*log_text.splitlines(), *message.splitlines()]
    for pattern, failure_class in rules:
        for number, line in enumerate(lines):
            if pattern.search(line):
                return Failure(failure_class, _shorten(telling_line(lines[number : number + 3])))
    causes = [line for line in lines if _CAUSE.search(_without_prefix(line))]
    roots = [line for line in causes if not _CONSEQUENCE.search(line)]
    lost = [line for line in lines if _LOST_WORKER.search(line)]
    # From what says least to what says most.
    found = [message, *causes[-1:], "; ".join(ended), *lost[:1], *roots[-1:]]
    return Failure(otherwise, _shorten(next(filter(None, reversed(found)), "")))


def telling_line(lines: Sequence[str]) -> str:
    """Return the first line, or of pydantic's report, whose first line says nothing, the reason.

    The report is a heading, then for each error its field, unless the whole object is meant, and
    the indented reason with a note of type and input in brackets.
    """
    if len(lines) < 2 or not _PYDANTIC_HEADING.search(lines[0]):
        return lines[0]
    field, *reasons = (_without_prefix(line.strip()) for line in lines[1:])
    text = field if " " in field or not reasons else f"{field}: {reasons[0]}"
    return text.partition(" [type=")[0].removeprefix("Value error, ")


def _without_prefix(line: str) -> str:
    """Cut vLLM's ``(EngineCore pid=1) ERROR 01-01 00:00:00 [core.py:1]`` from a line."""
    line = re.sub(r"^\([^)]*\)\s*", "", line)
    return re.sub(r"^(ERROR|WARNING|INFO)\s+\S+\s+\S+\s+\[[^\]]*\]\s*", "", line)


def _shorten(line: str) -> str:
    first = line.strip().partition("\n")[0]
    return _without_prefix(first)[:_EVIDENCE_CHARACTERS]


def log_size(path: Path | None) -> int:
    """Return how much has been said so far, 0 without a log."""
    return 0 if path is None or not path.exists() else path.stat().st_size
