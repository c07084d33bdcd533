"""The manifest: the one document that says what a version is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from registry.errors import InvalidInput
from registry.ident import check_digest, check_model_name, shown

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None
JsonObject: TypeAlias = dict[str, Json]

FORMAT: Final = 1
MAX_TENSORS: Final = 100_000
MAX_META_BYTES: Final = 64 * 1024
# Far below the depth at which Python's own encoder gives up with a RecursionError.
MAX_DEPTH: Final = 64
_KEYS: Final = frozenset(
    {"format", "model", "graph", "tensors", "signature", "runtime", "parity", "source", "meta",
     "created"}
)  # fmt: skip
_REQUIRED: Final = ("format", "model", "graph", "signature", "runtime")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor object: its digest and its size."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """A version's content. ``digest`` names what it computes, not when or why it was pushed."""

    model: str
    graph: str
    tensors: tuple[TensorEntry, ...]
    signature: JsonObject
    runtime: JsonObject
    parity: JsonObject | None = None
    source: JsonObject = field(default_factory=dict)
    meta: JsonObject = field(default_factory=dict)
    created: str = ""

    @property
    def weight_bytes(self) -> int:
        """Bytes of all distinct tensor objects."""
        return sum({entry.digest: entry.size_bytes for entry in self.tensors}.values())

    @property
    def object_digests(self) -> frozenset[str]:
        """Digests of everything this version needs: the graph and its tensors."""
        return frozenset({self.graph, *(entry.digest for entry in self.tensors)})

    @property
    def digest(self) -> str:
        """``sha256:HEX`` over what decides the answers.

        Left out are ``parity``, ``source``, ``meta`` and ``created``: pushing the same weights
        twice, from another commit or at another hour, gives the version that is there already.
        """
        content = self.to_json()
        for key in ("parity", "source", "meta", "created"):
            del content[key]
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    @property
    def content_digest(self) -> str:
        """``sha256:HEX`` over what a runtime opens: graph, tensors, signature; not the name."""
        content: JsonObject = {
            "graph": self.graph,
            "tensors": [*sorted({entry.digest for entry in self.tensors})],
            "signature": self.signature,
            "runtime": self.runtime,
        }
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return "sha256:" + hashlib.sha256(canonical.encode()).hexdigest()

    def to_json(self) -> JsonObject:
        """Return the document as it is sent and stored."""
        return {
            "format": FORMAT,
            "model": self.model,
            "graph": self.graph,
            "tensors": [{"digest": t.digest, "bytes": t.size_bytes} for t in self.tensors],
            "signature": self.signature,
            "runtime": self.runtime,
            "parity": self.parity,
            "source": self.source,
            "meta": self.meta,
            "created": self.created,
        }


def parse_manifest(document: object) -> Manifest:
    """Check a decoded JSON document and return the Manifest, or raise InvalidInput.

    The signature is checked only for being an object: ``models.signature`` knows its form.
    """
    if not isinstance(document, Mapping):
        raise InvalidInput(f"manifest: expected a JSON object, got {type(document).__name__}")
    if unknown := sorted(set(document) - _KEYS):
        raise InvalidInput(f"manifest: unknown field {shown(unknown[0])}")
    for key in _REQUIRED:
        if key not in document:
            raise InvalidInput(f"manifest: field {key!r} is missing")
    if type(document["format"]) is not int or document["format"] != FORMAT:
        raise InvalidInput(
            f"manifest: format {shown(document['format'])} is not supported: use {FORMAT}"
        )
    _check_depth(document)
    meta = _object(document, "meta")
    if len(json.dumps(meta)) > MAX_META_BYTES:
        raise InvalidInput(f"manifest: meta is larger than {MAX_META_BYTES} bytes")
    created = document.get("created") or ""
    if not isinstance(created, str):
        raise InvalidInput(f"manifest: created {shown(created)} is not a string")
    return Manifest(
        model=check_model_name(document["model"]),
        graph=check_digest(document["graph"]),
        tensors=_tensors(document.get("tensors") or []),
        signature=_object(document, "signature"),
        runtime=_runtime(document),
        parity=_object(document, "parity") or None,
        source=_object(document, "source"),
        meta=meta,
        created=created,
    )


def _check_depth(document: object) -> None:
    level = [document]
    for _ in range(MAX_DEPTH):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return
    raise InvalidInput(f"manifest: nested more than {MAX_DEPTH} deep")


def _object(document: Mapping[str, object], key: str) -> JsonObject:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidInput(f"manifest: {key} must be an object, got {type(value).__name__}")
    return value


def _runtime(document: Mapping[str, object]) -> JsonObject:
    runtime = _object(document, "runtime")
    if not isinstance(runtime.get("name"), str) or not runtime["name"]:
        raise InvalidInput(
            f"manifest: runtime.name {shown(runtime.get('name'))} must be a non-empty string"
        )
    return runtime


def _tensors(value: object) -> tuple[TensorEntry, ...]:
    if not isinstance(value, list):
        raise InvalidInput(f"manifest: tensors must be a list, got {type(value).__name__}")
    if len(value) > MAX_TENSORS:
        raise InvalidInput(f"manifest: {len(value)} tensors, at most {MAX_TENSORS} are allowed")
    entries = []
    for index, item in enumerate(value):
        if not isinstance(item, dict) or set(item) != {"digest", "bytes"}:
            raise InvalidInput(f"manifest: tensors[{index}] must be {{digest, bytes}}")
        size = item["bytes"]
        if type(size) is not int or size < 0:
            raise InvalidInput(
                f"manifest: tensors[{index}].bytes {shown(size)} must be an integer from 0"
            )
        entries.append(TensorEntry(check_digest(item["digest"]), size))
    return tuple(entries)
