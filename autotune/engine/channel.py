"""Messages between controller and engine host: JSON with numpy arrays behind it, no pickle."""

from __future__ import annotations

import json
import select
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LENGTH = struct.Struct("!Q")
_ALLOWED_KINDS = "biuf"


class ChannelClosed(ConnectionError):
    """The other side has gone."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message: its kind, a JSON body, and named numeric arrays."""

    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)


class Channel:
    """A framed, blocking, bidirectional channel over one stream socket.

    Args:
        sock: connected.
        stuck_after_s: how long the other side may take to take a message, or to go on with one
            that it has begun; None for ever. What follows raises ``TimeoutError``.
    """

    def __init__(self, sock: socket.socket, *, stuck_after_s: float | None = None) -> None:
        sock.settimeout(stuck_after_s)
        self._sock = sock

    def fileno(self) -> int:
        return self._sock.fileno()

    def close(self) -> None:
        self._sock.close()

    def send(self, message: Message) -> None:
        """Send one message.

        Raises:
            ChannelClosed: the other side has gone.
            TimeoutError: it does not take the message.
            ValueError: an array is not numeric.
        """
        shapes = []
        payload = []
        for name, array in message.arrays.items():
            if array.dtype.kind not in _ALLOWED_KINDS:
                raise ValueError(f"array {name!r} has dtype {array.dtype}, which cannot be sent")
            shapes.append([name, array.dtype.str, list(array.shape)])
            payload.append(np.ascontiguousarray(array).tobytes())
        header = {"kind": message.kind, "body": message.body, "arrays": shapes}
        head = json.dumps(header, allow_nan=False).encode()
        try:
            self._sock.sendall(b"".join([_LENGTH.pack(len(head)), head, *payload]))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosed("the other side has gone") from error

    def receive(self) -> Message:
        """Wait for one message.

        Raises:
            ChannelClosed: the other side has gone.
            TimeoutError: it does not go on with a message that it has begun.
        """
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        header = json.loads(self._read(length))
        arrays = {}
        for name, dtype_text, shape in header["arrays"]:
            dtype = np.dtype(dtype_text)
            count = int(np.prod(shape, dtype=np.int64))
            data = self._read(count * dtype.itemsize)
            arrays[name] = np.frombuffer(data, dtype=dtype).reshape(shape)
        return Message(kind=header["kind"], body=header["body"], arrays=arrays)

    def wait(self, timeout_s: float) -> bool:
        """Return whether something can be received within ``timeout_s``."""
        readable, _, _ = select.select([self._sock], [], [], max(0.0, timeout_s))
        return bool(readable)

    def _read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            try:
                part = self._sock.recv(min(size - len(data), 1 << 20))
            except ConnectionResetError as error:
                raise ChannelClosed("the other side has gone") from error
            if not part:
                raise ChannelClosed("the other side has gone")
            data += part
        return bytes(data)
