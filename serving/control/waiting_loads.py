"""Brings back what waits for memory as soon as there is room for it, one version at a time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeAlias

from registry.desired import Key
from serving.auth import SERVER, Actor
from serving.control.ledger import Ledger
from serving.control.operations import Operation
from serving.control.restore_order import ROOM_AGAIN, waiting_for_memory
from serving.control.state_writer import StateWriter
from serving.control.worker_versions import PLANNED

Load: TypeAlias = Callable[[str, int, Actor, str], Operation]
_log = logging.getLogger(__name__)


class WaitingLoads:
    """Begins the loads that room was made for. Event-loop thread only.

    Each version is tried once for the same room, or two that workers have no memory for would
    take turns for ever. ``load``: begins a load, as ControlPlane.load does.
    """

    def __init__(self, writer: StateWriter, ledger: Ledger, load: Load) -> None:
        self._writer = writer
        self._ledger = ledger
        self._load = load
        # What was loaded by itself since the ledger said so often that room was made.
        self._tried: set[Key] = set()
        self._tried_at = 0

    def ended(self, operation: Operation) -> None:
        """Take note of an operation that is over."""
        if operation.error is not None and (operation.model, operation.version) in self._tried:
            # What it gave back was the room that it was tried for.
            self._tried_at = self._ledger.given_back

    def begin_next(self) -> None:
        """Begin to load the first version that waits for memory, is asked for, and has room now.

        Its own end begins the next one.
        """
        writer, ledger = self._writer, self._ledger
        if ledger.given_back != self._tried_at:
            self._tried_at = ledger.given_back
            self._tried.clear()
        for key in waiting_for_memory(writer):
            is_asked_for = writer.state.model(key[0]).is_asked_for(key[1])
            if is_asked_for and key not in self._tried and ledger.plan(writer.record(*key)).fits:
                self._tried.add(key)
                try:
                    self._load(*key, SERVER, ROOM_AGAIN)
                except PLANNED as error:
                    _log.warning("%s/%d goes on waiting for memory: %s", *key, error)
                return
