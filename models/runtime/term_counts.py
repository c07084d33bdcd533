"""Texts to counted terms, as scikit-learn's CountVectorizer and HashingVectorizer count them.

What those do with Python's own ``str.lower``, ``re`` and ``unicodedata`` is done with the same
here, so that no rule of writing (a final sigma, a dotted capital I, a combining mark) is another.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

from models.errors import InputRefused, LoadFailed
from models.reading import read_file
from models.terms_form import TermInput, TermsForm
from registry.ident import digest_hex, shown

# Longer texts hold the interpreter's lock for more than some milliseconds at a time.
MAX_CHARACTERS: Final = 1 << 18
# Terms of one line of a vocabulary object: so many are decoded in one go.
LINE_TERMS: Final = 4096
_TOGETHER: Final = 4096
_SPACES: Final = re.compile(r"\s\s+")
# Characters whose form without accents is kept; a text may hold any of a million.
_MAX_KEPT: Final = 1 << 14
# Longer terms are hashed each time: there is no end to what they would take.
_MAX_HASHED_LENGTH: Final = 64

# A column of the table to how often a text has it.
Counts: TypeAlias = dict[int, int]


class TermCounter:
    """Cuts and counts the texts of one input. ``count`` may be called from any thread."""

    def __init__(self, item: TermInput, stop_words: frozenset[str], places: dict[str, int]) -> None:
        self._item = item
        self._stop_words = stop_words
        self._places = places
        self._findall = re.compile(item.token_pattern).findall
        self._groups: Callable[[str], Iterator[Iterable[str]]] = {
            "word": self._words, "char": self._characters, "char_wb": self._within_words,
        }[item.analyzer]  # fmt: skip

    def count(self, text: str, check: Callable[[], None] = lambda: None) -> Counts:
        """Return the columns of a text in which it is not zero.

        ``check`` is called now and then and may raise. A hashed column may be there with 0.
        """
        if self._item.is_lowercase:
            text = text.lower()
        if self._item.accents is not None:
            text = without_accents(text, self._item.accents)
        counts = self._hashed(text, check) if self._item.is_hashed else self._known(text, check)
        if self._item.is_binary:
            return dict.fromkeys(counts, 1)
        return counts

    def _known(self, text: str, check: Callable[[], None]) -> Counts:
        found: Counter[int | None] = Counter()
        for terms in self._groups(text):
            check()
            found.update(map(self._places.get, terms))
        del found[None]
        return found  # type: ignore[return-value]  # None was taken out

    def _hashed(self, text: str, check: Callable[[], None]) -> Counts:
        columns, is_signed = self._item.columns, self._item.is_signed
        counts: Counts = {}
        for terms in self._groups(text):
            check()
            for term in terms:
                value = _kept_hash(term) if len(term) <= _MAX_HASHED_LENGTH else murmur3(term)
                column = abs(value) % columns
                counts[column] = counts.get(column, 0) + (-1 if is_signed and value < 0 else 1)
        return counts

    def _words(self, text: str) -> Iterator[Iterable[str]]:
        words = self._findall(text)
        if stop := self._stop_words:
            words = [word for word in words if word not in stop]
        least, most = self._item.lengths
        if least == 1:
            # The lock of the interpreter is let go between two lists, and never within one.
            yield from (words[at : at + _TOGETHER] for at in range(0, len(words), _TOGETHER))
        for length in range(max(2, least), min(most, len(words)) + 1):
            starts = range(len(words) - length + 1)
            yield (" ".join(words[at : at + length]) for at in starts)

    def _characters(self, text: str) -> Iterator[Iterable[str]]:
        text = _SPACES.sub(" ", text)
        least, most = self._item.lengths
        for length in range(least, min(most, len(text)) + 1):
            yield (text[at : at + length] for at in range(len(text) - length + 1))

    def _within_words(self, text: str) -> Iterator[Iterable[str]]:
        yield self._of_padded_words(_SPACES.sub(" ", text).split())

    def _of_padded_words(self, words: Iterable[str]) -> Iterator[str]:
        least, most = self._item.lengths
        for word in words:
            padded = f" {word} "
            for length in range(least, most + 1):
                last = len(padded) - length
                if last <= 0:  # a word that is no longer than that is counted once, as it is
                    yield padded
                    break
                for at in range(last + 1):
                    yield padded[at : at + length]


def open_counters(form: TermsForm, objects_dir: Path) -> list[TermCounter]:
    """Return the counter of each counted input, or raise LoadFailed."""
    return [
        open_counter(item, read_lines(objects_dir / digest_hex(item.vocabulary)))
        for item in form.inputs
    ]


def open_counter(item: TermInput, lines: Iterable[bytes | bytearray]) -> TermCounter:
    """Return the counter of an input from the lines of its vocabulary object.

    The first line has the stop words, the others the terms in the order of their columns, each
    a JSON list of texts. Raises LoadFailed.
    """
    stop_words: frozenset[str] | None = None
    places: dict[str, int] = {}
    count = 0
    for line in lines:
        terms = _terms(line)
        if stop_words is None:
            stop_words = frozenset(terms)
            continue
        places.update(zip(terms, range(count, count + len(terms)), strict=True))
        count += len(terms)
    if len(places) != count or count != (0 if item.is_hashed else item.columns):
        raise LoadFailed(
            f"its vocabulary of input {shown(item.name)} has {count} terms, {len(places)} of them "
            f"different; the model has {item.columns} columns"
        )
    return TermCounter(item, stop_words or frozenset(), places)


def read_lines(path: Path) -> Iterator[bytearray]:
    """Yield the lines of a vocabulary object, or raise LoadFailed."""
    try:
        data = read_file(path)
    except FileNotFoundError:
        raise LoadFailed("its vocabulary object is not in the store") from None
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        end = len(data) if end < 0 else end
        yield data[start:end]
        start = end + 1


def text_of(element: object, name: str, place: int) -> str:
    """Return an element of a BYTES tensor as text, or raise InputRefused naming it."""
    if isinstance(element, bytes):
        try:
            element = element.decode()
        except UnicodeDecodeError as error:
            raise InputRefused(
                f"input {shown(name)}: element {place} is not UTF-8: "
                f"byte 0x{error.object[error.start]:02x} at {error.start}"
            ) from None
    if not isinstance(element, str):
        raise InputRefused(
            f"input {shown(name)}: element {place} is {type(element).__name__}, expected a string"
        )
    if len(element) > MAX_CHARACTERS:
        raise InputRefused(
            f"input {shown(name)}: element {place} has {len(element):,} characters, at most "
            f"{MAX_CHARACTERS:,} are counted: send it shorter"
        )
    return element


def without_accents(text: str, accents: str) -> str:
    """Return a text as scikit-learn's ``strip_accents`` "unicode" or "ascii" leaves it."""
    return text if text.isascii() else text.translate(_UNACCENTED[accents])


