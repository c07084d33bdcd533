"""The form of a version that counts the terms of texts, as the manifest's ``runtime`` says it.

Texts are cut into terms (words, or runs of characters) and counted as scikit-learn's vectorisers do
it; a graph computes the rest from the counts. Knows no runtime: the parent, the inspection and the
workers read the same document.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Final, TypeVar

from models.errors import LoadFailed
from models.signature import Signature, parse_signature
from registry.errors import InvalidInput
from registry.ident import check_digest, shown
from registry.manifest import JsonObject, Manifest

RUNTIME_NAME: Final = "terms"
ANALYZERS: Final = ("word", "char", "char_wb")
ACCENTS: Final = (None, "ascii", "unicode")
# Of one term, in words or characters.
MAX_LENGTH: Final = 32
MAX_COLUMNS: Final = 2**31 - 1
_MAX_INPUTS: Final = 256
_T = TypeVar("_T", str, str | None)


def _token_patterns() -> frozenset[str]:
    """Return the patterns whose search takes a time that grows with the text, and no faster.

    A pusher's own pattern could keep a worker busy for hours with one short text.
    """
    letters = (r"\w", "[a-z]", "[a-zA-Z]", "[A-Za-z]", "[a-z0-9]", "[a-zA-Z0-9]", "[A-Za-z0-9]",
               "[A-Za-z_]", "[a-zA-Z_]", "[a-zA-Z0-9_]", "[A-Za-z0-9_]", r"[^\W\d_]", r"[^\d\W]",
               r"[^\W\d]", r"[\w']", r"[\w-]", r"[\w'-]", "[a-z']", "[a-zA-Z']")  # fmt: skip
    times = [
        (c + "+", c * 2 + "+", c * 3 + "+", c + "{1,}", c + "{2,}", c + "{3,}") for c in letters
    ]
    words = [word for forms in times for word in forms]
    found = {f"{flag}{edge}{word}{edge}"
             for flag, edge, word in product(("", "(?u)"), ("", r"\b"), words)}  # fmt: skip
    return frozenset(found) | {r"\S+", r"[^\s]+", r"(?u)\S+", r"(?u)[^\s]+", r"[^ ]+"}


TOKEN_PATTERNS: Final = _token_patterns()


@dataclass(frozen=True, slots=True)
class TermInput:
    """How the texts of one input become one tensor of counted terms.

    ``name``: the served input. ``tensor``: the graph's input, ``(rows, entries, 2)`` int64: a
    column and how often the text has it. ``columns``: how many there are; a row that has fewer
    entries than others is filled up with the column of that number, counted 0. ``vocabulary``:
    digest of the object with the stop words and the terms. ``is_hashed``: the column is a term's
    hash; else its place in the vocabulary. The other fields are the vectoriser's parameters.
    """

    name: str
    tensor: str
    columns: int
    vocabulary: str
    analyzer: str
    is_lowercase: bool
    accents: str | None
    token_pattern: str
    lengths: tuple[int, int]
    is_binary: bool
    is_hashed: bool = False
    is_signed: bool = False

    def to_json(self) -> JsonObject:
        """Return one item of ``runtime.inputs``, in the words of the vectoriser's parameters."""
        return {
            "name": self.name,
            "tensor": self.tensor,
            "n_features": self.columns,
            "vocabulary": self.vocabulary,
            "analyzer": self.analyzer,
            "lowercase": self.is_lowercase,
            "strip_accents": self.accents,
            "token_pattern": self.token_pattern,
            "ngram_range": list(self.lengths),
            "binary": self.is_binary,
            "hashing": self.is_hashed,
            "alternate_sign": self.is_signed,
        }


@dataclass(frozen=True, slots=True)
class TermsForm:
    """Which inputs are counted, and what computes the rest.

    ``engine``: the runtime document of the graph alone, and ``graph`` its signature. ``is_dense``:
    the graph makes the whole table of the counts, not only what is in it.
    """

    inputs: tuple[TermInput, ...]
    engine: JsonObject
    graph: Signature
    is_dense: bool

    def to_json(self) -> JsonObject:
        """Return the manifest's ``runtime``."""
        return {
            "name": RUNTIME_NAME,
            "inputs": [item.to_json() for item in self.inputs],
            "engine": self.engine,
            "graph": self.graph.to_json(),
            "dense": self.is_dense,
        }


