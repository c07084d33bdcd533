"""What ``ramrack tune`` tries: settings that decide how much a server does within a latency."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Final

_DELAYS_MS: Final = (1.0, 3.0)
_INLINE_MS: Final = (0.0, 4.0)
# Waiting for company, or for a run on the loop, may take this share of the target at most.
_SHARE_OF_TARGET: Final = 0.25


@dataclass(frozen=True, slots=True)
class Candidate:
    """One set of settings. All as they are here: the server's defaults.

    ``batching`` is a setting of the model, the others are of the server.
    """

    workers: int = 0
    threads_per_worker: int = 0
    max_queue_delay_ms: float = 0.0
    inline_ms: float = 1.0
    batching: bool = True

    def server_settings(self) -> dict[str, float]:
        """Return what stands in ramrack.toml: what differs from the defaults."""
        default = asdict(DEFAULTS)
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "batching" and value != default[name]
        }

    def words(self) -> str:
        """Return the settings as they are shown."""
        parts = [f"{name} = {value:g}" for name, value in self.server_settings().items()]
        if not self.batching:
            parts.append("batching = false")
        return ", ".join(parts) or "defaults"


DEFAULTS: Final = Candidate()


def candidates(cores: int, target_ms: float) -> list[Candidate]:
    """Return the defaults, then what differs from them in one respect."""
    found = [DEFAULTS]
    for workers, threads in _splits(cores):
        found.append(Candidate(workers=workers, threads_per_worker=threads))
    most_ms = target_ms * _SHARE_OF_TARGET
    found += [Candidate(max_queue_delay_ms=delay) for delay in _DELAYS_MS if delay <= most_ms]
    found += [Candidate(inline_ms=inline) for inline in _INLINE_MS if inline <= most_ms]
    found.append(Candidate(batching=False))
    return found


def _splits(cores: int) -> list[tuple[int, int]]:
    """Return workers and threads each, but for one worker a core, which is the default."""
    counts = sorted({1, 2, cores // 2, cores - 1} & set(range(1, cores)))
    found = [(workers, cores // workers) for workers in counts]
    found += [(workers, 1) for workers in counts if cores // workers > 1]
    return list(dict.fromkeys(found))


def crossed(ranked: Sequence[Candidate]) -> Candidate | None:
    """Return what joins the best of each respect, or None where that is nothing new.

    ``ranked``: what was better than the defaults, the best first.
    """
    joined = DEFAULTS
    for candidate in ranked:
        for group in (("workers", "threads_per_worker"), ("max_queue_delay_ms",), ("inline_ms",),
                      ("batching",)):  # fmt: skip
            if all(getattr(joined, name) == getattr(DEFAULTS, name) for name in group):
                joined = replace(joined, **{name: getattr(candidate, name) for name in group})
    return joined if joined not in (DEFAULTS, *ranked) else None


NAMES: Final = tuple(field.name for field in fields(Candidate))
