"""What load does to latency: half of the peak, three times the peak, and bad neighbours."""

from __future__ import annotations

import subprocess
from typing import Any, Final

from loadtest.bench._encoder import encoder_load
from loadtest.bench._throughput import FIXED, fraud_rows
from loadtest.lab.bed import Bed
from loadtest.lab.bodies import as_json
from loadtest.lab.claims import Target, spread
from loadtest.lab.generators import Load, background_load, open_loop, open_loop_command
from loadtest.lab.overload import answered_rate, recovery_s
from loadtest.lab.processes import on_cores
from loadtest.samples import read_samples

_PROBE_RATE: Final = 20.0
_GOOD_RATE: Final = 200.0
_RECOVERY_S: Final = 4.0


def half_load(bed: Bed) -> None:
    """Measure the small model at half of its peak, as independent users come.

    A server that answers a constant is asked as often, in turn: its tail is the machine's.
    """
    load = _small(bed, "fraud")
    constant = Load(f"{bed.urls[FIXED]}/v2/models/fraud/infer", load.body)
    values, controls, note = [], [], ""
    for _ in range(bed.rounds):
        peak = bed.closed(load, 64).rate
        seen = bed.open(load, peak / 2, "open loop at half of the peak")
        control = bed.open(constant, peak / 2, "open loop, fixed answer")
        values.append(seen["p99_ms"] / seen["p50_ms"])
        controls.append(control["p99_ms"] / control["p50_ms"])
        note = (
            f"peak {peak:,.0f} req/s, last p50 {seen['p50_ms']} ms, p99 {seen['p99_ms']} ms "
            f"(fixed answer {control['p50_ms']} and {control['p99_ms']} ms), "
            f"client {seen['client_cpu']:.0%}"
        )
    bed.findings.say(f"  fixed answer, as often: p99 by p50 {spread(controls)} x")
    bed.findings.claim(
        "LightGBM, open loop at half of the peak: p99 by p50", Target("<=", 5.0), values, note
    )


def overload(bed: Bed) -> None:
    """Ask for three times what a version of some milliseconds can do."""
    load = encoder_load(bed, 32)
    run_ms = bed.closed(load, 1, 1.0).p50_ms
    goodputs, rejects, recoveries, note = [], [], [], ""
    for _ in range(bed.rounds):
        peak = bed.closed(load, 16, max(3.0, bed.seconds)).rate
        seen, recovered_s = _overloaded(bed, load, peak)
        goodputs.append(seen["answered_rate_while_sent"] / peak)
        recoveries.append(recovered_s)
        refused = seen["by_status"].get("429")
        if refused is not None:
            rejects.append(refused["p99_ms"])
        counts = {status: each["count"] for status, each in seen["by_status"].items()}
        note = f"one run {run_ms:.1f} ms, peak {peak:.0f} req/s, last answers by status {counts}"
    bed.findings.claim("overload at 3 x: goodput by peak", Target(">=", 0.9), goodputs, note)
    reject = ("overload at 3 x: p99 of the 429s", Target("<=", 5.0, "ms"))
    if rejects:
        bed.findings.claim(*reject, rejects)
    else:
        bed.findings.skip(*reject, "no request was refused")
    bed.findings.claim("overload at 3 x: back to normal after", Target("<=", 2.0, "s"), recoveries)


def _overloaded(bed: Bed, load: Load, peak: float) -> tuple[dict[str, Any], float]:
    """Return the report of the overload, and the seconds until probes were as before."""
    # Long enough to fill whatever queues there are.
    seconds = max(4.0, 2 * bed.seconds)
    probe_file, load_file = bed.work / "probes.tsv", bed.work / "overload.tsv"
    lead_s = 1.0
    with on_cores(bed.client_cores):
        probes = subprocess.Popen(
            open_loop_command(
                load, _PROBE_RATE, lead_s + seconds + _RECOVERY_S + 2.0,
                "--arrivals", "constant", "--samples", str(probe_file),
            ),
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    try:
        open_loop(load, _PROBE_RATE, lead_s, bed.client_cores)
        seen = open_loop(load, 3 * peak, seconds, bed.client_cores, "--samples", str(load_file))
        probes.wait(60 + seconds)
    finally:
        if probes.poll() is None:
            probes.terminate()
        probes.wait()
    if not seen["valid"]:
        bed.findings.late("overload: the generator was late")
    samples = read_samples(load_file)
    began_ns, ended_ns = samples[0].intended_ns, samples[-1].intended_ns
    seen["answered_rate_while_sent"] = answered_rate(samples)
    return seen, recovery_s(read_samples(probe_file), began_ns, ended_ns)


def neighbours(bed: Bed) -> None:
    """Measure a good client beside malformed requests, and beside another model's batch job."""
    good = _small(bed, "fraud")
    malformed = bed.load(
        "ramrack", "fraud", bed.body("malformed", as_json(fraud_rows(bed, 1))[:-40])
    )
    batch = bed.load("ramrack", "batch", bed.body("batch-64", as_json(fraud_rows(bed, 64))))
    for name, bad, connections in (
        ("malformed requests at full speed", malformed, 4),
        ("a batch job of 64 rows on another model", batch, 2),
    ):
        values, note = [], ""
        for _ in range(bed.rounds):
            alone = bed.open(good, _GOOD_RATE, name)
            with background_load(bad, connections, bed.client_cores, bed.work):
                beside = bed.open(good, _GOOD_RATE, name)
            values.append(beside["p99_ms"] / alone["p99_ms"])
            note = f"last p99 alone {alone['p99_ms']} ms, beside it {beside['p99_ms']} ms"
            if beside["failed"]:
                bed.findings.doubt(f"{name}: {beside['failed']} good requests failed")
        bed.findings.claim(
            f"a good client's p99 beside {name}, against alone", Target("<=", 1.5), values, note
        )


def _small(bed: Bed, model: str) -> Load:
    return bed.load("ramrack", model, bed.body("fraud-1", as_json(fraud_rows(bed, 1))))
