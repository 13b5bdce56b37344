"""Capture inside ``vllm serve``, which has no options of ours: by environment variables."""

from __future__ import annotations

import atexit
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from autotune.errors import AutotuneError, UsageError
from autotune.traffic.capture.finishing import reason_of
from autotune.traffic.capture.opening import (
    LEAST_ROTATE_BYTES,
    CaptureOptions,
    opened_recorder,
    parse_rotate,
)
from autotune.traffic.capture.recorder import (
    ROTATE_BYTES,
    ROTATE_S,
    Recorder,
    Rotation,
    say_on_stderr,
)
from autotune.traffic.capture.variables import (
    FOLDER_VARIABLE,
    ROTATE_BYTES_VARIABLE,
    ROTATE_VARIABLE,
    SALT_VARIABLE,
    TEXT_VARIABLE,
    TOKENIZER_VARIABLE,
)

_DIGITS = 16


class ServerRecorder:
    """A recorder of this process, which ends with it; the server runs whether it works or not.

    Attributes:
        recorder: None where nothing is recorded.
        with_text: whether texts are kept.
    """

    def __init__(self, environ: Mapping[str, str], *, by: str) -> None:
        self.recorder: Recorder | None = None
        self.with_text = False
        self._stack = ExitStack()
        try:
            options = options_from(environ)
            if options is None:
                return
            self.with_text = options.with_text
            self.recorder = self._stack.enter_context(opened_recorder(options, by=by, beside=True))
        except (AutotuneError, OSError) as error:
            say_on_stderr(f"nothing is recorded: {reason_of(error)}")
            return
        atexit.register(self.close)
        say_on_stderr(f"the {by} records into {self.recorder.folder}")

    def close(self) -> None:
        """Finish the files; safe to repeat."""
        self.recorder = None
        atexit.unregister(self.close)
        self._stack.close()


def options_from(environ: Mapping[str, str]) -> CaptureOptions | None:
    """Return how to record, None if nothing is asked for.

    Raises:
        UsageError: a variable has a value that it cannot have.
    """
    folder = environ.get(FOLDER_VARIABLE)
    if not folder:
        return None
    rotate = environ.get(ROTATE_VARIABLE)
    size = environ.get(ROTATE_BYTES_VARIABLE) or str(ROTATE_BYTES)
    text = environ.get(TEXT_VARIABLE) or "0"
    if not (size.isdecimal() and len(size) < _DIGITS and int(size) >= LEAST_ROTATE_BYTES):
        raise UsageError(
            f"{ROTATE_BYTES_VARIABLE} must be a number of bytes, at least {LEAST_ROTATE_BYTES}"
        )
    if text not in ("0", "1"):
        raise UsageError(f"{TEXT_VARIABLE} must be 0 or 1")
    salt_file = environ.get(SALT_VARIABLE)
    return CaptureOptions(
        folder=Path(folder),
        tokenizer=environ.get(TOKENIZER_VARIABLE) or None,
        with_text=text == "1",
        salt_file=Path(salt_file) if salt_file else None,
        rotation=Rotation(
            every_s=parse_rotate(rotate, ROTATE_VARIABLE) if rotate else ROTATE_S,
            size_bytes=int(size),
        ),
    )
