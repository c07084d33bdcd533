"""What a runtime of graphs computes of a version, where something else goes before the graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from models.signature import Signature
from models.terms_form import RUNTIME_NAME as TERMS
from models.terms_form import parse_terms_form
from models.text_form import RUNTIME_NAME as TEXT
from models.text_form import parse_text_form
from registry.manifest import JsonObject, Manifest


def computed_manifest(manifest: Manifest) -> Manifest:
    """Return what a runtime of graphs has to compute: of texts what comes after cutting them."""
    engine: JsonObject
    signature: Signature
    if manifest.runtime.get("name") == TEXT:
        text = parse_text_form(manifest)
        engine, signature = text.engine, text.encoder
    elif manifest.runtime.get("name") == TERMS:
        terms = parse_terms_form(manifest)
        engine, signature = terms.engine, terms.graph
    else:
        return manifest
    return replace(manifest, runtime=engine, signature=signature.to_json())


def engine_name(manifest: Manifest) -> str:
    """Return the runtime that computes a version, or what comes after cutting its texts."""
    runtime: Mapping[str, object] = manifest.runtime
    engine = runtime.get("engine")
    if takes_texts_apart(manifest) and isinstance(engine, dict):
        runtime = engine
    return str(runtime.get("name"))


def is_onnx(manifest: Manifest) -> bool:
    """Tell whether ONNX Runtime computes a version, or what comes after cutting its texts."""
    return engine_name(manifest) == "onnx"


def takes_texts_apart(manifest: Manifest) -> bool:
    """Tell whether texts are cut before anything is computed, which takes as long as they are."""
    return manifest.runtime.get("name") in (TEXT, TERMS)


def objects_beside(manifest: Manifest) -> frozenset[str]:
    """Return the digests of objects that no graph names: tokenizers, and the terms of texts."""
    if manifest.runtime.get("name") == TEXT:
        return frozenset({parse_text_form(manifest).tokenizer})
    if manifest.runtime.get("name") == TERMS:
        return frozenset(item.vocabulary for item in parse_terms_form(manifest).inputs)
    return frozenset()
