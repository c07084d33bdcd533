"""What ``ramrack tune`` says and writes."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from serving.cli.tune_search import Trials, Verdict
from serving.cli.tune_space import DEFAULTS, Candidate

COLUMNS: Final = ("settings", "a second", "p99 ms", "times", "note")


def rows(trials: Trials, verdict: Verdict) -> list[tuple[object, ...]]:
    """Return each set of settings with its last rate, the highest first."""
    found: list[tuple[object, ...]] = []
    for candidate in trials.ranked():
        last = trials.found[candidate][-1]
        rate = f"{last.rate:,.0f}" + ("+" if last.is_limited else "")
        mark = "chosen" if candidate == verdict.chosen else ""
        found.append((candidate.words(), rate, last.p99_ms, len(trials.found[candidate]), mark))
    return found + [(each.words(), "-", None, 0, why) for each, why in trials.failed.items()]


def document(
    name: str, target_ms: float, trials: Trials, verdict: Verdict, minutes: float
) -> dict[str, Any]:
    """Return the same for ``--json``."""
    return {
        "model": name,
        "p99_ms": target_ms,
        "minutes": round(minutes, 2),
        "chosen": _settings(verdict.chosen),
        "sureness": str(verdict.sureness),
        "words": verdict.words(),
        "rates": {"defaults": verdict.default_rates, "best": verdict.best_rates},
        "ratios": [round(ratio, 3) for ratio in verdict.ratios],
        "trials": [
            {"settings": _settings(candidate), "rates": [round(each.rate, 1) for each in found],
             "p99_ms": [each.p99_ms for each in found],
             "is_limited": any(each.is_limited for each in found)}
            for candidate, found in trials.found.items()
        ],
        "failed": [{"settings": _settings(each), "reason": why}
                   for each, why in trials.failed.items()],
    }  # fmt: skip


def _settings(candidate: Candidate) -> dict[str, Any]:
    return asdict(candidate)


def settings_text(name: str, target_ms: float, verdict: Verdict, cores: int) -> str:
    """Return a ramrack.toml with what was found, and how it was found above it."""
    lines = [
        f"# Found by: ramrack tune {name} --p99-ms {target_ms:g}",
        f"# on {cores} cores: {verdict.words()}.",
    ]
    if verdict.best_rates:
        lines.append(f"# Requests a second, round by round: {_list(verdict.best_rates)}; "
                     f"with the defaults {_list(verdict.default_rates)}.")  # fmt: skip
    chosen = verdict.chosen
    if chosen == DEFAULTS:
        lines.append("# The defaults are as good as anything that was tried: nothing is set.")
    if not chosen.batching:
        lines.append("# A setting of the model, which does not stand here: "
                     f"ramrack settings {name} --set batching=false")  # fmt: skip
    lines += [f"{key} = {_number(key, value)}" for key, value in chosen.server_settings().items()]
    return "\n".join(lines) + "\n"


def _number(key: str, value: float) -> str:
    return f"{value:g}" if isinstance(getattr(DEFAULTS, key), int) else f"{float(value)!r}"


def _list(rates: tuple[float, ...]) -> str:
    return ", ".join(f"{rate:,.0f}" for rate in rates)
