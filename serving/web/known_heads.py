"""Heads of requests that came before: what was made of them, found again by their bytes.

Clients send the same head with every request. Where the bytes are the same the parser would say
the same, so it is not asked: a dictionary costs a tenth of it, and of all that is made of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from serving.web.errors import Headers
from serving.web.exchange import Prepared

HEAD_END: Final = b"\r\n\r\n"
# What is kept is bounded, for strangers may send as many heads as they like: 512 KiB at most.
KNOWN_HEADS: Final = 512
KNOWN_HEAD_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class KnownHead:
    """A head that was parsed before, of a request that took ``all_bytes`` with its body."""

    head: bytes
    head_bytes: int
    all_bytes: int
    target: bytes
    headers: Headers
    prepared: Prepared


class KnownHeads:
    """The heads that one server's connections saw at least twice."""

    def __init__(self) -> None:
        self.by_bytes: dict[bytes, KnownHead] = {}
        self._seen: set[int] = set()

    def is_repeated(self, head: bytes) -> bool:
        """Note ``head`` and say whether it was noted before.

        What comes once only, such as a head with an id of its own, is not worth more than that.
        """
        mark = hash(head)
        if mark in self._seen:
            return True
        if len(self._seen) >= KNOWN_HEADS:
            self._seen.clear()
        self._seen.add(mark)
        return False

    def learn(
        self, head: bytes, body_bytes: int, target: bytes, headers: Headers, prepared: Prepared
    ) -> None:
        """Keep a head, unless its bytes leave any doubt where it and its request end.

        ``headers``: what the parser made of it; ``body_bytes``: of the body that it found.
        """
        # One line for each header, the request line and the empty one: no line was folded, none
        # ended otherwise, nothing stood before.
        is_plain = head.count(b"\n") == len(headers) + 2 and len(head) <= KNOWN_HEAD_BYTES
        lengths = [value for name, value in headers if name == b"content-length"]
        is_sized = lengths == [b"%d" % body_bytes]
        if not is_plain or not is_sized or any(n == b"transfer-encoding" for n, _ in headers):
            return
        if len(self.by_bytes) >= KNOWN_HEADS:
            self.by_bytes.clear()
        self.by_bytes[head] = KnownHead(
            head, len(head), len(head) + body_bytes, target, headers, prepared
        )
