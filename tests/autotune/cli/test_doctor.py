from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.study import checkup as module
from autotune.study.findings import size
from tests.autotune.cli.conftest import Autotune


@pytest.fixture(autouse=True)
def no_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking vLLM takes seconds, and what it answers is tested elsewhere."""
    monkeypatch.setattr(module, "_has_vllm", lambda: False)


def test_a_checkup_is_figures_and_sentences(autotune: Autotune) -> None:
    ran = autotune("doctor", "demo:tiny-llama", "--trace", "demo:mixed")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["model", "demo:tiny-llama"]
    assert "layers              4 full attention (2 KV heads × 32)" in lines
    assert "ok    One token costs 1 KiB of KV cache." in lines
    assert "longest request     3,744 tokens" in lines
    assert any(line.startswith("open  There is no vLLM here") for line in lines)
    assert "max_model_len=3776 is enough" in " ".join(ran.out.split())
    assert max(map(len, lines)) <= 80


def test_a_checkup_in_json(autotune: Autotune) -> None:
    ran = autotune("doctor", "demo:tiny-llama", "--format", "json")
    shown = json.loads(ran.out)
    assert shown["kv"]["bytes_per_token"] == 1024
    assert shown["traffic"] is None
    assert [each["state"] for each in shown["findings"]] == ["open", "ok", "open", "ok"]
    assert set(shown["findings"][0]) == {"name", "state", "sentence"}


@pytest.mark.parametrize("form", ["table", "json"])
def test_what_will_not_work_is_no_success(autotune: Autotune, form: str) -> None:
    ran = autotune(
        "doctor", "demo:tiny-llama", "--trace", "demo:mixed", "--format", form,
        "--engine-arg", "max_model_len=1024",
    )  # fmt: skip
    assert ran.code == 2
    assert "so the engine would refuse that request" in " ".join(ran.out.split())
    assert ran.err == "error: it will not work like this\nhint: what is marked fail says why\n"


def test_a_bill_that_is_not_ours_to_make(autotune: Autotune, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "brand_new"}', encoding="utf-8")
    ran = autotune("doctor", tmp_path)
    assert ran.code == 0
    assert "bytes per token  the engine decides" in ran.out


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (("demo:tiny-lama",), 2, "no demo model"),
        (("demo:tiny-llama", "--window", "0:10"), 2, "--window needs a --trace"),
        (("demo:tiny-llama", "--trace", "nowhere.jsonl"), 2, "nowhere.jsonl"),
        (("demo:tiny-llama", "--engine-arg", "max_model_len"), 2, "is not key=value"),
        (("demo:tiny-llama", "--engine-arg", "model=other"), 2, "--model"),
        (("tests",), 4, "has no config.json"),
    ],
)
def test_what_goes_wrong_has_a_hint(
    autotune: Autotune, arguments: tuple[str, ...], code: int, error: str
) -> None:
    ran = autotune("doctor", *arguments)
    assert (ran.code, ran.out) == (code, "")
    assert error in ran.err
    assert "\nhint: " in ran.err


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (1000, "1000 bytes"),
        (1024, "1 KiB"),
        (70272, "68.6 KiB"),
        (114688, "112 KiB"),
        (16 * 2**30, "16 GiB"),
        (2**30 + 1, "1 GiB"),
    ],
)
def test_bytes_have_a_binary_unit(count: int, shown: str) -> None:
    assert size(count) == shown
