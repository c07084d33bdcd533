"""What a process gives back of its heap."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Freeing a mapped piece raises the threshold below which malloc keeps the end of an arena.
_SCRIPT = """
import ctypes, sys, threading
from models.memory import anonymous_bytes, trim, trim_end_of_arena

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
libc.free.argtypes = (ctypes.c_void_p,)
MIB = 1 << 20
libc.free(libc.malloc(31 * MIB))

def fill_and_free():
    before = anonymous_bytes()
    pieces = [libc.malloc(MIB) for _ in range(40)]
    for piece in pieces:
        ctypes.memset(piece, 1, MIB)
    for piece in reversed(pieces):
        libc.free(piece)
    kept = anonymous_bytes() - before
    trim()
    kept_by_trim = anonymous_bytes() - before
    trim_end_of_arena()
    print(kept // MIB, kept_by_trim // MIB, (anonymous_bytes() - before) // MIB)

thread = threading.Thread(target=fill_and_free)
thread.start()
thread.join()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_end_of_a_threads_arena_is_given_back() -> None:
    """malloc_trim keeps tens of MiB there, where the last session of a thread lay."""
    found = subprocess.run(
        [sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60,
        env=os.environ | {"MALLOC_ARENA_MAX": "2"},
    )  # fmt: skip
    kept, kept_by_trim, left = map(int, found.stdout.split())
    assert kept >= kept_by_trim > 20
    assert left <= 1
