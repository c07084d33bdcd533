"""What requests see: look-ups, counted handles, drains."""

from __future__ import annotations

import asyncio

import pytest

from registry.errors import Conflict, NotFound, NotReady
from registry.lifecycle import State
from registry.serving_map import ModelView, ServingMap, Snapshot, VersionView
from registry.traffic import Share, Traffic


def view(version: int, state: State = State.READY, reason: str = "loaded") -> VersionView[str]:
    target = f"target {version}" if state is State.READY else None
    return VersionView("m", version, state, reason, f"sha256:{version}", {}, target)


def snapshot(
    *views: VersionView[str],
    route: int | Traffic | None = None,
    aliases: dict[str, int] | None = None,
    generation: int = 1,
) -> Snapshot[str]:
    traffic = Traffic.whole(route) if isinstance(route, int) else route
    model = ModelView("m", {v.version: v for v in views}, aliases or {}, traffic)
    return Snapshot({"m": model}, generation, is_restored=True)


def test_a_selector_is_a_number_an_alias_latest_or_the_route() -> None:
    """Each finds its version; the handle carries the view and the target."""
    serving = ServingMap(
        snapshot(view(2), view(9), view(10), route=9, aliases={"stable": 2, "old": 9})
    )
    for selector, version in ((2, 2), ("stable", 2), ("old", 9), ("latest", 10), (None, 9)):
        with serving.acquire("m", selector) as handle:
            assert handle.target == f"target {version}"
            assert handle.view is serving.find("m", selector)


def test_latest_is_the_highest_that_serves() -> None:
    """A higher version that loads, drains or failed is passed over."""
    serving = ServingMap(
        snapshot(view(2), view(3), view(10, State.LOADING, "x"), view(11, State.FAILED, "y"))
    )
    assert serving.find("m", "latest").version == 3


@pytest.mark.parametrize(
    ("model", "selector", "message"),
    [
        ("other", None, "model 'other' is not known"),
        ("m", 4, "model 'm' has no version 4"),
        ("m", "beta", "model 'm' has no alias 'beta'"),
        ("m", True, "model 'm' has no alias True"),
        ("M", 1, "model 'M' is not known"),
    ],
)
def test_what_is_unknown_is_not_found(model: str, selector: int | str | None, message: str) -> None:
    """The error says which part is unknown, and nothing is counted."""
    serving = ServingMap(snapshot(view(1), route=1))
    for call in (serving.find, serving.acquire):
        with pytest.raises(NotFound, match=message):
            call(model, selector)
    assert serving.handles("m", 1) == 0


@pytest.mark.parametrize("state", [s for s in State if s is not State.READY])
def test_what_is_known_and_does_not_serve_is_not_ready(state: State) -> None:
    """The error carries the state and its reason; find shows the version all the same."""
    serving = ServingMap(snapshot(view(1, state, "the reason"), route=1))
    for selector in (1, None):
        with pytest.raises(NotReady, match=f"version 1 is {state}: the reason"):
            serving.acquire("m", selector)
        assert serving.find("m", selector).state is state
    with pytest.raises(NotReady, match="no version that serves"):
        serving.acquire("m", "latest")


def test_a_model_without_a_route_says_what_to_do() -> None:
    """No route is NotReady, also before the first snapshot came.

    What is READY is not to be loaded: that would change nothing, so the route is to be given.
    """
    serving = ServingMap(snapshot(view(1), view(3), view(4, State.FAILED, "x")))
    with pytest.raises(NotReady, match=r"has no route: .*READY: 3, 1\).*`ramrack route m 3`"):
        serving.acquire("m", None)
    serving = ServingMap(snapshot(view(1, State.UNLOADED, "x")))
    with pytest.raises(NotReady, match="has no route, and no version of it is READY: load one"):
        serving.acquire("m", None)
    empty: ServingMap[str] = ServingMap()
    assert (empty.snapshot.generation, empty.snapshot.is_restored) == (0, False)
    with pytest.raises(NotFound):
        empty.acquire("m", None)


def test_a_split_keeps_its_turns_while_snapshots_come() -> None:
    """Loads and unloads elsewhere, many times a second, do not pull the shares apart."""
    route = Traffic((Share(1, 90), Share(2, 10)), shadow=(3,))
    serving = ServingMap(snapshot(view(1), view(2), route=route))
    answered = []
    for turn in range(1000):
        if turn % 7 == 0:
            serving.replace(snapshot(view(1), view(2), route=route, generation=turn + 1))
        with serving.acquire("m", None) as handle:
            answered.append(handle.view.version)
    assert all(8 <= answered[start : start + 100].count(2) <= 12 for start in range(901))
    assert (serving.shadows("m"), serving.shadows("other")) == ((3,), ())


