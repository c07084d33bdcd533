"""A disk that can die at any step and forget what was not synced, for tests of the store."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from registry.files import Files

FOLDER = None


def scratch_parent() -> str | None:
    """Return a folder in memory, where there is one: a modelled disk needs no real one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class UnsyncedFiles(Files):
    """Real files without the wait for the disk, for tests that cut no power."""

    def fsync(self, descriptor: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Keep thousands of small stores small."""
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk(UnsyncedFiles):
    """Has no room for writes after so many more; -1: has room."""

    def __init__(self, writes_left: int = 0) -> None:
        self.writes_left = writes_left

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        if self.writes_left == 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.writes_left -= self.writes_left > 0
        super().write(descriptor, data)


class PowerCut(BaseException):
    """The machine is off: no code of the store runs on, its clean-up included."""


@dataclass
class Content:
    """One file's bytes as programs see them, as the disk has them, and where they differ."""

    seen: bytearray = field(default_factory=bytearray)
    synced: bytes = b""
    dirty: list[tuple[int, int]] = field(default_factory=list)
    is_size_dirty: bool = False

    def sync(self) -> None:
        disk = bytearray(self.synced[: len(self.seen)].ljust(len(self.seen), b"\0"))
        for start, end in self.dirty:
            disk[start:end] = self.seen[start:end]
        self.synced = bytes(disk)
        self.forget_dirt()

    def forget_dirt(self) -> None:
        """What a failed sync does: the pages count as clean, and later syncs pass them over."""
        self.dirty = []
        self.is_size_dirty = False

    def after_cut(self, choice: random.Random | None) -> bytes:
        """Return what is left: with no choice only what was synced, else any torn mix."""
        if choice is None or not (self.dirty or self.is_size_dirty):
            return self.synced
        low, high = sorted((len(self.synced), len(self.seen)))
        size = choice.choice([low, choice.randint(low, high), high])
        disk = bytearray(self.synced[:size].ljust(size, b"\0"))
        for start, end in self.dirty:
            kept = choice.choice([start, choice.randint(start, max(start, end)), end])
            disk[start : min(kept, size)] = self.seen[start : min(kept, size)]
        return bytes(disk)


@dataclass(frozen=True, eq=False)
class NameChange:
    """A pending change of names: ``removed`` goes and ``added`` comes, in one step."""

    removed: Path | None
    added: Path | None
    content: Content | None

    def touches(self, folder: Path) -> bool:
        return any(path is not None and path.parent == folder for path in self.paths())

    def paths(self) -> tuple[Path | None, Path | None]:
        return self.removed, self.added


class ModelDisk(Files):
    """Real files, and beside them a model of what a power cut would leave of them.

    ``die_at``: the number of the step before which the power goes. ``fail_at`` and ``error``: the
    step that raises instead of being done. Steps count from 1. ``room``: bytes that may still be
    written, None for as many as one likes; what is set aside with ``allocate`` is no step, for
    nothing depends on it. ``sets_aside``: False for a disk that never has room for that.
    """

    def __init__(
        self,
        root: Path,
        *,
        die_at: int | None = None,
        fail_at: int | None = None,
        error: int = 0,
    ) -> None:
        self.steps = 0
        self.log: list[str] = []
        self.free = 1 << 40
        self.room: int | None = None
        self.sets_aside = True
        self._allocated: dict[Path, int] = {}
        self._root = root
        self._die_at = die_at
        self._fail = range(fail_at, fail_at + 1) if fail_at is not None else range(0)
        self._error = error
        self._contents: dict[Path, Content] = {}
        self._open: dict[int, Content] = {}
        self._durable: dict[Path, Content | None] = {}
        self._pending: list[NameChange] = []
        if root.exists():
            for path in root.rglob("*"):
                self._adopt(path)

    def die_in(self, steps: int) -> None:
        """Let the power go before the ``steps``-th step from now."""
        self._die_at = self.steps + steps

    def stay_on(self) -> None:
        """Let the power not go after all."""
        self._die_at = None

    def fail_in(self, steps: int, error: int, count: int = 1) -> None:
        """Let the ``steps``-th step from now fail, and all of ``count`` from there."""
        self._fail = range(self.steps + steps, self.steps + steps + count)
        self._error = error

    @property
    def is_off(self) -> bool:
        return self._die_at is not None and self.steps >= self._die_at

    def create(self, path: Path) -> int:
        self._step("create", path)
        descriptor = super().create(path)
        self._contents[path] = self._open[descriptor] = Content()
        self._pending.append(NameChange(None, path, self._contents[path]))
        return descriptor

    def open_append(self, path: Path) -> int:
        self._step("open_append", path)
        is_new = not path.exists()
        descriptor = super().open_append(path)
        if is_new:
            self._contents[path] = Content()
            self._pending.append(NameChange(None, path, self._contents[path]))
        self._open[descriptor] = self._contents[path]
        return descriptor

    def write(self, descriptor: int, data: bytes | bytearray | memoryview) -> None:
        content = self._open[descriptor]
        start = len(content.seen)

        def half() -> None:
            # A write that fails may have written a part.
            part = bytes(data)[: len(data) // 2]
            Files.write(self, descriptor, part)
            content.seen += part
            content.dirty.append((start, start + len(part)))
            content.is_size_dirty = True

        if self.room is not None and len(data) > self.room:
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._give(-len(data))
        self._step("write", None, half)
        super().write(descriptor, data)
        content.seen += bytes(data)
        content.dirty.append((start, len(content.seen)))
        content.is_size_dirty = True

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        self._step("truncate", None)
        super().truncate(descriptor, size_bytes)
        content = self._open[descriptor]
        self._give(len(content.seen) - size_bytes)
        del content.seen[size_bytes:]
        content.dirty = [(s, min(e, size_bytes)) for s, e in content.dirty if s < size_bytes]
        content.is_size_dirty = True

    def make_read_only(self, descriptor: int) -> None:
        self._step("make_read_only", None)
        super().make_read_only(descriptor)

    def fsync(self, descriptor: int) -> None:
        content = self._open[descriptor]
        self._step("fsync", None, content.forget_dirt)
        content.sync()

    def close(self, descriptor: int) -> None:
        def close() -> None:
            Files.close(self, descriptor)
            del self._open[descriptor]

        self._step("close", None, close)
        close()

    def rename(self, source: Path, target: Path) -> None:
        self._step("rename", target)
        super().rename(source, target)
        self._give(len(self._contents[target].seen) if target in self._contents else 0)
        content = self._contents[target] = self._contents.pop(source)
        self._pending.append(NameChange(source, target, content))

    def unlink(self, path: Path) -> None:
        self._step("unlink", path)
        super().unlink(path)
        gone = self._contents.pop(path, None)
        self._give(len(gone.seen) if gone is not None else 0)
        self._pending.append(NameChange(path, None, None))

    def mkdir(self, path: Path) -> None:
        self._step("mkdir", path)
        is_new = not path.exists()
        super().mkdir(path)
        if is_new:
            self._pending.append(NameChange(None, path, FOLDER))

    def rmdir(self, path: Path) -> None:
        self._step("rmdir", path)
        super().rmdir(path)
        self._pending.append(NameChange(path, None, FOLDER))

    def fsync_dir(self, path: Path) -> None:
        changes = [change for change in self._pending if change.touches(path)]

        def lose() -> None:
            self._pending = [change for change in self._pending if change not in changes]

        self._step("fsync_dir", path, lose)
        lose()
        for change in changes:
            self._apply(change)

    def allocate(self, path: Path, size_bytes: int) -> None:
        if not self.sets_aside or (self.room is not None and size_bytes > self.room):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._give(-size_bytes)
        self._allocated[path] = size_bytes

    def give_up(self, path: Path) -> None:
        self._give(self._allocated.pop(path))

    def _give(self, size_bytes: int) -> None:
        if self.room is not None:
            self.room += size_bytes

    def free_bytes(self, path: Path) -> int:
        return self.free

    def cut(self, target: Path, choice: random.Random | None) -> None:
        """Write to ``target`` what the disk holds after the power went.

        With no ``choice`` all that was not synced is lost; else any part of it, in any order.
        """
        names = dict(self._durable)
        pending = [c for c in self._pending if choice is not None and choice.random() < 0.5]
        for change in pending:
            self._apply(change, names)
        target.mkdir(parents=True)
        for path in sorted(names):
            place = target / path.relative_to(self._root)
            content = names[path]
            if not place.parent.is_dir():
                continue
            if content is FOLDER:
                place.mkdir()
            else:
                place.write_bytes(content.after_cut(choice))

    def damage(self, path: Path, data: bytes) -> None:
        """Change a file behind the store's back, for good."""
        path.chmod(0o644)
        path.write_bytes(data)
        content = self._contents[path]
        content.seen[:], content.synced = data, data

    def release(self) -> None:
        """Close what a dead store left open; what was not synced stays so."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
        self._die_at = None

    def _apply(self, change: NameChange, names: dict[Path, Content | None] | None = None) -> None:
        names = self._durable if names is None else names
        if change.removed is not None:
            names.pop(change.removed, None)
        if change.added is not None:
            names[change.added] = change.content

    def _adopt(self, path: Path) -> None:
        if path.is_dir():
            self._durable[path] = FOLDER
        else:
            data = path.read_bytes()
            content = Content(bytearray(data), data)
            self._contents[path] = self._durable[path] = content

    def _step(
        self, name: str, path: Path | None, harm: Callable[[], object] = lambda: None
    ) -> None:
        if self.is_off:
            raise PowerCut
        self.steps += 1
        self.log.append(f"{name} {path.relative_to(self._root) if path else ''}".strip())
        if self.is_off:
            raise PowerCut
        if self.steps in self._fail:
            harm()
            raise OSError(self._error, os.strerror(self._error))
