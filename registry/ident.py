"""Names, version numbers and digests: what is allowed, checked in one place."""

from __future__ import annotations

import re
from typing import Final

from registry.errors import InvalidInput

MODEL_CHARS: Final = 64
MODEL_PATTERN: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ALIAS_PATTERN: Final = "[a-z][a-z0-9_-]{0,31}"
LATEST: Final = "latest"
RESERVED_MODELS: Final = frozenset({"stats"})
# Past this a version would not survive a JSON reader that keeps numbers as doubles.
MAX_VERSION: Final = 2**53 - 1

_MODEL = re.compile(MODEL_PATTERN)
_ALIAS = re.compile(ALIAS_PATTERN)
_NUMBER = re.compile("[1-9][0-9]*")
_VERSION = re.compile("[1-9][0-9]{0,15}")
_DIGEST = re.compile("sha256:[0-9a-f]{64}")


def shown(value: object) -> str:
    """Return ``value`` as it may stand in an error message: quoted, at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:76] + "...'"


def check_model_name(value: object) -> str:
    """Return a valid model name or raise InvalidInput."""
    if not isinstance(value, str) or not _MODEL.fullmatch(value):
        raise InvalidInput(f"model name {shown(value)} is not allowed: use {MODEL_PATTERN}")
    if value in RESERVED_MODELS:
        raise InvalidInput(f"model name {shown(value)} is reserved")
    return value


def check_alias(value: object) -> str:
    """Return an alias that a user may set, or raise InvalidInput; ``latest`` is the server's."""
    if not isinstance(value, str) or not _ALIAS.fullmatch(value):
        raise InvalidInput(
            f"alias {shown(value)} is not allowed: use {ALIAS_PATTERN}, a lower-case letter first, "
            "so that no alias looks like a version"
        )
    if value == LATEST:
        raise InvalidInput("alias 'latest' is reserved: it is always the highest READY version")
    return value


def check_version(value: object) -> int:
    """Return a version given as a JSON number, or raise InvalidInput (``true`` and 1.0 are not)."""
    if type(value) is not int or not 1 <= value <= MAX_VERSION:
        raise InvalidInput(
            f"version {shown(value)} is not allowed: use an integer from 1 to {MAX_VERSION}"
        )
    return value


def parse_version(text: str) -> int:
    """Return a version written in a path; ``010`` is refused, for it is not another name of 10."""
    if not _VERSION.fullmatch(text):
        if _NUMBER.fullmatch(text):
            raise InvalidInput(f"version {shown(text)} is too large: at most {MAX_VERSION}")
        raise InvalidInput(
            f"version {shown(text)} is not allowed: use a positive integer without leading zeros"
        )
    return check_version(int(text))


def parse_selector(text: str) -> int | str:
    """Return a version number or an alias (``latest`` included) from a path segment."""
    if text[:1].isdigit():
        return parse_version(text)
    if not _ALIAS.fullmatch(text):
        raise InvalidInput(
            f"version or alias {shown(text)} is not allowed: "
            f"use a positive integer or {ALIAS_PATTERN}"
        )
    return text


def check_digest(value: object) -> str:
    """Return a digest of the form ``sha256:HEX`` (64 lower-case digits), or raise InvalidInput."""
    if not isinstance(value, str) or not _DIGEST.fullmatch(value):
        raise InvalidInput(
            f"digest {shown(value)} is not allowed: use sha256: and 64 lower-case hex digits"
        )
    return value


def digest_hex(digest: str) -> str:
    """Return the hex part of a checked digest, which is also the object's file name."""
    return check_digest(digest).removeprefix("sha256:")
