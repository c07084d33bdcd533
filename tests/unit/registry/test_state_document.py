"""The persisted state: documents of the release before this one open, and damage is named."""

from __future__ import annotations

import json

import pytest

from registry import state_document
from registry.errors import InvalidInput
from registry.model_state import Alias
from registry.traffic import Share, Traffic

# Written by the release whose routes were one version each; not to be changed.
FORMAT_1 = """
{"format": 1, "generation": 17,
 "models": {
  "fraud": {
   "loaded": {"1": {"inspection": {"a": 1}, "is_serving": true},
              "2": {"inspection": {"a": 2}, "is_serving": true}},
   "failed": {"3": "not a graph"},
   "aliases": {"prod": {"version": 1, "seq": 6}},
   "route": {"version": 2, "latest": true, "previous": 1, "history": [
     {"seq": 4, "time": "2026-01-01T00:00:00.000Z", "who": "anyone", "reason": "",
      "split": [{"version": 1, "weight": 100}], "latest": false},
     {"seq": 7, "time": "2026-01-02T00:00:00.000Z", "who": "ci", "reason": "better",
      "split": [{"version": 2, "weight": 100}], "latest": true}]}},
  "search": {"loaded": {}, "failed": {}, "aliases": {}, "route": null}},
 "last_event": {"seq": 7, "time": "2026-01-02T00:00:00.000Z", "kind": "route", "model": "fraud",
  "version": null, "who": "ci", "address": "", "reason": "better", "before": null, "after": null}}
"""


def test_document_of_format_1_opens_as_what_it_said():
    """Route, previous, history, aliases, failures and the last event are all there."""
    state = state_document.parse(json.loads(FORMAT_1))

    model = state.model("fraud")
    assert (state.generation, sorted(model.loaded), model.failed) == (
        17, [1, 2], {3: "not a graph"},
    )  # fmt: skip
    assert model.aliases == {"prod": Alias(1, 6)}
    route = model.route
    assert (route.traffic, route.previous, route.is_latest, route.etag) == (
        Traffic.whole(2), Traffic.whole(1), True, '"7"',
    )  # fmt: skip
    assert [(c.seq, c.traffic, c.who, c.is_latest) for c in route.history] == [
        (4, Traffic.whole(1), "anyone", False), (7, Traffic.whole(2), "ci", True),
    ]  # fmt: skip
    assert (model.settings.to_json(), model.settings_etag) == ({}, '"0"')
    assert [event["seq"] for event in state.last_events] == [7]
    assert state.model("search").route is None
    document = state_document.to_json(state)
    assert document["format"] == 3
    assert state_document.parse(json.loads(json.dumps(document))) == state


def test_new_state_of_format_1_has_no_last_event():
    """A store that recorded nothing yet opens as well."""
    document = {"format": 1, "generation": 0, "models": {}, "last_event": None}

    assert state_document.parse(document).last_events == ()


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (("models", "fraud", "route", "version"), "route: split"),
        (("models", "fraud", "route", "previous"), "route.previous: split"),
        (("models", "fraud", "route", "history"), "route.history"),
        (("models", "fraud", "route", "history", 0), "route.history[0]"),
        (("models", "fraud", "route", "history", 1, "split"), "route.history[1]: split"),
        (("models", "fraud", "route"), "models.fraud.route"),
        (("models", "fraud"), "models.fraud"),
        (("models",), "state.models"),
        (("last_event",), "state.last_events"),
    ],
)
def test_damaged_document_of_format_1_is_refused_by_name(path, says):
    """An upgrade never makes something of what is not there."""
    document = json.loads(FORMAT_1)
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = 1.5

    with pytest.raises(InvalidInput, match="state") as caught:
        state_document.parse(document)
    assert says in str(caught.value)


@pytest.mark.parametrize("version", [0, 4, True, "1", None])
def test_document_of_another_format_is_refused(version):
    """A later release's state is not guessed at."""
    with pytest.raises(InvalidInput, match=r"state\.format: .* use 1 to 3"):
        state_document.parse({**json.loads(FORMAT_1), "format": version})


# Written by the release that chose the version of a routing key by the weights alone.
FORMAT_2 = """
{"format": 2, "generation": 9,
 "models": {
  "fraud": {
   "loaded": {"1": {"inspection": {}, "is_serving": true},
              "2": {"inspection": {}, "is_serving": true}},
   "failed": {}, "aliases": {}, "settings": {"values": {"queue_rows": 7}, "seq": 2},
   "route": {"split": [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}],
     "shadow": [], "latest": false,
     "previous": {"split": [{"version": 1, "weight": 100}], "shadow": []},
     "history": [
      {"seq": 7, "time": "2026-01-02T00:00:00.000Z", "who": "ci", "reason": "canary",
       "split": [{"version": 1, "weight": 90}, {"version": 2, "weight": 10}], "shadow": [],
       "latest": false}]}}},
 "last_events": []}
"""


def test_document_of_format_2_opens_with_the_slots_of_a_new_split():
    """The split, what it came from and the settings are there; keys have slots from now on."""
    state = state_document.parse(json.loads(FORMAT_2))

    route = state.model("fraud").route
    assert route.traffic == Traffic((Share(1, 90), Share(2, 10)))
    assert (route.slots, route.previous_slots) == ((1,) * 90 + (2,) * 10, (1,) * 100)
    assert state.model("fraud").settings.queue_rows == 7
    document = json.loads(json.dumps(state_document.to_json(state)))
    assert document["models"]["fraud"]["route"]["previous_slots"] == []
    assert state_document.parse(document) == state


@pytest.mark.parametrize("slots", [[1] * 100, [1] * 90, 5, ["1"] * 100, [True] * 90 + [2] * 10])
def test_slots_that_are_not_those_of_the_split_are_refused(slots):
    """What a version has in slots is its weight, or the document is damaged."""
    document = state_document.to_json(state_document.parse(json.loads(FORMAT_2)))
    document["models"]["fraud"]["route"]["slots"] = slots

    with pytest.raises(InvalidInput, match=r"state\.models\.fraud\.route\.slots: must "):
        state_document.parse(document)