def parse_terms_form(manifest: Manifest) -> TermsForm:
    """Return the form of such a version, or raise LoadFailed naming the field."""
    document = manifest.runtime
    try:
        graph = parse_signature(document.get("graph"))
    except InvalidInput as error:
        raise LoadFailed(f"runtime.graph: {error}") from None
    engine = document.get("engine")
    if not isinstance(engine, dict) or engine.get("name") != "onnx":
        raise LoadFailed("runtime.engine must name onnx")
    items = document.get("inputs")
    if not isinstance(items, list) or not 1 <= len(items) <= _MAX_INPUTS:
        raise LoadFailed(f"runtime.inputs must be a list of 1 to {_MAX_INPUTS} objects")
    objects = {entry.digest for entry in manifest.tensors}
    inputs = tuple(_input(item, f"runtime.inputs[{n}]", objects) for n, item in enumerate(items))
    specs = {spec.name: spec for spec in graph.inputs}
    for number, item in enumerate(inputs):
        spec = specs.pop(item.tensor, None)
        if spec is None or spec.datatype != "INT64" or spec.shape != (-1, -1, 2):
            raise LoadFailed(
                f"runtime.inputs[{number}].tensor {shown(item.tensor)} must be an input of "
                "runtime.graph of its own, INT64 of shape [-1, -1, 2]"
            )
    return TermsForm(inputs, engine, graph, _flag(document, "dense", "runtime"))


def _input(item: object, where: str, objects: set[str]) -> TermInput:
    if not isinstance(item, dict):
        raise LoadFailed(f"{where} must be an object")
    try:
        vocabulary = check_digest(item.get("vocabulary"))
    except InvalidInput as error:
        raise LoadFailed(f"{where}.vocabulary: {error}") from None
    if vocabulary not in objects:
        raise LoadFailed(f"{where}.vocabulary {vocabulary} is no object of the manifest")
    columns, lengths = item.get("n_features"), item.get("ngram_range")
    if type(columns) is not int or not 1 <= columns <= MAX_COLUMNS:
        raise LoadFailed(f"{where}.n_features {shown(columns)} must be 1 to {MAX_COLUMNS}")
    return TermInput(
        name=_text(item, "name", where),
        tensor=_text(item, "tensor", where),
        columns=columns,
        vocabulary=vocabulary,
        analyzer=_one_of(item, "analyzer", ANALYZERS, where),
        is_lowercase=_flag(item, "lowercase", where),
        accents=_one_of(item, "strip_accents", ACCENTS, where),
        token_pattern=_pattern(item, where),
        lengths=_lengths(lengths, where),
        is_binary=_flag(item, "binary", where),
        is_hashed=_flag(item, "hashing", where),
        is_signed=_flag(item, "alternate_sign", where),
    )


def _lengths(value: object, where: str) -> tuple[int, int]:
    if isinstance(value, list) and len(value) == 2 and all(type(n) is int for n in value):
        least, most = value
        if 1 <= least <= most <= MAX_LENGTH:
            return least, most
    raise LoadFailed(
        f"{where}.ngram_range {shown(value)} must be two numbers, 1 to {MAX_LENGTH}, in order"
    )


def _pattern(item: Mapping[str, object], where: str) -> str:
    value = item.get("token_pattern")
    if not isinstance(value, str) or value not in TOKEN_PATTERNS:
        raise LoadFailed(f"{where}.token_pattern {shown(value)} is none of those that are known")
    return value


def _text(item: Mapping[str, object], key: str, where: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise LoadFailed(f"{where}.{key} {shown(value)} must be a text")
    return value


def _one_of(item: Mapping[str, object], key: str, known: tuple[_T, ...], where: str) -> _T:
    value = item.get(key)
    for each in known:
        if value == each:
            return each
    raise LoadFailed(f"{where}.{key} {shown(value)} must be one of {', '.join(map(str, known))}")


def _flag(item: Mapping[str, object], key: str, where: str) -> bool:
    value = item.get(key)
    if not isinstance(value, bool):
        raise LoadFailed(f"{where}.{key} {shown(value)} must be true or false")
    return value
