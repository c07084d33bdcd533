"""The ``ramrack`` command: every command ends with 0 (done), 1 (failed) or 2 (wrong usage).

Only this file is read before Ctrl-C can be taken quietly: whatever is heavy comes inside ``main``.
"""

from __future__ import annotations

from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; reasons go to stderr, never a traceback.

    ``arguments``: None takes those of the process, which then ends.
    """
    try:
        if arguments is not None:
            from serving.cli.boundary import run

            return run(arguments)
        from serving.cli.boundary import run_process

        return run_process()
    except KeyboardInterrupt:
        return 1
