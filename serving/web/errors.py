"""The one form of all errors on the wire, and request ids, for every HTTP front; no framework."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from registry.errors import OverBudget
from serving.errors import QueueFull, ScopeMissing, Unauthorized

Headers: TypeAlias = list[tuple[bytes, bytes]]
REQUEST_ID: Final = b"x-request-id"
JSON_TYPE: Final = (b"content-type", b"application/json")
# Random bytes are fetched for this many ids at once: the system call is dearer than the bytes.
_IDS_AT_ONCE: Final = 256
_ID_BYTES: Final = 16
_ID_CHARACTERS: Final = 2 * _ID_BYTES
_fresh_ids: list[str] = []
_SANE_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def request_id_of(headers: Iterable[tuple[bytes, bytes]]) -> str:
    """Return the id a client sent, if it is at most 128 visible ASCII characters; else a new one.

    Anything else could not be sent back or searched for in a log.
    """
    for name, value in headers:
        if name == REQUEST_ID and _SANE_ID.fullmatch(value):
            return value.decode("ascii")
    return new_request_id()


def new_request_id() -> str:
    """Return 32 random hex digits. Any thread, but not across a fork."""
    try:
        return _fresh_ids.pop()
    except IndexError:
        digits = os.urandom(_IDS_AT_ONCE * _ID_BYTES).hex()
        starts = range(_ID_CHARACTERS, len(digits), _ID_CHARACTERS)
        _fresh_ids.extend([digits[start : start + _ID_CHARACTERS] for start in starts])
        return digits[:_ID_CHARACTERS]


def error_body(message: str, more: Mapping[str, object] | None = None) -> bytes:
    """Return the one form of all errors, ``{"error": message}``; ASCII, so that nothing fails."""
    return json.dumps({"error": message, **(more or {})}, separators=(",", ":")).encode("ascii")


def error_facts(error: BaseException | None) -> dict[str, object]:
    """Return what stands beside the text of an error: the plan of a load that has no room."""
    return {"plan": dict(error.plan)} if isinstance(error, OverBudget) else {}


def error_headers(error: BaseException) -> Headers:
    """Return what an error says beside its text: when to come back, or which token is wanted.

    The challenges are those of RFC 6750, section 3.
    """
    if isinstance(error, QueueFull):
        return [(b"retry-after", str(error.retry_after_s).encode("ascii"))]
    if isinstance(error, Unauthorized):
        return [(b"www-authenticate", b"Bearer")]
    if isinstance(error, ScopeMissing):
        challenge = f'Bearer error="insufficient_scope", scope="{error.scope}"'
        return [(b"www-authenticate", challenge.encode("ascii"))]
    return []
