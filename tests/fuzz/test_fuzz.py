"""Each fuzzer for a moment, and everything that one of them ever found."""

from __future__ import annotations

import pytest

from tests.fuzz.mutate import mutations
from tests.fuzz.targets import TARGETS

pytestmark = pytest.mark.slow
# A few seconds for all of them together; hours are for scripts/bench fuzz.
COUNTS = {"infer": 1500, "next": 1000, "predict": 1500, "manifest": 2000, "frames": 2000,
          "compressed": 1500, "paths": 4000, "connection": 1500, "graph": 2000}  # fmt: skip


@pytest.mark.parametrize("name", TARGETS)
def test_nothing_unplanned_comes_of_random_changes(name: str) -> None:
    """Good or refused, never another exception, and no two readings of the same bytes."""
    target = TARGETS[name]
    for data in mutations(target.seeds, seed=1, count=COUNTS[name]):
        try:
            target.run(data)
        except Exception as error:
            raise AssertionError(f"{name} on {data!r}") from error


def test_every_target_is_counted() -> None:
    assert COUNTS.keys() == TARGETS.keys()


def test_the_same_seed_changes_the_same_way() -> None:
    """A find can be looked at again."""
    seeds = TARGETS["predict"].seeds
    first, again, other = (list(mutations(seeds, seed, 50)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert len(set(first)) > 40


# What fuzzing found, by target; each is mended, and stays.
FOUND = [
    # An opset's domain that is not UTF-8, which the parser gives as bytes.
    (
        "graph",
        b"\x08\n:\n\n\x08\x08\x01\x12\x04\n\x02\x08\x01\xa0\x00\x05\x12\x04tes\x01B\x04\n\x02\xa0\x00",
    ),
]


@pytest.mark.parametrize(("name", "data"), FOUND)
def test_what_was_found_once_is_planned_now(name: str, data: bytes) -> None:
    TARGETS[name].run(data)
