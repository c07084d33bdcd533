"""Threads that each do one thing to a server over and over, and can be asked to rest."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self, TypeAlias

# One round of it; what it raises is a complaint.
Step: TypeAlias = Callable[[random.Random], None]
_LOOK_S: Final = 0.02
_END_S: Final = 120.0


class Mishap(Exception):
    """A request that ended as one may whose worker has died: a 503 or a closed connection."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """What somebody did not expect. ``is_mishap``: a death at that time would explain it."""

    who: str
    text: str
    is_mishap: bool
    began_ns: int
    ended_ns: int


@dataclass(slots=True)
class Crew:
    """``steps``: what each one does, and after how many seconds on average it does so again."""

    steps: Mapping[str, tuple[Step, float]]
    complaints: list[Complaint] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _stop: threading.Event = field(default_factory=threading.Event)
    _busy: dict[str, threading.Lock] = field(default_factory=dict)
    _threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Self:
        self._busy = {name: threading.Lock() for name in self.steps}
        for name in self.steps:
            thread = threading.Thread(target=self._run, args=(name,), name=name)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_END_S)

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """Let everybody end what they do, and nobody begin anything inside."""
        with ExitStack() as stack:
            for lock in self._busy.values():
                stack.enter_context(lock)
            yield

    def _run(self, name: str) -> None:
        step, gap_s = self.steps[name]
        dice = random.Random(name)
        while not self._stop.is_set():
            with self._busy[name]:
                self._once(name, step, dice)
            # A lock is not fair: who waits for it gets its turn here.
            self._stop.wait(max(_LOOK_S, gap_s * dice.uniform(0.5, 1.5)))

    def _once(self, name: str, step: Step, dice: random.Random) -> None:
        began_ns = time.monotonic_ns()
        try:
            step(dice)
        except Mishap as error:
            self._complain(name, str(error), began_ns, is_mishap=True)
        except Exception as error:  # noqa: BLE001 - whatever it is, the outcome tells it
            self._complain(name, f"{type(error).__name__}: {error}", began_ns, is_mishap=False)
        self.done[name] += 1

    def _complain(self, who: str, text: str, began_ns: int, *, is_mishap: bool) -> None:
        now_ns = time.monotonic_ns()
        self.complaints.append(Complaint(who, text[:300], is_mishap, began_ns, now_ns))
