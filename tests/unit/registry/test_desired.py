"""The desired state: what each change allows, what it refuses, and that it survives JSON."""

from __future__ import annotations

import json

import pytest

from registry import desired, state_document
from registry.desired import DesiredState
from registry.errors import Conflict, InvalidInput, NotFound
from registry.rollout import HISTORY_ENTRIES, Stamp
from registry.traffic import Traffic

whole = Traffic.whole


def stamp(seq: int = 1) -> Stamp:
    return Stamp(seq, "2026-01-01T00:00:00.000Z", "tester", "127.0.0.1", "why")


def loaded(state: DesiredState, name: str, *versions: int) -> DesiredState:
    for version in versions:
        state = desired.begin_load(state, name, version, {"v": version})
        state = desired.finish_load(state, name, version, stamp(state.generation + 1))
    return state


def test_generation_rises_with_each_change():
    """Every change is a new generation; what changes nothing is the same state."""
    state = loaded(DesiredState(), "m", 1, 2)

    assert state.generation == 4
    assert desired.set_route(state, "m", whole(1), stamp(9)) is state
    assert desired.touched(state).generation == 5


def test_first_version_loaded_becomes_the_route():
    """A later load, even of a higher version, never moves traffic."""
    state = loaded(DesiredState(), "m", 2, 9, 10)

    route = state.model("m").route
    assert (route.traffic, route.previous) == (whole(2), None)
    assert state.model("m").latest == 10


def test_what_comes_back_by_itself_takes_no_traffic_that_nobody_gave_it():
    """No route comes of it, and one that follows latest is not moved to an older version."""
    state = desired.delete_route(loaded(DesiredState(), "m", 1, 3), "m")
    state = desired.wait_for_memory(state, "m", 1, "why")
    back = desired.finish_load(state, "m", 1, stamp(8), is_by_itself=True)
    assert back.model("m").route is None

    state = desired.follow_latest(state, "m", stamp(8))
    state = desired.wait_for_memory(state, "m", 3, "why")
    back = desired.finish_load(state, "m", 1, stamp(9), is_by_itself=True)
    assert back.model("m").route.traffic == whole(3)
    assert back.model("m").latest == 1

    state = desired.begin_load(state, "m", 4, {})
    state = desired.finish_load(state, "m", 4, stamp(10))
    state = desired.wait_for_memory(state, "m", 4, "why")
    state = desired.finish_load(state, "m", 3, stamp(11))
    assert state.model("m").route.traffic == whole(3)
    back = desired.finish_load(state, "m", 4, stamp(12), is_by_itself=True)
    assert back.model("m").route.traffic == whole(4)


def test_version_being_loaded_is_not_ready():
    """Between begin and finish nothing can name the version."""
    state = desired.begin_load(loaded(DesiredState(), "m", 1), "m", 2, {})

    for change in (
        lambda: desired.set_route(state, "m", whole(2), stamp()),
        lambda: desired.set_alias(state, "m", "a", 2, stamp()),
    ):
        with pytest.raises(Conflict, match="LOADING"):
            change()


def test_follow_latest_moves_with_each_load_until_it_is_pinned():
    """``latest`` compares numbers, not words, and a pin ends it."""
    state = desired.follow_latest(loaded(DesiredState(), "m", 2), "m", stamp())
    state = loaded(state, "m", 10, 9)
    assert (state.model("m").route.traffic, state.model("m").route.previous) == (
        whole(10),
        whole(2),
    )

    state = desired.set_route(state, "m", whole(10), stamp(50))
    assert state.model("m").route.previous == whole(2)
    assert loaded(state, "m", 11).model("m").route.traffic == whole(10)


def test_unload_refuses_a_failed_version_that_is_named():
    """An alias or route to what FAILED goes on saying why, and the refusal names the way out."""
    state = desired.set_alias(loaded(DesiredState(), "m", 1, 2), "m", "other", 2, stamp(7))
    for version, why in ((1, "--delete"), (2, "ramrack alias m other --delete")):
        state = desired.fail(state, "m", version, "damaged", stamp(8))
        with pytest.raises(Conflict, match=f"m/{version} cannot be unloaded: .*{why}"):
            desired.unload(state, "m", version)

    state = desired.unload(desired.delete_alias(state, "m", "other"), "m", 2)
    state = desired.unload(desired.delete_route(state, "m"), "m", 1)
    assert state.model("m").failed == {}


