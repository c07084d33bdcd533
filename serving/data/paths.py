"""What the path of a prediction names: protocol, model, version. One reading for both fronts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import httptools
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.routing import compile_path

from registry.errors import InvalidInput, NotFound
from registry.ident import parse_selector, parse_version
from serving.data.call import Protocol
from serving.data.docs import ROUTES
from serving.web.head import split_target

# Clients repeat few targets; strangers can send as many as they like, each as long as a head.
KNOWN_TARGETS: Final = 1024
_KNOWN_TARGET_BYTES: Final = 256


class _Segment(StringConvertor):
    """One path segment without a colon, so that ``M:predict`` never reads as a model's name."""

    regex = "[^/:]+"


register_url_convertor("segment", _Segment())


@dataclass(frozen=True, slots=True)
class Target:
    """What a prediction asks for. ``error``: what is wrong with the path, if something is.

    ``model`` is empty where the path names none: the setting ``invocations_model`` does.
    """

    protocol: Protocol
    model: str
    selector: int | str | None
    error: InvalidInput | NotFound | None = None


_PROTOCOLS: Final[Mapping[str, Protocol]] = {
    "infer": "v2", "predict": "v1", "invocations": "mlflow",
}  # fmt: skip
# The expressions that the application's router matches with: what it would route there, and
# nothing else, is a prediction here.
_PREDICTIONS: Final[tuple[tuple[re.Pattern[str], Protocol], ...]] = tuple(
    (compile_path(doc.path)[0], _PROTOCOLS[doc.handler])
    for doc in ROUTES
    if doc.handler in _PROTOCOLS
)


def prediction_of(target: bytes) -> Target | None:
    """Return what a request target asks for, or None where it is no prediction's."""
    return _known(target) if len(target) <= _KNOWN_TARGET_BYTES else _read(target)


def selector_of(parameters: Mapping[str, Any]) -> int | str | None:
    """Return the version that a path's parameters name: a number, an alias, or None for the route.

    Raises InvalidInput for what is neither.
    """
    if "number" in parameters:
        return parse_version(parameters["number"])
    if "alias" in parameters:
        alias = parse_selector(parameters["alias"])
        if isinstance(alias, int):
            raise InvalidInput(f"alias {alias} is a number: use /versions/{alias}")
        return alias
    return parse_selector(parameters["version"]) if "version" in parameters else None


def _read(target: bytes) -> Target | None:
    try:
        path, _, _ = split_target(target)
    except (httptools.HttpParserInvalidURLError, UnicodeDecodeError):
        return None
    for pattern, protocol in _PREDICTIONS:
        if match := pattern.match(path):
            parameters = match.groupdict()
            model = parameters.get("model", "")
            try:
                return Target(protocol, model, selector_of(parameters))
            except InvalidInput as error:
                # Kept for every request with this target: without what led here.
                return Target(protocol, model, None, error.with_traceback(None))
    return None


_known = lru_cache(KNOWN_TARGETS)(_read)
