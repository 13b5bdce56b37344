from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import UsageError
from autotune.export import Export, render
from autotune.export.options import stands_alone

HOSTILE = 'it\'s $(touch x) `id` "$HOME" ; rm -rf / & # \\ é *'


def source(text: str, folder: Path, names: list[str]) -> list[str]:
    file = folder / "export.env"
    file.write_text(text, encoding="utf-8")
    script = f". ./{file.name}\n" + "\n".join(f'printf "%s\\0" "${name}"' for name in names)
    done = subprocess.run(
        ["sh", "-eu", "-c", script], cwd=folder, capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    assert sorted(path.name for path in folder.iterdir()) == [file.name]
    return done.stdout.split("\0")[:-1]


def test_args_is_one_line_below_comments(export: Export) -> None:
    *comments, line = render(export, "args").splitlines()
    assert all(comment.startswith("# ") for comment in comments)
    assert line == (
        "vllm serve models/tiny --max-num-batched-tokens 2048 --max-num-seqs 24"
        " --no-enable-prefix-caching"
    )


@given(model=st.text(min_size=1), value=st.text(), study=st.text())
def test_args_keep_any_text_or_refuse_it(model: str, value: str, study: str) -> None:
    export = Export(model, {}, {"download_dir": value}, provenance={"study": study})
    try:
        text = render(export, "args")
    except UsageError:
        assert not stands_alone(model) or not (model + value).isprintable()
        return
    *comments, line = text.splitlines()
    assert all(comment.startswith("# ") for comment in comments)
    joined = [f"--download-dir={value}"]
    option = ["--download-dir", value] if stands_alone(value) else joined
    assert shlex.split(line) == ["vllm", "serve", model, *option]


@pytest.mark.parametrize("format_", ["args", "env"])
@pytest.mark.parametrize("text", ["a\nb", "a\x1b[0m", "a\x03", "a\u202eb", "a\x00"])
def test_the_shell_formats_refuse_control_characters(
    export: Export, format_: str, text: str
) -> None:
    for hostile in (replace(export, model=text), replace(export, engine_args={"revision": text})):
        with pytest.raises(UsageError, match="cannot be shown"):
            render(hostile, "args" if format_ == "args" else "env")


def test_env_assigns_the_model_the_candidate_and_the_words(export: Export) -> None:
    lines = [line for line in render(export, "env").splitlines() if not line.startswith("# ")]
    words = "--max-num-batched-tokens 2048 --max-num-seqs 24 --no-enable-prefix-caching"
    assert lines == [
        "AUTOTUNE_MODEL=models/tiny",
        "AUTOTUNE_MAX_NUM_BATCHED_TOKENS=2048",
        "AUTOTUNE_MAX_NUM_SEQS=24",
        f"AUTOTUNE_VLLM_ARGS='{words}'",
    ]


def test_a_model_without_a_name_is_asked_for_by_the_shell(export: Export, tmp_path: Path) -> None:
    unnamed = replace(export, model=None, engine_args={"max_num_seqs": 24}, model_words="any")
    line = render(unnamed, "args").splitlines()[-1]

    def run(script: str) -> subprocess.CompletedProcess[str]:
        # In place of vLLM.
        script = f'vllm() {{ printf "%s\\n" "$@"; }}\n{script}'
        return subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
        )

    refused = run(line)
    assert refused.returncode != 0
    assert "the model to serve" in refused.stderr
    assert run(f"MODEL='a b'\n{line}").stdout == "serve\na b\n--max-num-seqs\n24\n"
    text = render(unnamed, "env")
    use = text.splitlines()[0].removeprefix("# use: set AUTOTUNE_MODEL, source this file, then ")
    assert "the model to serve" in run(text + use).stderr
    assert run(f"{text}AUTOTUNE_MODEL=m\n{use}").stdout == "serve\nm\n--max-num-seqs\n24\n"


def test_env_survives_being_sourced_with_hostile_values(tmp_path: Path) -> None:
    engine_args = {"download_dir": HOSTILE, "hf_overrides": {HOSTILE: HOSTILE}}
    provenance = {"study\ntouch x": "a\ntouch x\r\u2028touch x", "budget": HOSTILE}
    export = Export(HOSTILE, engine_args, engine_args, provenance=provenance)
    names = ["AUTOTUNE_MODEL", "AUTOTUNE_DOWNLOAD_DIR", "AUTOTUNE_VLLM_ARGS"]
    model, folder, words = source(render(export, "env"), tmp_path, names)
    assert model == folder == HOSTILE
    assert shlex.split(words)[:3] == ["--download-dir", HOSTILE, "--hf-overrides"]


def test_env_writes_switches_and_dictionaries_as_json(tmp_path: Path) -> None:
    candidate = {"enable_chunked_prefill": False, "compilation_config": {"mode": 0}}
    export = Export("m", {**candidate, "quantization": None}, candidate, provenance={})
    names = ["AUTOTUNE_ENABLE_CHUNKED_PREFILL", "AUTOTUNE_COMPILATION_CONFIG"]
    text = render(export, "env")
    assert source(text, tmp_path, names) == ["false", '{"mode": 0}']
    assert "QUANTIZATION" not in text
