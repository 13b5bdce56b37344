"""No prompt, answer or key of a log reaches a trace, a note, an error or a traceback."""

from __future__ import annotations

import json
import traceback
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.traffic.trace import load_trace
from tests.autotune.traffic.formats.logs import LOGS, WORDS, changed, options_of


def told(path: Path, name: str) -> str:
    """Return all that reading a file says and writes, the traceback of an error too."""
    try:
        trace = load_trace(path, format=name, options=options_of(name))
    except UsageError as error:
        return "".join([*traceback.format_exception(error), error.message, error.hint])
    written = b"".join(trace.lines()).decode() + json.dumps(trace.meta.to_json())
    return written + "\n".join(trace.notes.sentences())


@pytest.mark.parametrize("name", LOGS)
def test_what_is_read_holds_no_text(tmp_path: Path, name: str) -> None:
    path = tmp_path / "log"
    path.write_text("".join(json.dumps(row) + "\n" for row in LOGS[name]))
    assert '"input_length":' in told(path, name)
    assert WORDS not in told(path, name)


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("planted", [WORDS, {"a": WORDS}])
def test_no_fault_quotes_what_it_found(tmp_path: Path, name: str, planted: object) -> None:
    path = tmp_path / "log"
    cases = list(changed(LOGS[name][0], planted))
    assert cases
    for case in cases:
        path.write_text(json.dumps(case) + "\n")
        assert WORDS not in told(path, name), case


@pytest.mark.parametrize("name", [*LOGS, "auto"])
@pytest.mark.parametrize(
    "content",
    [f'{{"prompt": "{WORDS}', f'[{{"prompt": {WORDS}}}]', WORDS, f'{{"a": "{WORDS}"}}',
     f'{WORDS},b\n1,"{WORDS}', f'[["{WORDS}"]]', f'{{"{WORDS}": 1}}'],
)  # fmt: skip
def test_what_is_no_log_is_not_quoted(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / "log"
    path.write_text(content)
    names = LOGS if name == "auto" else {name: None}
    for each in names:
        found = told(path, each)
        # A misspelt field of our own rows is named, which is how it can be corrected.
        assert WORDS not in found or (each == "native" and f"'{WORDS}'" in found)
