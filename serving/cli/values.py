"""Reads words of the command line: each reader returns the value or refuses it as wrong usage."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar
from urllib.parse import urlsplit

import typer

from registry.errors import InvalidInput
from registry.ident import check_alias, check_model_name, parse_selector, parse_version, shown
from serving.client.errors import TokenNotAllowed, check_token

T = TypeVar("T")
# As the server takes them.
MAX_REASON_CHARS: Final = 1000
MAX_KEY_CHARS: Final = 256


def _usage(check: Callable[[str], T]) -> Callable[[str], T]:
    """Return ``check`` with its refusals as wrong usage."""

    def read(text: str) -> T:
        try:
            return check(text)
        except InvalidInput as error:
            raise typer.BadParameter(str(error)) from error

    return read


model_name = _usage(check_model_name)
version_number = _usage(parse_version)
alias_name = _usage(check_alias)
selector = _usage(lambda text: str(parse_selector(text)))


def reason_text(text: str) -> str:
    """Return why something is done, or refuse what the record of changes does not take."""
    if len(text) > MAX_REASON_CHARS:
        raise typer.BadParameter(
            f"it has {len(text)} characters, at most {MAX_REASON_CHARS} are allowed"
        )
    return text


def routing_key(text: str) -> str:
    """Return a key as a header carries it."""
    if not (1 <= len(text) <= MAX_KEY_CHARS and text.isascii() and text.isprintable()):
        raise typer.BadParameter(
            f"{shown(text)} is not allowed: use 1 to {MAX_KEY_CHARS} printable ASCII characters"
        )
    return text


def etag(text: str) -> str:
    """Return an ETag as the header carries it; the quotes may be left out."""
    inner = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    if not (inner == "*" or (inner.isascii() and inner.isdigit())):
        raise typer.BadParameter(f"{shown(text)} is no etag: use the number that --json shows")
    return inner if inner == "*" else f'"{inner}"'


def whole(low: int, high: int) -> Callable[[str], int]:
    """Return a reader of whole numbers from ``low`` to ``high``."""

    def read(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = low - 1
        if not low <= number <= high:
            raise typer.BadParameter(
                f"{shown(text)} is not allowed: use a whole number from {low} to {high}"
            )
        return number

    return read


def real(low: float, high: float) -> Callable[[str], float]:
    """Return a reader of numbers from ``low`` to ``high``."""

    def read(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = float("nan")
        if not low <= number <= high:
            raise typer.BadParameter(
                f"{shown(text)} is not allowed: use a number from {low:g} to {high:g}"
            )
        return number

    return read


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader of one of some words."""

    def read(text: str) -> str:
        if text not in words:
            raise typer.BadParameter(f"{shown(text)} is not one of {', '.join(words)}")
        return text

    return read


def server_url(text: str) -> str:
    """Return the address of a server."""
    try:
        parts = urlsplit(text)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        is_url = is_url and text.isprintable() and " " not in text
        is_url = is_url and not (parts.query or parts.fragment or parts.username)
    except ValueError:  # a port that is none, half an IPv6 address
        is_url = False
    if not is_url:
        # Not shown with a user: that is where some put a password.
        seen = shown(text) if "@" not in text else "this"
        raise typer.BadParameter(f"{seen} is no address of a server: use http://HOST:PORT")
    return text


def token_text(variable: str, environ: Mapping[str, str]) -> str:
    """Return the token of a variable, empty without one. Its text is never shown."""
    token = environ.get(variable, "")
    try:
        check_token(token, variable)
    except TokenNotAllowed as error:
        raise typer.BadParameter(str(error)) from error
    return token
