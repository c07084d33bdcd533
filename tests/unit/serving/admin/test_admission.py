"""What a load is asked to fit into before its inspection: what is surely new, and no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.servable import Inspection
from models.weight_mode import FLOOR_BYTES
from registry.errors import OverBudget
from registry.manifest import Manifest
from registry.packed import PackedEntry
from tests.store_driver import digest_of
from tests.unit.serving.admin.conftest import FakeInspector, World

pytestmark = pytest.mark.timeout(30)

LAYERS = tuple(bytes([number]) * 1000 for number in range(4))
PACKED_GRAPH = b"p" * 10


class LayerPacker(FakeInspector):
    """Packs each tensor into an object of its own, and has the index keep what it found."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        found = super().__call__(manifest, memory_bytes)
        objects = self.world.store.objects_dir
        resident = {self.world.put(PACKED_GRAPH): len(PACKED_GRAPH)}
        for entry in manifest.tensors:
            data = (objects / entry.digest.removeprefix("sha256:")).read_bytes()
            resident[self.world.put(b"packed" + data)] = entry.size_bytes + 6
        found = replace(
            found, mode="packed", graph=digest_of(PACKED_GRAPH), resident=resident, private_bytes=1
        )
        index = self.world.store.packed
        index.add(
            PackedEntry(
                manifest.content_digest, index.environment, tuple(resident), found.to_json()
            )
        )
        return found


async def packed(world: World) -> None:
    """Load a version of four layers, packed."""
    world.inspector = LayerPacker(world)
    await world.restart()
    await world.push("m", b"one", *LAYERS)
    await world.load("m", 1)


async def test_a_fine_tuned_version_needs_what_is_new_of_it(world: World) -> None:
    """Three of four layers are in RAM already, in a packed form: the plan counts the fourth."""
    await packed(world)
    await world.push("m", b"one", *LAYERS[:3], b"n" * 1000)

    plan = world.control.plan("m", 2)

    assert (plan.needs_bytes, plan.is_estimated) == (1000, True)
    assert "lower bound" in plan.reason


async def test_a_fine_tuned_version_loads_where_only_its_own_layer_fits(world: World) -> None:
    """Its admission asks for that layer; what the inspection found is what is counted then."""
    await packed(world)
    await world.push("m", b"one", *LAYERS[:3], b"n" * 1000)
    ledger = world.control.ledger
    ledger.budget_bytes = ledger.committed_bytes() + 1010

    await world.load("m", 2)

    assert world.control.status("m", 2)[0] == "READY"
    assert ledger.committed_bytes() == 5 * 1006 + len(PACKED_GRAPH) + 2 * 2
    assert ledger.versions()["m", 2].object_bytes == 4 * 1006 + len(PACKED_GRAPH)


async def test_what_does_not_fit_as_measured_is_still_refused(world: World) -> None:
    """The bound lets in what may fit; the inspection's figure decides."""
    await packed(world)
    await world.push("m", b"one", *LAYERS[:3], b"n" * 1000)
    ledger = world.control.ledger
    before = ledger.committed_bytes()
    ledger.budget_bytes = before + 1007

    with pytest.raises(OverBudget, match="1008"):
        await world.load("m", 2)

    assert ledger.committed_bytes() == before
    assert len(world.inspector.calls) == 2


async def test_a_plan_after_a_restart_knows_what_was_found_before_it(world: World) -> None:
    """What the index kept of the content is no estimate, also of a version not loaded since."""
    await packed(world)
    await world.push("m", b"one", *LAYERS[:3], b"n" * 1000)
    await world.load("m", 2)
    await world.unload("m", 2)
    await world.restart()
    await world.control.restored()

    plan = world.control.plan("m", 2)

    assert (plan.needs_bytes, plan.private_bytes_per_worker) == (1006 + 2, 1)
    assert (plan.is_estimated, plan.reason) == (False, "")


async def test_a_graph_that_holds_its_weights_counts_nothing_at_first(
    world: World,
) -> None:
    """It may be served in a format of the runtime that lies in no shared memory."""
    await world.push("m", b"g" * (FLOOR_BYTES + 1))
    world.inspector.resident = {digest_of(b"g" * (FLOOR_BYTES + 1)): 0}
    world.control.ledger.budget_bytes = FLOOR_BYTES

    await world.load("m", 1)

    assert world.control.status("m", 1)[0] == "READY"


class Undecided(FakeInspector):
    """Finds another form each time, and the second one takes less."""

    def __call__(self, manifest: Manifest, memory_bytes: int) -> Inspection:
        found = super().__call__(manifest, memory_bytes)
        is_first = self.calls.count(manifest.digest) == 1
        return replace(found, private_bytes=1000 if is_first else 1, has_prepacking=is_first)


async def test_a_figure_that_the_next_inspection_may_better_refuses_no_load(world: World) -> None:
    """What was found once and is not kept in the index is found out anew."""
    await world.push_loaded("m", 1)
    await world.push("m", b"two", b"w" * 100)
    world.inspector = Undecided()
    await world.restart()
    await world.control.restored()
    await world.load("m", 2)
    await world.unload("m", 2)
    ledger = world.control.ledger
    ledger.budget_bytes = ledger.committed_bytes() + 103 + 2

    await world.load("m", 2)

    assert world.control.status("m", 2)[0] == "READY"
    assert ledger.committed_bytes() == ledger.budget_bytes
