"""Versions of the large models: what they share, they share byte for byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from models.convert.onnx_file import package_onnx
from models.zoo.recommender import TABLE_FILE
from models.zoo.variants import main


def made(capsys: pytest.CaptureFixture[str], kind: str, folder: Path, *options: str) -> Path:
    assert main([kind, str(folder), *options]) == 0
    return Path(capsys.readouterr().out.strip())


def sizes(path: Path) -> dict[str, int]:
    return {each.digest: each.size_bytes for each in package_onnx("m", path).objects}


def test_recommenders_share_their_table_and_nothing_else_large(capsys, tmp_path: Path):
    """Each version has a user table of its own beside the shared one."""
    options = ("--table-mib", "2", "--own-mib", "2")
    first, second = (
        sizes(made(capsys, "recommender", tmp_path, "--number", str(n), *options)) for n in (1, 2)
    )
    assert [first[digest] for digest in first.keys() & second] == [2 << 20]
    assert max(first[digest] for digest in first.keys() - second) == 2 << 20


def test_no_two_tables_have_a_row_in_common(capsys, tmp_path: Path):
    """Distinct recommenders share not one row."""
    rows = []
    for table in (1, 2):
        folder = tmp_path / str(table)
        made(capsys, "recommender", folder, "--table", str(table), "--table-mib", "1")
        rows.append(np.fromfile(folder / TABLE_FILE, dtype="V256"))
    assert not np.intersect1d(*rows).size


def test_encoders_differ_in_their_last_two_layers(capsys, tmp_path: Path):
    """All large weights but those of two layers are the same; six of them are in each layer."""
    options = ("--width", "132", "--layers", "3")
    first, second = (
        sizes(made(capsys, "encoder", tmp_path, "--number", str(n), *options)) for n in (1, 2)
    )
    own = [first[digest] for digest in first.keys() - second if first[digest] >= 1 << 16]
    assert len(own) == 12
    assert len(first.keys() & second) == 8
