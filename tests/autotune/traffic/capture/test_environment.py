from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.traffic.capture.environment import ServerRecorder, options_from
from autotune.traffic.capture.opening import CaptureOptions
from autotune.traffic.capture.recorder import Rotation


def test_nothing_is_asked_for_by_default() -> None:
    assert options_from({}) is None
    assert options_from({"AUTOTUNE_CAPTURE": "", "AUTOTUNE_CAPTURE_WITH_TEXT": "1"}) is None


def test_variables_say_what_the_options_of_the_proxy_say() -> None:
    given = {
        "AUTOTUNE_CAPTURE": "folder",
        "AUTOTUNE_CAPTURE_TOKENIZER": "org/model",
        "AUTOTUNE_CAPTURE_WITH_TEXT": "1",
        "AUTOTUNE_CAPTURE_ROTATE": "10m",
        "AUTOTUNE_CAPTURE_ROTATE_BYTES": "100000",
        "AUTOTUNE_CAPTURE_SALT_FILE": "salt",
    }
    assert options_from(given) == CaptureOptions(
        folder=Path("folder"),
        tokenizer="org/model",
        with_text=True,
        salt_file=Path("salt"),
        rotation=Rotation(every_s=600.0, size_bytes=100_000),
    )
    assert options_from({"AUTOTUNE_CAPTURE": "f"}) == CaptureOptions(folder=Path("f"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("WITH_TEXT", "yes"),
        ("ROTATE_BYTES", "0"),
        ("ROTATE_BYTES", "9" * 5000),
        ("ROTATE", "soon"),
        ("ROTATE", "0"),
    ],
)
def test_values_that_cannot_be_are_refused(name: str, value: str) -> None:
    with pytest.raises(UsageError):
        options_from({"AUTOTUNE_CAPTURE": "f", f"AUTOTUNE_CAPTURE_{name}": value})


def test_a_server_runs_whatever_is_wrong_with_its_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file" / "sub", tmp_path / "captures"):
        environ = {"AUTOTUNE_CAPTURE": str(folder), "AUTOTUNE_CAPTURE_SALT_FILE": "missing"}
        server = ServerRecorder(environ, by="middleware")
        assert server.recorder is None
        server.close()
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[0] for line in said] == ["capture", "capture"]
    assert all(": nothing is recorded: " in line for line in said)
