"""The ``ramrack`` command: every command ends with 0 (done), 1 (failed) or 2 (wrong usage)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from models.errors import ModelsError
from registry.errors import RegistryError
from serving.cli.app import command
from serving.client.errors import ClientError
from serving.errors import ServingError

# Errors whose text was written for the person at the keyboard.
_PLANNED = (ClientError, RegistryError, ModelsError, ServingError)
_DONE, _FAILED, _USAGE = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; reasons go to stderr, never a traceback."""
    try:
        result = command().main(
            args=None if arguments is None else list(arguments),
            prog_name="ramrack",
            standalone_mode=False,
        )
    except typer.TyperException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return _FAILED
    except BrokenPipeError:
        # Whoever read our output has enough; a second error at interpreter exit helps nobody.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _DONE
    except _PLANNED as error:
        return _failed(str(error))
    except OSError as error:
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        return _failed("not enough memory for this command")
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        return _failed(f"unexpected {type(error).__name__}: {error} (at {_place_of(error)})")
    if not isinstance(result, int):
        return _DONE
    return result if result in (_DONE, _FAILED, _USAGE) else _FAILED


def _failed(reason: str) -> int:
    print(f"ramrack: {reason}", file=sys.stderr)
    return _FAILED


def _usage_error(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
        print(f"Try '{context.command_path} --help' for help.", file=sys.stderr)
    print(f"ramrack: {error.format_message()}", file=sys.stderr)
    return _USAGE if error.exit_code == _USAGE else _FAILED


def _place_of(error: BaseException) -> str:
    """Return module and line where an unplanned error arose, for a report of it."""
    place = "an unknown place"
    traceback = error.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "?")
        place = f"{module}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
