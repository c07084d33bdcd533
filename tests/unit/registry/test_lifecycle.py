"""The state machine of a version."""

from __future__ import annotations

import itertools

import pytest

from registry.errors import Conflict
from registry.lifecycle import State, VersionStatus, check_transition

ALLOWED = {
    ("UNLOADED", "LOADING"),
    ("UNLOADED", "FAILED"),
    ("LOADING", "READY"),
    ("LOADING", "FAILED"),
    ("LOADING", "UNLOADED"),
    ("READY", "DRAINING"),
    ("READY", "FAILED"),
    ("DRAINING", "UNLOADED"),
    ("DRAINING", "FAILED"),
    ("FAILED", "LOADING"),
    ("FAILED", "UNLOADED"),
}


@pytest.mark.parametrize(("old", "new"), list(itertools.product(State, State)))
def test_only_listed_changes_are_allowed(old: State, new: State) -> None:
    """Everything else is a Conflict that says what is possible; staying is no change."""
    if old is new or (old, new) in ALLOWED:
        check_transition(old, new)
    else:
        with pytest.raises(Conflict, match=f"{old} cannot become {new}"):
            check_transition(old, new)


def test_a_status_has_a_reason_and_a_start() -> None:
    """A change moves the start; a new reason for the same state does not."""
    status = VersionStatus(State.UNLOADED, "published", 1.0)
    loading = status.changed(State.LOADING, "asked for by ci", 2.0)
    later = loading.changed(State.LOADING, "warming up", 3.0)
    assert (later.reason, later.since_s) == ("warming up", 2.0)
    assert later.changed(State.READY, "loaded", 4.0).since_s == 4.0
    with pytest.raises(Conflict):
        status.changed(State.READY, "loaded", 2.0)
    with pytest.raises(ValueError, match="reason"):
        status.changed(State.LOADING, "", 2.0)
