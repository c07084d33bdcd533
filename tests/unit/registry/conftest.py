"""A store in a temporary folder, with a clock that the test moves."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.store import Store
from tests.disk_model import UnsyncedFiles, scratch_parent
from tests.store_driver import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def scratch() -> Iterator[Path]:
    """A folder for many modelled disks, in memory if the machine allows."""
    with tempfile.TemporaryDirectory(prefix="store-", dir=scratch_parent()) as folder:
        yield Path(folder)


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    files = UnsyncedFiles()
    with Store.open(tmp_path / "store", files=files, monotonic_s=clock, reserve_bytes=0) as opened:
        yield opened