def test_unload_and_delete_refuse_what_is_named():
    """Route, previous and alias each hold a version, and the refusal names them."""
    state = desired.set_route(loaded(DesiredState(), "m", 1, 2, 3), "m", whole(2), stamp(7))
    state = desired.set_alias(state, "m", "prod", 3, stamp(8))

    for version, why in ((1, "rollback"), (2, "the route"), (3, "alias 'prod'")):
        with pytest.raises(Conflict, match=why):
            desired.unload(state, "m", version)
    with pytest.raises(Conflict, match="loaded"):
        desired.delete(state, "m", 2)


def test_previous_is_free_after_the_next_change():
    """Only the version that the route came from last is held."""
    state = loaded(DesiredState(), "m", 1, 2, 3)
    state = desired.set_route(state, "m", whole(2), stamp(7))
    state = desired.set_route(state, "m", whole(3), stamp(8))

    assert 1 not in desired.unload(state, "m", 1).model("m").loaded
    with pytest.raises(Conflict):
        desired.unload(state, "m", 2)


def test_rollback_goes_to_the_previous_or_to_a_version_of_the_history():
    """A rollback never goes where the route has not been."""
    state = loaded(DesiredState(), "m", 1, 2, 3)
    with pytest.raises(Conflict, match="no version before 1"):
        desired.rollback_target(state, "m", None)
    state = desired.set_route(state, "m", whole(2), stamp(7))

    assert desired.rollback_target(state, "m", None) == whole(1)
    assert desired.rollback_target(state, "m", 1) == whole(1)
    with pytest.raises(Conflict, match="to version 3"):
        desired.rollback_target(state, "m", 3)
    with pytest.raises(NotFound):
        desired.rollback_target(state, "none", None)


def test_failure_of_the_routed_version_goes_back_to_the_previous():
    """The failed version is not held any more, and is not what a rollback goes to."""
    state = desired.set_route(loaded(DesiredState(), "m", 1, 2), "m", whole(2), stamp(7))
    state = desired.fail(state, "m", 2, "crashed", stamp(8))

    model = state.model("m")
    assert (model.route.traffic, model.route.previous) == (whole(1), None)
    assert model.route.history[-1].reason == "version 2 failed: crashed"
    assert model.failed == {2: "crashed"}
    assert desired.delete(state, "m", 2).model("m").failed == {}


def test_failure_without_a_previous_leaves_the_route_as_it_is():
    """There is nowhere to go: requests learn from the failed version why."""
    state = desired.set_alias(loaded(DesiredState(), "m", 1), "m", "a", 1, stamp(5))
    state = desired.fail(state, "m", 1, "crashed", stamp(6))

    assert state.model("m").route.traffic == whole(1)
    assert state.model("m").aliases["a"].version == 1
    state = loaded(state, "m", 1)
    assert state.model("m").failed == {}
    assert state.model("m").is_ready(1)


def test_failure_of_the_previous_forgets_it():
    """A rollback to what cannot serve is not offered."""
    state = desired.set_route(loaded(DesiredState(), "m", 1, 2), "m", whole(2), stamp(7))
    state = desired.fail(state, "m", 1, "damaged", stamp(8))

    assert (state.model("m").route.traffic, state.model("m").route.previous) == (whole(2), None)


@pytest.mark.parametrize("is_latest", [True, False])
def test_route_that_leaves_a_failed_version_has_no_previous(is_latest):
    """What cannot answer is nothing to roll back to, and can be deleted."""
    state = loaded(DesiredState(), "m", 1)
    if is_latest:
        state = desired.follow_latest(state, "m", stamp(4))
    state = loaded(desired.fail(state, "m", 1, "crashed", stamp(5)), "m", 2)
    if not is_latest:
        state = desired.set_route(state, "m", whole(2), stamp(9))

    assert (state.model("m").route.traffic, state.model("m").route.previous) == (whole(2), None)
    desired.delete(state, "m", 1)


