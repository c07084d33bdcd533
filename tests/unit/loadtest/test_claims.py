"""A claim is judged by its median; a missed one makes the bench fail and say which."""

from __future__ import annotations

import json

import pytest

from loadtest.bench import found_benches
from loadtest.bench.__main__ import main
from loadtest.lab.claims import Claim, Findings, Target, Verdict, ratios


@pytest.mark.parametrize(
    ("sense", "values", "verdict"),
    [(">=", (1.0, 9.0, 10.0), Verdict.MET), (">=", (8.9, 8.9, 99.0), Verdict.MISSED),
     ("<=", (9.0, 9.0, 99.0), Verdict.MET), ("<=", (1.0, 9.1, 9.1), Verdict.MISSED),
     (">=", (), Verdict.SKIPPED)],
)  # fmt: skip
def test_the_median_decides(sense, values, verdict):
    """One lucky or unlucky round does not; nothing measured is neither met nor missed."""
    assert Claim("rate", Target(sense, 9.0), values).verdict is verdict


def test_a_missed_target_fails_the_bench_and_is_named(capsys, tmp_path):
    """The exit code says that, the last lines say which, the file has all of it."""
    findings = Findings("requests")
    findings.claim("good", Target(">=", 2.0), [3.0, 4.0, 5.0])
    findings.claim("bad", Target("<=", 5.0, "ms"), [6.0])
    findings.skip("absent", Target(">=", 1.0), "not installed")
    findings.doubt("busy")
    findings.doubt("busy")
    assert findings.finish(tmp_path / "out.json") == 1
    printed = capsys.readouterr().out
    assert "missed: bad (6.00 (6.00..6.00), target <= 5 ms)" in printed
    assert "requests: 1 met, 1 missed, 1 skipped" in printed
    assert "doubt: busy (2 times)" in printed
    written = json.loads((tmp_path / "out.json").read_text())
    assert [claim["verdict"] for claim in written["claims"]] == ["met", "missed", "skipped"]
    assert written["machine"]["usable_cores"] >= 1


def test_nothing_is_judged_while_a_generator_was_late():
    """Numbers of a run that is not valid neither meet nor miss a target."""
    findings = Findings("x")
    findings.late("late")
    findings.claim("rate", Target(">=", 9.0), [1.0])
    findings.is_late = False
    findings.claim("rate", Target(">=", 9.0), [10.0])
    assert [claim.verdict for claim in findings.claims] == [Verdict.SKIPPED, Verdict.MET]
    assert findings.finish(None) == 0


def test_nothing_missed_is_zero():
    """What was skipped does not fail a bench."""
    findings = Findings("x")
    findings.skip("absent", Target(">=", 1.0), "not installed")
    assert findings.finish(None) == 0


def test_ratios_are_taken_round_by_round():
    """A machine that slows down half-way leaves the ratio as it is."""
    assert ratios([10.0, 5.0], [2.0, 1.0]) == [5.0, 5.0]
    assert ratios([10.0, 5.0], [0.0, 1.0]) == [5.0]


def test_a_bench_is_found_by_being_there(tmp_path):
    """A file is a bench with its first line; one with an underscore is none."""
    (tmp_path / "faults.py").write_text('"""Faults: one line.\n\nMore.\n"""\n')
    (tmp_path / "_shared.py").write_text('"""No bench."""\n')
    assert found_benches(tmp_path) == {"faults": "Faults: one line."}
    assert {"requests", "swap"} <= found_benches().keys()


def test_the_dispatcher_lists_and_refuses(capsys):
    """Help names every bench with its line; an unknown one is wrong usage."""
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed and line in printed for name, line in found_benches().items())
    assert main(["nothing"]) == 2
    assert main([]) == 2
