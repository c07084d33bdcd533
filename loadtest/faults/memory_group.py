"""A memory limit for some processes together: a cgroup of their own, of version 2 or 1."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
PROC: Final = Path("/proc")
_EMPTY_S: Final = 10.0
_LOOK_S: Final = 0.05
# Moves the shell itself, so that no process of the server is ever outside.
_JOIN: Final = 'echo $$ > "$0" && exec "$@"'


class NoMemoryGroup(Exception):
    """No cgroup with a memory limit can be made here; the text says why."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A cgroup that has a limit."""

    folder: Path

    def command(self, command: Sequence[str]) -> tuple[str, ...]:
        """Return how to start ``command`` inside."""
        return ("sh", "-c", _JOIN, str(self.folder / "cgroup.procs"), *command)

    def kills(self) -> int:
        """Return how many of its processes the kernel has ended for memory so far."""
        return oom_kills(self.folder)


def oom_kills(folder: Path) -> int:
    """Return the kills that the files of a cgroup tell of; 0 where they tell of none."""
    for name in ("memory.events", "memory.oom_control"):
        with contextlib.suppress(OSError):
            for line in (folder / name).read_text("ascii").splitlines():
                key, _, value = line.partition(" ")
                if key == "oom_kill":
                    return int(value)
    return 0


@contextmanager
def memory_group(
    limit_bytes: int, root: Path = CGROUP_ROOT, proc: Path = PROC
) -> Iterator[MemoryGroup]:
    """Make a cgroup below our own that may take so much; whatever is left in it is ended.

    Raises NoMemoryGroup where the machine has no such thing or we have no right to it.
    """
    above = _above(root, proc)
    folder = above / f"ramrack-bench-{os.getpid()}-{time.monotonic_ns()}"
    try:
        folder.mkdir()
    except OSError as error:
        raise NoMemoryGroup(f"no cgroup can be made in {above}: {error.strerror}") from None
    try:
        _limit(folder, limit_bytes)
        yield MemoryGroup(folder)
    finally:
        _remove(folder)


def _above(root: Path, proc: Path) -> Path:
    """Return the nearest cgroup, from our own upwards, below which memory can be limited."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, names, path = line.split(":", 2)
        if "memory" in names.split(","):
            base = root / "memory"
            inner = base / path.lstrip("/")
            # Inside a container the path is often the host's and not there: the root is ours then.
            return inner if inner.is_dir() else base
        if names == "":
            inner = root / path.lstrip("/")
            for folder in (inner, *inner.parents):
                if folder != root and root not in folder.parents:
                    break
                if "memory" in _words(folder / "cgroup.subtree_control"):
                    return folder
    raise NoMemoryGroup(f"no cgroup in {root} passes the control of memory on")


def _words(path: Path) -> list[str]:
    try:
        return path.read_text("ascii").split()
    except OSError:
        return []


def _limit(folder: Path, limit_bytes: int) -> None:
    for memory, swap, swap_bytes in (
        ("memory.max", "memory.swap.max", 0),
        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", limit_bytes),
    ):
        if not (folder / memory).exists():
            continue
        try:
            (folder / memory).write_text(str(limit_bytes))
        except OSError as error:
            raise NoMemoryGroup(f"{folder / memory} takes no limit: {error.strerror}") from None
        # A kernel that does not count swap has no such file.
        with contextlib.suppress(OSError):
            (folder / swap).write_text(str(swap_bytes))
        return
    raise NoMemoryGroup(f"{folder} has no limit of memory")


def _remove(folder: Path) -> None:
    """End what is left inside and take the cgroup away."""
    end = time.monotonic() + _EMPTY_S
    while True:
        for pid in _words(folder / "cgroup.procs"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            # The kernel takes what was killed apart a little later.
            if time.monotonic() > end:
                raise
            time.sleep(_LOOK_S)
        else:
            return
