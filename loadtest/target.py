"""What is sent, and where: one POST as the bytes that go on the wire, made once for a whole run."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+:[^\r\n]*")


@dataclass(frozen=True, slots=True)
class Target:
    """An address and the request for it."""

    address: tuple[str, int]
    request: bytes

    @classmethod
    def of(cls, url: str, body: bytes, headers: Sequence[str] = ()) -> Target:
        """Return the target of ``url``; each header is ``Name: value``.

        Raises ValueError for what is no plain http:// address or no header, OSError where the
        host has no address.
        """
        parts = urlsplit(url)
        if parts.scheme != "http" or parts.hostname is None:
            raise ValueError(f"{url!r}: only http:// addresses are measured")
        for header in headers:
            if not _HEADER.fullmatch(header):
                raise ValueError(f"{header!r}: write a header as 'Name: value'")
        port = parts.port or 80
        # Looked up once: a name server's speed is not what is measured.
        host = str(socket.getaddrinfo(parts.hostname, port, socket.AF_INET)[0][4][0])
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"POST {path} HTTP/1.1", f"Host: {parts.hostname}:{port}", *headers]
        if not any(header.lower().startswith("content-type:") for header in headers):
            lines.append("Content-Type: application/json")
        lines.append(f"Content-Length: {len(body)}")
        return cls((host, port), "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


def token_headers(environ: Mapping[str, str]) -> list[str]:
    """Return the header for the token of RAMRACK_TOKEN, which no command line may carry."""
    token = environ.get("RAMRACK_TOKEN", "")
    return [f"Authorization: Bearer {token}"] if token else []
