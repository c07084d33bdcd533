"""The options that loadtest/locustfile.py adds to those of Locust."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from loadtest.users.gate import Promise
from loadtest.users.shapes import SHAPES
from loadtest.wire.discover import parse_models

if TYPE_CHECKING:
    from locust.argument_parser import LocustArgumentParser

SHAPE_VARIABLE: Final = "LOADTEST_SHAPE"
DEFAULT_RUN_S: Final = 60.0
STOP_TIMEOUT_S: Final = 10.0
_SHAPES_HELP: Final = "; ".join(f"{name}: {words}" for name, words in SHAPES.items())


def add_options(parser: LocustArgumentParser) -> None:
    """Add our options to the command line, each with a variable of its own."""
    group = parser.add_argument_group("Ramrack")
    add = group.add_argument
    add("--models", default="", type=_models_text, env_var="LOADTEST_MODELS", metavar="a=3,b=1",
        help="models with their weights; without it all that answer, equally often")  # fmt: skip
    add("--rows", default=1, type=_rows, env_var="LOADTEST_ROWS", metavar="N",
        help="rows of each request (default 1)")  # fmt: skip
    add("--per-user", default=0.0, type=_not_negative, env_var="LOADTEST_PER_USER", metavar="N",
        help="requests a second of each user at most; 0, the default: as fast as "
             "answers come")  # fmt: skip
    add("--shape", default="", choices=["", *SHAPES], env_var=SHAPE_VARIABLE,
        help=f"how users come and go within --run-time, up to --users; {_SHAPES_HELP}")  # fmt: skip
    add("--slo-p99-ms", default="", type=_optional, env_var="LOADTEST_SLO_P99_MS", metavar="MS",
        help="end with 1 if the p99 of all requests is above it")  # fmt: skip
    add("--slo-error-rate", default="", type=_optional_share, env_var="LOADTEST_SLO_ERROR_RATE",
        metavar="SHARE", help="end with 1 if more than this share failed: 0.001 is one in "
                              "a thousand, 0 none")  # fmt: skip


def promise_of(options: argparse.Namespace) -> Promise:
    """Return what the run is held to."""
    return Promise(_number(options.slo_p99_ms), _number(options.slo_error_rate))


def chosen_shape(arguments: Sequence[str]) -> str:
    """Return the shape that a command line or the environment names, empty for none.

    Locust looks for shapes when it reads the file, before it has parsed any option.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--shape", default=os.environ.get(SHAPE_VARIABLE, ""))
    return str(parser.parse_known_args(list(arguments))[0].shape)


def _models_text(text: str) -> str:
    try:
        parse_models(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return text


def _rows(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r}: use a whole number from 1 to 1000000")
    return int(text)


def _not_negative(text: str) -> float:
    number = _number(text)
    if number is None or not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from 0")
    return number


def _optional(text: str) -> str:
    if text:
        _not_negative(text)
    return text


def _optional_share(text: str) -> str:
    if text and _not_negative(text) > 1:
        raise argparse.ArgumentTypeError(f"{text!r}: use a share from 0 to 1")
    return text


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
