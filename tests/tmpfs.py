"""A disk of a few megabytes, for tests that fill one."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size_bytes: int, *, files: int = 10_000) -> Iterator[Path]:
    """Mount a tmpfs of that size on ``folder``; skips the test where that is not allowed."""
    folder.mkdir(parents=True, exist_ok=True)
    options = f"size={size_bytes},nr_inodes={files},mode=0700"
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Take the last byte and the last file of a disk; return the file that holds the bytes."""
    path = folder / "someone-elses.log"
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    others = folder / "someone-elses"
    with contextlib.suppress(OSError):
        others.mkdir()
        for number in range(1 << 20):
            os.close(os.open(others / str(number), os.O_WRONLY | os.O_CREAT))
    return path
