"""The console's own files, with the headers that keep everything else out of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Final

from starlette.responses import Response

from registry.errors import NotFound
from registry.ident import shown

INDEX: Final = "index.html"
TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# Nothing inline, nothing from elsewhere, no eval, and no text that becomes markup.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_GUARDS: Final[Mapping[str, str]] = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
    # Small enough to be sent each time: after an upgrade no page mixes two releases.
    "cache-control": "no-store",
}


@dataclass(frozen=True, slots=True)
class File:
    """One file of the page."""

    body: bytes
    media: str


def _read() -> dict[str, File]:
    found = {}
    for entry in resources.files("serving.admin.console").joinpath("static").iterdir():
        media = TYPES.get(entry.name.rpartition(".")[2])
        if media is not None:
            found[entry.name] = File(entry.read_bytes(), media)
    return found


FILES: Final[Mapping[str, File]] = _read()


def page(name: str) -> Response:
    """Return a file of the console, or raise NotFound."""
    file = FILES.get(name)
    if file is None:
        raise NotFound(f"file {shown(name)} is no part of the console: see /")
    return Response(file.body, headers={**_GUARDS, "content-type": file.media})
