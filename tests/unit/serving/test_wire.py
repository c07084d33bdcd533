"""Tests of the wire between parent and worker."""

import asyncio
import contextlib
import socket

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.fleet import VersionReport
from serving.settings import Settings, Token
from serving.workers import messages
from serving.workers.messages import Hello, Report
from serving.workers.wire import (
    MAX_UNSENT_BYTES,
    Frame,
    FrameDecoder,
    Wire,
    WireError,
    encode_frame,
)

VALUES = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
BODIES = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)
FRAMES = st.builds(Frame, st.text(min_size=1, max_size=12), st.integers(0, 2**53), BODIES)


@given(st.lists(FRAMES, max_size=8), st.lists(st.integers(1, 40), max_size=40))
def test_frames_survive_any_split_of_the_stream(frames: list[Frame], cuts: list[int]) -> None:
    """What was sent is received, in order, however the bytes were cut on the way."""
    stream = b"".join(encode_frame(frame) for frame in frames)
    decoder = FrameDecoder()
    received = []
    for cut in [*cuts, len(stream) or 1]:
        received += decoder.feed(stream[:cut])
        stream = stream[cut:]
    assert received == frames
    assert decoder.pending_bytes == 0


@given(st.binary(max_size=200))
def test_any_bytes_give_frames_or_a_wire_error(data: bytes) -> None:
    """No byte string makes the decoder fail in another way than WireError."""
    decoder = FrameDecoder(max_bytes=64)
    try:
        frames = decoder.feed(data)
    except WireError:
        return
    assert all(isinstance(frame, Frame) for frame in frames)
    assert decoder.pending_bytes <= 64 + 4


@given(FRAMES, st.integers(0), st.integers(0, 255))
def test_a_flipped_byte_never_escapes_as_another_error(
    frame: Frame, place: int, value: int
) -> None:
    """A damaged frame is a frame again, is waited for, or is a WireError."""
    data = bytearray(encode_frame(frame))
    data[place % len(data)] = value
    decoder = FrameDecoder(max_bytes=1 << 20)
    with contextlib.suppress(WireError):
        decoder.feed(bytes(data))


@pytest.mark.parametrize(
    "payload",
    [
        b"[]",
        b"{}",
        b'{"type":1,"id":1,"body":{}}',
        b'{"type":"a","id":true,"body":{}}',
        b'{"type":"a","id":1,"body":[]}',
        b'{"type":"a","id":1,"body":{},"x":1}',
        b"NaN",
        b"\x80\x04K\x01.",
    ],
)
def test_a_payload_of_another_form_is_refused(payload: bytes) -> None:
    """Only objects of exactly type, id and body are frames; a pickle is not."""
    with pytest.raises(WireError):
        FrameDecoder().feed(len(payload).to_bytes(4, "big") + payload)


def test_an_announced_size_over_the_bound_is_refused_before_it_is_read() -> None:
    """Four bytes of header are enough to refuse a frame that is too large."""
    with pytest.raises(WireError, match="frame of 101 bytes announced, at most 100"):
        FrameDecoder(max_bytes=100).feed((101).to_bytes(4, "big"))


def test_a_frame_over_the_bound_is_not_sent() -> None:
    """The sender learns that a frame is too large, not the receiver."""
    with pytest.raises(WireError, match="'big' has"):
        encode_frame(Frame("big", 1, {"text": "x" * 100}), max_bytes=100)


def test_a_body_that_is_not_json_is_not_sent() -> None:
    """An object that JSON lacks raises WireError and names the frame."""
    with pytest.raises(WireError, match="frame 'odd' is not JSON"):
        encode_frame(Frame("odd", 1, {"value": {1, 2}}))


async def test_two_ends_talk_and_see_the_end() -> None:
    """Frames arrive in order with ids of their own; a closed end gives None."""
    ours, theirs = socket.socketpair()
    left, right = await Wire.open(ours), await Wire.open(theirs)
    first = await left.send("hello", {"a": 1})
    left.post("heartbeat", {})
    second = await left.send("bye", {})
    assert [await right.receive() for _ in range(3)] == [
        Frame("hello", first, {"a": 1}),
        Frame("heartbeat", first + 1, {}),
        Frame("bye", second, {}),
    ]
    await right.send("answer", {}, answers=first)
    assert (await left.receive()) == Frame("answer", first, {})
    left.close()
    assert await right.receive() is None
    right.close()


async def test_sending_on_a_closed_wire_is_a_lost_connection() -> None:
    """Whatever the event loop calls it: callers expect a ConnectionError."""
    ours, theirs = socket.socketpair()
    left = await Wire.open(ours)
    theirs.close()
    left.close()
    with pytest.raises(ConnectionResetError):
        await left.send("stop", {})


async def test_a_frame_larger_than_any_buffer_arrives_whole() -> None:
    """A target of many megabytes goes through while both ends work."""
    ours, theirs = socket.socketpair()
    left, right = await Wire.open(ours), await Wire.open(theirs)
    body = {"text": "x" * 5_000_000}
    sending = asyncio.create_task(left.send("target", body))
    frame = await right.receive()
    await sending
    assert frame is not None
    assert frame.body == body
    left.close()
    right.close()


async def test_posting_to_an_end_that_does_not_read_is_bounded() -> None:
    """A parent that stands still makes the worker stop, not grow."""
    ours, theirs = socket.socketpair()
    left = await Wire.open(ours)
    body = {"text": "x" * (MAX_UNSENT_BYTES // 2)}
    for _ in range(3):
        left.post("report", body)
    with pytest.raises(WireError, match="nobody reads"):
        left.post("report", body)
    theirs.close()
    left.close()


def test_a_hello_survives_the_wire() -> None:
    """Settings with paths and tokens come out of JSON as they went in."""
    token = Token("ci", "0" * 64, ("read", "push"))
    hello = Hello(
        slot=1, region=3, regions=4, is_patient=True, threads=4, cpus=(0, 1),
        objects_dir=Settings().store / "objects",
        settings=Settings(tokens=(token,), max_run_s=2.5),
    )  # fmt: skip
    document = orjson.loads(orjson.dumps(hello.to_json()))
    assert messages.parse_hello(document) == hello


def test_a_report_survives_the_wire() -> None:
    """Versions and their figures come out of JSON as they went in."""
    report = Report(
        7,
        {
            ("fraud", 3): VersionReport("FAILED", "no such operator", 0.25, 4096),
            ("fraud", 4): VersionReport("FAILED", "no memory", is_out_of_memory=True),
        },
    )
    assert messages.parse_report(orjson.loads(orjson.dumps(report.to_json()))) == report
