"""A recorded change is told in words that show the change, not the form it is kept in."""

from __future__ import annotations

from typing import Any

import pytest

from serving.cli.change_words import change_text


def route(
    *shares: tuple[int, int], shadow: tuple[int, ...] = (), latest: bool = False, previous: int = 0
) -> dict[str, Any]:
    """Return a route as an event holds it."""
    return {
        "split": [{"version": version, "weight": weight} for version, weight in shares],
        "shadow": list(shadow),
        "latest": latest,
        "previous": (
            {"split": [{"version": previous, "weight": 100}], "shadow": []} if previous else None
        ),
    }


WHOLE = route((1, 100))


@pytest.mark.parametrize(
    ("before", "after", "text"),
    [
        ({"route": WHOLE}, {"route": route((1, 70), (2, 30))}, "route 1 -> 1=70 2=30"),
        ({"route": WHOLE}, {"route": route((2, 100), previous=1)}, "route 1 -> 2"),
        ({"route": WHOLE}, {"route": route((1, 100), shadow=(5,))}, "route 1 -> 1 shadow 5"),
        ({"route": WHOLE}, {"route": route((1, 100), latest=True)},
         "route 1 -> 1 (follows latest)"),
        ({"route": WHOLE}, {"route": None}, "route 1 -> none"),
        ({"ready": [], "route": None}, {"ready": [1], "route": WHOLE},
         "READY none -> 1; route none -> 1"),
        ({"route": route((2, 100), previous=1)}, {"route": route((2, 100))},
         "route's previous 1 -> none"),
        ({"aliases": {"old": 1, "stable": 1}}, {"aliases": {"old": 1, "stable": 2}},
         "alias stable 1 -> 2"),
        ({"aliases": {"old": 1}}, {"aliases": {}}, "alias old 1 -> none"),
        ({"settings": {}}, {"settings": {"timeout_ms": 500}}, "timeout_ms none -> 500"),
        ({"ready": [1, 3], "failed": {}}, {"ready": [1], "failed": {"3": "x" * 300}},
         "READY 1,3 -> 1; FAILED 3 no -> yes"),
        (None, {"objects": 2, "bytes": 4096}, "objects 2; bytes 4096"),
        ({"version": 1}, {"version": 2}, "version 1 -> 2"),
        (None, None, ""),
        ({}, {}, ""),
        (1, "y" * 50, f"1 -> {'y' * 37}..."),
    ],
)  # fmt: skip
def test_a_change_is_told_part_by_part(before: object, after: object, text: str) -> None:
    """Routes as `ramrack route` reads them, aliases and settings each by its name."""
    assert change_text(before, after) == text
