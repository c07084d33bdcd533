"""``bench``: mistakes are found before anything is measured; the picture fits the counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from registry.errors import InvalidInput
from serving.cli import load_run, main
from serving.cli.bench import histogram_rows
from serving.cli.load_run import problem_of
from serving.cli.made_requests import body_of, request_of
from serving.cli.rows import InputFile

GOOD = {"valid": True, "sent": 10, "failed": 0, "errors": {}, "on_time_share": 1.0}


@pytest.mark.parametrize(
    "flags",
    [["--rate", "0"], ["--rate", "nan"], ["--seconds", "0"], ["--connections", "0"],
     ["--rows", "0"], ["--form", "v3"], ["--arrivals", "bursts"], ["--input", "/nowhere.json"],
     ["--url", "ftp://x"]],
)  # fmt: skip
def test_what_cannot_be_measured_is_wrong_usage(flags: list[str], capsys):
    """The flag is named, and nothing is sent."""
    assert main(["bench", "m", *flags]) == 2
    assert flags[0] in capsys.readouterr().err


def test_without_the_package_that_counts_the_extra_is_named(monkeypatch, capsys):
    """The base install does not measure, and says what would."""
    monkeypatch.setattr(load_run.importlib.util, "find_spec", lambda _: None)
    assert main(["bench", "m"]) == 1
    assert "pip install 'ramrack[loadtest]'" in capsys.readouterr().err


def test_nobody_there_is_said():
    """One sentence with the address, before a process is started."""
    with pytest.raises(InvalidInput, match=r"no server answers at http://127\.0\.0\.1:1"):
        request_of("http://127.0.0.1:1", "", "m")


def test_a_report_is_good_only_if_it_is_valid_and_nothing_failed():
    """Each reason is said in words."""
    assert problem_of(GOOD) == ""
    assert "not valid: only 90.0%" in problem_of(GOOD | {"valid": False, "on_time_share": 0.9})
    failed = GOOD | {"failed": 2, "errors": {"429: queue full": 2}}
    assert problem_of(failed) == "2 of 10 requests failed, such as: 429: queue full"
    assert problem_of(GOOD | {"sent": 0}) == "nothing was sent"


def test_bars_are_as_long_as_their_counts():
    """The fullest bucket has the longest bar, a rare one a short one, an empty one none."""
    rows = list(histogram_rows([{"to_ms": 1.0, "count": 200}, {"to_ms": 2.0, "count": 0},
                                {"to_ms": 5.0, "count": 1}]))  # fmt: skip
    assert [(row[0], row[1], len(str(row[2]))) for row in rows] == [
        (1.0, 200, 40), (2.0, 0, 0), (5.0, 1, 1)
    ]  # fmt: skip


def test_rows_of_a_file_come_round_and_bodies_stay_as_they_are():
    """A file of two rows makes a request of five; a V2 body is told from a V1 one."""
    path = Path("rows.csv")
    body, form = body_of(InputFile([1, 2]), 5, path)
    assert (json.dumps(body), form) == ('{"instances": [1, 2, 1, 2, 1]}', "v1")
    v2 = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert body_of(InputFile([], v2), 1, path) == (v2, "v2")
    assert body_of(InputFile([], {"inputs": [[1]]}), 1, path)[1] == "v1"
    with pytest.raises(InvalidInput, match="no rows"):
        body_of(InputFile([]), 1, path)
