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
from enum import Enum, auto
from typing import Final

# What every status line begins with.
SENT_AHEAD: Final = b"HTTP/1.1 "
# An answer that is ready within this goes out in one piece.
PROBE_AFTER_S: Final = 0.01
FIRST_LOOK_S: Final = 0.002
# While reading is paused nothing tells of the end; then it is looked for this often.
LOOK_S: Final = 0.25
# linux/tcp.h: the first byte of struct tcp_info is the state, named in net/tcp_states.h.
_TCP_CLOSE: Final = 7
_TCP_CLOSE_WAIT: Final = 8


class Peer(Enum):
    """What is known of the other side."""

    SENDS = auto()
    ENDED = auto()
    GONE = auto()


def peer_of(transport: asyncio.Transport) -> Peer:
    """Say whether the peer may still send, has ended its side, or reset the connection."""
    sock = transport.get_extra_info("socket")
    try:
        state = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]
    except OSError:
        return Peer.GONE
    if state == _TCP_CLOSE:
        return Peer.GONE
    return Peer.ENDED if state == _TCP_CLOSE_WAIT else Peer.SENDS
