"""A worker's garbage collector looks seldom, and not at what stays."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from serving.workers.collecting import YOUNG_OBJECTS, collect_rarely


@pytest.fixture
def collector() -> Iterator[None]:
    """Give the process its collector back as it was."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


class _Node:
    def __init__(self) -> None:
        self.itself = self


@pytest.mark.usefixtures("collector")
def test_what_exists_is_left_out_and_what_comes_is_collected() -> None:
    """Garbage made afterwards, such as a version that was unloaded, goes as ever."""
    collect_rarely()
    assert gc.get_freeze_count() > 1000
    assert gc.get_threshold()[0] == YOUNG_OBJECTS
    gone = weakref.ref(_Node())
    gc.collect()
    assert gone() is None