def test_load_that_was_taken_out_meanwhile_cannot_finish():
    """The reason of the failure is what the load ends with."""
    state = desired.begin_load(DesiredState(), "m", 1, {})
    state = desired.fail(state, "m", 1, "killed three workers", stamp())

    with pytest.raises(Conflict, match=r"^killed three workers$"):
        desired.finish_load(state, "m", 1, stamp())


def test_history_is_bounded_and_keeps_the_newest():
    """A route that moves for ever takes no more room than HISTORY_ENTRIES changes."""
    state = loaded(DesiredState(), "m", 1, 2)
    for number in range(HISTORY_ENTRIES + 20):
        state = desired.set_route(state, "m", whole(1 + (number + 1) % 2), stamp(100 + number))

    history = state.model("m").route.history
    assert (len(history), history[-1].seq) == (HISTORY_ENTRIES, 100 + HISTORY_ENTRIES + 19)


def test_aliases_move_and_go():
    """Naming the same version again changes nothing; an unknown alias cannot be removed."""
    state = desired.set_alias(loaded(DesiredState(), "m", 1, 2), "m", "a", 1, stamp(5))

    assert desired.set_alias(state, "m", "a", 1, stamp(6)) is state
    moved = desired.set_alias(state, "m", "a", 2, stamp(6))
    assert (moved.model("m").aliases["a"].version, moved.model("m").aliases["a"].seq) == (2, 6)
    assert desired.delete_alias(moved, "m", "a").model("m").aliases == {}
    with pytest.raises(NotFound):
        desired.delete_alias(state, "m", "b")
    with pytest.raises(InvalidInput):
        desired.set_alias(state, "m", "latest", 1, stamp())


def test_route_can_be_removed_so_that_everything_can_be_unloaded():
    """Without a route nothing is held, and a model of which nothing is wanted is gone."""
    state = desired.set_route(loaded(DesiredState(), "m", 1, 2), "m", whole(2), stamp(7))
    state = desired.delete_route(state, "m")
    for version in (1, 2):
        state = desired.unload(state, "m", version)

    assert state.models == {}
    with pytest.raises(NotFound):
        desired.delete_route(state, "m")


def full_state() -> DesiredState:
    state = desired.set_route(loaded(DesiredState(), "m", 1, 2, 3), "m", whole(2), stamp(7))
    state = desired.set_alias(state, "m", "prod", 3, stamp(8))
    state = desired.fail(state, "m", 4, "no", stamp(9))
    state = desired.begin_load(state, "n", 1, {"signature": {"inputs": []}})
    return desired.with_events(state, ({"seq": 9, "kind": "x"},))


def test_state_survives_json():
    """What is persisted reads back equal."""
    state = full_state()

    assert state_document.parse(json.loads(json.dumps(state_document.to_json(state)))) == state


def _paths(value, path=()):
    yield path
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _paths(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, (*path, index))


def _free(path):
    """Places whose content is not the state's business."""
    return "inspection" in path[:-1] or path[:1] == ("last_events",)


@pytest.mark.parametrize(
    "path",
    [p for p in _paths(state_document.to_json(full_state())) if not _free(p)],
    ids=lambda path: ".".join(map(str, path)) or "all",
)
def test_damaged_document_is_refused_by_name(path):
    """A value of a wrong type anywhere in the document is an error that says where."""
    document = json.loads(json.dumps(state_document.to_json(full_state())))
    wrong = 1.5
    if path:
        inner = document
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = wrong
    else:
        document = wrong

    with pytest.raises(InvalidInput):
        state_document.parse(document)


def test_missing_or_unknown_field_is_refused():
    """The document is strict in both directions."""
    document = state_document.to_json(full_state())

    with pytest.raises(InvalidInput, match="extra"):
        state_document.parse({**document, "extra": 1})
    with pytest.raises(InvalidInput, match="models"):
        state_document.parse({key: value for key, value in document.items() if key != "models"})
