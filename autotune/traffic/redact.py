"""A trace for other eyes: without texts, and with ids that lead back to nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

from autotune.errors import UsageError
from autotune.traffic.model import Trace, TraceRequest
from autotune.user_files import read_small_bytes

LEAST_SALT_BYTES = 16
"""A shorter salt can be found by trying."""

_SALT_BYTES = 32
_ID_BYTES = 8


def redacted(trace: Trace, *, salt: bytes | None = None, drop_models: bool = False) -> Trace:
    """Return the same traffic without texts, and with other ids.

    Equal ids stay equal and others differ, so that prefixes are shared as before. The same salt
    gives the same ids, also in another trace.

    Args:
        trace: the traffic.
        salt: at least ``LEAST_SALT_BYTES``; None takes a random one, which is thrown away.
        drop_models: names of models are removed as well.

    Raises:
        UsageError: the salt is too short.
    """
    if salt is not None and len(salt) < LEAST_SALT_BYTES:
        raise UsageError(
            f"the salt has {len(salt)} bytes, fewer than {LEAST_SALT_BYTES}",
            hint="make one: head -c 32 /dev/urandom > salt",
        )
    ids = _other_ids(trace.requests, os.urandom(_SALT_BYTES) if salt is None else salt)
    requests = [
        replace(
            request,
            hash_ids=tuple(ids[each] for each in request.hash_ids),
            model=None if drop_models else request.model,
            prompt_text=None,
            output_text=None,
        )
        for request in trace.requests
    ]
    texts = sum(map(_has_text, trace.requests))
    remark = f"Texts removed from {texts} requests, {len(ids)} ids of blocks replaced."
    notes = replace(trace.notes, remarks=(*trace.notes.remarks, remark))
    return trace.with_requests(requests, notes, meta=replace(trace.meta, with_text=False))


def read_salt(path: Path) -> bytes:
    """Return the content of a file that holds a salt.

    Raises:
        UsageError: it cannot be read, or is too long for a salt.
    """
    try:
        salt = read_small_bytes(path)
    except OSError as error:
        raise UsageError(
            f"--salt-file {path}: {error.strerror}",
            hint="make one: head -c 32 /dev/urandom > salt",
        ) from error
    if len(salt) > 2**16:
        raise UsageError(
            f"--salt-file {path}: has more than 64 KiB",
            hint="make one: head -c 32 /dev/urandom > salt",
        )
    return salt


def _has_text(request: TraceRequest) -> bool:
    return request.prompt_text is not None or request.output_text is not None


def _other_ids(requests: Iterable[TraceRequest], salt: bytes) -> dict[int, int]:
    """Return a new id for each id: a keyed hash of it, and of a counter where two would meet."""
    key = blake2b(salt, digest_size=_SALT_BYTES).digest()
    ids: dict[int, int] = {}
    taken: set[int] = set()
    for request in requests:
        for each in request.hash_ids:
            if each not in ids:
                attempt = 0
                while (new := _hashed(key, each, attempt)) in taken:
                    attempt += 1
                taken.add(new)
                ids[each] = new
    return ids


def _hashed(key: bytes, old: int, attempt: int) -> int:
    data = old.to_bytes(_ID_BYTES, "big") + attempt.to_bytes(_ID_BYTES, "big")
    digest = blake2b(data, digest_size=_ID_BYTES, key=key).digest()
    # 63 bits, which JSON readers hold as a signed integer.
    return int.from_bytes(digest, "big") >> 1
