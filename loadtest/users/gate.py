"""The gate at the end of a run: what was promised, what was seen, and why it is red."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """What a run is held to; None: not asked for. ``error_rate``: a share from 0 to 1."""

    p99_ms: float | None = None
    error_rate: float | None = None

    @property
    def is_given(self) -> bool:
        """Whether anything was promised."""
        return self.p99_ms is not None or self.error_rate is not None


@dataclass(frozen=True, slots=True)
class Seen:
    """What all users together saw. ``p99_ms``: None where nothing was answered."""

    requests: int
    failures: int
    p99_ms: float | None


def broken(promise: Promise, seen: Seen) -> list[str]:
    """Return each promise that was not kept, in words; empty: the gate is green."""
    if seen.requests == 0:
        return ["no request was sent"]
    reasons = []
    if promise.p99_ms is not None and (seen.p99_ms is None or seen.p99_ms > promise.p99_ms):
        was = "unknown" if seen.p99_ms is None else f"{seen.p99_ms:g} ms"
        reasons.append(f"p99 is {was}, allowed are {promise.p99_ms:g} ms")
    rate = seen.failures / seen.requests
    if promise.error_rate is not None and rate > promise.error_rate:
        reasons.append(
            f"{seen.failures} of {seen.requests} requests failed ({rate:.2%}), "
            f"allowed are {promise.error_rate:.2%}"
        )
    return reasons
