"""What a scrape of ``/metrics`` shows: the workers' counts and what the parent knows itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from dataclasses import replace
from typing import Final, Generic, TypeVar

from serving.control.control_plane import ControlPlane
from serving.metrics import collector
from serving.metrics.facts import Facts, VersionFacts
from serving.metrics.page import MetricsMemory
from serving.workers.supervisor import Supervisor

# Reading the state takes microseconds on the loop; a loop that is late for this long has failed.
_LOOP_TIMEOUT_S: Final = 10.0
# A scrape waits so long for what must be counted anew; what takes longer is on the next page.
_PATIENCE_S: Final = 0.01
T = TypeVar("T")


class Lasting(Generic[T]):
    """The last result of work that may take long, while the next is under way. Event loop only.

    Counting the pages of a terabyte or the objects of a large store takes longer than a scrape may.
    """

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._last: asyncio.Future[T] | None = None
        self._next: asyncio.Future[T] | None = None

    async def get(self) -> T:
        """Return a new result if it comes at once, else the last one; the first is waited for."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._work())
        asked = self._next
        await asyncio.wait((asked,), timeout=None if self._last is None else _PATIENCE_S)
        if self._last is not None and not asked.done():
            return self._last.result()
        self._last = asked
        # Another scrape may have taken it, and asked for the next.
        if self._next is asked:
            self._next = None
        return asked.result()


def page_renderer(
    control: ControlPlane,
    supervisor: Supervisor,
    memory: MetricsMemory,
    queue_rows: int,
    former_slots: Callable[[], Collection[int]],
) -> Callable[[], bytes]:
    """Return the function that makes the page; blocking, to be called in a thread.

    The state belongs to the running event loop, so the facts are read there. ``queue_rows``: what
    the server's settings say, for models without a number of their own. ``former_slots``: in which
    a worker of the release before still answers.
    """
    loop = asyncio.get_running_loop()
    pages = Lasting(control.residency.count)
    usage = Lasting(lambda: control.residency.quietly(control.store.usage))

    async def facts() -> Facts:
        _, store = await asyncio.gather(pages.get(), usage.get())
        return replace(
            _facts(control, supervisor, queue_rows),
            former_slots=former_slots(),
            store_bytes=store.object_bytes,
            disk_bytes=store.disk_total_bytes,
            disk_free_bytes=store.disk_free_bytes,
            digest_failures=control.store.damage_found,
        )

    def render() -> bytes:
        found = asyncio.run_coroutine_threadsafe(facts(), loop).result(_LOOP_TIMEOUT_S)
        return collector.render(memory, found)

    return render


def _facts(control: ControlPlane, supervisor: Supervisor, queue_rows: int) -> Facts:
    held = control.ledger.versions()
    versions = []
    for model, records in control.writer.records.items():
        own_rows = control.writer.state.model(model).settings.queue_rows
        for version in records:
            key = (model, version)
            state, _ = control.writer.status(key)
            memory, in_ram = held.get(key), control.residency.of(key)
            versions.append(
                VersionFacts(
                    model=model,
                    version=version,
                    state=state,
                    load_s=control.loads.load_s.get(key),
                    resident_bytes=in_ram.resident_bytes if in_ram else 0,
                    locked_bytes=in_ram.locked_bytes if in_ram else 0,
                    private_bytes=memory.private_bytes if memory else 0,
                    queue_rows=queue_rows if own_rows is None else own_rows,
                )
            )
    return Facts(
        versions=versions,
        workers=supervisor.workers(),
        worker_restarts=supervisor.restarts(),
        loads=dict(control.loads.loads_ended),
        swaps=control.writer.swaps,
        memory_budget_bytes=control.ledger.budget_bytes,
        memory_committed_bytes=control.ledger.committed_bytes(),
        memory_unreleased_bytes=control.ledger.unreleased_bytes(),
        evicted_bytes=control.residency.returned_bytes,
    )
