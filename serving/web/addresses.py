"""The two ends of a connection, as the event loop took them down when it was made."""

from __future__ import annotations

import asyncio
from typing import Any, TypeAlias

# Host and port; of a Unix socket the path alone.
Address: TypeAlias = tuple[str, int | None]


def local_address(transport: asyncio.BaseTransport) -> Address | None:
    """Return the server's end; None where it has no name."""
    return _address(transport.get_extra_info("sockname"))


def remote_address(transport: asyncio.BaseTransport) -> tuple[str, int] | None:
    """Return the client's end, also when it is gone; None where it has no name.

    Asking the socket instead would make an object and two system calls for each connection.
    """
    address = _address(transport.get_extra_info("peername"))
    return None if address is None or address[1] is None else (address[0], address[1])


def _address(found: Any) -> Address | None:
    if isinstance(found, (tuple, list)):
        # IPv6 has two more parts.
        return str(found[0]), int(found[1])
    return (found, None) if isinstance(found, str) and found else None
