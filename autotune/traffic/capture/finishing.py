"""From a recording to a trace: sorted, described, written at once.

It takes seconds for large files, so that a recorder in a process that serves traffic has it done
by another: ``python -m autotune.traffic.capture.finishing NAME.part``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from zlib import crc32

from autotune.errors import AutotuneError
from autotune.traffic.capture.answered import BYTES_PER_TOKEN
from autotune.traffic.capture.blocks import scaled, unlike_any
from autotune.traffic.capture.part import SUFFIX, Part, read_part
from autotune.traffic.capture.record import Record
from autotune.traffic.formats.native import SUFFIX as TRACE_SUFFIX
from autotune.traffic.model import MAX_TOKENS, Trace, TraceRequest, blocks_of
from autotune.traffic.recording import Gap, Recording
from autotune.traffic.trace import save_trace

_NICE = 10
_DECIMALS_MS = 3


def trace_path(part: Path) -> Path:
    """Return where the trace of a recording goes."""
    return part.with_name(part.name.removesuffix(SUFFIX) + TRACE_SUFFIX)


def finish(part: Path) -> Path | None:
    """Make a trace of a recording and remove it; return the trace, None if nothing was in it.

    Safe to repeat: a crash leaves the recording, and the trace comes out the same.

    Raises:
        TraceError: the recording or the trace cannot be used.
        EnvironmentFault: the disk is full or broken.
        OSError: the recording cannot be read.
    """
    found = read_part(part)
    trace = None if found is None else build_trace(found, name=part.name)
    written = None
    if trace is not None:
        written = trace_path(part)
        save_trace(trace, written)
    part.unlink()
    return written


def build_trace(part: Part, *, name: str) -> Trace | None:
    """Return the trace of a recording, None if no request in it had tokens.

    Args:
        part: the recording.
        name: of its file, which makes up ids where prefixes are unknown.

    Raises:
        TraceError: arrivals are more than a year apart.
    """
    scale = _Scale.of(part.records)
    kept = [row for record in part.records if (row := _row(record, scale)) is not None]
    if not kept:
        return None
    start_s = min(row.record.arrival_s for row in kept)
    made_up = crc32(name.encode()) << 32
    requests = [
        _request(row, start_s, block_size=part.header.block_size, seed=made_up + number)
        for number, row in enumerate(kept)
    ]
    known = [row for row in kept if row.record.token_ids or row.record.text_ids]
    return Trace.build(
        requests,
        block_size=part.header.block_size,
        prefixes_known=bool(known),
        prefixes_estimated=bool(known) and not all(_exact(row) for row in kept),
        source=f"capture by {part.header.by}",
        captured_at=datetime.fromtimestamp(start_s, UTC).isoformat(),
        with_text=part.header.with_text,
        gaps=tuple(
            Gap(
                start_ms=_since_ms(gap.start_s, start_s),
                end_ms=_since_ms(gap.end_s, start_s),
                requests=gap.requests,
                reason=gap.reason,
            )
            for gap in part.gaps
        ),
        recording=_recording(part, kept),
    )


@dataclass(frozen=True, slots=True)
class _Scale:
    """Bytes of text to a token, by model, as counted where both are known."""

    by_model: dict[str | None, float]

    @classmethod
    def of(cls, records: Sequence[Record]) -> _Scale:
        totals: dict[str | None, list[int]] = defaultdict(lambda: [0, 0])
        for record in records:
            if record.text_bytes and record.prompt_tokens:
                totals[record.model][0] += record.text_bytes
                totals[record.model][1] += record.prompt_tokens
        return cls({model: size / tokens for model, (size, tokens) in totals.items()})

    def bytes_per_token(self, model: str | None) -> float:
        return self.by_model.get(model, BYTES_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class _Row:
    record: Record
    tokens: int
    bytes_per_token: float


def _row(record: Record, scale: _Scale) -> _Row | None:
    """Return the lengths of a request, None if it has no row: too little of it is known."""
    ratio = scale.bytes_per_token(record.model)
    tokens = record.prompt_tokens
    if tokens is None and record.text_bytes:
        tokens = min(max(1, round(record.text_bytes / ratio)), MAX_TOKENS)
    if not tokens or not record.output_tokens:
        return None
    return _Row(record, tokens, ratio)


def _exact(row: _Row) -> bool:
    """Whether the ids of a prompt stand for its tokens, as the server counted them."""
    return bool(row.record.token_ids)


def _request(row: _Row, start_s: float, *, block_size: int, seed: int) -> TraceRequest:
    record = row.record
    estimated = record.prompt_tokens is None or record.output_estimated
    return TraceRequest(
        timestamp_ms=_since_ms(record.arrival_s, start_s),
        input_length=row.tokens,
        output_length=record.output_tokens or 1,
        hash_ids=_ids(row, block_size, seed),
        max_tokens=record.max_tokens,
        priority=record.priority,
        cached_tokens=record.cached_tokens,
        model=record.model,
        outcome=None if record.ending == "completed" else record.ending,
        ttft_ms=record.ttft_ms,
        e2e_ms=record.e2e_ms,
        estimated=estimated or None,
        prompt_text=record.prompt_text,
        output_text=record.output_text,
    )


def _ids(row: _Row, block_size: int, seed: int) -> tuple[int, ...]:
    blocks = blocks_of(row.tokens, block_size)
    if row.record.token_ids:
        # A server that counts otherwise, such as for images, has more blocks or fewer.
        ids = row.record.token_ids[:blocks]
        return ids + unlike_any(blocks - len(ids), row.record.token_ids[-1])
    if row.record.text_ids:
        return scaled(
            row.record.text_ids,
            tokens=row.tokens,
            bytes_per_token=row.bytes_per_token,
            block_size=block_size,
        )
    return unlike_any(blocks, seed)


def _recording(part: Part, kept: Sequence[_Row]) -> Recording:
    endings = [record.ending for record in part.records]
    return Recording(
        by=part.header.by,
        completed=endings.count("completed"),
        cancelled=endings.count("cancelled"),
        failed=endings.count("failed"),
        without_tokens=len(part.records) - len(kept),
        estimated_prompts=sum(row.record.prompt_tokens is None for row in kept),
        estimated_outputs=sum(row.record.output_estimated for row in kept),
        estimated_prefixes=sum(not _exact(row) for row in kept),
        torn=part.torn,
    )


def _since_ms(moment_s: float, start_s: float) -> float:
    return round((moment_s - start_s) * 1e3, _DECIMALS_MS)


def reason_of(error: AutotuneError | OSError) -> str:
    """Return why a recording could not be finished, in words."""
    if isinstance(error, AutotuneError):
        return error.message
    return error.strerror or type(error).__name__


class Finisher:
    """Finishes recordings one way or another; what fails is left for the next start."""

    def begin(self, part: Path) -> None:
        """Finish a recording, or have it finished."""
        with suppress(AutotuneError, OSError):
            finish(part)

    def wait(self) -> None:
        """Return when all that was begun is done."""


class ChildFinisher(Finisher):
    """Has recordings finished by processes of their own, so that traffic does not wait."""

    def __init__(self) -> None:
        self._children: list[subprocess.Popen[bytes]] = []

    def begin(self, part: Path) -> None:
        """Start a process; those that have ended are forgotten."""
        self._children = [child for child in self._children if child.poll() is None]
        with suppress(OSError):
            self._children.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", __name__, str(part)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
            )

    def wait(self) -> None:
        """Return when all processes have ended."""
        for child in self._children:
            child.wait()
        self._children = []


def main(arguments: Sequence[str]) -> int:
    """Finish the recordings that are named; return the exit code."""
    os.nice(_NICE)
    for name in arguments:
        try:
            finish(Path(name))
        except AutotuneError as error:
            sys.stderr.write(f"error: {error.message}\nhint: {error.hint}\n")
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
