"""Whatever strings and bytes a client sends, crossing the runtime's text form changes nothing."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from models.runtime.strings import from_runtime, to_runtime

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
PRIVATE = st.text(st.characters(min_codepoint=0x10FEFF, max_codepoint=0x10FFFF), max_size=5)


def as_array(elements: list[str | bytes]) -> np.ndarray:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def as_bytes(element: str | bytes) -> bytes:
    return element.encode() if isinstance(element, str) else element


@given(st.lists(st.one_of(TEXTS, PRIVATE, st.binary(max_size=20)), max_size=8))
def test_every_value_comes_back_bit_for_bit(elements: list[str | bytes]) -> None:
    """The bytes of each element survive, and text is text again wherever it is UTF-8."""
    sent = to_runtime(as_array(elements), "x")
    assert all(type(item) is str and item.encode() is not None for item in sent)
    back = from_runtime(sent).tolist()
    assert [as_bytes(item) for item in back] == [as_bytes(item) for item in elements]
    for item in back:
        if isinstance(item, bytes):
            assert not _is_utf8(item)


@given(st.lists(st.one_of(TEXTS, PRIVATE, st.binary(max_size=4)), min_size=2, max_size=2))
def test_different_values_stay_different_inside_the_runtime(elements: list[str | bytes]) -> None:
    """A graph that compares or looks up strings sees equal ones as equal and no others."""
    left, right = to_runtime(as_array(elements), "x").tolist()
    assert (left == right) == (as_bytes(elements[0]) == as_bytes(elements[1]))


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
