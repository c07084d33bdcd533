"""Random changes of seeds: what a fuzzer does without knowing what was reached."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Final

_PIECES: Final = (
    b"", b"\0", b"\xff", b"\r\n", b"\n", b"[", b"]", b"{", b"}", b'"', b"\\u0000", b"\\ud800",
    b"null", b"true", b"NaN", b"1e400", b"-1", b"0", b"9223372036854775808",
    b"18446744073709551616", b"1e308", b"-0", b"0.1", b"[[[[[[[[[[", b'"shape":[', b'"data":[',
    b'"binary_data_size":', b"\x80", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"%2f", b"%00", b"..",
    b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"0\r\n\r\n", b"\x1f\x8b\x08",
)  # fmt: skip
_MOST_BYTES: Final = 4096


def mutations(seeds: Sequence[bytes], seed: int, count: int) -> Iterator[bytes]:
    """Yield the seeds, then ``count`` changed ones; the same numbers give the same bytes."""
    dice = random.Random(seed)
    yield from seeds
    for _ in range(count):
        data = bytearray(dice.choice(seeds))
        for _ in range(dice.choice((1, 1, 2, 3, 6))):
            at = dice.randrange(len(data) + 1)
            end = min(len(data), at + dice.choice((0, 1, 1, 2, 4, 16, 64)))
            kind = dice.randrange(5)
            if kind == 0 and at < len(data):
                data[at] ^= 1 << dice.randrange(8)
            elif kind == 1:
                data[at:end] = dice.choice(_PIECES)
            elif kind == 2:
                data[at:at] = data[at:end] * dice.choice((1, 2, 50))
            elif kind == 3:
                other = dice.choice(seeds)
                start = dice.randrange(len(other) + 1)
                data[at:end] = other[start : start + dice.choice((1, 8, 64, 512))]
            else:
                del data[at:end]
        yield bytes(data[:_MOST_BYTES])
