"""Reads what an admin call carries: JSON body, query, names in the path. Strict everywhere."""

from __future__ import annotations

import asyncio
import difflib
import json
import math
import re
from collections.abc import AsyncGenerator, Collection, Mapping
from typing import Any, Final

import orjson
from starlette.requests import ClientDisconnect, Request

from registry.errors import InvalidInput
from registry.ident import check_alias, check_model_name, parse_version, shown
from serving.auth import Actor
from serving.codec.parse import kind_of, problem
from serving.errors import Cancelled, PayloadTooLarge, RequestTooSlow, UnsupportedMedia

MAX_BODY_BYTES: Final = 8 << 20
MAX_WAIT_S: Final = 3600.0
MAX_REASON_CHARS: Final = 1000
MAX_RELEASED: Final = 1000
MAX_EVENTS: Final = 1000
MAX_SEQ: Final = 2**53 - 1
# Enough for a day of looks; no limit is what a console asks for.
MAX_LOOKS: Final = 100_000


_RANGE: Final = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})")


def actor_of(request: Request) -> Actor:
    """Return who sent the call; AdminGuard has found that out."""
    actor: Actor = request.scope["state"]["actor"]
    return actor


def model_in(request: Request) -> str:
    """Return the model named in the path, or raise InvalidInput."""
    return check_model_name(request.path_params["model"])


def version_in(request: Request) -> tuple[str, int]:
    """Return model and version named in the path, or raise InvalidInput."""
    return model_in(request), parse_version(request.path_params["version"])


def alias_in(request: Request) -> tuple[str, str]:
    """Return model and alias named in the path, or raise InvalidInput."""
    return model_in(request), check_alias(request.path_params["alias"])


def announced_in(request: Request) -> tuple[int | None, int]:
    """Return how large a whole upload is, None where that is not said, and where the body begins.

    Raises InvalidInput. With a Content-Range the body is the end of an upload that broke off.
    """
    size_bytes = _content_length(request)
    text = request.headers.get("content-range")
    if text is None:
        return size_bytes, 0
    match = _RANGE.fullmatch(text)
    start, end, total = map(int, match.groups()) if match else (0, 0, 0)
    if not start <= end == total - 1:
        raise InvalidInput(
            f'content-range {shown(text)} must be "bytes START-END/TOTAL" of all that is missing: '
            "START is how many bytes are there, and END is TOTAL - 1"
        )
    if size_bytes not in (None, total - start):
        raise InvalidInput(
            f"content-length {size_bytes} must be {total - start}, as content-range says"
        )
    return total, start


def _content_length(request: Request) -> int | None:
    text = request.headers.get("content-length")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput(f"content-length {shown(text)} must be an integer from 0")
    return int(text)


def check_query(request: Request, allowed: Collection[str]) -> None:
    """Raise InvalidInput for a query parameter that the call does not know, or that comes twice."""
    seen: set[str] = set()
    for key, _ in request.query_params.multi_items():
        if key not in allowed:
            raise InvalidInput(f"query: unknown parameter {shown(key)}{nearest(key, allowed)}")
        if key in seen:
            raise InvalidInput(f"query: parameter {shown(key)} stands twice")
        seen.add(key)


def reason_in(request: Request) -> str:
    """Return the ``reason`` of a change, empty without one."""
    reason = request.query_params.get("reason", "")
    if len(reason) > MAX_REASON_CHARS:
        raise InvalidInput(
            f"query: reason has {len(reason)} characters, at most {MAX_REASON_CHARS} are allowed"
        )
    return reason


def wait_in(request: Request) -> float | None:
    """Return how many seconds the caller wants to wait for the end, None for not at all."""
    text = request.query_params.get("wait")
    if text is None:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidInput(f"query: wait {shown(text)} must be seconds from 0 to {MAX_WAIT_S:g}")
    return wait_s


def whole_in(request: Request, key: str, default: int, low: int, high: int) -> int:
    """Return a whole number of the query within bounds."""
    text = request.query_params.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and low <= int(text) <= high):
        raise InvalidInput(f"query: {key} {shown(text)} must be an integer from {low} to {high}")
    return int(text)


