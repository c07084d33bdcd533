"""The table of threats is true: its tests and defences are there, and none of them is forgotten."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.threats import ROOT, THREATS, found, main, missing, names_in


def test_every_threat_has_its_tests_and_its_defence() -> None:
    assert missing(THREATS) == []


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"tests": ("tests/threat/test_planes.py::test_no_such",)}, "no test tests/threat"),
        ({"tests": ("tests/no_such.py::test_x",)}, "no test tests/no_such.py"),
        ({"slug": "no_such_slug"}, "named after"),
        ({"defences": ("serving/no_such.py",)}, "no file"),
        ({"defences": ()}, "no defence"),
        ({"seen_red": ""}, "nobody saw"),
    ],
)
def test_what_is_missing_is_said(
    change: dict[str, object], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command ends with 1 and names the row."""
    broken = replace(THREATS[0], **change)  # type: ignore[arg-type]
    assert main([broken]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"missing: {broken.name}: ")
    assert word in said


def test_every_attack_is_in_the_table() -> None:
    """A test under tests/threat that no row names would never be asked for its defence."""
    named = {node for threat in THREATS for test in threat.tests for node in found(test)}
    files = sorted((ROOT / "tests" / "threat").glob("test_*.py"))
    written = {
        f"tests/threat/{path.name}::{name}"
        for path in files
        for name in names_in(f"tests/threat/{path.name}")
    }
    assert written - named == set()
