"""When a request's time is over: what its head, its body and the version say of it."""

from __future__ import annotations

import re
from typing import Final

from registry.errors import InvalidInput
from registry.ident import shown

MAX_TIMEOUT_MS: Final = 3_600_000
NS_PER_MS: Final = 1_000_000
_NUMBER = re.compile("[0-9]{1,18}")


def timeout_ns(header_ms: str | None, parameter_us: int | None, default_ns: int) -> int:
    """Return the shorter of what header and parameter ask for, or the default.

    Raises InvalidInput for a header that is no number of milliseconds in range.
    """
    if header_ms is None and not parameter_us:
        return default_ns
    asked = []
    if header_ms is not None:
        if not _NUMBER.fullmatch(header_ms) or not 1 <= int(header_ms) <= MAX_TIMEOUT_MS:
            raise InvalidInput(
                f"header x-request-timeout-ms: {shown(header_ms)} is not allowed: "
                f"use 1 to {MAX_TIMEOUT_MS}"
            )
        asked.append(int(header_ms) * NS_PER_MS)
    if parameter_us:
        asked.append(min(parameter_us, MAX_TIMEOUT_MS * 1000) * 1000)
    return min(asked)


def limit_text(limit_ns: int, header_ms: str | None, parameter_us: int | None) -> str:
    """Say which deadline passed and where it came from, with the arguments of ``timeout_ns``."""
    if header_ms is not None and limit_ns == int(header_ms) * NS_PER_MS:
        source = "header x-request-timeout-ms"
    elif parameter_us:
        source = "parameter timeout"
    else:
        source = "setting timeout_ms of the model or the server"
    return f"the deadline was {limit_ns / NS_PER_MS:.12g} ms ({source})"


def json_length(header: str | None) -> int | None:
    """Return the bytes of the JSON part that a head names, None for a body that is all JSON."""
    return None if header is None else length_of(header)


def length_of(header: str) -> int:
    """Return the bytes of the JSON part that a head names."""
    if not _NUMBER.fullmatch(header):
        raise InvalidInput(
            f"header Inference-Header-Content-Length: {shown(header)} is not allowed: "
            "use the number of bytes of the JSON part"
        )
    return int(header)