async def json_in(request: Request, timeout_s: float) -> Any:
    """Return the decoded body, None if it is empty.

    Raises UnsupportedMedia, PayloadTooLarge, RequestTooSlow, InvalidInput, or Cancelled (the client
    left).
    """
    body = await _body_in(request, timeout_s)
    return _decoded(body) if body else None


async def object_in(
    request: Request, timeout_s: float, allowed: Collection[str]
) -> Mapping[str, Any]:
    """Return the body as an object with none but ``allowed`` fields; an empty body is ``{}``."""
    body = await _body_in(request, timeout_s)
    document = _decoded(body) if body else {}
    if not isinstance(document, dict):
        raise InvalidInput(f"body: expected a JSON object, got {kind_of(document)}")
    check_fields(document, allowed, "body")
    return document


async def _body_in(request: Request, timeout_s: float) -> bytearray:
    _check_media(request)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MAX_BODY_BYTES:
                    raise PayloadTooLarge(
                        f"body is larger than the {MAX_BODY_BYTES} bytes an admin call may have"
                    )
    except TimeoutError as error:
        raise RequestTooSlow(f"the body did not arrive within {timeout_s:g} s") from error
    except ClientDisconnect as error:
        raise Cancelled("the client left before its request was complete") from error
    return body


def _decoded(body: bytearray) -> Any:
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"body: {problem(error)}") from error
    _check_names(body)
    return document


def _check_names(body: bytearray) -> None:
    """Raise InvalidInput for a name that stands twice in an object of valid JSON.

    orjson takes the last one without a word, and a change would not be what its author reads there.
    """
    try:
        json.loads(body, object_pairs_hook=_check_pairs)
    except RecursionError:
        raise InvalidInput("body: nested too deep for a call of the admin plane") from None


def _check_pairs(pairs: list[tuple[str, Any]]) -> None:
    names: set[str] = set()
    for name, _ in pairs:
        if name in names:
            raise InvalidInput(
                f"body: the name {shown(name)} stands twice in one object: give it once"
            )
        names.add(name)


def check_fields(document: Mapping[str, Any], allowed: Collection[str], where: str) -> None:
    """Raise InvalidInput for a field of ``document`` that is not known, with the nearest one."""
    for key in document:
        if key not in allowed:
            raise InvalidInput(f"{where}: unknown field {shown(key)}{nearest(key, allowed)}")


async def chunks_in(
    request: Request, timeout_s: float, size_bytes: int
) -> AsyncGenerator[bytearray, None]:
    """Yield the body in pieces of about ``size_bytes``; each must arrive within the time.

    A piece is the receiver's to keep.
    """
    stream = request.stream().__aiter__()
    piece = bytearray()
    while True:
        try:
            async with asyncio.timeout(timeout_s):
                chunk = await anext(stream, None)
        except TimeoutError as error:
            raise RequestTooSlow(f"no bytes of the body came for {timeout_s:g} s") from error
        if chunk is None:
            break
        piece += chunk
        if len(piece) >= size_bytes:
            yield piece
            piece = bytearray()
    if piece:
        yield piece


def nearest(key: str, allowed: Collection[str]) -> str:
    """Return a hint at the allowed name that was perhaps meant."""
    near = difflib.get_close_matches(key, allowed, n=1)
    if near:
        return f": did you mean {near[0]!r}?"
    names = ", ".join(sorted(allowed))
    return f": use {names}" if names else ": none is known here"


def _check_media(request: Request) -> None:
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("", "identity"):
        raise UnsupportedMedia(f"content-encoding {shown(encoding)}: send the body as it is")
    media = request.headers.get("content-type")
    if media is None:
        return
    kind = media.partition(";")[0].strip().lower()
    if kind != "application/json" and not (
        kind.startswith("application/") and kind.endswith("+json")
    ):
        raise UnsupportedMedia(f"content-type {shown(media)}: send application/json")
