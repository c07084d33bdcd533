"""Texts to tokens, with the tokenizer that a model was trained with.

The library is of an extra and is imported when the first text version is opened.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.errors import InputRefused, LoadFailed, RunFailed
from models.text_form import TextForm
from registry.ident import shown

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

MISSING: Final = (
    "the Python module 'tokenizers' is missing: type `pip install 'ramrack[text]'` "
    "in the server's environment"
)
# How far a long text is read at first, and then four times as far, until its tokens are certain.
_CHARACTERS_A_TOKEN: Final = 32
_FARTHER: Final = 4
MAX_CHARACTERS: Final = 1 << 20
# A word that is cut may end otherwise; no token so far before the cut sees it.
_MARGIN: Final = 1024
# Texts between two looks at whether the run was ended.
_TOGETHER: Final = 32
_MAX_REASON: Final = 200
_PATH: Final = re.compile(r"(?<![\w/.])/[^\s\"':,;()\[\]]+")


@dataclass(frozen=True, slots=True)
class Tokens:
    """One text as the encoder takes it: token ids, and the segment of each."""

    ids: tuple[int, ...]
    types: tuple[int, ...]


def prepare() -> None:
    """Import the library, or raise LoadFailed saying what to type."""
    # One pool of threads for each process beside those of the runs is not in the plan of threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    if importlib.util.find_spec("tokenizers") is None:
        raise LoadFailed(MISSING)
    importlib.import_module("tokenizers")


class TextTokenizer:
    """One tokenizer. ``encode`` may be called from any thread, several at a time."""

    def __init__(self, path: Path, form: TextForm) -> None:
        self._tokenizer = _opened(path, form.max_tokens)
        self._form = form
        self._first = max(_CHARACTERS_A_TOKEN * form.max_tokens, 4 * _MARGIN)

    def encode(self, elements: Sequence[object], check: Callable[[], None]) -> list[Tokens]:
        """Return the tokens of each element, cut as in training.

        ``check`` is called now and then and may raise. Raises InputRefused naming the element.
        """
        texts = [self._text(element, place) for place, element in enumerate(elements)]
        found: list[Tokens] = []
        for start in range(0, len(texts), _TOGETHER):
            check()
            part = texts[start : start + _TOGETHER]
            encoded = self._encoded([text[: self._first] for text in part])
            for place, (text, tokens) in enumerate(zip(part, encoded, strict=True), start=start):
                found.append(self._whole(text, tokens, place, check))
        return found

    def _text(self, element: object, place: int) -> str:
        if isinstance(element, bytes):
            try:
                element = element.decode()
            except UnicodeDecodeError as error:
                raise InputRefused(
                    f"input 'text': element {place} is not UTF-8: "
                    f"byte 0x{error.object[error.start]:02x} at {error.start}"
                ) from None
        if not isinstance(element, str):
            raise InputRefused(
                f"input 'text': element {place} is {type(element).__name__}, expected a string"
            )
        if self._form.is_stripped:
            element = element.strip()
        # What lies behind is never read, and holding the interpreter's lock for it would be felt.
        element = element[: MAX_CHARACTERS + 1]
        try:
            element.encode()
        except UnicodeEncodeError:
            raise InputRefused(
                f"input 'text': element {place} has a lone surrogate, which is no character"
            ) from None
        return element.lower() if self._form.is_lowercase else element

    def _encoded(self, texts: Sequence[str]) -> Sequence[Encoding]:
        try:
            # It gives up the interpreter's lock; the call for a single text does not.
            found: Sequence[Encoding] = self._tokenizer.encode_batch(texts)
        # The library raises plain Exception, and what its own code trips over is not even that.
        except BaseException as error:
            if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
                raise
            raise RunFailed(f"the tokenizer fails: {_cleaned(error)}") from error
        return found

    def _whole(
        self, text: str, encoding: Encoding, place: int, check: Callable[[], None]
    ) -> Tokens:
        """Read a long text farther until what is cut off cannot change the tokens that count."""
        read = self._first
        while read < len(text) and not self._is_certain(encoding, read):
            if read >= MAX_CHARACTERS:
                raise InputRefused(
                    f"input 'text': element {place}: its first {read:,} characters hold fewer "
                    f"than the {self._form.max_tokens} tokens that count: send it shorter"
                )
            check()
            read = min(_FARTHER * read, MAX_CHARACTERS)
            encoding = self._encoded([text[:read]])[0]
        ids = tuple(encoding.ids)
        if not ids:
            raise InputRefused(f"input 'text': element {place} has no tokens")
        return Tokens(ids, tuple(encoding.type_ids))

    def _is_certain(self, encoding: Encoding, read: int) -> bool:
        if len(encoding.ids) < self._form.max_tokens:
            return False
        return max((end for _, end in encoding.offsets), default=0) + _MARGIN <= read


def _opened(path: Path, max_tokens: int) -> Tokenizer:
    """Return the tokenizer of a file, without the padding and the length that the file may ask."""
    prepare()
    from tokenizers import Tokenizer

    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise LoadFailed("its tokenizer object is not in the store") from None
    except UnicodeDecodeError:
        raise LoadFailed("its tokenizer is no tokenizer.json: it is not UTF-8") from None
    try:
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.enable_truncation(max_tokens)
    # The library raises plain Exception for whatever it finds.
    except Exception as error:
        raise LoadFailed(f"its tokenizer is no tokenizer.json: {_cleaned(error)}") from error
    return tokenizer


def _cleaned(error: BaseException) -> str:
    return shown(_PATH.sub("<file>", str(error))[:_MAX_REASON])
