"""A store in a temporary folder, with a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.store import Store
from tests.disk_model import UnsyncedFiles
from tests.store_driver import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    files = UnsyncedFiles()
    with Store.open(tmp_path / "store", files=files, monotonic_s=clock, reserve_bytes=0) as opened:
        yield opened
