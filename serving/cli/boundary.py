"""The boundary of the process: what a command ends with, whatever happens inside it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from typing import TextIO

import typer

from models.errors import ModelsError
from registry.errors import RegistryError
from serving.cli.app import command
from serving.cli.interrupt import INTERRUPT, Stopped
from serving.cli.room import refusal
from serving.client.errors import ClientError
from serving.errors import ServingError

# Errors whose text was written for the person at the keyboard.
_PLANNED = (RegistryError, ModelsError, ServingError)
_DONE, _FAILED, _USAGE = 0, 1, 2
_NEGATIVE = re.compile(r"No such option: (-\d\S*)")


def run(arguments: Sequence[str] | None) -> int:
    """Run one command and return its exit code; without ``arguments``, that of the process."""
    code = _run(arguments)
    if arguments is None and INTERRUPT.is_pressed:
        # Uploads and libraries may have threads that the usual end would wait for.
        _flush(sys.stdout)
        _flush(sys.stderr)
        os._exit(code)
    return code


def _run(arguments: Sequence[str] | None) -> int:
    try:
        result = command().main(
            args=None if arguments is None else list(arguments),
            prog_name="ramrack",
            standalone_mode=False,
        )
        # A full disk under our output is found here rather than at the interpreter's end.
        sys.stdout.flush()
    except typer.TyperException as error:
        return _usage_error(error)
    except (KeyboardInterrupt, typer.Abort):
        return _FAILED
    except Stopped as error:
        return _failed(str(error))
    except BrokenPipeError:
        # Whoever read our output has enough; a second error at interpreter exit helps nobody.
        _drop_output()
        return _DONE
    except ClientError as error:
        return _refused(error)
    except _PLANNED as error:
        return _failed(str(error))
    except OSError as error:
        _flush(sys.stdout)
        return _failed(f"{error.filename}: {error.strerror}" if error.filename else str(error))
    except MemoryError:
        return _failed("not enough memory for this command")
    except Exception as error:  # noqa: BLE001 - the boundary of the process
        if INTERRUPT.is_pressed:
            return _FAILED  # a library made an error of its own out of Ctrl-C
        return _failed(f"unexpected {type(error).__name__}: {error} (at {_place_of(error)})")
    if not isinstance(result, int):
        return _DONE
    return result if result in (_DONE, _FAILED, _USAGE) else _FAILED


def _failed(reason: str) -> int:
    print(f"ramrack: {reason}", file=sys.stderr)
    return _FAILED


def _refused(error: ClientError) -> int:
    """Say why the server did not do it; of what did not fit also how to make room."""
    code = _failed(str(error))
    if isinstance(plan := error.document.get("plan"), dict) and not plan.get("fits", True):
        print("\n".join(refusal(plan)), file=sys.stderr)
    return code


def _usage_error(error: typer.TyperException) -> int:
    context = getattr(error, "ctx", None)
    if context is not None:
        print(context.get_usage(), file=sys.stderr)
        print(f"Try '{context.command_path} --help' for help.", file=sys.stderr)
    message = error.format_message()
    if negative := _NEGATIVE.match(message):
        message = f"{negative[1]} is no option, and no argument is negative: versions start at 1"
    print(f"ramrack: {message}", file=sys.stderr)
    return _USAGE if error.exit_code == _USAGE else _FAILED


def _flush(stream: TextIO) -> None:
    """Write out what is left, or give it up."""
    try:
        stream.flush()
    except (OSError, ValueError):
        _drop_output()


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _place_of(error: BaseException) -> str:
    """Return module and line where an unplanned error arose, for a report of it."""
    place = "an unknown place"
    traceback = error.__traceback__
    while traceback is not None:
        module = traceback.tb_frame.f_globals.get("__name__", "?")
        place = f"{module}:{traceback.tb_lineno}"
        traceback = traceback.tb_next
    return place