def test_a_version_of_a_split_that_is_behind_is_passed_over_unless_a_key_means_it() -> None:
    """Without a key another member answers; with one its version does or nobody."""
    route = Traffic((Share(1, 50), Share(2, 50)))
    loading = view(2, State.LOADING, "this worker is loading it")
    serving = ServingMap(snapshot(view(1), loading, route=route))
    for _ in range(20):
        with serving.acquire("m", None) as handle:
            assert handle.view.version == 1
    for number in range(20):
        key = b"user-%d" % number
        if serving.find("m", None, key).version == 1:
            serving.acquire("m", None, key).release()
        else:
            with pytest.raises(NotReady, match="version 2 is LOADING: this worker is loading it"):
                serving.acquire("m", None, key)
    serving.replace(snapshot(view(1, State.FAILED, "x"), loading, route=route))
    with pytest.raises(NotReady, match="version 1 is FAILED: x"):
        serving.acquire("m", None)


def test_a_key_changes_nothing_where_one_version_is_meant() -> None:
    """A whole route, a number and an alias mean what they mean with any key."""
    route = Traffic((Share(1, 1), Share(2, 99)))
    split = ServingMap(snapshot(view(1), view(2), route=route, aliases={"stable": 1}))
    whole = ServingMap(snapshot(view(1), view(2), route=1))
    for key in (b"a", b"b", b"c"):
        found = [split.acquire("m", 1, key), split.acquire("m", "stable", key)]
        found.append(whole.acquire("m", None, key))
        assert [handle.view.version for handle in found] == [1, 1, 1]


def test_a_held_handle_survives_its_version() -> None:
    """C11: after the swap new requests get the new version, the old one ends where it began."""
    serving = ServingMap(snapshot(view(1), route=1))
    held = serving.acquire("m", None)
    serving.replace(snapshot(view(2), route=2, generation=2))
    assert held.target == "target 1"
    assert serving.handles("m", 1) == 1
    with serving.acquire("m", None) as new:
        assert new.target == "target 2"
    held.release()
    assert serving.handles("m", 1) == 0


def test_release_counts_once() -> None:
    """A second release, or one inside a with block, takes nobody else's handle."""
    serving = ServingMap(snapshot(view(1), route=1))
    first, second = serving.acquire("m", 1), serving.acquire("m", 1)
    with first:
        first.release()
    first.release()
    assert serving.handles("m", 1) == 1
    second.release()
    assert serving.handles("m", 1) == 0


def test_an_older_generation_is_refused() -> None:
    """Generations only rise; the same one again is harmless."""
    serving = ServingMap(snapshot(view(1), generation=5))
    serving.replace(snapshot(view(2), generation=5))
    with pytest.raises(Conflict, match="generation 4 is older than 5"):
        serving.replace(snapshot(view(1), generation=4))
    assert serving.find("m", 2).version == 2


async def test_drained_waits_for_the_last_handle() -> None:
    """It returns in the turn after the last release, for every waiter, and at once when idle."""
    serving = ServingMap(snapshot(view(1), view(2), route=1))
    await serving.drained("m", 1)
    handles = [serving.acquire("m", 1) for _ in range(3)]
    other = serving.acquire("m", 2)
    waiters = [asyncio.create_task(serving.drained("m", 1)) for _ in range(2)]
    await asyncio.sleep(0)
    serving.replace(snapshot(view(2), route=2, generation=2))
    for handle in handles:
        assert not any(waiter.done() for waiter in waiters)
        handle.release()
        await asyncio.sleep(0)
    await asyncio.gather(*waiters)
    assert serving.handles("m", 2) == 1
    other.release()


async def test_a_drain_can_time_out_and_be_waited_for_again() -> None:
    """A cancelled wait leaves nothing that keeps a later one from ending."""
    serving = ServingMap(snapshot(view(1), route=1))
    handle = serving.acquire("m", 1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await serving.drained("m", 1)
    waiter = asyncio.create_task(serving.drained("m", 1))
    await asyncio.sleep(0)
    handle.release()
    await waiter


async def test_drained_goes_on_waiting_for_a_handle_taken_meanwhile() -> None:
    """A version that still serves is drained only when it is idle as the wait ends."""
    serving = ServingMap(snapshot(view(1), route=1))
    first = serving.acquire("m", 1)
    waiter = asyncio.create_task(serving.drained("m", 1))
    await asyncio.sleep(0)
    first.release()
    second = serving.acquire("m", 1)
    await asyncio.sleep(0)
    assert not waiter.done()
    second.release()
    await waiter
