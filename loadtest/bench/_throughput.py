"""Rates and latencies of small models against the other ways to serve them."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from loadtest.lab.bed import Bed, warm
from loadtest.lab.bodies import Tensor, as_binary, as_json, pairs, table_rows, tokens
from loadtest.lab.claims import Target, number, ratios
from loadtest.lab.generators import Load, Measured, background_load

FASTAPI = "FastAPI + pydantic"
ASGI = "plain ASGI + orjson"
FIXED = "fixed answer"
_CONTENDERS = ("ramrack", FASTAPI, ASGI, FIXED)
_BINARY = "ramrack, binary"
# Other numbers of connections are measured, too, and not judged.
_JUDGED_CONNECTIONS = 16


def fraud_rows(bed: Bed, rows: int) -> list[Tensor]:
    """Return rows of the table that the LightGBM model was trained on."""
    return table_rows(Path(bed.index["fraud"]["sample"]), rows)


def one_row(bed: Bed) -> None:
    """Compare on LightGBM, one row a request as JSON, on 64, 16 and one connections."""
    bed.compare_answers("fraud", fraud_rows(bed, 1), (FASTAPI, ASGI))
    body = bed.body("fraud-1", as_json(fraud_rows(bed, 1)))
    loads = {name: bed.load(name, "fraud", body) for name in _CONTENDERS}
    loads[_BINARY] = _binary(bed, 1)
    warm(bed, list(loads.values()))
    for connections, against_fastapi, against_limit in ((64, 9.0, 0.35), (16, 6.0, 0.25)):
        title = f"LightGBM, 1 row, JSON, {connections} connections"
        seen = bed.in_turn(title, _measures(bed, loads, connections))
        rates = {name: [each.rate for each in results] for name, results in seen.items()}
        claim = bed.findings.claim
        claim(f"{title}: rate against {FASTAPI}", Target(">=", against_fastapi),
              ratios(rates["ramrack"], rates[FASTAPI]), by_cpu(seen, FASTAPI))  # fmt: skip
        claim(f"{title}: rate against the limit", Target(">=", against_limit),
              ratios(rates["ramrack"], rates[FIXED]), by_cpu(seen, FIXED))  # fmt: skip
        if connections == 64:
            claim(f"{title}: p99 against {FASTAPI}", Target("<=", 0.2),
                  ratios([each.p99_ms for each in seen["ramrack"]],
                         [each.p99_ms for each in seen[FASTAPI]]))  # fmt: skip
    title = "LightGBM, 1 row, JSON, 1 connection"
    seen = bed.in_turn(title, _measures(bed, loads, 1))
    bed.findings.claim(
        f"{title}: p50 against {FASTAPI}", Target("<=", 0.55),
        ratios([each.p50_ms for each in seen["ramrack"]], [each.p50_ms for each in seen[FASTAPI]]),
    )  # fmt: skip


def many_rows(bed: Bed) -> None:
    """Compare on LightGBM, 64 rows a request, as JSON and as binary."""
    tensors = fraud_rows(bed, 64)
    bed.compare_answers("fraud", tensors, (FASTAPI, ASGI))
    body = bed.body("fraud-64", as_json(tensors))
    loads = {name: bed.load(name, "fraud", body) for name in ("ramrack", FASTAPI, ASGI)}
    loads[_BINARY] = _binary(bed, 64)
    warm(bed, list(loads.values()))
    for connections in (64, _JUDGED_CONNECTIONS, 1):
        title = f"LightGBM, 64 rows, {connections} connections"
        seen = bed.in_turn(title, _measures(bed, loads, connections))
        if connections != _JUDGED_CONNECTIONS:
            continue
        rates = {name: [each.rate for each in results] for name, results in seen.items()}
        claim = bed.findings.claim
        claim(f"{title}: rate against {FASTAPI}", Target(">=", 2.7),
              ratios(rates["ramrack"], rates[FASTAPI]), by_cpu(seen, FASTAPI))  # fmt: skip
        claim(f"{title}: binary against our JSON", Target(">=", 1.5),
              ratios(rates[_BINARY], rates["ramrack"]),
              by_cpu(seen, "ramrack", _BINARY))  # fmt: skip


def mix(bed: Bed) -> None:
    """Measure each of four kinds of requests while the other three are never idle."""
    loads = {
        "LightGBM, 1 row, JSON": (
            bed.load("ramrack", "fraud", bed.body("fraud-1", as_json(fraud_rows(bed, 1)))), 16,
        ),
        "LightGBM, 64 rows, binary": (_binary(bed, 64), 4),
        "recommender, 1 row": (
            bed.load("ramrack", "recommender",
                     bed.body("recommender", as_json(pairs(bed.table_mib, 1)))), 4,
        ),
        "encoder, 32 tokens": (
            bed.load("ramrack", "encoder", bed.body("encoder-32", as_json(tokens(32)))), 1,
        ),
    }  # fmt: skip

    def measure(name: str) -> Measured:
        with ExitStack() as stack:
            for other, (load, connections) in loads.items():
                if other != name:
                    stack.enter_context(
                        background_load(load, connections, bed.client_cores, bed.work)
                    )
            return bed.closed(*loads[name])

    bed.in_turn("a mix on one core", {name: partial(measure, name) for name in loads})


def _binary(bed: Bed, rows: int) -> Load:
    data, header = as_binary(fraud_rows(bed, rows))
    body = bed.body(f"fraud-{rows}-binary", data)
    return bed.load("ramrack", "fraud", body, header, "Content-Type: application/octet-stream")


def recommender(bed: Bed) -> None:
    """Compare on a recommender over a large embedding table."""
    tensors = pairs(bed.table_mib, 1)
    bed.compare_answers("recommender", tensors, (FASTAPI,))
    body = bed.body("recommender", as_json(tensors))
    loads = {name: bed.load(name, "recommender", body) for name in ("ramrack", FASTAPI)}
    warm(bed, list(loads.values()))
    title = f"recommender, table of {bed.table_mib} MiB, 16 connections"
    seen = bed.in_turn(title, _measures(bed, loads, 16))
    bed.findings.claim(
        f"{title}: rate against {FASTAPI}", Target(">=", 6.0),
        ratios([each.rate for each in seen["ramrack"]], [each.rate for each in seen[FASTAPI]]),
        by_cpu(seen, FASTAPI),
    )  # fmt: skip


def _measures(
    bed: Bed, loads: dict[str, Load], connections: int
) -> dict[str, Callable[[], Measured]]:
    def measure(load: Load) -> Callable[[], Measured]:
        return lambda: bed.closed(load, connections)

    return {name: measure(load) for name, load in loads.items()}


def by_cpu(seen: Mapping[str, Sequence[Measured]], theirs: str, ours: str = "ramrack") -> str:
    """Return the same ratio by the CPU time that each server took, as a note.

    Where other work takes part of the server's core, this one is the steadier of the two.
    """
    both = [
        [each.rate / each.server_cpu for each in seen[name] if each.server_cpu]
        for name in (ours, theirs)
    ]
    if len(both[0]) != len(both[1]) or not both[0]:
        return ""
    return f"by CPU time {number(statistics.median(ratios(*both)))} x"
