"""Residency: objects brought into RAM, locked there, and let go; on real files and pages."""

from __future__ import annotations

import asyncio
import os
import resource
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from registry.errors import Corrupt, RegistryError
from serving.control import mapping
from serving.control.mapping import CHUNK_BYTES, MappedObject
from serving.control.residency import Residency

A, B = ("m", 1), ("m", 2)
MIB = 1 << 20
Make = Callable[..., Residency]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Objects x, y and z, of which y spans several pieces and ends within a page."""
    for name, size in (("x", 100), ("y", 2 * CHUNK_BYTES + 5), ("z", 0)):
        (tmp_path / name).write_bytes(os.urandom(size))
    return tmp_path


@pytest.fixture
async def residency(folder: Path) -> AsyncIterator[Residency]:
    made = Residency(lambda digest: folder / digest, bytes_per_s=0, is_locking=False)
    yield made
    made.close()


def sizes(folder: Path, *names: str) -> dict[str, int]:
    return {name: (folder / name).stat().st_size for name in names}


def maps() -> str:
    return Path("/proc/self/maps").read_text()


def evict(path: Path) -> None:
    """Drop a file's pages, as pressure would; only those that no process maps can go."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)


async def test_all_bytes_of_a_version_are_in_ram_when_hold_returns(residency, folder):
    """What was only on the disk is brought in, empty objects included."""
    evict(folder / "y")
    await residency.hold(A, sizes(folder, "x", "y", "z"))

    found = residency.of(A)
    assert found.resident_bytes == found.size_bytes == 2 * CHUNK_BYTES + 105
    assert residency.of(B) is None


async def test_shared_objects_are_mapped_once_and_kept_for_the_last(residency, folder):
    """Two versions with one tensor map it once; the unload of one leaves it to the other."""
    await asyncio.gather(
        residency.hold(A, sizes(folder, "x", "y")), residency.hold(B, sizes(folder, "y"))
    )
    assert maps().count(str(folder / "y")) == 1
    assert residency.total().size_bytes == 2 * CHUNK_BYTES + 105

    await residency.release(A)
    assert str(folder / "x") not in maps()
    assert residency.of(B).resident_bytes == 2 * CHUNK_BYTES + 5
    await residency.release(B)
    assert str(folder) not in maps()


async def test_a_version_that_cannot_be_held_leaves_nothing_mapped(residency, folder):
    """A missing object, or one that is too short, is named, and the others are let go again."""
    await residency.hold(B, sizes(folder, "x"))
    for wrong, why in (({"none": 5}, "missing"), ({"y": 1 << 30}, "instead of")):
        with pytest.raises(Corrupt, match=why):
            await residency.hold(A, {**sizes(folder, "x", "z"), **wrong})
    assert residency.of(A) is None
    assert residency.of(B).size_bytes == 100
    assert str(folder / "y") not in maps()


async def test_an_object_that_is_cut_short_does_not_end_the_process(residency, folder):
    """Touching, counting and locking past the end of a file is an error and no signal."""
    mapped = MappedObject(folder / "y", "y", (folder / "y").stat().st_size)
    os.truncate(folder / "y", 10)

    with pytest.raises(Corrupt, match="cut short"):
        mapped.touch(CHUNK_BYTES)
    assert mapped.lock(CHUNK_BYTES) != ""
    assert mapped.count() <= 4096 + CHUNK_BYTES
    mapped.close()


async def test_the_check_finds_a_version_whose_object_is_cut_short(residency, folder):
    """The versions of a damaged object are told; the others are looked after all the same."""
    await residency.hold(A, sizes(folder, "x", "y"))
    await residency.hold(B, sizes(folder, "x"))
    os.truncate(folder / "y", 10)

    assert await residency.check() == {A}


async def test_what_was_evicted_comes_back(residency, folder, monkeypatch):
    """The check counts what is missing and brings it in again, at the bounded rate."""
    await residency.hold(A, sizes(folder, "x", "y"))
    assert await residency.check() == frozenset()
    assert residency.returned_bytes == 0
    # Pages that are mapped cannot be dropped from outside; the kernel could under pressure.
    await residency.release(A)
    for step in ("touch", "want"):
        monkeypatch.setattr(MappedObject, step, lambda _self, _start: 0)
    evict(folder / "y")
    await residency.hold(A, sizes(folder, "x", "y"))
    monkeypatch.undo()
    before = residency.of(A).resident_bytes

    await residency.check()

    assert before < residency.of(A).size_bytes == residency.of(A).resident_bytes
    assert residency.returned_bytes == residency.of(A).size_bytes - before


async def test_what_an_unload_let_go_of_meanwhile_was_not_evicted(
    residency, folder, monkeypatch, caplog
):
    """Nothing of it is in RAM for this process, and nothing is to be brought back."""
    await residency.hold(A, sizes(folder, "y"))
    monkeypatch.setattr(MappedObject, "count", lambda _self: 0)

    found, _ = await asyncio.gather(residency.check(), residency.release(A))

    assert found == frozenset()
    assert "evicted" not in caplog.text


