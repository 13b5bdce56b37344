from __future__ import annotations

import math
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from autotune.engine.channel import Channel, ChannelClosed, Message

DTYPES = ["?", "i1", "u1", "<i2", ">i2", "<u4", "<i8", ">u8", "<f2", "<f4", ">f4", "<f8", ">f8"]
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
ARRAYS = hnp.arrays(
    st.sampled_from([np.dtype(name) for name in DTYPES]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
)

Pair = tuple[Channel, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield Channel(ours), Channel(theirs)


def passed(message: Message) -> Message:
    """Send a message that fits into the buffer of a socket, and return what arrives."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(message)
        return Channel(theirs).receive()


def assert_same(found: NDArray[Any], wanted: NDArray[Any]) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    assert found.tobytes() == wanted.tobytes()


@given(st.text(), st.dictionaries(st.text(), JSON_VALUES, max_size=4))
def test_kind_and_body_arrive_as_they_were_sent(kind: str, body: dict[str, Any]) -> None:
    found = passed(Message(kind, body))
    assert (found.kind, found.body, found.arrays) == (kind, body, {})


@given(st.dictionaries(st.text(), ARRAYS, max_size=4))
def test_arrays_arrive_bit_by_bit(arrays: dict[str, NDArray[Any]]) -> None:
    found = passed(Message("replayed", {}, arrays))
    assert list(found.arrays) == list(arrays)
    for name, array in arrays.items():
        assert_same(found.arrays[name], array)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(0,), (3,), (0, 2), (2, 0), (2, 3), ()])
def test_every_dtype_and_shape(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    assert_same(passed(Message("m", {}, {"a": array})).arrays["a"], array)


def test_nan_and_infinity_travel_in_arrays() -> None:
    array = np.array([np.nan, np.inf, -np.inf, -0.0])
    assert_same(passed(Message("m", {}, {"a": array})).arrays["a"], array)


def test_a_strided_view_is_sent_as_its_values() -> None:
    array = np.arange(12).reshape(3, 4).T[::2]
    assert_same(passed(Message("m", {}, {"a": array})).arrays["a"], array)


def test_large_arrays_and_messages_one_after_the_other(pair: Pair) -> None:
    ours, theirs = pair
    large = np.random.default_rng(0).random(1_000_000)
    sent = [Message("first", {"n": 1}, {"a": large, "b": large[:5]}), Message("second")]

    def send_all() -> None:
        for message in sent:
            ours.send(message)

    sender = threading.Thread(target=send_all)
    sender.start()
    first, second = theirs.receive(), theirs.receive()
    sender.join()
    assert_same(first.arrays["a"], large)
    assert_same(first.arrays["b"], large[:5])
    assert (first.kind, second.kind, second.arrays) == ("first", "second", {})


@pytest.mark.parametrize(
    "array",
    [
        np.array([{}, None], dtype=object),
        np.array(["text"]),
        np.array([b"bytes"]),
        np.array([1j]),
        np.array(["2026-01-01"], dtype="datetime64[D]"),
        np.zeros(1, dtype=[("x", "<i4")]),
    ],
    ids=lambda array: str(array.dtype.kind),
)
def test_arrays_that_are_not_numbers_are_refused_before_a_byte_is_sent(
    pair: Pair, array: NDArray[Any]
) -> None:
    ours, theirs = pair
    with pytest.raises(ValueError, match=r"array 'a' has dtype .* cannot be sent"):
        ours.send(Message("m", {}, {"a": array}))
    assert not theirs.wait(0.0)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_lacks_are_refused_before_a_byte_is_sent(
    pair: Pair, value: float
) -> None:
    ours, theirs = pair
    with pytest.raises(ValueError, match="JSON compliant"):
        ours.send(Message("m", {"deep": [value]}))
    assert not theirs.wait(0.0)


def frame() -> bytes:
    """Return the bytes of one message with an array."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        Channel(ours).send(Message("m", {"x": 1}, {"a": np.arange(4)}))
        return theirs.recv(10_000)


@pytest.mark.parametrize("kept", range(len(frame())))
def test_a_message_torn_anywhere_is_a_closed_channel(kept: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(frame()[:kept])
        with pytest.raises(ChannelClosed):
            Channel(theirs).receive()


def test_bytes_that_trickle_in_make_one_message() -> None:
    ours, received = socket.socketpair()
    with ours, received:
        parts = frame()

        def trickle() -> None:
            for i in range(len(parts)):
                ours.sendall(parts[i : i + 1])

        sender = threading.Thread(target=trickle)
        sender.start()
        message = Channel(received).receive()
        sender.join()
    assert message.body == {"x": 1}
    np.testing.assert_array_equal(message.arrays["a"], np.arange(4))


def test_sending_to_a_side_that_has_gone(pair: Pair) -> None:
    ours, theirs = pair
    theirs.close()
    with pytest.raises(ChannelClosed, match="the other side has gone"):
        ours.send(Message("m", {}, {"a": np.zeros(1_000_000)}))


def test_a_side_that_goes_with_unread_bytes_is_a_closed_channel(pair: Pair) -> None:
    ours, theirs = pair
    ours.send(Message("never read"))
    theirs.close()
    # The kernel then resets the connection instead of ending it.
    with pytest.raises(ChannelClosed):
        ours.receive()


def test_wait_says_whether_something_came(pair: Pair) -> None:
    ours, theirs = pair
    assert not theirs.wait(0.0)
    assert not theirs.wait(-1.0)
    ours.send(Message("m"))
    assert theirs.wait(0.0)
    theirs.receive()
    ours.close()
    # The end of the stream is something to receive as well.
    assert theirs.wait(0.0)


def test_what_is_not_json_is_an_error_and_no_code(pair: Pair) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        head = b"cos\nsystem\n(S'true'\ntR."
        ours.sendall(struct.pack("!Q", len(head)) + head)
        with pytest.raises(ValueError, match="Expecting value"):
            Channel(theirs).receive()
