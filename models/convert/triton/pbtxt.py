"""A reader of protobuf's text format, as far as ``config.pbtxt`` uses it.

https://protobuf.dev/reference/protobuf/textformat-spec/: fields are ``name: value`` or
``name { ... }``, lists ``[a, b]``, comments start with ``#``, commas and semicolons may stand
between fields. Without the schema every field is kept as the list of all values it was given.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from models.errors import ConversionRefused
from registry.ident import shown

MAX_DEPTH: Final = 32
_TOKEN: Final = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?:
        (?P<text>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<mark>[{}<>\[\]:,;])
      | (?P<word>[-+]?[A-Za-z0-9_.][A-Za-z0-9_.+/-]*)
      | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", '"': '"', "'": "'", "\\": "\\"}
_NUMBER: Final = re.compile(r"[-+]?\d+")


@dataclass(slots=True)
class Message:
    """A message: every field with its values in the order of the text."""

    fields: dict[str, list[Value]] = field(default_factory=dict)

    def messages(self, name: str) -> list[Message]:
        """Return the values of a field that are messages."""
        return [value for value in self.fields.get(name, []) if isinstance(value, Message)]

    def message(self, name: str) -> Message:
        """Return the last message of a field, or an empty one."""
        found = self.messages(name)
        return found[-1] if found else Message()

    def text(self, name: str) -> str:
        """Return the last value of a field as text, "" where there is none."""
        values = [value for value in self.fields.get(name, []) if not isinstance(value, Message)]
        return str(values[-1]) if values else ""

    def number(self, name: str) -> int:
        """Return the last value of a field as a whole number, 0 where there is none."""
        text = self.text(name) or "0"
        if not _NUMBER.fullmatch(text) or len(text) > 20:
            raise ConversionRefused(f"config.pbtxt: {name}: {shown(text)} is no whole number")
        return int(text)

    def numbers(self, name: str) -> list[int]:
        """Return all values of a field as whole numbers."""
        return [
            Message({name: [value]}).number(name)
            for value in self.fields.get(name, [])
            if not isinstance(value, Message)
        ]

    def parameters(self) -> dict[str, str]:
        """Return Triton's ``parameters { key: "k" value { string_value: "v" } }`` by key."""
        return {
            entry.text("key"): entry.message("value").text("string_value")
            for entry in self.messages("parameters")
        }


Value: TypeAlias = str | Message


def parse(text: str) -> Message:
    """Return the message in ``text``, or raise ConversionRefused naming the line."""
    return _Reader(text).message("", 0)


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._kind = ""
        self._token = ""
        self._next()

    def message(self, end: str, depth: int) -> Message:
        """Read fields up to ``end`` ("" for the end of the text)."""
        if depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} deep")
        found = Message()
        while not self._is(end):
            if self._kind != "word":
                raise self._error(f"expected a field, got {shown(self._token or 'the end')}")
            name = self._token
            self._next()
            values = found.fields.setdefault(name, [])
            is_named = self._take(":")
            if self._is("["):
                values.extend(self._list(depth))
            elif self._is("{") or self._is("<"):
                values.append(self._nested(depth))
            elif is_named:
                values.append(self._scalar())
            else:
                raise self._error(f"expected a value of {name}, got {shown(self._token)}")
            while self._take(",") or self._take(";"):
                pass
        self._next()
        return found

    def _list(self, depth: int) -> list[Value]:
        self._next()
        values: list[Value] = []
        while not self._take("]"):
            is_message = self._is("{") or self._is("<")
            values.append(self._nested(depth) if is_message else self._scalar())
            if not self._take(",") and not self._is("]"):
                raise self._error(f"expected , or ], got {shown(self._token or 'the end')}")
        return values

    def _nested(self, depth: int) -> Message:
        end = "}" if self._is("{") else ">"
        self._next()
        return self.message(end, depth + 1)

    def _scalar(self) -> str:
        if self._kind == "word":
            value = self._token
            self._next()
            return value
        if self._kind != "text":
            raise self._error(f"expected a value, got {shown(self._token or 'the end')}")
        parts = []
        while self._kind == "text":  # texts that follow each other are one
            parts.append(re.sub(r"\\(.)", _escaped, self._token[1:-1], flags=re.DOTALL))
            self._next()
        return "".join(parts)

    def _is(self, mark: str) -> bool:
        if not mark:
            return self._kind == "end"
        return self._kind == "mark" and self._token == mark

    def _take(self, mark: str) -> bool:
        if not self._is(mark):
            return False
        self._next()
        return True

    def _next(self) -> None:
        if self._kind == "end":
            return
        match = _TOKEN.match(self._text, self._at)
        if match is None or match.lastgroup is None:
            raise self._error("a character that has no place here")
        self._at = match.end()
        self._kind = match.lastgroup
        self._token = match[self._kind]

    def _error(self, reason: str) -> ConversionRefused:
        line = self._text.count("\n", 0, self._at) + 1
        return ConversionRefused(f"config.pbtxt line {line}: {reason}")


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPES.get(match[1], match[1])