async def test_reading_is_bounded_and_what_is_cached_is_not(folder, monkeypatch):
    """Only bytes that come from the disk make it wait."""
    slept: list[float] = []
    monkeypatch.setattr("serving.control.residency.time.sleep", slept.append)
    monkeypatch.setattr("serving.control.residency._MAX_PAUSE_S", 1e9)
    clock = iter(range(10**6))
    monkeypatch.setattr("serving.control.residency.time.monotonic", lambda: next(clock) * 100.0)
    slow = Residency(lambda digest: folder / digest, bytes_per_s=CHUNK_BYTES // 1000,
                     is_locking=False)  # fmt: skip
    await slow.hold(A, sizes(folder, "y"))
    assert slept == []
    await slow.release(A)
    evict(folder / "y")

    await slow.hold(A, sizes(folder, "y"))

    # All of it was asked for ahead and is due after 2000 s; the clock says that 100 have passed.
    assert slept[0] == pytest.approx(1900, rel=0.01)
    slow.close()


async def test_what_lies_behind_is_read_too_where_the_start_was_not_cached(folder, monkeypatch):
    """A load compares it with the start; it is neither mapped nor kept, and counts for the rate."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(
        "serving.control.mapping.os.posix_fadvise",
        lambda _fd, start, length, _advice: asked.append((start, length)),
    )
    made = Residency(lambda digest: folder / digest, bytes_per_s=0, is_locking=False)
    await made.hold(A, {"y": 4096})
    assert asked == []
    await made.release(A)
    monkeypatch.setattr(MappedObject, "want", lambda _self, _start: 4096)
    await made.hold(A, {"y": 4096})
    end = 2 * CHUNK_BYTES + 5
    assert [start for start, _ in asked] == [4096, 4096 + CHUNK_BYTES]
    assert sum(length for _, length in asked) == end - 4096
    assert made.of(A).size_bytes == 4096
    made.close()


async def test_an_old_kernel_reads_instead(residency, folder, monkeypatch):
    """Where the advice is not known, reading brings the pages in, and an end too early is seen."""
    monkeypatch.setattr(mapping, "MADV_POPULATE_READ", 250)
    evict(folder / "y")
    await residency.hold(A, sizes(folder, "y"))
    assert residency.of(A).resident_bytes == residency.of(A).size_bytes

    mapped = MappedObject(folder / "y", "y", (folder / "y").stat().st_size)
    os.truncate(folder / "y", 10)
    with pytest.raises(RegistryError, match="cut short"):
        mapped.touch(CHUNK_BYTES)
    mapped.close()


_LOCKING = """
import asyncio, ctypes, os, resource, sys
from pathlib import Path
from serving.control import mapping
from serving.control.residency import Residency

async def main(folder, limit):
    mapping.CHUNK_BYTES = 1 << 20
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    if os.geteuid() == 0:
        # Root may lock beyond every limit: give the right up, and only that of this process.
        header = (ctypes.c_uint32 * 2)(0x20080522, 0)
        none = (ctypes.c_uint32 * 6)()
        assert ctypes.CDLL(None).capset(header, none) == 0
    residency = Residency(lambda d: folder / d, bytes_per_s=0, is_locking=True)
    await residency.hold(("m", 1), {"x": 100, "w": 3 << 20})
    told = [residency.of(("m", 1)).locked_bytes]
    await residency.hold(("m", 2), {"v": 3 << 20})
    told.append(residency.of(("m", 2)).locked_bytes)
    await residency.release(("m", 1))
    for _ in range(2):  # what is locked is not counted again
        await residency.check()
        told.append(residency.of(("m", 2)).locked_bytes)
    await residency.release(("m", 2))
    locked = [l for l in Path("/proc/self/status").read_text().splitlines() if "VmLck" in l]
    print(*told, residency.total().locked_bytes, locked[0].split()[1])
    residency.close()

asyncio.run(main(Path(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limit", "first", "second", "later"),
    [
        (4 * MIB, 3 * MIB + 100, 0, 3 * MIB),
        (5 * MIB + 4096, 3 * MIB + 100, 2 * MIB, 3 * MIB),
        (2 * MIB + 4096, 2 * MIB + 100, 0, 2 * MIB),
        (0, 0, 0, 0),
    ],
)
def test_pages_are_locked_as_far_as_the_limit_allows(folder, limit, first, second, later):
    """Piece by piece up to the limit, and on from there once another version made room.

    With no right to lock at all everything still works.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if hard != resource.RLIM_INFINITY and hard < limit:
        pytest.skip(f"locked memory is limited to {hard} bytes here")
    for name in ("v", "w"):
        (folder / name).write_bytes(bytes(3 * MIB))
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", _LOCKING, str(folder), str(limit)], cwd=root,
                          capture_output=True, text=True, timeout=60)  # fmt: skip
    expected = [first, second, later, later, 0, 0]
    assert done.stdout.split() == [str(number) for number in expected], done.stderr
