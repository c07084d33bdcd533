"""What a new worker is told while the objects of some versions are still being checked."""

from __future__ import annotations

from models.servable import Inspection
from models.signature import Signature
from registry.manifest import Manifest
from serving.target import CatalogEntry, Target, TargetVersion
from serving.workers.respawn_check import WITHHELD, without_withheld

DIGEST = "sha256:" + "0" * 64
MANIFEST = Manifest("m", DIGEST, (), {}, {"name": "onnx"})
INSPECTION = Inspection(Signature((), ()), True, "", False, 0.0, 0.0, 0)


def entry(state: str) -> CatalogEntry:
    return CatalogEntry(state, "as it was", DIGEST, {})


def test_a_withheld_version_is_shown_as_loading_and_why() -> None:
    """It is READY elsewhere; here it is in no list of what to map, and no other one changes."""
    target = Target(
        7,
        tuple(TargetVersion("m", number, MANIFEST, INSPECTION, True) for number in (1, 2)),
        catalog={"m": {1: entry("READY"), 2: entry("READY"), 3: entry("UNLOADED")}},
    )

    told = without_withheld(target, {("m", 2), ("m", 3)})

    assert told is not None
    assert [v.version for v in told.versions] == [1]
    assert told.catalog["m"] == {
        1: entry("READY"), 2: CatalogEntry("LOADING", WITHHELD, DIGEST, {}), 3: entry("UNLOADED"),
    }  # fmt: skip
    assert told.generation == 7


def test_a_target_of_which_nothing_is_withheld_is_told_as_it_is() -> None:
    """Also where there is none yet."""
    target = Target(7)
    assert without_withheld(target, frozenset()) is target
    assert without_withheld(None, {("m", 1)}) is None
