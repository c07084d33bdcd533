"""The real server on a disk before whose n-th step it dies; see ``CrashingFiles``."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from registry.files import Files
from registry.store import Store
from serving import bootstrap
from serving.__main__ import main

# A file: while it is there its number counts down, and at 0 the process kills itself.
TRIGGER = Path(os.environ["CRASH_TRIGGER"])
# What a killed process leaves behind changes at these only; what a power cut leaves, which the
# syncs decide, is the matter of the modelled disk.
STEPS = ("create", "write", "truncate", "make_read_only", "rename", "unlink", "mkdir", "rmdir")


class CrashingFiles(Files):
    """Real files. Once the trigger says N, the process ends by SIGKILL before the N-th step."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._left = 0

    def step(self) -> None:
        """Count one step, or die before it."""
        with self._lock:
            if not self._left:
                if not TRIGGER.exists():
                    return
                self._left = int(TRIGGER.read_text())
            self._left -= 1
            if not self._left:
                os.kill(os.getpid(), signal.SIGKILL)


def _counted(name: str) -> Any:
    plain = getattr(Files, name)

    def step(files: CrashingFiles, *arguments: Any) -> Any:
        files.step()
        return plain(files, *arguments)

    return step


for _name in STEPS:
    setattr(CrashingFiles, _name, _counted(_name))


class CrashingStore(Store):
    """A store on such a disk."""

    @classmethod
    def open(cls, root: Path, **options: Any) -> Store:
        return super().open(root, files=CrashingFiles(), **options)


if __name__ == "__main__":
    bootstrap.Store = CrashingStore  # type: ignore[misc]
    sys.exit(main())
