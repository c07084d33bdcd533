"""The store against a plain account of what it acknowledged, through restarts and power cuts."""

from __future__ import annotations

import errno
import random
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from registry.errors import Corrupt, StoreFailed, StoreFull
from tests.disk_model import PowerCut, scratch_parent
from tests.store_driver import Step, StoreDriver, digest_of, payload

objects = st.integers(0, 4)
models = st.sampled_from(["a", "A", "a.b"])
# Most operations take fewer steps of the disk than this.
steps = st.integers(1, 14)


@dataclass(frozen=True)
class Fate:
    """What befalls an operation before its n-th step, and what an unsynced disk then keeps."""

    kind: str
    step: int
    detail: int | None = None


fates = st.none() | st.one_of(
    st.builds(Fate, st.just("cut"), steps, st.none() | st.integers(0, 1000)),
    st.builds(Fate, st.just("kill"), steps),
    st.builds(
        Fate, st.just("fail"), steps, st.sampled_from([errno.ENOSPC, errno.EDQUOT, errno.EIO])
    ),
)


class StoreMachine(RuleBasedStateMachine):
    """Any operation may be cut short by the power or refused by the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.base = Path(tempfile.mkdtemp(prefix="store-machine-", dir=scratch_parent()))
        self.driver = StoreDriver(self.base / "disks")

    def teardown(self) -> None:
        self.driver.close()
        shutil.rmtree(self.base)

    def do(self, step: Step, fate: Fate | None) -> None:
        disk = self.driver.disk
        if fate and fate.kind == "fail":
            disk.fail_in(fate.step, fate.detail or 0)
        elif fate:
            disk.die_in(fate.step)
        try:
            step(self.driver)
        except PowerCut:
            pass
        except (StoreFull, StoreFailed):
            # Refused: the running store goes on as before, so trying again must do all of it.
            self.driver.may_be = None
            step(self.driver)
        disk.fail_in(0, 0)
        if fate and fate.kind == "kill":
            self.driver.restart()
        elif fate and fate.kind == "cut":
            self.driver.power_cut(None if fate.detail is None else random.Random(fate.detail))

    @rule(index=objects, fate=fates)
    def upload(self, index: int, fate: Fate | None) -> None:
        self.do(lambda d: d.upload(index), fate)

    @rule(model=models, graph=objects, tensor=objects, mark=st.integers(0, 2), fate=fates)
    def publish(self, model: str, graph: int, tensor: int, mark: int, fate: Fate | None) -> None:
        self.do(lambda d: d.publish(model, graph, (tensor,), mark), fate)

    @precondition(lambda self: self.driver.account.versions)
    @rule(data=st.data(), fate=fates)
    def delete(self, data: st.DataObject, fate: Fate | None) -> None:
        model, version = data.draw(st.sampled_from(sorted(self.driver.account.versions)))
        self.do(lambda d: d.delete(model, version), fate)

    @rule(is_later=st.booleans(), fate=fates)
    def gc(self, is_later: bool, fate: Fate | None) -> None:
        self.do(lambda d: d.gc(is_later=is_later), fate)

    @rule(fate=fates)
    def write_document(self, fate: Fate | None) -> None:
        self.do(lambda d: d.write_document(), fate)

    @rule(fate=fates)
    def append_event(self, fate: Fate | None) -> None:
        self.do(lambda d: d.append_event(), fate)

    @rule()
    def restart(self) -> None:
        self.driver.restart()

    @rule(seed=st.none() | st.integers(0, 1000))
    def power_cut(self, seed: int | None) -> None:
        self.driver.power_cut(None if seed is None else random.Random(seed))

    @precondition(lambda self: self.driver.account.uploaded)
    @rule(data=st.data())
    def damage_and_heal(self, data: st.DataObject) -> None:
        index = data.draw(st.sampled_from(sorted(self.driver.account.uploaded)))
        digest = digest_of(payload(index))
        path = self.driver.store.objects_dir / digest[7:]
        self.driver.disk.damage(path, payload(index)[:-1])
        with pytest.raises(Corrupt):
            self.driver.store.verify_objects([digest])
        assert self.driver.store.object_size(digest) is None
        self.driver.upload(index)
        self.driver.store.verify_objects([digest], thorough=True)


TestStore = pytest.mark.slow(pytest.mark.timeout(300)(StoreMachine.TestCase))
TestStore.settings = settings(
    max_examples=30,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
