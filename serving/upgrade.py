"""How a server goes on as another release in the same process: by which command, if it works."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from serving.errors import UpgradeRefused
from serving.workers.worker_process import worker_environment

# What a start needs first of all; a release that lacks a library fails here, and not after the
# server that serves has gone.
_TRIAL: Final = "import serving.bootstrap, serving.workers.worker"
_TRIAL_TIMEOUT_S: Final = 120.0


def restart_command(orig_argv: Sequence[str] = tuple(sys.orig_argv)) -> list[str]:
    """Return the command that this server was started with, its program as it is found now.

    A script names its interpreter itself, so that a link to it may lead to another release.
    """
    if len(orig_argv) > 1 and _is_script(Path(orig_argv[1])):
        return [str(Path(orig_argv[1]).absolute()), *orig_argv[2:]]
    return [sys.executable, *orig_argv[1:]]


def try_release() -> None:
    """Raise UpgradeRefused where what is installed now cannot even be imported. Blocks."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TRIAL],
            env=worker_environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UpgradeRefused(f"the new release cannot be tried: {error}") from error
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise UpgradeRefused(f"the new release cannot start: {why}")


def _is_script(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return os.access(path, os.X_OK) and file.read(2) == b"#!"
    except OSError:
        return False
