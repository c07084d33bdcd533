"""A model of several milliseconds: batching must not cost, others must not wait for its runs."""

from __future__ import annotations

from functools import partial

from loadtest.bench._throughput import fraud_rows
from loadtest.lab.bed import Bed, warm
from loadtest.lab.bodies import as_json, tokens
from loadtest.lab.claims import Target, ratios
from loadtest.lab.generators import Load, Measured, background_load
from loadtest.lab.processes import LabFailed

LENGTHS = (32, 128)
_CONNECTIONS = 8


def encoder(bed: Bed) -> None:
    """Compare batching on with off, at full and at half load."""
    for length in LENGTHS:
        load = encoder_load(bed, length)
        warm(bed, [load])
        title = f"encoder, {length} tokens"
        why_not = bed.ours.set_batching("encoder", is_on=False)
        rate = (f"{title}: rate with batching against without", Target(">=", 0.98))
        tail = (f"{title}: p99 at half load with batching against without", Target("<=", 1.0))
        if why_not:
            bed.in_turn(title, {"batching on": partial(bed.closed, load, _CONNECTIONS)})
            bed.findings.skip(*rate, why_not)
            bed.findings.skip(*tail, why_not)
            continue
        try:
            seen = bed.in_turn(f"{title}, {_CONNECTIONS} connections", {
                "batching on": partial(_switched, bed, load, is_on=True),
                "batching off": partial(_switched, bed, load, is_on=False),
            })  # fmt: skip
            on, off = ([each.rate for each in seen[f"batching {n}"]] for n in ("on", "off"))
            bed.findings.claim(*rate, ratios(on, off))
            bed.findings.claim(*tail, _half_load(bed, load, min(off)))
        finally:
            bed.ours.set_batching("encoder", is_on=True)


def encoder_load(bed: Bed, length: int) -> Load:
    """Return one text of ``length`` tokens for our server."""
    return bed.load("ramrack", "encoder", bed.body(f"encoder-{length}", as_json(tokens(length))))


def others(bed: Bed) -> None:
    """Measure a small model's requests while the encoder is never idle."""
    heavy = encoder_load(bed, 128)
    small = bed.load("ramrack", "fraud", bed.body("fraud-1", as_json(fraud_rows(bed, 1))))
    tails, note = [], ""
    for _ in range(bed.rounds):
        run_ms = bed.closed(heavy, 1, 1.0).p50_ms
        with background_load(heavy, 2, bed.client_cores, bed.work):
            beside = bed.open(small, 50, "small model beside the encoder")
        tails.append(beside["p99_ms"] / run_ms)
        note = f"one run {run_ms:.1f} ms, the small model's p99 {beside['p99_ms']:.1f} ms"
    bed.findings.claim(
        "a small model's p99 beside a busy encoder, by one run of the encoder", Target("<=", 0.5),
        tails, note,
    )  # fmt: skip


def _switched(bed: Bed, load: Load, *, is_on: bool) -> Measured:
    if why_not := bed.ours.set_batching("encoder", is_on=is_on):
        raise LabFailed(why_not)
    return bed.closed(load, _CONNECTIONS)


def _half_load(bed: Bed, load: Load, peak: float) -> list[float]:
    tails = []
    for _ in range(bed.rounds):
        seen = []
        for is_on in (True, False):
            bed.ours.set_batching("encoder", is_on=is_on)
            seen.append(bed.open(load, peak / 2, "encoder at half load"))
        tails.append(seen[0]["p99_ms"] / seen[1]["p99_ms"])
    return tails
