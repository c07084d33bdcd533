"""Who answers of a split: shares that hold over any window, and keys that stay where they are."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from registry.slots import Slots, first_slots, moved_slots
from registry.split import Split
from registry.traffic import Share

KEYS = [b"user-%d" % number for number in range(100_000)]


def shares_of(weights: dict[int, int]) -> list[Share]:
    return [Share(version, weight) for version, weight in sorted(weights.items())]


def split_of(weights: dict[int, int], model: str = "m", position: int = 7) -> Split:
    return Split(model, shares_of(weights), weights.keys(), position)


def sides(*steps: dict[int, int], model: str = "m") -> list[int]:
    """Return whose each key is, after a split was changed step by step."""
    slots: Slots = ()
    for weights in steps:
        slots = moved_slots(slots, shares_of(weights)) if slots else first_slots(shares_of(weights))
    split = Split(model, shares_of(steps[-1]), steps[-1].keys(), 7, slots)
    return [split.version_of(key) for key in KEYS]


def moves(before: list[int], after: list[int]) -> Counter[tuple[int, int]]:
    return Counter((old, new) for old, new in zip(before, after, strict=True) if old != new)


@pytest.mark.slow
def test_keys_are_shared_out_by_weight() -> None:
    """Of 100,000 keys each version gets its part to half a percentage point."""
    for weights in ({3: 90, 4: 10}, {1: 1, 2: 99}, {1: 50, 2: 30, 3: 15, 4: 5}):
        count = Counter(sides(weights))
        for version, weight in weights.items():
            assert abs(count[version] / 1000 - weight) < 0.5


@pytest.mark.slow
def test_of_two_versions_only_the_difference_moves() -> None:
    """From 90/10 to 75/25 every tenth and twentieth key changes side, all the same way."""
    changed = moves(sides({3: 90, 4: 10}), sides({3: 90, 4: 10}, {3: 75, 4: 25}))
    assert changed.keys() == {(3, 4)}
    assert abs(changed[3, 4] / 1000 - 15) < 0.5


@pytest.mark.slow
def test_of_more_versions_only_the_difference_moves_as_well() -> None:
    """Ten points go from one version to another, and the third keeps every key it has."""
    steps = [{1: 100}, {1: 60, 3: 40}, {1: 50, 2: 30, 3: 20}, {1: 40, 2: 40, 3: 20}]
    changed = moves(sides(*steps[:-1]), sides(*steps))
    assert changed.keys() == {(1, 2)}
    assert abs(changed[1, 2] / 1000 - 10) < 0.5


@pytest.mark.slow
def test_a_version_taken_out_moves_its_own_keys_alone() -> None:
    """Where the others keep their proportion, none of their keys moves."""
    before = sides({1: 60, 2: 30, 3: 10})
    for after, gone in (({1: 67, 2: 33}, 3), ({2: 75, 3: 25}, 1)):
        changed = moves(before, sides({1: 60, 2: 30, 3: 10}, after))
        assert {old for old, _ in changed} == {gone}
        assert sum(changed.values()) == before.count(gone)


@pytest.mark.slow
def test_the_split_of_one_model_says_nothing_of_another() -> None:
    """With the same keys and weights, two canaries meet in a hundredth of them, not a tenth."""
    weights = {1: 90, 2: 10}
    both = zip(sides(weights, model="m"), sides(weights, model="n"), strict=True)
    assert 800 < sum(a == b == 2 for a, b in both) < 1200


def test_a_key_stays_where_it_is_over_processes_and_turns() -> None:
    """Neither the turns nor another process decides otherwise."""
    weights = {3: 70, 4: 20, 5: 10}
    here = [split_of(weights).version_of(key) for key in KEYS[:200]]
    turned = split_of(weights, position=10**19)
    for _ in range(50):
        turned.next_version()
    assert here == [turned.version_of(key) for key in KEYS[:200]]
    code = (
        "from registry.split import Split; from registry.traffic import Share; "
        "s = Split('m', [Share(3, 70), Share(4, 20), Share(5, 10)], (), 1); "
        "print([s.version_of(b'user-%d' % n) for n in range(200)])"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert found.stdout.strip() == str(here)
    assert len(set(here)) == 3


def test_a_version_that_does_not_answer_gets_no_turn_but_keeps_its_keys() -> None:
    """Turns are shared out over the others by weight; keys wait for their version."""
    shares = [Share(1, 60), Share(2, 30), Share(3, 10)]
    split = Split("m", shares, {1, 2}, 0)
    count = Counter(split.next_version() for _ in range(900))
    assert count.keys() == {1, 2}
    assert abs(count[1] - 600) <= 3
    assert [split.version_of(key) for key in KEYS[:100]] == [
        Split("m", shares, {1, 2, 3}, 0).version_of(key) for key in KEYS[:100]
    ]
    assert Split("m", shares, (), 0).next_version() is None


def test_no_weight_means_no_turn_and_no_key() -> None:
    """A version with weight 0 is named and never chosen."""
    split = split_of({1: 100, 2: 0})
    assert {split.next_version() for _ in range(300)} == {1}
    assert {split.version_of(key) for key in KEYS[:300]} == {1}
