"""Texts to compare a conversion on where terms are counted: of the model's own, and of odd ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from models.servable import Array

# Writing in which lower case, words or accents are no plain matter.
ODD: Final = (
    "", " ", "\n", "a", "I", "_", "7", "x_1 __init__ 3.14",
    "İstanbul'da ISPARTA \N{LATIN SMALL LETTER DOTLESS I} I İ",
    "ΟΔΥΣΣΕΥΣ ΣΑΣ, ΣΑΣ. Σ ΑΣ", "Straße STRASSE ẞ ﬁn ǅ", "cafe\N{COMBINING ACUTE ACCENT} café CAFÉ",
    "a\N{COMBINING DOT BELOW}\N{COMBINING CIRCUMFLEX ACCENT}b ậb Å \N{ANGSTROM SIGN}",
    "東京で寿司を食べた 한국어 각",
    "हिन्दी में नमस्ते", "\N{GRINNING FACE} ok\N{GRINNING FACE}ok \N{ZERO WIDTH JOINER}",
    "tab\tline\r\nfeed\x0b\x0c\x1c\x1f\x85\N{NO-BREAK SPACE}\N{LINE SEPARATOR}end",
    "don't well-known e-mail: a.b@c.de, 1,000", "½ ² ⅷ ٣ ४ \N{BLACK-LETTER CAPITAL H}",
    "\x01\x02\x7f", "x" * 300,
)  # fmt: skip
_UNSEEN: Final = ("zzyzx", "Qwrtz", "неизвестно", "未知", "w1", "of", "the")
_BETWEEN: Final = (" ", " ", " ", ", ", "\n", "  ", "-", ". ", "\t", "_", "")
# As many terms make up one row, few of them.
_LONG_TERMS: Final = 3000
_LONG_ROWS: Final = range(101, 105)
_MOST_TERMS: Final = 40
_KNOWN_SHARE: Final = 0.85


def made_texts(
    vectorizers: Sequence[Any], categories: Sequence[object], rows: int, rng: np.random.Generator
) -> Array:
    """Return ``(rows,)`` texts of the terms that the vectorisers know, of others, and odd ones."""
    known = _known(vectorizers) + [str(value) for value in categories]
    texts = np.empty(rows, dtype=object)
    for row in range(rows):
        count = int(rng.integers(1, _MOST_TERMS))
        texts[row] = _text(known, _LONG_TERMS if row in _LONG_ROWS else count, rng)
    places = rng.permutation(np.arange(rows))[: len(ODD)]
    texts[places] = np.array([*ODD], dtype=object)[: len(places)]
    return texts


def _text(known: Sequence[str], count: int, rng: np.random.Generator) -> str:
    parts: list[str] = []
    is_known = rng.random(count) < _KNOWN_SHARE
    drawn = rng.integers(0, 1 << 30, size=(count, 3))
    for flag, (term, change, between) in zip(is_known, drawn.tolist(), strict=True):
        pool = known if flag and known else _UNSEEN
        word = pool[term % len(pool)]
        if change % 5 == 0:
            word = (word.upper(), word.title(), word[::-1])[change % 3]
        parts += (word, _BETWEEN[between % len(_BETWEEN)])
    return "".join(parts)


def _known(vectorizers: Sequence[Any]) -> list[str]:
    return [
        str(term) for part in vectorizers for term in sorted(getattr(part, "vocabulary_", ()))
    ] or ["good", "bad", "film", "plot", "great", "story", "price", "service", "très", "ok"]
