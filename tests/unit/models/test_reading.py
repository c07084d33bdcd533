"""Reading large files in pieces, and not at all where they can be mapped."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from models.pack_child import compact
from models.reading import PIECE_BYTES, read_file
from models.runtime.onnx import open_session
from registry.ident import digest_hex
from tests import graphs
from tests.unit.models.conftest import Shelf

_IO = Path("/proc/self/io")
_MAPS = Path("/proc/self/maps")


def read_calls() -> tuple[int, int]:
    """Return the bytes that this process has read by system calls, and how many those were."""
    fields = dict(line.split(": ") for line in _IO.read_text().splitlines())
    return int(fields["rchar"]), int(fields["syscr"])


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_a_file_is_read_whole_and_once(tmp_path: Path, more: int) -> None:
    """Whatever its last piece is; a second copy of a large model would be memory at the peak."""
    content = bytes(range(256)) * (PIECE_BYTES // 64) + bytes(more + 1)
    path = tmp_path / "file"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        found = read_file(path)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == content
    assert peak_bytes < 1.5 * len(content)


def test_a_file_is_read_in_pieces(tmp_path: Path) -> None:
    """The kernel gives the core to others between calls at the latest."""
    path = tmp_path / "file"
    path.write_bytes(bytes(16 * PIECE_BYTES))
    _, before = read_calls()
    read_file(path)
    _, after = read_calls()
    assert after - before >= 16


def test_a_file_without_bytes_is_empty(tmp_path: Path) -> None:
    """A graph object of no bytes is refused by its parser, not by an error here."""
    path = tmp_path / "file"
    path.touch()
    assert read_file(path) == b""


def test_trees_in_the_runtimes_format_are_mapped(shelf: Shelf, tmp_path: Path) -> None:
    """A load copies no file into memory; after it none of its pages count, after a close none are.

    What workers open is as large as the trees, and read in one call it stops a core for others.
    """
    package = shelf.put(graphs.forest(10, 12))
    graph = tmp_path / "graph.part"
    compact(package.manifest, shelf.objects_dir, threads=1, graph_path=graph)
    size_bytes = graph.stat().st_size
    open_session(shelf.objects_dir / digest_hex(package.manifest.graph), 1).close()
    before, _ = read_calls()
    session = open_session(graph, 1, is_packed=True)
    after, _ = read_calls()
    assert size_bytes > 4 << 20
    assert after - before < size_bytes // 4
    assert resident_kib(graph) == 0
    session.close()
    assert str(graph) not in _MAPS.read_text()


def resident_kib(path: Path) -> int:
    """Return what this process has of a mapped file in its page tables."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    for line in lines:
        if line.endswith(str(path)):
            return int(next(each for each in lines if each.startswith("Rss:")).split()[1])
    raise AssertionError(f"{path} is not mapped")
