"""Asks a running server what it serves, and finds requests that its models take."""

from __future__ import annotations

import itertools
import json
import random
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import quote

from loadtest.wire.answers import fault, said
from loadtest.wire.forms import FORMS, Request, path_of
from loadtest.wire.signature import NotMadeUp, Spec, Style, specs, styles, tensors

# Some requests that differ: a server that keeps answers must not be measured by one of them.
BODIES: Final = 16
_TIMEOUT_S: Final = 60.0


class NoServer(Exception):
    """The server does not answer, or not as one; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True)
class Model:
    """A model with what its requests are made of."""

    name: str
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]
    style: Style

    def requests(self, form: str, rows: int, count: int = BODIES, seed: int = 0) -> list[Request]:
        """Return ``count`` requests of one form with ``rows`` rows each."""
        is_rows = all(spec.has_rows for spec in self.outputs)
        return [
            FORMS[form](
                self.name, tensors(self.inputs, self.style, rows, seed + number), is_rows=is_rows
            )
            for number in range(count)
        ]

    def fault(self, request: Request, reply: Reply) -> str:
        """Return what is wrong with an answer to ``request``; empty: nothing."""
        return fault(request.form, request.rows, self.outputs,
                     reply.status, reply.headers, reply.content)  # fmt: skip


class Server:
    """A server's data plane. Raises NoServer where it does not answer."""

    def __init__(self, url: str, token: str = "") -> None:
        if not url.startswith(("http://", "https://")):
            raise NoServer(f"{url!r} is no address of a server: use http://HOST:PORT")
        self._url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def model_names(self) -> list[str]:
        """Return the models that answer requests without a version."""
        listed = self._json("/v2/models")["models"]
        names = [item["name"] if isinstance(item, dict) else str(item) for item in listed]
        return [name for name in names if self._get(f"{_path(name)}/ready").status == 200]

    def model(self, name: str, rows: int = 1, selector: str = "") -> Model:
        """Return a model with a style that it answers; ``selector``: a version of it.

        Raises NotMadeUp where it answers none of them.
        """
        metadata = self.metadata(name, selector)
        inputs, outputs = specs(metadata, "inputs"), specs(metadata, "outputs")
        last = ""
        for style in styles(inputs):
            request = FORMS["v2"](name, tensors(inputs, style, rows, seed=0))
            request = replace(request, path=path_of("v2", name, selector))
            found = Model(name, inputs, outputs, style)
            last = found.fault(request, self.post(request))
            if not last:
                return found
        raise NotMadeUp(
            f"model {name!r} answers no request made up from its metadata, last {last!r}: "
            f"give a request of your own"
        )

    def metadata(self, name: str, selector: str = "") -> dict[str, Any]:
        """Return the V2 metadata of a model."""
        return self._json(_path(name, selector))

    def post(self, request: Request) -> Reply:
        """Send one request."""
        return self._reply(request.path, request.body, request.headers)

    def _get(self, path: str) -> Reply:
        return self._reply(path, None, {})

    def _json(self, path: str) -> dict[str, Any]:
        reply = self._get(path)
        if reply.status != 200:
            raise NoServer(f"{self._url}{path}: {reply.status} {said(reply.content)}")
        try:
            document: dict[str, Any] = json.loads(reply.content)
        except ValueError as error:
            raise NoServer(f"{self._url}{path}: not JSON: is this a V2 server?") from error
        return document

    def _reply(self, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        request = urllib.request.Request(  # noqa: S310 - http only, see __init__
            self._url + path, body, {**self._headers, **headers}
        )
        try:
            with _OPENER.open(request, timeout=_TIMEOUT_S) as answer:
                return Reply(answer.status, _lower(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, _lower(error.headers), error.read())
        except OSError as error:
            reason = getattr(error, "reason", error)
            raise NoServer(f"no server answers at {self._url}: {reason}") from error


# Proxies of the environment are for the way out, not for the server under test.
_OPENER: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def parse_models(text: str) -> dict[str, float]:
    """Return weights by model from ``a=3,b=1``; a name alone weighs 1. Raises ValueError."""
    weights: dict[str, float] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, _, weight = part.partition("=")
        try:
            weights[name] = float(weight or 1)
        except ValueError:
            weights[name] = -1.0
        if not name or not 0 < weights[name] < float("inf"):
            raise ValueError(f"models: {part!r} is not allowed: write NAME or NAME=WEIGHT, above 0")
    return weights


def choose(
    weights: Mapping[str, float], source: random.Random
) -> Callable[[], str]:  # fmt: skip
    """Return what picks a model by weight, each time anew."""
    names = list(weights)
    totals = list(itertools.accumulate(weights[name] for name in names))
    return lambda: source.choices(names, cum_weights=totals)[0]


def _path(name: str, selector: str = "") -> str:
    path = f"/v2/models/{quote(name, safe='')}"
    return f"{path}/versions/{quote(selector, safe='')}" if selector else path


def _lower(headers: Any) -> dict[str, str]:
    return {str(name).lower(): str(value) for name, value in headers.items()}
