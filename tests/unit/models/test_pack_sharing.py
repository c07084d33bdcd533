"""What versions share of what was packed: found, stored once, and measured once."""

from __future__ import annotations

import pytest

from models import pack
from models.weight_mode import MIB
from registry.ident import digest_hex
from registry.manifest import JsonObject, Manifest
from registry.objects import LEASE_S
from registry.store import Store
from tests.disk_model import PowerCut
from tests.store_driver import digest_of
from tests.unit.models.pack_desk import Desk

ONE, TWO, OTHER = b"first blob", b"second blob", b"another blob"


class TestSharing:
    def pair(self, desk: Desk, store: Store) -> tuple[Manifest, Manifest]:
        """Inspect one version; return it, and another that differs in one of two tensors."""
        first, second = desk.push(store), desk.push(store, graph=b"other graph")
        desk.inspect(store, first)
        desk.child.tasks.clear()
        desk.child.blobs, desk.child.graph = (ONE, OTHER), b"another packed graph"
        return first, second

    def test_what_a_version_shares_is_packed_and_measured_once(
        self, desk: Desk, store: Store
    ) -> None:
        """The other one is inspected as it is served, and says why it is not measured."""
        _, second = self.pair(desk, store)
        before = store.usage()
        found = desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "pack", "inspect"]
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]
        assert found.mode == "packed"
        assert "as measured for another version of the same graph" in found.mode_reason
        assert set(found.resident) == {digest_of(ONE), digest_of(OTHER), found.graph}
        after = store.usage()
        assert after.objects - before.objects == 2
        assert after.object_bytes - before.object_bytes == len(OTHER) + len(desk.child.graph)

    def test_it_is_found_after_a_start_too(self, desk: Desk, store: Store) -> None:
        """The index on the disk says it all."""
        _, second = self.pair(desk, store)
        store.close()
        with desk.open() as again:
            assert desk.inspect(again, second).mode == "packed"
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]

    @pytest.mark.parametrize("what", ["runtime", "processor"])
    def test_nothing_of_another_environment_is_shared(
        self, desk: Desk, store: Store, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        """Neither what was packed nor what was measured."""
        _, second = self.pair(desk, store)
        if what == "runtime":
            monkeypatch.setattr(pack, "installed_version", lambda _: "99.0")
        else:
            monkeypatch.setattr(pack, "_read_cpu_info", lambda: "flags : avx1024")
        desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "inspect", "pack", "compare"]
        assert desk.child.packed_blobs == [ONE, TWO, ONE, OTHER]

    def test_a_graph_of_another_shape_is_measured_and_shares_tensors(
        self, desk: Desk, store: Store
    ) -> None:
        """What kernels make of a tensor does not depend on the rest of the graph."""
        _, second = self.pair(desk, store)
        desk.child.shape = "another shape"
        desk.inspect(store, second)
        assert desk.child.tasks == ["describe", "inspect", "pack", "compare"]
        assert desk.child.packed_blobs == [ONE, TWO, OTHER]

    @pytest.mark.parametrize("damage", ["flipped", "missing"])
    def test_a_shared_object_that_is_damaged_is_built_again(
        self, desk: Desk, store: Store, damage: str
    ) -> None:
        """Both versions have it again."""
        first, second = self.pair(desk, store)
        path = store.objects_dir / digest_hex(digest_of(ONE))
        path.chmod(0o644)
        if damage == "missing":
            path.unlink()
        else:
            path.write_bytes(b"x" + ONE[1:])
        found = desk.inspect(store, second)
        assert path.read_bytes() == ONE
        assert not store.verify().damaged
        assert digest_of(ONE) in found.resident
        desk.child.tasks.clear()
        assert desk.inspect(store, first).mode == "packed"
        assert desk.child.tasks == []

    def test_gc_keeps_what_the_other_version_uses(self, desk: Desk, store: Store) -> None:
        """It goes with the last of them."""
        _, second = self.pair(desk, store)
        desk.inspect(store, second)
        paths = {
            data: store.objects_dir / digest_hex(digest_of(data)) for data in (ONE, TWO, OTHER)
        }
        for version, left in ((1, [ONE, OTHER]), (2, [])):
            store.delete_version("m", version)
            desk.clock.now_s += 2 * LEASE_S
            store.gc()
            assert [data for data, path in paths.items() if path.exists()] == left

    def test_a_crash_on_the_way_leaves_the_other_version_as_it_was(self, desk: Desk) -> None:
        """What was stored and is named by nobody goes with gc; what is shared stays."""

        def cut(*_: object) -> None:
            raise PowerCut

        store = desk.open()
        first, second = self.pair(desk, store)
        store.packed.add = cut  # type: ignore[method-assign]  # the process ends with this store
        with pytest.raises(PowerCut):
            desk.inspect(store, second)
        store.close()
        with desk.open() as again:
            desk.child.tasks.clear()
            assert desk.inspect(again, first).mode == "packed"
            assert desk.child.tasks == []
            assert again.gc().objects == 2
            assert not again.verify().damaged
            assert desk.inspect(again, second).mode == "packed"

    @pytest.mark.parametrize(
        "lie",
        [
            {"source": digest_of(OTHER)},
            {"names": {"offset": "4", "length": "10"}},
            {"object": digest_of(b"tensor")},
        ],
        ids=["another tensor", "another place", "another object"],
    )
    def test_what_does_not_hold_a_tensor_stands_in_for_none(
        self, desk: Desk, store: Store, lie: JsonObject
    ) -> None:
        """Else a pushed graph could slip its weights under those of another model."""
        desk.child.tensor_lie = lie
        found = desk.inspect(store, desk.push(store))
        assert (found.mode, found.graph) == ("private", "")
        assert "which it does not" in found.mode_reason

    @pytest.mark.parametrize(
        ("what", "value"),
        [("difference", 0.5), ("difference", float("nan")), ("private_bytes", 64 * MIB)],
    )
    def test_what_does_not_hold_for_its_like_is_measured(
        self, desk: Desk, store: Store, what: str, value: float
    ) -> None:
        """Other answers, or weights that the runtime copies all the same."""
        _, second = self.pair(desk, store)
        setattr(desk.child, what, value)
        desk.inspect(store, second)
        assert "compare" in desk.child.tasks

    def test_what_cannot_be_compared_is_packed_without_what_was_known(
        self, desk: Desk, store: Store
    ) -> None:
        """An object that does not fit this version costs time, and not its packed form."""
        _, second = self.pair(desk, store)
        desk.child.shape = "another shape"
        desk.child.failing["compare"] = "the runtime refuses the graph"
        assert desk.inspect(store, second).mode == "private"
        assert desk.child.packed_blobs == [ONE, TWO, OTHER, ONE, OTHER]
        assert store.packed.find(second.content_digest) is None

    def test_that_nothing_pays_is_measured_again(self, desk: Desk, store: Store) -> None:
        """It may have been the hour: what else ran, or how full the disk was."""
        desk.child.ratios["packed"] = 1.5
        _, second = self.pair(desk, store)
        desk.child.ratios["packed"] = 1.0
        assert desk.inspect(store, second).mode == "packed"
        assert "compare" in desk.child.tasks

    def test_that_mapping_is_as_fast_holds_for_its_like(self, desk: Desk, store: Store) -> None:
        """Then nothing is packed."""
        desk.child.ratios["mapped"] = 1.0
        _, second = self.pair(desk, store)
        found = desk.inspect(store, second)
        assert (found.mode, found.has_prepacking) == ("mapped", False)
        assert desk.child.tasks == ["describe", "inspect"]
