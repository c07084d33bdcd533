"""What the parent knows at the time of a scrape, beside what the workers counted."""

from __future__ import annotations

import platform
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata

from serving.fleet import WorkerInfo


@dataclass(frozen=True, slots=True)
class VersionFacts:
    """What the parent knows of one version.

    ``load_s``: None where it was not loaded. ``queue_rows``: how many rows may wait in one worker.
    """

    model: str
    version: int
    state: str
    load_s: float | None = None
    resident_bytes: int = 0
    locked_bytes: int = 0
    private_bytes: int = 0
    queue_rows: int = 0


def build_info() -> dict[str, str]:
    """Return the versions of what answers; looked up without importing any of it."""
    found = {"python": platform.python_version()}
    for label, package in (("version", "ramrack"), ("onnxruntime", "onnxruntime")):
        try:
            found[label] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[label] = "unknown"
    return found


@dataclass(frozen=True, slots=True)
class Facts:
    """What the parent adds to the counts of the workers, as it is at the time of a scrape.

    ``versions``: all published ones, or only those not UNLOADED. ``loads``: ended loads by result,
    "succeeded" or "failed". ``worker_restarts``: by a short fixed reason. ``former_slots``: where a
    worker of the release before still answers, whether or not there is another one yet.
    ``memory_unreleased_bytes``: None where it could not be measured. ``disk_bytes``: of the whole
    disk that the store is on.
    """

    versions: Sequence[VersionFacts] = ()
    workers: Sequence[WorkerInfo] = ()
    former_slots: Collection[int] = ()
    worker_restarts: Mapping[str, int] = field(default_factory=dict)
    loads: Mapping[str, int] = field(default_factory=dict)
    swaps: int = 0
    memory_budget_bytes: int = 0
    memory_committed_bytes: int = 0
    memory_unreleased_bytes: int | None = 0
    evicted_bytes: int = 0
    store_bytes: int = 0
    disk_bytes: int = 0
    disk_free_bytes: int = 0
    digest_failures: int = 0
    build: Mapping[str, str] = field(default_factory=build_info)
