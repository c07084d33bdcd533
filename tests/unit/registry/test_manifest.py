"""The manifest: what is refused, and what decides its digest."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from registry.errors import InvalidInput
from registry.manifest import MAX_DEPTH, MAX_META_BYTES, MAX_TENSORS, parse_manifest

DIGEST = "sha256:" + "0" * 64
DOCUMENT: dict[str, Any] = {
    "format": 1,
    "model": "m",
    "graph": DIGEST,
    "tensors": [{"digest": DIGEST, "bytes": 5}],
    "signature": {"inputs": []},
    "runtime": {"name": "onnx"},
    "parity": {"rows": 3},
    "source": {"framework": "x"},
    "meta": {"commit": "abc"},
    "created": "2030-01-01",
}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": [value]}
    return value


def test_a_manifest_survives_its_json() -> None:
    """Parsing what to_json made gives the same manifest and digest."""
    manifest = parse_manifest(DOCUMENT)
    again = parse_manifest(json.loads(json.dumps(manifest.to_json())))
    assert again == manifest
    assert again.digest == manifest.digest
    assert manifest.object_digests == {DIGEST}
    assert manifest.weight_bytes == 5


@pytest.mark.parametrize("key", ["parity", "source", "meta", "created"])
def test_what_does_not_decide_the_answers_is_not_in_the_digest(key: str) -> None:
    """The same weights from another commit or hour are the same version."""
    document = copy.deepcopy(DOCUMENT)
    del document[key]
    assert parse_manifest(document).digest == parse_manifest(DOCUMENT).digest


def test_what_decides_the_answers_is_in_the_digest() -> None:
    """Model, graph, tensors, signature and runtime each change it."""
    manifest = parse_manifest(DOCUMENT)
    others = [
        replace(manifest, model="n"),
        replace(manifest, graph="sha256:" + "1" * 64),
        replace(manifest, tensors=()),
        replace(manifest, signature={}),
        replace(manifest, runtime={"name": "onnx", "threads": 1}),
    ]
    assert len({manifest.digest, *(other.digest for other in others)}) == 6


def change(key: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.__setitem__(key, value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("more", 1), "unknown field 'more'"),
        (lambda d: d.pop("graph"), "'graph' is missing"),
        (change("format", 2), "format 2 is not supported"),
        (change("format", True), "format True is not supported"),
        (change("model", "../x"), "model name"),
        (change("graph", "sha256:x"), "digest"),
        (change("tensors", "x"), "tensors must be a list"),
        (change("tensors", [1]), r"tensors\[0\]"),
        (change("tensors", [{"digest": DIGEST}]), r"tensors\[0\]"),
        (change("tensors", [{"digest": DIGEST, "bytes": -1}]), "bytes -1"),
        (change("tensors", [{"digest": DIGEST, "bytes": True}]), "bytes True"),
        (change("tensors", [{"digest": DIGEST, "bytes": 1, "location": "../x"}]), r"tensors\[0\]"),
        (change("tensors", [None] * (MAX_TENSORS + 1)), f"at most {MAX_TENSORS}"),
        (change("signature", []), "signature must be an object"),
        (change("runtime", {}), "runtime.name"),
        (change("runtime", {"name": ""}), "runtime.name"),
        (change("created", 5), "created 5"),
        (change("meta", {"a": "x" * MAX_META_BYTES}), "meta is larger"),
        (change("meta", nested(1000)), f"more than {MAX_DEPTH} deep"),
        (change("signature", nested(500)), f"more than {MAX_DEPTH} deep"),
    ],
)
def test_a_wrong_manifest_is_refused(spoil: Callable[[dict[str, Any]], None], message: str) -> None:
    """The message names the field and, where it helps, the value and the limit."""
    document = copy.deepcopy(DOCUMENT)
    spoil(document)
    with pytest.raises(InvalidInput, match=message):
        parse_manifest(document)


@pytest.mark.parametrize("document", [None, [], "x", 1])
def test_what_is_no_object_is_no_manifest(document: object) -> None:
    """Every other JSON value is refused with its type."""
    with pytest.raises(InvalidInput, match=f"got {type(document).__name__}"):
        parse_manifest(document)
