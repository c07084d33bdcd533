"""Many versions at once: those that share most of their weights, and those that share nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from loadtest.bench._weights_rig import WORKERS, Rig, Sizes, rig
from loadtest.lab.bed import Bed
from loadtest.lab.bodies import Tensor, as_json, pairs, tokens
from loadtest.lab.claims import Target, number
from loadtest.lab.generators import Load, open_loop
from loadtest.lab.memory import (
    MB,
    Held,
    allowed_pss_bytes,
    in_use_bytes,
    private_bytes,
    unreleased_share,
)
from loadtest.lab.processes import LabFailed

VERSIONS: Final = 24
TABLE_MIB: Final = 1900
OWN_MIB: Final = 100
_SWAPS: Final = 3
_TOLD_EVERY: Final = 6
_MOST_DISTINCT: Final = 64
_BUDGET_MIB: Final = 16_384
_P99_MS: Final = 20.0
_RATE: Final = 100.0
_HALF_STEP: Final = 1e-6


def shared_table(bed: Bed, sizes: Sizes) -> None:
    """24 versions of a recommender that share their large table."""
    mib = sizes.mib(TABLE_MIB)
    with rig(bed) as here:
        options = ("--table-mib", str(mib), "--own-mib", str(sizes.mib(OWN_MIB)))
        _many(here, "recommender", f"recommenders over one table of {mib} MiB", options,
              pairs(mib, 4))  # fmt: skip


def shared_layers(bed: Bed, sizes: Sizes) -> None:
    """24 versions of an encoder that differ in their last two layers."""
    with rig(bed) as here:
        title = f"encoders of width {sizes.width} that share all but two layers"
        _many(here, "encoder", title, ("--width", str(sizes.width)), tokens(32))


def distinct(bed: Bed, sizes: Sizes) -> None:
    """As many recommenders with tables of their own as the budget admits, and one more."""
    mib = sizes.mib(TABLE_MIB + OWN_MIB)
    options = ("--memory-budget", f"{sizes.mib(_BUDGET_MIB)}MiB") if sizes.scale < 1 else ()
    with rig(bed, *options, is_core_left=True) as here:
        admitted, refusal, before = _fill(here, mib)
        title = f"{admitted} distinct recommenders of {mib} MiB"
        plan = refusal.get("plan")
        bed.findings.claim(
            f"{title}: the next one is a 507 with the plan", Target(">=", 1, ""),
            [float(bool(plan))], str(refusal.get("error", ""))[:200],
        )  # fmt: skip
        loaded = here.held()
        ledger = here.server.must("GET", "/memory")
        told = ", ".join(f"{each} {_mb(ledger[f'{each}_bytes'])}"
                         for each in ("budget", "committed", "resident", "locked"))  # fmt: skip
        bed.findings.say(f"  {told}, held {_mb(loaded.pss_bytes)}")
        _tails(here, admitted, title, mib)
        if admitted:
            _swap(here, "distinct", pairs(mib, 4), admitted)
            _gone(here, "distinct", title, admitted, before, loaded)


def _many(
    here: Rig, name: str, title: str, options: Sequence[str], tensors: Sequence[Tensor]
) -> None:
    findings = here.bed.findings
    title = f"{VERSIONS} {title}"
    findings.say(f"pushing {title}")
    sent, total = [], []
    for index in range(1, VERSIONS + 1):
        pushed = here.push(name, here.make(name, "--number", str(index), *options))
        sent.append(pushed["bytes_sent"])
        total.append(pushed["total_bytes"])
        _progress(here, index, "pushed")
    findings.say(f"  the first sent {_mb(sent[0])}, each other "
                 f"{_mb(sum(sent[1:]) / len(sent[1:]))} of {_mb(total[-1])}")  # fmt: skip
    first_s = _warm(here, name, tensors)
    before = here.held()
    loads, refusal = _load_all(here, name)
    states = [each["state"] for each in here.server.must("GET", f"/models/{name}")["versions"]]
    findings.claim(f"{title}: READY at once", Target(">=", VERSIONS, "versions"),
                   [float(states.count("READY"))], refusal)  # fmt: skip
    answers = {tuple(here.answer(name, v, tensors)) for v in range(1, len(loads) + 1)}
    findings.claim(f"{title}: different answers", Target(">=", VERSIONS, "answers"),
                   [float(len(answers))])  # fmt: skip
    _swap(here, name, tensors, len(loads))
    loaded = here.held()
    lines = here.ledger(name)
    in_use, private = in_use_bytes(lines), private_bytes(lines, WORKERS)
    allowed = allowed_pss_bytes(in_use, private, WORKERS)
    findings.claim(
        f"{title}: memory by what is allowed for it", Target("<=", 1.0),
        [loaded.pss_bytes / allowed],
        f"{_mb(loaded.pss_bytes)} held (anonymous {_mb(loaded.anonymous_bytes)}); weights in use "
        f"{_mb(in_use)}, all weights {_mb(sum(total))}, private bytes shown {_mb(private)}",
    )  # fmt: skip
    findings.say(f"  the very first load {first_s:.2f} s, first loads of the others "
                 f"{_seconds(loads[1:])}; {lines[-1].get('mode')}: "
                 f"{lines[-1].get('mode_reason')}")  # fmt: skip
    unloads = _gone(here, name, title, len(loads), before, loaded)
    findings.measured[title] = {
        "sent_bytes": sent, "total_bytes": total, "first_load_s": first_s, "load_s": loads,
        "unload_s": unloads, "pss_bytes": loaded.pss_bytes, "in_use_bytes": in_use,
        "private_bytes": private, "anonymous_bytes": loaded.anonymous_bytes,
    }  # fmt: skip


def _gone(here: Rig, name: str, title: str, count: int, before: Held, loaded: Held) -> list[float]:
    """Unload all versions and judge what they leave; return the seconds of each unload."""
    here.release_route(name)
    reserved = here.committed_bytes()
    unloads = [here.unload(name, version) for version in range(1, count + 1)]
    reserved -= here.committed_bytes()
    here.bed.findings.claim(
        f"{title}: left after all were unloaded", Target("<=", 0.02, "of what they took"),
        [unreleased_share(before, loaded, here.held(), reserved)], f"unload {_seconds(unloads)}",
    )  # fmt: skip
    return unloads


def _load_all(here: Rig, name: str) -> tuple[list[float], str]:
    """Load until one is refused; return the seconds of each load, and why there are no more."""
    took: list[float] = []
    for version in range(1, VERSIONS + 1):
        try:
            took.append(here.load(name, version))
            _progress(here, version, "loaded")
        except LabFailed as error:
            if len(took) < _SWAPS:
                raise
            return took, str(error)
    return took, ""


def _warm(here: Rig, name: str, tensors: Sequence[Tensor]) -> float:
    """Load one and let it go: what the very first load brings, such as code, is no version's.

    Returns the seconds of that load.
    """
    took_s = here.load(name, 1)
    here.answer(name, 1, tensors)
    here.release_route(name)
    here.unload(name, 1)
    return took_s


def _progress(here: Rig, count: int, what: str) -> None:
    if count % _TOLD_EVERY == 0:
        here.bed.findings.say(f"  {count} of {VERSIONS} {what}")


def _swap(here: Rig, name: str, tensors: Sequence[Tensor], count: int) -> None:
    """Move the route and hold what it answers to what the version answers."""
    for version in range(1, min(_SWAPS, count) + 1):
        body = {"split": [{"version": version, "weight": 100}]}
        here.server.must("PUT", f"/models/{name}/route", body)
        alone, routed = here.answer(name, version, tensors), here.answer(name, None, tensors)
        if any(abs(a - b) > _HALF_STEP for a, b in zip(alone, routed, strict=True)):
            raise LabFailed(f"the route to {name}/{version} answers as another version does")


def _fill(here: Rig, mib: int) -> tuple[int, dict[str, object], Held]:
    """Load distinct versions until one is refused.

    Returns how many fit, the refusal, and what was held before all of them.
    """
    before = Held()
    for index in range(1, _MOST_DISTINCT + 1):
        path = here.make("recommender", "--number", str(index), "--table", str(index),
                         "--table-mib", str(mib))  # fmt: skip
        here.push("distinct", path)
        (here.folder / "items.bin").unlink()
        here.bed.findings.say(f"  {index} pushed")
        if index == 1:
            _warm(here, "distinct", pairs(mib, 4))
            before = here.held()
        answer = here.server.admin("POST", f"/models/distinct/versions/{index}:load?wait=900", {})
        if answer.status_code == 507:
            return index - 1, answer.json(), before
        if not answer.is_success:
            raise LabFailed(f"load of version {index}: {answer.status_code} {answer.text[:300]}")
    raise LabFailed(f"{_MOST_DISTINCT} versions were admitted and the budget never spent")


def _tails(here: Rig, admitted: int, title: str, mib: int) -> None:
    bed = here.bed
    body = bed.body("pairs", as_json(pairs(mib, 16)))
    tails = []
    for version in range(1, admitted + 1):
        load = Load(f"{here.server.url}/v2/models/distinct/versions/{version}/infer", body)
        seen = open_loop(load, _RATE, bed.seconds, bed.client_cores)
        if not seen["valid"]:
            bed.findings.late(f"{title}: the generator was late")
        if seen["failed"] or seen["p99_ms"] is None:
            raise LabFailed(f"{title}: version {version} failed {seen['failed']} requests")
        tails.append(seen["p99_ms"])
    bed.findings.claim(
        f"{title}: the worst p99 at {_RATE:g} req/s", Target("<=", _P99_MS, "ms"),
        [max(tails)] if tails else [], f"of {number(min(tails))} to {number(max(tails))} ms"
        if tails else "none was admitted",
    )  # fmt: skip
    bed.findings.is_late = False


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / MB:,.0f} MB"


def _seconds(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.2f} s ({ordered[0]:.2f}..{ordered[-1]:.2f})"
