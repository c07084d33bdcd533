"""What a version takes beside its graph: the tokenizer, or the terms that are counted."""

from __future__ import annotations

from pathlib import Path

from models.memory import anonymous_bytes, trim
from models.terms_form import RUNTIME_NAME as TERMS
from models.terms_form import parse_terms_form
from models.text_form import RUNTIME_NAME as TEXT
from models.text_form import parse_text_form
from registry.ident import digest_hex
from registry.manifest import Manifest


def bytes_beside(manifest: Manifest, objects_dir: Path) -> int:
    """Return the private memory of what cuts a version's texts, 0 where nothing does."""
    if manifest.runtime.get("name") == TEXT:
        return _tokenizer_bytes(manifest, objects_dir)
    if manifest.runtime.get("name") == TERMS:
        return _counter_bytes(manifest, objects_dir)
    return 0


def _tokenizer_bytes(manifest: Manifest, objects_dir: Path) -> int:
    from models.runtime.tokens import TextTokenizer, prepare

    form = parse_text_form(manifest)
    prepare()
    trim()
    before = anonymous_bytes()
    opened = TextTokenizer(objects_dir / digest_hex(form.tokenizer), form)
    opened.encode(["a"], lambda: None)
    trim()
    return max(0, anonymous_bytes() - before)


def _counter_bytes(manifest: Manifest, objects_dir: Path) -> int:
    from models.runtime.term_counts import open_counters

    form = parse_terms_form(manifest)
    trim()
    before = anonymous_bytes()
    counters = open_counters(form, objects_dir)
    for counter in counters:
        counter.count("a")
    trim()
    return max(0, anonymous_bytes() - before)