def murmur3(term: str) -> int:
    """Return MurmurHash3 (x86, 32 bits, seed 0) of a term in UTF-8, as a signed number.

    Of Austin Appleby's reference code; scikit-learn hashes with the same. Raises InputRefused.
    """
    try:
        data = term.encode()
    except UnicodeEncodeError:
        raise InputRefused("a text has a lone surrogate, which is no character") from None
    value, whole = 0, len(data) & ~3
    for at in range(0, whole, 4):
        value ^= _mixed(int.from_bytes(data[at : at + 4], "little"))
        value = (value << 13 | value >> 19) & 0xFFFFFFFF
        value = (value * 5 + 0xE6546B64) & 0xFFFFFFFF
    if whole < len(data):
        value ^= _mixed(int.from_bytes(data[whole:], "little"))
    value ^= len(data)
    value = ((value ^ value >> 16) * 0x85EBCA6B) & 0xFFFFFFFF
    value = ((value ^ value >> 13) * 0xC2B2AE35) & 0xFFFFFFFF
    value ^= value >> 16
    return value - (1 << 32) if value >> 31 else value


def _mixed(block: int) -> int:
    block = (block * 0xCC9E2D51) & 0xFFFFFFFF
    block = (block << 15 | block >> 17) & 0xFFFFFFFF
    return (block * 0x1B873593) & 0xFFFFFFFF


_kept_hash: Final = lru_cache(maxsize=1 << 14)(murmur3)


def _terms(line: bytes | bytearray) -> list[str]:
    try:
        terms = json.loads(line)
    except (ValueError, RecursionError):
        terms = None
    if not isinstance(terms, list) or not all(isinstance(term, str) for term in terms):
        raise LoadFailed("its vocabulary is damaged: a line is no JSON list of texts")
    return terms


class _Unaccented(dict[int, str]):
    """For ``str.translate``: characters decomposed, without the marks.

    Of a whole text the same comes out: decomposing puts nothing but marks into another order.
    """

    def __init__(self, *, is_ascii: bool) -> None:
        self._is_ascii = is_ascii

    def __missing__(self, code: int) -> str:
        parts = unicodedata.normalize("NFKD", chr(code))
        if self._is_ascii:
            text = parts.encode("ascii", "ignore").decode()
        else:
            text = "".join(part for part in parts if not unicodedata.combining(part))
        if len(self) < _MAX_KEPT:
            self[code] = text
        return text


_UNACCENTED: Final = {"ascii": _Unaccented(is_ascii=True), "unicode": _Unaccented(is_ascii=False)}
