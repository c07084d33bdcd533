"""Tells a client that has only sent its last request from one that is gone.

Both look the same at first: the end of its bytes. What differs is how its kernel takes ours: one
that still reads acknowledges them, one that closed its socket resets the connection. So a moment
after the end came, the first bytes of the answer, which are the same for every answer, are sent
ahead; the rest follows when there is one. The reset is not reported on a connection that is not
read any more, so the socket is asked for its state from time to time.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

# What every status line begins with.
SENT_AHEAD: Final = b"HTTP/1.1 "
# An answer that is ready within this goes out in one piece.
PROBE_AFTER_S: Final = 0.01
FIRST_LOOK_S: Final = 0.002
LAST_LOOK_S: Final = 0.25
# linux/tcp.h: the first byte of struct tcp_info is the state; net/tcp_states.h: TCP_CLOSE.
_TCP_CLOSE: Final = 7


def has_left(transport: asyncio.Transport) -> bool:
    """Say whether the peer reset the connection."""
    sock = transport.get_extra_info("socket")
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)
    except OSError:
        return True
    return bool(state[0] == _TCP_CLOSE)
