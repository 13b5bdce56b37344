from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
MODEL = ROOT / "autotune" / "demo" / "tiny-llama"
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def test_the_script_makes_the_shipped_files(tmp_path: Path) -> None:
    script = ROOT / "scripts" / "make_demo_model"
    subprocess.run([sys.executable, script, tmp_path], check=True, timeout=60)
    for name in FILES:
        assert (tmp_path / name).read_bytes() == (MODEL / name).read_bytes(), name


def test_the_folder_is_small_and_holds_no_weights() -> None:
    sizes = {path.name: path.stat().st_size for path in MODEL.iterdir()}
    assert set(sizes) == set(FILES)
    assert sum(sizes.values()) < 300_000


def test_every_token_is_visible_and_the_vocabulary_is_full(tokenizer: Tokenizer) -> None:
    size = json.loads((MODEL / "config.json").read_text())["vocab_size"]
    assert tokenizer.get_vocab_size() == size
    texts = [tokenizer.decode([token], skip_special_tokens=False) for token in range(size)]
    assert all(text.strip() and text.isprintable() and "\ufffd" not in text for text in texts)


def test_decoded_tokens_encode_to_themselves(tokenizer: Tokenizer) -> None:
    draw = random.Random(7)  # noqa: S311
    first_word = tokenizer.encode("baba").ids
    assert len(first_word) == 1
    for length in (1, 17, 2000):
        tokens = first_word + [draw.randrange(3, 4096) for _ in range(length)]
        assert tokenizer.encode(tokenizer.decode(tokens)).ids == tokens


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hello, world! {x}", "Hello, world! {x}"),
        ("  two\n\tlines ", "two lines"),
        ("café", "cafe"),
        ("日本", " <unk>"),
        ("", ""),
    ],
)
def test_any_text_encodes(tokenizer: Tokenizer, text: str, expected: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids).strip() == expected.strip()


@pytest.mark.engine
def test_the_chat_template_works_with_transformers_offline() -> None:
    script = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
messages = [{"role": "user", "content": "Hi there"}]
print(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
"""
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, MODEL],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == "<s>user: Hi there </s> assistant:\n"
