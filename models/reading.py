"""Reading a large file without keeping others from their core."""

from __future__ import annotations

from pathlib import Path
from typing import Final

PIECE_BYTES: Final = 256 << 10


def read_file(path: Path) -> bytearray:
    """Return what a file holds, read in pieces; raises OSError.

    In one call the kernel copies tens of megabytes before it looks whether somebody else should
    run: up to 50 ms in which nothing else gets this core, whatever the priorities, on kernels that
    are not built to interrupt themselves (PREEMPT_NONE and PREEMPT_VOLUNTARY, as servers have).
    """
    with path.open("rb", buffering=0) as file:
        data = bytearray(path.stat().st_size)
        done = 0
        with memoryview(data) as view:
            while count := file.readinto(view[done : done + PIECE_BYTES]):
                done += count
    del data[done:]
    return data
