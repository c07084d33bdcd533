"""One look at everything that the console shows, and the rates since the looks before."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Final, TypeAlias

from registry.manifest import Json, JsonObject
from serving.admin.console.hub import ConsoleHub
from serving.admin.console.overview import Overview
from serving.admin.views import AdminViews
from serving.control.control_plane import ControlPlane
from serving.metrics import layout, reading
from serving.metrics.page import MetricsMemory
from serving.metrics.rates import Counts, Rates, rates, total
from serving.metrics.reading import VersionKey, VersionNumbers
from serving.settings import Settings

Sections: TypeAlias = dict[str, Json]
Readings: TypeAlias = Mapping[VersionKey, Counts]
# Percentiles of one second of little traffic jump about; those of this many are calm.
WINDOW_LOOKS: Final = 10
# All that a reading needs stands before this cell of a block.
_CELLS: Final = layout.QUEUE.start
_ALL: Final = ("", 0)


def counts_in(memory: MetricsMemory) -> dict[VersionKey, Counts]:
    """Return what all workers counted for each version; takes milliseconds."""
    found: dict[VersionKey, VersionNumbers] = {}
    for region in memory.regions():
        for key, cells in reading.blocks(region, _CELLS):
            found.setdefault(key, VersionNumbers()).add(cells, has_gauges=True)
    return {key: Counts.of(numbers) for key, numbers in found.items()}


def console_of(
    control: ControlPlane, settings: Settings, memory: MetricsMemory | None = None
) -> ConsoleHub:
    """Return the hub of a control plane's console. ``memory``: where the workers count."""
    sampler = Sampler(
        Overview(control, AdminViews(control, settings)),
        dict if memory is None else lambda: counts_in(memory),
    )
    return ConsoleHub(sampler.sections, sampler.forget)


class Sampler:
    """Makes all sections anew each time it is asked; remembers the last counts for the rates."""

    def __init__(self, overview: Overview, counts: Callable[[], Readings]) -> None:
        self._overview = overview
        self._counts = counts
        self._looks: deque[tuple[float, Readings]] = deque(maxlen=WINDOW_LOOKS + 1)

    def forget(self) -> None:
        """Begin the rates anew: nobody looked for a while."""
        self._looks.clear()

    async def sections(self) -> Sections:
        """Return what there is to show, by section."""
        counts = await asyncio.to_thread(self._counts)
        self._looks.append((time.monotonic(), counts))
        return {
            "server": self._overview.server(),
            "models": self._overview.models(),
            "memory": self._overview.memory(),
            "workers": self._overview.workers(),
            "operations": self._overview.operations(),
            "events": await self._overview.events(),
            "rates": self._rates(),
        }

    def _rates(self) -> JsonObject:
        """Return the rates of the server, of models and of versions.

        ``now_per_s`` is of the last look alone, everything else of the whole window.
        """
        (began_s, first), (now_s, last) = self._looks[0], self._looks[-1]
        before_s, before = self._looks[-2] if len(self._looks) > 1 else self._looks[-1]
        steady = rates(_summed(first), _summed(last), now_s - began_s)
        sudden = rates(_summed(before), _summed(last), now_s - before_s)
        models: dict[str, JsonObject] = {}
        for key, found in steady.items():
            name, version = key
            document = _document(found, sudden[key].requests_per_s)
            if key == _ALL:
                continue
            if not version:
                models.setdefault(name, {"versions": {}}).update(document)
            else:
                versions = models.setdefault(name, {"versions": {}})["versions"]
                if isinstance(versions, dict):
                    versions[str(version)] = document
        all_of_it = _document(steady[_ALL], sudden[_ALL].requests_per_s)
        return {"window_s": round(now_s - began_s, 1), "all": all_of_it, "models": dict(models)}


def _summed(counts: Readings) -> dict[VersionKey, Counts]:
    """Return ``counts`` with the sums over each model, as version 0, and over everything."""
    found = dict(counts)
    by_model: dict[str, list[Counts]] = {}
    for (model, _), item in counts.items():
        by_model.setdefault(model, []).append(item)
    found |= {(model, 0): total(items) for model, items in by_model.items()}
    found[_ALL] = total(counts.values())
    return found


def _document(found: Rates, now_per_s: float) -> JsonObject:
    return {
        "now_per_s": round(now_per_s, 2),
        "requests_per_s": round(found.requests_per_s, 2),
        "refused_per_s": round(found.refused_per_s, 2),
        "failed_per_s": round(found.failed_per_s, 2),
        "p50_s": _rounded(found.p50_s),
        "p99_s": _rounded(found.p99_s),
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 6)
