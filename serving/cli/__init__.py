"""The ``ramrack`` command: every command ends with 0 (done), 1 (failed) or 2 (wrong usage).

Only this file is read before Ctrl-C can be taken quietly: every import comes inside ``main``.
"""

from __future__ import annotations


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code; reasons go to stderr, never a traceback.

    ``arguments``: None takes those of the process, which then ends.
    """
    try:
        from serving.cli.interrupt import INTERRUPT

        with INTERRUPT.watch(is_last=arguments is None):
            from serving.cli.boundary import run

            INTERRUPT.check()
            return run(arguments)
    except KeyboardInterrupt:
        return 1
