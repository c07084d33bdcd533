"""Small JSON documents that are replaced as a whole and carry a digest of their own bytes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import cast

from registry.errors import Corrupt, InvalidInput
from registry.files import Files, disk_errors, replace_file
from registry.manifest import JsonObject


def seal(document: JsonObject) -> bytes:
    """Return the document as one line of JSON and a second line with the digest of the first."""
    try:
        line = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"document cannot be stored as JSON: {error}") from error
    return line + b"\nsha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n"


def unseal(data: bytes, what: str) -> JsonObject:
    """Return the document that ``seal`` made these bytes of, or raise Corrupt naming ``what``."""
    line, _, rest = data.partition(b"\n")
    if rest != b"sha256:" + hashlib.sha256(line).hexdigest().encode() + b"\n":
        raise Corrupt(f"{what} is damaged: its bytes do not match the digest stored with them")
    document = json.loads(line)
    if not isinstance(document, dict):
        raise Corrupt(f"{what} is damaged: expected a JSON object")
    return cast(JsonObject, document)


def write_document(
    files: Files, temporary_dir: Path, path: Path, document: JsonObject, what: str
) -> None:
    """Replace the document at ``path``, durably. Raises StoreFull or StoreFailed."""
    data = seal(document)
    with disk_errors(f"write {what}"):
        replace_file(files, temporary_dir, path, data)


def read_document(path: Path, what: str) -> JsonObject | None:
    """Return the document at ``path``, None where there is none, or raise Corrupt."""
    with disk_errors(f"read {what}"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    return unseal(data, what)
