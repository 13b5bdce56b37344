"""Recorders as they are set up: folder, salt, tokenizer, and what a crash left behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.errors import AutotuneError, LeaseHeld, UsageError
from autotune.traffic.capture.blocks import BLOCK_SIZE, BlockHasher
from autotune.traffic.capture.finishing import ChildFinisher, Finisher, finish, reason_of
from autotune.traffic.capture.folder import held_folder, salt_of, unfinished
from autotune.traffic.capture.part import Header
from autotune.traffic.capture.reading import Reader
from autotune.traffic.capture.recorder import Recorder, Rotation, say_on_stderr
from autotune.traffic.capture.tokenizer import HubTokenizer, Tokenizer
from autotune.traffic.window import parse_duration

MAX_PROCESSES = 64
"""Of one server that record into one folder."""

LEAST_ROTATE_BYTES = 2**16
LEAST_ROTATE_S = 1.0
"""Each file costs a process that makes a trace of it."""

TEXT_WARNING = (
    "prompts and answers are kept as text: whoever can read these files can read what your users "
    "wrote; `autotune trace redact` removes it"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureOptions:
    """How to record.

    Attributes:
        folder: where files go; made if need be.
        tokenizer: a folder or a name of the hub; None estimates prefixes from text.
        with_text: keep prompts and answers.
        salt_file: the salt, None for one that is made in the folder.
        block_size: tokens of a block.
        rotation: when files end.
    """

    folder: Path
    tokenizer: str | None = None
    with_text: bool = False
    salt_file: Path | None = None
    block_size: int = BLOCK_SIZE
    rotation: Rotation = field(default_factory=Rotation)


def parse_rotate(text: str, name: str) -> float:
    """Return seconds after which a file ends.

    Args:
        text: such as 10m.
        name: of the option or the variable.

    Raises:
        UsageError: it is no length of time, or less than ``LEAST_ROTATE_S``.
    """
    every_s = parse_duration(text)
    if every_s < LEAST_ROTATE_S:
        raise UsageError(
            f"{name} {text}: must be at least {LEAST_ROTATE_S:g} s",
            hint="10m or 1h are usual: each file is a trace of its own",
        )
    return every_s


@contextmanager
def opened_recorder(
    options: CaptureOptions,
    *,
    by: str,
    say: Callable[[str], None] = say_on_stderr,
    finisher: Finisher | None = None,
    beside: bool = False,
) -> Iterator[Recorder]:
    """Hold the folder and record within the block; files are finished at its end.

    What a crash left in the folder is finished first. With ``beside``, for servers of several
    processes, a process that finds the folder held takes the folder ``2`` in it, or ``3``, with
    the same salt.

    Raises:
        LeaseHeld: another recorder is at work in the folder.
        UsageError: the salt or the tokenizer cannot be used.
        EnvironmentFault: the folder cannot be used, or something is not installed.
    """
    tokenizer: Tokenizer | None = None
    if options.tokenizer is not None:
        tokenizer = HubTokenizer(options.tokenizer)
    with ExitStack() as stack:
        folder = _entered(stack, options.folder, MAX_PROCESSES if beside else 1)
        hasher = BlockHasher(
            salt_of(options.folder, options.salt_file), block_size=options.block_size
        )
        if options.with_text:
            say(TEXT_WARNING)
        _adopt(folder, say)
        recorder = Recorder(
            folder,
            Header(by=by, block_size=options.block_size, with_text=options.with_text),
            read=Reader(hasher=hasher, tokenizer=tokenizer, with_text=options.with_text),
            rotation=options.rotation,
            finisher=ChildFinisher() if finisher is None else finisher,
            say=say,
        )
        recorder.start()
        try:
            yield recorder
        finally:
            recorder.close()


def _entered(stack: ExitStack, folder: Path, attempts: int) -> Path:
    """Return the first folder that nobody holds, held until the stack unwinds."""
    for number in range(1, attempts):
        place = folder if number == 1 else folder / str(number)
        with suppress(LeaseHeld):
            stack.enter_context(held_folder(place))
            return place
    place = folder if attempts == 1 else folder / str(attempts)
    stack.enter_context(held_folder(place))
    return place


def _adopt(folder: Path, say: Callable[[str], None]) -> None:
    """Finish what recorders that crashed have left; what cannot be finished stays."""
    for part in unfinished(folder):
        try:
            trace = finish(part)
        except (AutotuneError, OSError) as error:
            say(f"{part.name} was left unfinished, and stays so: {reason_of(error)}")
            continue
        made = "nothing was in it" if trace is None else f"it is {trace.name} now"
        say(f"{part.name} was left unfinished; {made}")
