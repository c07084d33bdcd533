"""``python -m serving``: run the server with the settings of environment and ``RAMRACK_CONFIG``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from registry.errors import InvalidInput
from serving.bootstrap import run
from serving.settings import load_settings
from serving.workers.worker_process import WORKER_COMMAND


def main(worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Run until a signal; return the exit code."""
    if sys.argv[1:]:
        text = "python -m serving takes no arguments: use `ramrack serve --help`"
        print(f"ramrack: {text}", file=sys.stderr)  # noqa: T201 - before there are logs
        return 2
    config = os.environ.get("RAMRACK_CONFIG")
    try:
        settings = load_settings(Path(config) if config else None, os.environ, {})
    except InvalidInput as error:
        print(f"ramrack: {error}", file=sys.stderr)  # noqa: T201 - before there are logs
        return 1
    return run(settings, worker_command)


if __name__ == "__main__":
    sys.exit(main())
