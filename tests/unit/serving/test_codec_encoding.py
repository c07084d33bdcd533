"""Compressed bodies in pieces, their cap, and the choice of an answer's encoding."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from registry.errors import InvalidInput
from serving.codec.encoding import (
    MAX_MEMBERS,
    MIN_BYTES,
    Decompressor,
    choose_encoding,
    compress,
    parse_content_encoding,
)
from serving.errors import PayloadTooLarge, UnsupportedMedia

BODY = bytes(range(256)) * 40


def raw_deflate(body: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(body) + stream.flush()


def decoded(data: bytes, encoding: str | None, piece: int = 0, limit: int = 1 << 20) -> bytes:
    stream = Decompressor(encoding, limit)
    for start in range(0, len(data), piece or max(len(data), 1)):
        stream.feed(data[start : start + (piece or len(data))])
    return stream.finish()


@pytest.mark.parametrize("piece", [0, 1, 7, 100])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(BODY, mtime=0)),
        ("x-gzip", gzip.compress(BODY, mtime=0)),
        (" GZIP ", gzip.compress(BODY, mtime=0)),
        (
            "gzip",
            gzip.compress(BODY[:5000], mtime=0)
            + gzip.compress(b"", mtime=0)
            + gzip.compress(BODY[5000:], mtime=0),
        ),
        ("deflate", zlib.compress(BODY)),
        ("deflate", raw_deflate(BODY)),
        ("identity", BODY),
        ("", BODY),
        (None, BODY),
    ],
)
def test_bodies_in_pieces_of_any_size(encoding: str, data: bytes, piece: int) -> None:
    """Where the pieces are cut changes nothing; several gzip members are one body."""
    assert decoded(data, encoding, piece) == BODY


def test_an_empty_body() -> None:
    """No bytes are an empty plain body, and a compressed one that is cut off."""
    assert decoded(b"", None) == b""
    for encoding in ("gzip", "deflate"):
        with pytest.raises(InvalidInput, match="cut off"):
            decoded(b"", encoding)
        assert decoded(compress(b"", encoding), encoding) == b""


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_f10_cut_off_bodies(encoding: str) -> None:
    """F10: a compressed body that ends early is refused wherever it ends."""
    data = compress(BODY, encoding)
    for end in (1, 2, 5, len(data) // 2, len(data) - 1):
        with pytest.raises(InvalidInput, match="cut off"):
            decoded(data[:end], encoding)


@pytest.mark.parametrize("piece", [0, 1])
@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", gzip.compress(BODY, mtime=0) + b"garbage"),
        ("gzip", gzip.compress(BODY, mtime=0) + b"\0"),
        ("deflate", zlib.compress(BODY) + b"x"),
        ("deflate", raw_deflate(BODY) + zlib.compress(BODY)),
        ("gzip", b"{}"),
        ("gzip", zlib.compress(BODY)),
        ("deflate", b"{}"),
        ("deflate", gzip.compress(BODY, mtime=0)),
        ("gzip", gzip.compress(BODY, mtime=0)[:-8] + b"\0" * 8),
    ],
)
def test_f10_what_is_not_that_encoding(encoding: str, data: bytes, piece: int) -> None:
    """F10: garbage, trailing bytes and wrong checksums are refused."""
    with pytest.raises(InvalidInput):
        decoded(data, encoding, piece)


@pytest.mark.parametrize(
    "header", ["gzip, gzip", "gzip,deflate", "br", "zstd", "gzip;q=1", "identity, gzip", "gz\nip"]
)
def test_f10_other_and_several_encodings(header: str) -> None:
    """F10: one of the two encodings, once; anything else is refused by name."""
    with pytest.raises(UnsupportedMedia, match="use gzip or deflate"):
        parse_content_encoding(header)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
def test_the_cap_counts_decoded_bytes(encoding: str) -> None:
    """A body of exactly the cap passes, one byte more does not."""
    body = b"a" * 5000
    data = body if encoding == "identity" else compress(body, encoding)
    assert decoded(data, encoding, limit=5000) == body
    with pytest.raises(PayloadTooLarge, match="larger than 4999 bytes"):
        decoded(data, encoding, limit=4999)
    with pytest.raises(PayloadTooLarge):
        decoded(data, encoding, piece=3, limit=4999)


@pytest.mark.slow
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_f10_a_bomb_ends_at_the_cap(encoding: str) -> None:
    """F10: a body that would unfold to 64 MiB never holds much more than the cap."""
    maker = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    bomb = b"".join(maker.compress(bytes(1 << 20)) for _ in range(64)) + maker.flush()
    cap = 4 << 20
    tracemalloc.start()
    try:
        with pytest.raises(PayloadTooLarge):
            decoded(bomb, encoding, limit=cap)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * cap


def test_f10_a_bomb_of_members_ends_early() -> None:
    """F10: members that carry nothing are bounded in number."""
    member = gzip.compress(b"", mtime=0)
    assert decoded(member * MAX_MEMBERS, "gzip") == b""
    with pytest.raises(InvalidInput, match=f"more than {MAX_MEMBERS} gzip members"):
        decoded(member * (MAX_MEMBERS + 1), "gzip")


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("gzip", "gzip"),
        ("deflate", "deflate"),
        ("gzip, deflate, br", "gzip"),
        ("deflate, gzip", "gzip"),
        ("GZIP", "gzip"),
        ("x-gzip", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("gzip; q=0", None),
        ("gzip;q=0, *", "deflate"),
        ("*", "gzip"),
        ("*;q=0", None),
        ("identity", None),
        ("identity, gzip;q=0.5", None),
        ("identity;q=0.1, gzip;q=0.5", "gzip"),
        ("gzip;q=nan", None),
        ("gzip;q=2", None),
        ("gzip;q=", None),
        ("gzip;level=1", "gzip"),
        ("br, zstd", None),
        ("", None),
        (None, None),
        (",;,=", None),
    ],
)
def test_the_choice_of_an_encoding(accept: str | None, expected: str | None) -> None:
    """The client's q-values decide, gzip wins a tie, and nonsense means no compression."""
    assert choose_encoding(accept, MIN_BYTES) == expected


def test_small_answers_are_not_compressed() -> None:
    """Below a kilobyte compression costs more than it saves."""
    assert choose_encoding("gzip", MIN_BYTES - 1) is None


def test_compressed_answers_read_back() -> None:
    """What is compressed is what the standard library reads, and the same bytes each time."""
    assert gzip.decompress(compress(BODY, "gzip")) == BODY
    assert zlib.decompress(compress(BODY, "deflate")) == BODY
    assert compress(BODY, "gzip") == compress(BODY, "gzip")
