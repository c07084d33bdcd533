"""What a deleted version leaves behind in the memory of the control plane: nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import FunctionType, ModuleType

import pytest

from registry.packed import PackedEntry
from serving.control.control_plane import ControlPlane

pytestmark = pytest.mark.timeout(30)
_KEY = ("m", 2)


async def test_a_deleted_version_is_in_no_table_of_the_control_plane(world):
    """What grows with each version that comes and goes fills the memory of a server that lives."""
    await world.push_loaded("m", 2)
    await world.control.traffic.set_alias("m", "a", 2, world.actor)
    _index(world, world.control.writer.record(*_KEY).manifest.content_digest)
    world.control.plan(*_KEY)
    assert list(_tables_with(world.control, _KEY))

    await world.control.traffic.delete_alias("m", "a", world.actor)
    await world.unload("m", 2)
    world.control.plan(*_KEY)
    await world.control.delete("m", 2, world.actor)
    await world.control.gc(world.actor)

    assert list(_tables_with(world.control, _KEY)) == []


def _index(world, source: str) -> None:
    world.control.writer.store.packed.add(PackedEntry(source, "environment", (), {}))


def _tables_with(control: ControlPlane, key: tuple[str, int]) -> Iterator[str]:
    """Yield every dict and set that has ``key``, of all objects that ``control`` leads to."""
    seen: set[int] = set()
    todo: list[object] = [control]
    while todo:
        each = todo.pop()
        if id(each) in seen or isinstance(each, (ModuleType, FunctionType, type)):
            continue
        if type(each).__module__.startswith("tests."):
            continue
        seen.add(id(each))
        if isinstance(each, (dict, set, frozenset)) and key in each:
            yield f"{type(each).__name__} of {len(each)}: {each!r:.200}"
        todo += gc.get_referents(each)
