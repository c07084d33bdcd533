"""Both OpenAPI documents held against a real server for a moment; longer by scripts/bench fuzz."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fuzz.openapi import PLANES, attack, attacked_server
from tests.process.server import RunningServer

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
# What is made up by chance, and sequences of calls; every border value of every field takes longer.
_OPTIONS = ("--seed", "1", "--max-examples", "2", "--phases", "examples,fuzzing,stateful")


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with attacked_server() as running:
        yield running


@pytest.mark.parametrize("plane", PLANES)
def test_every_answer_is_as_documented(server: RunningServer, plane: str) -> None:
    """Status, type, schema and headers; what the schema forbids is refused, and needs a token."""
    found = attack(server, plane, _OPTIONS)
    assert found.is_held, found.text
    assert found.cases > 50
