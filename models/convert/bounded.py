"""Runs a process that opens a user's file: bounded in time, and gone with all that it started.

A damaged file may make its library loop for ever, and a pickle is a program that may do so itself.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from models.errors import ConversionRefused
from registry.ident import shown

# The largest conversions take minutes; what has taken an hour is not going to end.
DEFAULT_TIMEOUT_S: Final = 3600.0
# What a library says while it converts may be endless; the end of it is what says why it died.
_KEPT_BYTES: Final = 64 * 1024
_LAST_WORDS_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended, and the end of what it said. ``code``: negative for a signal."""

    code: int
    output: str
    errors: str


class TookTooLong(Exception):
    """The process was ended because its time was up."""


def run_bounded(
    command: Sequence[str],
    timeout_s: float,
    *,
    environment: Mapping[str, str] | None = None,
    folder: str | Path | None = None,
) -> Ended:
    """Run ``command`` to its end in ``folder``; whatever it started is gone on return.

    Raises TookTooLong after ``timeout_s`` seconds, and OSError where it cannot be started.
    """
    # A group of its own can be ended as a whole; the child itself asks to die with this process.
    process = subprocess.Popen(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    said = [bytearray(), bytearray()]
    pipes = (process.stdout, process.stderr)
    readers = [
        threading.Thread(target=_read, args=pair, name="said", daemon=True)
        for pair in zip(pipes, said, strict=True)
    ]
    try:
        for reader in readers:
            reader.start()
        if not _ends_within(process.pid, timeout_s):
            raise TookTooLong
    finally:
        # Before it is waited for: until then its number can be nobody else's.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for reader in readers:
            reader.join(_LAST_WORDS_S)
    return Ended(process.returncode, *(bytes(text).decode(errors="replace") for text in said))


def _ends_within(pid: int, timeout_s: float) -> bool:
    descriptor = os.pidfd_open(pid)
    try:
        return bool(select.select([descriptor], [], [], timeout_s)[0])
    finally:
        os.close(descriptor)


def _read(pipe: IO[bytes] | None, said: bytearray) -> None:
    if pipe is None:
        return
    with pipe:
        while chunk := os.read(pipe.fileno(), _KEPT_BYTES):
            said += chunk
            del said[:-_KEPT_BYTES]


def too_slow(path: Path, timeout_s: float) -> ConversionRefused:
    """Return the refusal of a file whose conversion was ended because its time was up."""
    return ConversionRefused(
        f"{shown(path.name)}: the conversion took longer than {timeout_s:g} s and was ended: a "
        "damaged file can make its library go on for ever. If the file is whole, give it more "
        f"time with --convert-timeout SECONDS, such as {4 * timeout_s:.6g}"
    )
