"""Room on the disk that is kept for the way back: blocks that are given up when nothing else helps.

Route, alias, unload, rm and gc write a few kilobytes each. Where something else filled the disk,
one block goes for them, and comes back as soon as there is room. A block is a file of its own, so
that it gives back a file's entry as well as its bytes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from registry.errors import StoreFull
from registry.files import Files

BLOCK_BYTES: Final = 512 << 10
BLOCKS: Final = 16
T = TypeVar("T")


class Reserve:
    """The blocks of one store, in a folder of their own. Thread-safe.

    Nothing here is synced: a block that a power cut takes is made again at the next ``fill``.
    """

    def __init__(
        self, folder: Path, files: Files, blocks: int = BLOCKS, block_bytes: int = BLOCK_BYTES
    ) -> None:
        self._paths = [folder / f"{number:02}" for number in range(blocks)]
        self._folder = folder
        self._files = files
        self._block_bytes = block_bytes
        self._lock = threading.Lock()
        self._held = {path for path in self._paths if self._is_whole(path)}

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept now."""
        return len(self._held) * self._block_bytes

    def fill(self) -> None:
        """Make the blocks that are missing, as far as the disk has room."""
        with self._lock, suppress(OSError):
            for path in self._paths:
                if path not in self._held:
                    self._files.mkdir(self._folder)
                    self._files.allocate(path, self._block_bytes)
                    self._held.add(path)

    def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; where the disk is full give a block up and try again.

        ``work`` must leave things as they were when it raises StoreFull. Raises what it raises,
        and StoreFull once there is no block left.
        """
        has_lent = False
        try:
            while True:
                try:
                    return work()
                except StoreFull:
                    if not self._lend():
                        raise
                    has_lent = True
        finally:
            if has_lent:
                self.fill()

    def _lend(self) -> bool:
        with self._lock:
            while self._held:
                path = self._held.pop()
                with suppress(OSError):
                    self._files.give_up(path)
                    return True
            return False

    def _is_whole(self, path: Path) -> bool:
        try:
            return path.stat().st_size == self._block_bytes
        except OSError:
            return False
