"""One look at a running server for ``ramrack top``, and what two of them say together."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from serving.metrics.layout import DURATION_BOUNDS_S
from serving.metrics.rates import Counts, Rates, rates

if TYPE_CHECKING:
    from serving.client.admin import AdminClient

_REQUESTS: Final = "ramrack_requests"
_DURATIONS: Final = "ramrack_request_duration_seconds"
_CPU: Final = "ramrack_worker_cpu_seconds"
_MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Reading:
    """What the server said at ``at_s`` of the monotonic clock. ``cpu_s``: by slot."""

    at_s: float
    versions: list[dict[str, Any]]
    workers: list[dict[str, Any]]
    memory: Mapping[str, Any]
    counts: Mapping[tuple[str, int], Counts]
    cpu_s: Mapping[int, float]


def read(client: AdminClient) -> Reading:
    """Ask the server once; raises ClientError."""
    counts, cpu_s = parse(client.metrics())
    at_s = time.monotonic()
    versions = [
        version
        for model in client.models()
        for version in model["versions"]
        if version["state"] != "UNLOADED"
    ]
    return Reading(at_s, versions, client.workers(), client.memory(), counts, cpu_s)


def parse(text: str) -> tuple[dict[tuple[str, int], Counts], dict[int, float]]:
    """Return the counts of each version and the CPU seconds of each slot from a metrics page."""
    from prometheus_client.parser import text_string_to_metric_families

    codes: dict[tuple[str, int], dict[str, int]] = {}
    durations: dict[tuple[str, int], list[int]] = {}
    cpu_s: dict[int, float] = {}
    for family in text_string_to_metric_families(text):
        if family.name == _CPU:
            cpu_s = {int(item.labels["slot"]): item.value for item in family.samples
                     if item.name == f"{_CPU}_total"}  # fmt: skip
        if family.name not in (_REQUESTS, _DURATIONS):
            continue
        for item in family.samples:
            # What asked for no known version has another label than a number.
            if not item.labels.get("version", "").isdigit():
                continue
            key = item.labels["model"], int(item.labels["version"])
            if item.name == f"{_REQUESTS}_total":
                codes.setdefault(key, {})[item.labels["code"]] = int(item.value)
            elif item.name == f"{_DURATIONS}_bucket":
                durations.setdefault(key, []).append(int(item.value))
    return {key: Counts(codes.get(key, {}), _parted(durations.get(key, ())))
            for key in codes.keys() | durations.keys()}, cpu_s  # fmt: skip


def _parted(cumulative: list[int] | tuple[int, ...]) -> list[int]:
    """Return counts by bucket from cumulative ones, which the page gives from low to high."""
    parts = [b - a for a, b in zip((0, *cumulative), cumulative, strict=False)]
    return (parts + [0] * (len(DURATION_BOUNDS_S) + 1))[: len(DURATION_BOUNDS_S) + 1]


def compared(before: Reading, after: Reading) -> dict[str, Any]:
    """Return what is shown, and printed as JSON: rates are of the time between both readings.

    Latencies are in milliseconds, None where nothing was answered; CPU is in cores.
    """
    seconds = after.at_s - before.at_s
    found = rates(before.counts, after.counts, seconds)
    return {
        "seconds": round(seconds, 3),
        "versions": [_version(each, found.get((each["model"], each["version"]), Rates()))
                     for each in after.versions],
        "workers": [
            {"slot": worker["slot"], "pid": worker["pid"], "state": worker["state"],
             "cpu": _cpu(before, after, worker["slot"], seconds)}
            for worker in after.workers
        ],
        "memory": {key: after.memory.get(key)
                   for key in ("committed_bytes", "budget_bytes", "free_bytes")},
    }  # fmt: skip


def _version(version: Mapping[str, Any], rate: Rates) -> dict[str, Any]:
    memory = version["memory"]
    return {
        "model": version["model"],
        "version": version["version"],
        "state": version["state"],
        "aliases": version["aliases"],
        "traffic": version.get("traffic") or 0,
        "is_shadow": bool(version.get("is_shadow")),
        "is_previous": bool(version.get("is_previous")),
        "shared_bytes": memory.get("shared_bytes"),
        "private_bytes_per_worker": memory.get("private_bytes_per_worker"),
        "requests_per_s": round(rate.requests_per_s, 2),
        "p50_ms": None if rate.p50_s is None else round(rate.p50_s * _MS, 3),
        "p99_ms": None if rate.p99_s is None else round(rate.p99_s * _MS, 3),
        "refused_per_s": round(rate.refused_per_s, 2),
        "failed_per_s": round(rate.failed_per_s, 2),
        "reason": version["reason"],
    }


def _cpu(before: Reading, after: Reading, slot: int, seconds: float) -> float | None:
    if slot not in before.cpu_s or slot not in after.cpu_s or seconds <= 0:
        return None
    return round(max(0.0, after.cpu_s[slot] - before.cpu_s[slot]) / seconds, 3)
