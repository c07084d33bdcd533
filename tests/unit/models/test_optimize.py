"""Choosing the fastest form of a version that still answers as it should."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from models.convert import convert, optimize
from models.convert.opened import opened
from models.convert.optimize import ORIGINAL, Optimized, recorded
from models.convert.sample import Sample
from models.errors import ConversionRefused, LoadFailed
from models.golden import drift
from models.package import Package
from models.runtime import openvino
from models.servable import Servable
from models.zoo.recommender import write_recommender
from tests import text_models

pytest.importorskip("tokenizers")
pytest.importorskip("openvino")
pytestmark = pytest.mark.extra
SAMPLE = Sample("s.json", {"text": ["the quick brown fox", "good day", "lazy dog ?"]}, True)
FORMS = ("onnx, int8", "onnx, int8-weights", "onnx, fp16", "openvino, float32",
         "openvino, bfloat16", "openvino, int8-weights")  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Package:
    return convert("tiny", text_models.write_folder(tmp_path_factory.mktemp("text") / "tiny"))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """Ratios to the original, one for each form that is measured, instead of real times."""
    ratios: list[float] = []

    def timed(form: Servable, original: Servable, _: object) -> tuple[float, float]:
        ratio = 1.0 if form is original else ratios.pop(0)
        return ratio / 1000, ratio

    monkeypatch.setattr(optimize, "_timed", timed)
    monkeypatch.setattr(openvino, "has_bf16", lambda: True)
    yield ratios
    assert not ratios


def run(base: Package, folder: Path, tolerance: float | None = None) -> Optimized:
    return optimize.optimize(base, SAMPLE, tolerance, folder)


def test_the_fastest_form_within_the_tolerance_is_chosen(
    base: Package, tmp_path: Path, clock: list[float]
):
    """Faster ones that lose too much are shown with what they lose, and left out."""
    clock += [0.2, 0.5, 0.6, 0.9, 0.4, 0.7]
    found = run(base, tmp_path, tolerance=1e-6)
    by_name = {each.name: each for each in found.tried}
    assert tuple(by_name) == (ORIGINAL, *FORMS)
    assert found.measure == "1 - cosine"
    lost = by_name["onnx, int8"].difference
    assert lost is not None
    assert lost > 1e-6
    assert by_name["onnx, int8"].why_not == "too far from the original"
    within = [each for each in found.tried[1:] if not each.why_not]
    assert found.best_name == min(within, key=lambda each: each.ratio or 9).name
    clock += [0.2, 0.5, 0.6, 0.9, 0.4, 0.7]
    assert run(base, tmp_path, tolerance=0.5).best_name == "onnx, int8"


def test_the_original_stays_where_nothing_is_faster(
    base: Package, tmp_path: Path, clock: list[float]
):
    """A hair's breadth is no gain: nothing is pushed beside the original."""
    clock += [1.1, 0.96, 1.0, 2.0, 1.5, 1.2]
    found = run(base, tmp_path, tolerance=0.5)
    assert found.best_name == ORIGINAL
    assert recorded(found, 7) is None


def test_what_is_chosen_names_its_original_and_passes_the_check_of_a_load(
    base: Package, tmp_path: Path, clock: list[float]
):
    """The golden rows are the original's; the form may be as far from them as was seen."""
    for number, form in enumerate(FORMS):
        clock += [0.1 if place == number else 0.99 for place in range(len(FORMS))]
        package = recorded(run(base, tmp_path, tolerance=0.5), 7)
        assert package is not None
        assert package.manifest.meta["optimized_from"] == 7
        assert package.manifest.meta["optimized"]["form"] == form
        assert package.manifest.signature == base.manifest.signature
        assert package.manifest.digest != base.manifest.digest
        with opened(package) as servable:
            assert drift(servable.run, servable.signature, package.manifest.parity) == ""


def test_a_form_that_cannot_be_made_says_why(
    base: Package, tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
):
    """No bfloat16 in the processor, OpenVINO not installed: both stand in the table."""
    monkeypatch.setattr(openvino, "has_bf16", lambda: False)
    clock += [0.99] * 5
    assert "no bfloat16" in run(base, tmp_path).tried[-2].why_not
    monkeypatch.undo()

    def missing() -> None:
        raise LoadFailed(openvino.MISSING)

    monkeypatch.setattr(openvino, "_shared_core", missing)
    for each in run(base, tmp_path).tried[-3:]:
        assert "pip install 'ramrack[openvino]'" in each.why_not


def test_any_graph_is_optimized_by_its_largest_difference(tmp_path: Path, clock: list[float]):
    """Not only texts: what has no embedding is measured number by number."""
    package = convert("rec", write_recommender(tmp_path, mib=1))
    columns = {"user": [1, 2, 3], "item": [5, 6, 900]}
    clock += [0.5] * 3
    found = optimize.optimize(package, Sample("s.csv", columns, True), 0.05, tmp_path)
    assert found.measure == "largest difference"
    assert all("text models only" in each.why_not for each in found.tried[-3:])
    assert [each.why_not for each in found.tried if each.name == "onnx, fp16"] == [""]


def test_real_times_are_taken_in_turns(base: Package):
    """Processor time of each form on one row; the original beside itself is about as fast."""
    array = np.empty(2, dtype=object)
    array[:] = ["the fox", "a lazy dog"]
    with opened(base) as servable:
        run_s, ratio = optimize._timed(servable, servable, {"text": array})
    assert run_s >= 0
    assert ratio > 0


def test_a_model_without_a_graph_has_nothing_to_choose(base: Package, tmp_path: Path):
    """A form of OpenVINO is not taken for an original."""
    from models.convert.variants import with_openvino

    with pytest.raises(ConversionRefused, match="no graph"):
        run(with_openvino(base, "f32"), tmp_path)
