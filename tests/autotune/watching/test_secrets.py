from __future__ import annotations

import pytest

from autotune.watching.secrets import Secrets, shown_url

WEBHOOK = "https://hooks.example.com/services/T00000000/B00000000/s3cretS3cretS3cret?token=t0ken"
STORAGE = "postgresql://tuner:p4ssw0rd@db.example.com/night"
MODEL = "s3://AKIA:m0delkey@bucket/llama"

SECRETS = Secrets([STORAGE, MODEL, "traffic.jsonl"], webhook=WEBHOOK, tokens=["hf_abc", ""])


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"posting to {WEBHOOK} failed", "posting to https://hooks.example.com/*** failed"),
        ("no /services/T00000000/B00000000/s3cretS3cretS3cret here", "no *** here"),
        ("of s3cretS3cretS3cret", "of ***"),
        ("token=t0ken", "token=***"),
        ("password p4ssw0rd was refused", "password *** was refused"),
        (f"cannot load {MODEL}", "cannot load s3://AKIA:***@bucket/llama"),
        ("key m0delkey is unknown", "key *** is unknown"),
        ("HF_TOKEN=hf_abc", "HF_TOKEN=***"),
        ("other http://me:mine@example.com/x?key=1", "other http://me:***@example.com/x?key=***"),
        ("trial 3 search 512/64: nothing to hide", "trial 3 search 512/64: nothing to hide"),
    ],
)
def test_what_is_secret_is_masked_wherever_it_stands(text: str, masked: str) -> None:
    assert SECRETS.mask(text) == masked


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (WEBHOOK, "https://hooks.example.com/***"),
        ("https://user:s3cret@example.com:8443", "https://example.com:8443"),
        ("http://example.com/?a=b", "http://example.com/***"),
    ],
)
def test_of_a_webhook_scheme_and_host_are_shown(url: str, shown: str) -> None:
    assert shown_url(url) == shown
