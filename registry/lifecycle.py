"""The states of a version and the changes between them that are allowed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from registry.errors import Conflict


class State(StrEnum):
    """Where a version stands."""

    UNLOADED = "UNLOADED"
    LOADING = "LOADING"
    READY = "READY"
    DRAINING = "DRAINING"
    FAILED = "FAILED"


# READY to FAILED: objects found damaged, or too many workers died of it. LOADING to UNLOADED: the
# load was called off. A load never starts while the same version drains: its memory is still held.
TRANSITIONS: Final[dict[State, frozenset[State]]] = {
    State.UNLOADED: frozenset({State.LOADING, State.FAILED}),
    State.LOADING: frozenset({State.READY, State.FAILED, State.UNLOADED}),
    State.READY: frozenset({State.DRAINING, State.FAILED}),
    State.DRAINING: frozenset({State.UNLOADED, State.FAILED}),
    State.FAILED: frozenset({State.LOADING, State.UNLOADED}),
}


def check_transition(old: State, new: State) -> None:
    """Raise Conflict unless ``old`` may become ``new``; staying is no change and always allowed."""
    if new is not old and new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old]))
        raise Conflict(f"a version that is {old} cannot become {new}: from there only {allowed}")


@dataclass(frozen=True, slots=True)
class VersionStatus:
    """A state, why, and since when (monotonic seconds)."""

    state: State
    reason: str
    since_s: float

    def __post_init__(self) -> None:
        """Hold that no state goes without a reason."""
        if not self.reason:
            raise ValueError(f"a reason is needed for state {self.state}")

    def changed(self, state: State, reason: str, now_s: float) -> VersionStatus:
        """Return the status after a change, or raise Conflict; staying keeps ``since_s``."""
        check_transition(self.state, state)
        return VersionStatus(state, reason, self.since_s if state is self.state else now_s)
