"""Graphs in the runtime's own format, whose file is cut before, while and after it is opened."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from models.errors import LoadFailed
from models.pack_child import compact
from models.package import Package
from models.runtime import onnx as runtime
from models.servable import Inspection
from models.signature import parse_signature
from registry.ident import digest_hex
from tests import graphs
from tests.unit.models.conftest import Shelf

ROWS = np.linspace(-1, 1, 80, dtype=np.float32).reshape(20, 4)
DIGEST = "sha256:" + "c" * 64


@pytest.fixture
def forest(shelf: Shelf) -> Package:
    """A forest with its compact form beside it, under DIGEST."""
    package = shelf.put(graphs.forest(trees=20))
    compact(package.manifest, shelf.objects_dir, threads=1, graph_path=path_of(shelf))
    return package


def path_of(shelf: Shelf) -> Path:
    return shelf.objects_dir / digest_hex(DIGEST)


def answer(shelf: Shelf, package: Package, graph: str) -> np.ndarray:
    servable = shelf.load(package, inspection_of(package, graph))
    found = servable.run({servable.signature.inputs[0].name: ROWS})[0]
    servable.close()
    return found


def inspection_of(package: Package, graph: str) -> Inspection:
    signature = parse_signature(package.manifest.signature)
    return replace(Inspection(signature, False, "", False, 0.0, 0.0, 0), graph=graph)


@pytest.mark.parametrize("kept", [0.0, 0.1, 0.5, 0.9])
def test_a_file_that_was_cut_is_refused_and_the_version_opened_as_published(
    shelf: Shelf, forest: Package, kept: float
) -> None:
    """Whatever is left of it, the answers are the version's."""
    expected = answer(shelf, forest, "")
    path = path_of(shelf)
    os.truncate(path, int(path.stat().st_size * kept))

    with pytest.raises(LoadFailed):
        runtime.open_session(path, 1, is_packed=True)
    assert np.array_equal(answer(shelf, forest, DIGEST), expected)


def test_a_file_that_is_emptied_while_it_is_opened_is_no_error_of_the_server(
    shelf: Shelf, forest: Package, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had the format's mark a moment ago; then there is nothing to map."""
    expected = answer(shelf, forest, "")
    is_runtime_format = runtime.is_runtime_format

    def empty_it(graph: Path) -> bool:
        found = is_runtime_format(graph)
        os.truncate(graph, 0)
        return found

    monkeypatch.setattr(runtime, "is_runtime_format", empty_it)
    assert np.array_equal(answer(shelf, forest, DIGEST), expected)


def test_a_session_outlives_its_file(shelf: Shelf, forest: Package) -> None:
    """What was opened reads nothing of it any more: no run can meet pages that are gone."""
    expected = answer(shelf, forest, "")
    servable = shelf.load(forest, inspection_of(forest, DIGEST))
    os.truncate(path_of(shelf), 0)

    assert np.array_equal(servable.run({servable.signature.inputs[0].name: ROWS})[0], expected)
    servable.close()
