"""scikit-learn's text vectorisers: what the server needs to count terms as they do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import numpy as np

from models.errors import ConversionRefused
from models.package import BytesObject
from models.runtime.term_counts import LINE_TERMS
from models.terms_form import MAX_LENGTH, TOKEN_PATTERNS, TermInput
from registry.ident import shown

VECTORIZERS: Final = frozenset({"CountVectorizer", "HashingVectorizer", "TfidfVectorizer"})
_DEFAULT_PATTERN: Final = r"(?u)\b\w\w+\b"
_ANY_WORD: Final = r"\w+"
# Counts in fewer bits start again from zero where a text has a word too often.
_LEAST_BYTES: Final = 4


def is_vectorizer(part: Any) -> bool:
    """Return whether a transformer is one that counts the terms of texts."""
    kind = type(part)
    return kind.__name__ in VECTORIZERS and kind.__module__.partition(".")[0] == "sklearn"


def refuse_own_vectorizer(part: Any) -> None:
    """Raise ConversionRefused for a class of the user's own that is made from a vectoriser."""
    if is_vectorizer(part) or isinstance(part, type):
        return
    bases = [base.__name__ for base in type(part).__mro__ if base.__name__ in VECTORIZERS]
    if bases:
        raise ConversionRefused(
            f"{type(part).__name__} is a class of your own made from {bases[0]}: code is not "
            f"served; use {bases[0]} itself, or clean the texts before the model"
        )


def term_input(part: Any, column: str, tensor: str) -> tuple[TermInput, BytesObject]:
    """Return how a fitted vectoriser counts, and the object with its words.

    ``column``: the served input. ``tensor``: the graph's. Raises ConversionRefused naming what
    cannot be done exactly.
    """
    _refuse_code(part)
    name = type(part).__name__
    is_hashed = name == "HashingVectorizer"
    terms = [] if is_hashed else _terms(part)
    vocabulary = BytesObject.of(b"".join(_lines(_stop_words(part), terms)))
    item = TermInput(
        name=column,
        tensor=tensor,
        columns=int(part.n_features) if is_hashed else len(terms),
        vocabulary=vocabulary.digest,
        analyzer=str(part.analyzer),
        is_lowercase=bool(part.lowercase),
        accents=part.strip_accents or None,
        token_pattern=_pattern(part),
        lengths=_lengths(part),
        is_binary=bool(part.binary),
        is_hashed=is_hashed,
        is_signed=is_hashed and bool(part.alternate_sign),
    )
    return item, vocabulary


def _refuse_code(part: Any) -> None:
    name = type(part).__name__
    advice = {
        "analyzer": "use analyzer='word', 'char' or 'char_wb'",
        "tokenizer": r"use token_pattern instead (r'\S+' cuts at blanks, as str.split does)",
        "preprocessor": "use lowercase and strip_accents, or clean the texts before the model",
        "strip_accents": "use strip_accents='unicode' or 'ascii'",
    }
    for field, instead in advice.items():
        value = getattr(part, field)
        if callable(value):
            known = getattr(value, "__name__", type(value).__name__)
            raise ConversionRefused(
                f"{name}: {field}={known!r} is a Python function, which cannot be served: {instead}"
            )
    if part.input != "content":
        raise ConversionRefused(
            f"{name}: input={part.input!r} reads files: train on the texts themselves"
        )
    dtype = np.dtype(part.dtype)
    if dtype.itemsize < _LEAST_BYTES or dtype.kind not in "iuf":
        raise ConversionRefused(f"{name}: dtype={dtype} counts too few: use np.float64")


def _pattern(part: Any) -> str:
    if part.analyzer != "word":
        return _DEFAULT_PATTERN
    pattern = part.token_pattern
    if pattern not in TOKEN_PATTERNS:
        raise ConversionRefused(
            f"{type(part).__name__}: token_pattern={shown(pattern)} is not among those that are "
            "served, for a pattern of one's own may search a short text for hours: use "
            rf"{_DEFAULT_PATTERN!r}, {_ANY_WORD!r}, r'\S+', '[a-zA-Z]+' or the like"
        )
    return str(pattern)


def _lengths(part: Any) -> tuple[int, int]:
    least, most = (int(n) for n in part.ngram_range)
    if not 1 <= least <= most <= MAX_LENGTH:
        raise ConversionRefused(
            f"{type(part).__name__}: ngram_range=({least}, {most}) must lie within 1 and "
            f"{MAX_LENGTH}"
        )
    return least, most


def _stop_words(part: Any) -> list[str]:
    # Only words are looked up among them.
    words = part.get_stop_words() if part.analyzer == "word" else None
    return sorted(str(word) for word in words or ())


def _terms(part: Any) -> list[str]:
    """Return the terms in the order of their columns."""
    found: Mapping[Any, int] | None = getattr(part, "vocabulary_", None)
    name = type(part).__name__
    if found is None:
        raise ConversionRefused(f"{name} has no vocabulary: is it fitted?")
    terms: list[Any] = [None] * len(found)
    for term, place in found.items():
        terms[int(place)] = term
    wrong = next((term for term in terms if not isinstance(term, str)), "")
    if wrong != "":
        raise ConversionRefused(f"{name}: its vocabulary holds {shown(wrong)}, which is no text")
    return [str(term) for term in terms]


def _lines(stop_words: list[str], terms: list[str]) -> Iterator[bytes]:
    yield json.dumps(stop_words).encode() + b"\n"
    rest = iter(terms)
    while line := list(islice(rest, LINE_TERMS)):
        yield json.dumps(line).encode() + b"\n"
