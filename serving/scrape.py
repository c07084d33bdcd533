"""What a scrape of ``/metrics`` shows: the workers' counts and what the parent knows itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from serving.control.control_plane import ControlPlane
from serving.metrics import collector
from serving.metrics.collector import Facts, VersionFacts
from serving.metrics.page import MetricsMemory
from serving.workers.supervisor import Supervisor

# Reading the state takes microseconds on the loop; a loop that is late for this long has failed.
_LOOP_TIMEOUT_S: Final = 10.0


def page_renderer(
    control: ControlPlane, supervisor: Supervisor, memory: MetricsMemory
) -> Callable[[], bytes]:
    """Return the function that makes the page; blocking, to be called in a thread.

    The state belongs to the running event loop, so the facts are read there.
    """
    loop = asyncio.get_running_loop()

    async def facts() -> Facts:
        await control.residency.count()
        return _facts(control, supervisor)

    def render() -> bytes:
        found = asyncio.run_coroutine_threadsafe(facts(), loop).result(_LOOP_TIMEOUT_S)
        usage = control.store.usage()
        return collector.render(memory, replace(found, store_bytes=usage.object_bytes))

    return render


def _facts(control: ControlPlane, supervisor: Supervisor) -> Facts:
    held = control.ledger.versions()
    versions = []
    for model, records in control.writer.records.items():
        for version in records:
            key = (model, version)
            state, _ = control.writer.status(key)
            memory, in_ram = held.get(key), control.residency.of(key)
            private_bytes = (memory.private_bytes_per_worker or 0) if memory else 0
            versions.append(
                VersionFacts(
                    model=model,
                    version=version,
                    state=state,
                    load_s=control.loads.load_s.get(key),
                    resident_bytes=in_ram.resident_bytes if in_ram else 0,
                    locked_bytes=in_ram.locked_bytes if in_ram else 0,
                    private_bytes=private_bytes * control.ledger.workers,
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
