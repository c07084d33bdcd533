"""The page of a run shows it whole, and asks no other host for anything."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from loadtest.histogram import Latencies
from loadtest.plots import write_page

REPORT = {
    "valid": True, "sent": 3, "failed": 0, "errors": {}, "intended_rate": 10.0,
    "achieved_rate": 9.9, "client_cpu": 0.1, "p99_ms": 3.0,
}  # fmt: skip


def page(folder: Path, samples: list[tuple[float, float]], **changes: object) -> str:
    path = folder / "run.html"
    latencies = Latencies(round(ms * 1e6) for _, ms in samples)
    write_page(path, "a <run> & more", REPORT | changes, samples, latencies)
    return path.read_text()


def test_the_page_is_well_formed_and_stands_alone(tmp_path):
    """Both drawings, every figure, and no address in it."""
    text = page(tmp_path, [(0.0, 1.0), (0.1, 2.0), (0.2, 3.0)])
    root = ElementTree.fromstring(text.partition("\n")[2])
    assert len(root.findall(".//svg")) == 2
    assert len(root.findall(".//circle")) == 3
    assert not re.search(r"(?i)https?:|src=|@import|<script", text)
    cells = [cell.text for cell in root.iter("td")]
    assert cells[cells.index("client_cpu") + 1] == "0.1"
    assert root.findtext(".//h1") == "a <run> & more"


def test_higher_latencies_are_drawn_higher_and_the_slowest_stay(tmp_path):
    """Of many samples some are left out, but never the worst one."""
    samples = [(n / 1000, 1.0) for n in range(10_000)]
    samples[7777] = (7.777, 50.0)
    root = ElementTree.fromstring(page(tmp_path, samples).partition("\n")[2])
    heights = sorted(float(dot.get("cy", "nan")) for dot in root.iter("circle"))
    assert len(heights) <= 4000
    assert heights[0] < heights[1] - 200


def test_no_label_of_an_axis_is_cut_off(tmp_path):
    """A letter of 12 pixels takes up to 8; half a label stands on each side of its place."""
    root = ElementTree.fromstring(page(tmp_path, [(0.0, 1.0), (3.0, 2.0)]).partition("\n")[2])
    for drawing in root.iter("svg"):
        width = float(drawing.get("viewBox", "").split()[2])
        labels = [text for text in drawing.iter("text") if text.get("text-anchor") == "middle"]
        assert len(labels) > 1
        for label in labels:
            half = 4 * len(label.text or "")
            assert half <= float(label.get("x", "nan")) <= width - half, label.text


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"valid": False}, "Not valid"), ({"failed": 2, "errors": {"429: full": 2}}, "2 of 3")],
)
def test_what_is_wrong_stands_at_the_top(tmp_path, changes, words):
    """A late generator and failures are said in words, before any figure."""
    text = page(tmp_path, [(0.0, 1.0)], **changes)
    assert words in text.partition("<h2>")[0]


def test_a_run_without_an_answer_has_a_page_too(tmp_path):
    """Nothing to draw is said."""
    assert "Nothing was answered" in page(tmp_path, [])
