"""One worker slot as the supervisor keeps it: what its worker said last, and whether it is due."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from serving.fleet import VersionKey, VersionReport, WorkerInfo
from serving.web.handover import ConnectionQueue
from serving.workers import messages
from serving.workers.wire import Frame, WireError
from serving.workers.worker_process import WorkerProcess

# Why a worker was replaced, as the metrics count it; each is there from the start.
RESTART_LABELS: Final = ("hung", "start", "signal", "exit", "rolling")
# Unloads whose result is remembered; each is asked for as soon as it is over.
MAX_UNLOADS: Final = 256


@dataclass(frozen=True, slots=True)
class Timings:
    """Bounds of a worker's life, in seconds.

    ``max_failed_starts``: deaths before a worker is ready, in every slot, that end the server;
    those that somebody outside caused do not count.
    ``exit_grace_s``: between the wire's end and the process's, where only the interpreter's own
    shutdown is left.
    """

    heartbeat_timeout_s: float = 5.0
    start_timeout_s: float = 60.0
    load_timeout_s: float = 600.0
    backoff_first_s: float = 0.1
    backoff_max_s: float = 10.0
    max_failed_starts: int = 5
    exit_grace_s: float = 5.0


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True, eq=False)
class Slot:
    """State that outlives workers (listener, restarts, reason) and that of the present one.

    ``generation``: what the worker reported to hold; ``taken_generation``: what its requests are
    routed by, at once, also while a load is under way.
    ``can_take``: set once the worker reads targets; what is sent earlier is old when it is read.
    ``is_early``: it was told of a restore under way, so it accepts before it holds anything.
    ``failed_starts``: deaths in a row before a worker was ready; ``own_failed_starts``: of those,
    what nobody outside caused.
    ``blamed``: versions that the last death is held against, until a worker listens here again.
    ``may_map``: unset while the objects of versions are checked that the next worker would map.
    ``withheld``: versions that it is not told of, for theirs are checked still; ``owed``: those
    that it was not told of and has not reported since.
    ``queue``: the way of connections from one worker of the slot to the next.
    ``region``: the part of the metrics page that its workers count into.
    ``is_patient``: its worker accepts only once it holds all that is wanted.
    ``is_candidate``: its worker has not taken over yet; ``is_retired``: another one has;
    ``is_left``: it goes on without this supervisor.
    """

    index: int
    listener: socket.socket
    cpus: tuple[int, ...]
    queue: ConnectionQueue
    region: int
    is_patient: bool = False
    is_candidate: bool = False
    is_retired: bool = False
    is_left: bool = False
    process: WorkerProcess | None = None
    state: str = "starting"
    reason: str = ""
    restarts: int = 0
    failed_starts: int = 0
    own_failed_starts: int = 0
    blamed: frozenset[VersionKey] = frozenset()
    may_map: asyncio.Event = field(default_factory=_set_event)
    withheld: frozenset[VersionKey] = frozenset()
    owed: frozenset[VersionKey] = frozenset()
    target_changed: asyncio.Event = field(default_factory=asyncio.Event)
    can_take: asyncio.Event = field(default_factory=asyncio.Event)
    generation: int = 0
    taken_generation: int = 0
    reports: Mapping[VersionKey, VersionReport] = field(default_factory=dict)
    unreleased: Mapping[VersionKey, int] = field(default_factory=dict)
    memory_bytes: int = 0
    is_ready: bool = False
    is_listening: bool = False
    is_early: bool = False
    started_at: float = 0.0
    beat_at: float = 0.0
    loading: VersionKey | None = None
    loading_at: float = 0.0
    kill_reason: str = ""
    fatal_reason: str = ""

    @property
    def is_accepting(self) -> bool:
        """Whether its worker takes new connections."""
        return self.is_listening and not self.is_retired

    @property
    def speaks_for_itself(self) -> bool:
        """Whether what it holds counts: its clients are here, or wait until it holds all."""
        return self.is_listening or (self.is_patient and self.is_early)

    def begin_life(self, now: float) -> None:
        """Forget the former worker: a new one holds nothing yet."""
        self.state, self.started_at, self.beat_at = "starting", now, now
        self.generation, self.reports, self.memory_bytes = 0, {}, 0
        self.unreleased = {}
        self.taken_generation = 0
        self.is_ready = self.is_listening = self.is_early = False
        self.can_take.clear()
        self.loading, self.kill_reason, self.fatal_reason = None, "", ""

    def take(self, frame: Frame, now: float) -> None:
        """Note what the worker says. Raises WireError, KeyError, TypeError or ValueError."""
        self.beat_at = now
        body = frame.body
        if frame.type == messages.HEARTBEAT:
            self.memory_bytes = int(body["memory_bytes"])
            if stuck := body["stuck"]:
                self.kill_reason = f"a run of {stuck} could not be ended"
        elif frame.type == messages.READY:
            self.is_ready, self.failed_starts, self.own_failed_starts = True, 0, 0
            self.can_take.set()
        elif frame.type == messages.LISTENING:
            self.state, self.is_listening, self.blamed = "serving", True, frozenset()
        elif frame.type == messages.LOADING:
            self.loading = (str(body["model"]), int(body["version"])) if body else None
            self.loading_at = now
        elif frame.type == messages.TAKEN:
            self.taken_generation = int(body["generation"])
        elif frame.type == messages.REPORT:
            report = messages.parse_report(body)
            self.generation, self.reports = report.generation, report.versions
            self.owed -= report.versions.keys()
            recent = [*{**self.unreleased, **report.unreleased}.items()][-MAX_UNLOADS:]
            self.unreleased = dict(recent)
        elif frame.type == messages.FATAL:
            self.fatal_reason = str(body["reason"])
        else:
            raise WireError(f"frame of unknown type {frame.type!r}")

    def overdue(self, now: float, limits: Timings) -> str:
        """Return why the worker has to be killed, or nothing."""
        if self.kill_reason:
            return self.kill_reason
        if not self.is_ready:
            late = now - self.started_at > limits.start_timeout_s
            return f"was not ready after {limits.start_timeout_s:g} s" if late else ""
        if now - self.beat_at > limits.heartbeat_timeout_s:
            return f"gave no sign of life for {limits.heartbeat_timeout_s:g} s"
        if self.loading is not None and now - self.loading_at > limits.load_timeout_s:
            model, version = self.loading
            return f"loaded {model}/{version} for more than {limits.load_timeout_s:g} s"
        return ""

    def restart_label(self, code: int) -> str:
        """Return why a worker was replaced, as one of RESTART_LABELS."""
        if self.kill_reason:
            return "hung"
        if not self.is_ready:
            return "start"
        return "signal" if code < 0 else "exit"

    def info(self) -> WorkerInfo:
        """Return the slot as people see it."""
        return WorkerInfo(
            slot=self.index,
            pid=self.process.pid if self.process is not None else None,
            state=self.state,
            generation=self.generation,
            cpus=self.cpus,
            restarts=self.restarts,
            reason=self.reason,
            memory_bytes=self.memory_bytes,
            region=self.region,
        )
