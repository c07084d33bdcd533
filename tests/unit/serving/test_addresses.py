"""The ends of a connection, in each form that an event loop gives them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from serving.web.addresses import local_address, remote_address


class Named(asyncio.BaseTransport):
    def __init__(self, name: Any) -> None:
        self._name = name

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._name if name in ("sockname", "peername") else default


@pytest.mark.parametrize(
    ("found", "local", "remote"),
    [
        (("127.0.0.1", 80), ("127.0.0.1", 80), ("127.0.0.1", 80)),
        (("::1", 80, 0, 0), ("::1", 80), ("::1", 80)),
        ("/run/ramrack.sock", ("/run/ramrack.sock", None), None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_an_end_is_host_and_port(found: Any, local: Any, remote: Any) -> None:
    """Of IPv6 the first two parts; a Unix socket has a path or nothing."""
    assert local_address(Named(found)) == local
    assert remote_address(Named(found)) == remote
