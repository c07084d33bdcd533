"""The response cache: what makes two requests equal, and what it may take."""

from __future__ import annotations

import numpy as np
import pytest

from models.servable import Array
from serving.data.response_cache import Key, ResponseCache, key_of

ROW = np.arange(4, dtype=np.float32).reshape(1, 4)


def texts(*items: str | bytes) -> Array:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def key(
    inputs: dict[str, Array] | None = None,
    outputs: tuple[str, ...] | None = None,
    version: int = 3,
    digest: str = "sha256:00",
) -> Key:
    return key_of(("fraud", version), digest, inputs or {"x": ROW}, outputs)


@pytest.mark.parametrize(
    "other",
    [
        key({"x": ROW + 1}),
        key({"x": -ROW}),
        key({"y": ROW}),
        key({"x": ROW.reshape(2, 2)}),
        key({"x": ROW.view(np.int32)}),
        key({"x": ROW, "y": ROW}),
        key(outputs=("a",)),
        key(outputs=("b", "a")),
        key(outputs=("a", "b")),
        key(outputs=("ab",)),
        key(outputs=()),
        key(version=4),
        key(digest="sha256:01"),
        key({"x": texts("ab", "c")}),
        key({"x": texts("a", "bc")}),
        key({"x": texts(b"a", "bc")}),
    ],
)
def test_whatever_differs_has_another_key(other: Key) -> None:
    """Values, names, shapes, datatypes, outputs and their order, version and bytes of it."""
    assert other != key()
    assert key() == key({"x": ROW.copy()})


def test_equal_texts_that_are_split_otherwise_differ() -> None:
    """Lengths are part of the key."""
    assert key({"x": texts("ab", "c")}) != key({"x": texts("a", "bc")})
    assert key({"x": texts(b"a")}) != key({"x": texts("a")})


def test_the_least_recently_used_goes_first() -> None:
    """The bound is bytes, and what alone is larger is not kept."""
    cache = ResponseCache(4096)
    keys = [key({"x": ROW + value}) for value in range(8)]
    for item in keys[:5]:
        cache.put(item, [np.zeros(64, np.float64)])
        cache.get(keys[0])
    assert cache.held_bytes <= 4096
    assert cache.get(keys[0]) is not None
    assert cache.get(keys[1]) is None
    cache.put(keys[6], [np.zeros(1000, np.float64)])
    assert cache.get(keys[6]) is None


def test_a_version_that_goes_takes_its_answers_with_it() -> None:
    """Another version keeps its own."""
    cache = ResponseCache(1 << 20)
    mine, other = key(), key(version=4)
    for item in (mine, other):
        cache.put(item, [ROW])
    cache.forget(("fraud", 3))
    assert (cache.get(mine), cache.get(other) is None) == (None, False)
