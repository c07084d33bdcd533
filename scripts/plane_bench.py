"""What a request costs inside the data plane, by stage, without HTTP: scripts/plane_bench.py.

One process, one thread, a real model (LightGBM as ONNX, 300 trees, 30 features). A closed loop
keeps callers waiting in ``DataPlane.begin``; the stages are timed one by one beside it. Figures are
microseconds of processor time a request, the best of rounds: other processes disturb it less.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import itertools
import pstats
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import orjson
import uvloop

from models.convert import convert
from models.runtime.onnx import OnnxServable, open_session
from models.signature import parse_signature
from models.zoo.tables import build_fraud
from registry.ident import digest_hex
from registry.lifecycle import State
from registry.serving_map import ModelView, ServingMap, Snapshot, VersionView
from registry.traffic import Traffic
from serving.data.batcher import Batcher, BatchLimits
from serving.data.call import Answer, InferCall, RequestHead
from serving.data.data_plane import DataPlane
from serving.data.model_gate import ModelGate
from serving.data.run_policy import RunPolicy, has_one_shape
from serving.data.run_pool import RunPool
from serving.data.served import ServedVersion
from serving.metrics.page import MetricsMemory
from serving.settings import Settings

ROUNDS = 9
HEAD = RequestHead("bench-request-id")
# Rows, callers, requests, whether the numbers come and go as bytes.
LOADS = (
    (1, 64, 20000, False),
    (1, 16, 10000, False),
    (1, 1, 3000, False),
    (64, 16, 600, False),
    (64, 16, 600, True),
)


def load_model(folder: Path) -> OnnxServable:
    """Train, convert and open the model."""
    artefact = build_fraud(folder)
    package = convert("fraud", artefact.next_path or artefact.path)
    for item in package.objects:
        (folder / digest_hex(item.digest)).write_bytes(b"".join(item.chunks()))
    session = open_session(folder / digest_hex(package.manifest.graph), 1)
    return OnnxServable(session, parse_signature(package.manifest.signature))


def build_plane(servable: OnnxServable, *, may_inline: bool) -> tuple[DataPlane, ServedVersion]:
    """Put a data plane together as a worker does."""
    settings = Settings()
    memory = MetricsMemory.create(1)
    region = memory.writer(0)
    counters = region.version("fraud", 1)
    policy = RunPolicy(
        max_batch_rows=settings.max_batch_rows,
        run_s=40e-6,
        may_inline=may_inline,
        has_one_shape=has_one_shape(servable.signature),
    )
    batcher = Batcher(
        servable,
        name="fraud/1",
        is_batchable=True,
        limits=BatchLimits(settings.queue_rows, settings.max_batch_rows, settings.max_run_s),
        counters=counters,
        executor=RunPool(4).executor(),
        policy=policy,
    )
    digest = "sha256:" + "ab" * 32
    served = ServedVersion(
        "fraud", 1, digest, servable.signature, servable, batcher, counters,
        settings.timeout_ms, settings.max_output_bytes, gate=ModelGate("fraud"),
    )  # fmt: skip
    view = VersionView("fraud", 1, State.READY, "", digest, servable.signature.to_json(), served)
    model = ModelView("fraud", {1: view}, {}, Traffic.whole(1))
    serving_map: ServingMap[ServedVersion] = ServingMap(Snapshot({"fraud": model}, 1, True))
    return DataPlane(serving_map, region.plane, settings, memory.statistics), served


def bodies_of(servable: OnnxServable, rows: int) -> list[bytes]:
    """Return V2 requests of ``rows`` random rows each, all different.

    The processor learns the ways through the trees of rows that come again, and takes half the
    time for them: no caller sends those.
    """
    return [_body(servable, rows, seed) for seed in range(max(2, 8192 // rows))]


def _body(servable: OnnxServable, rows: int, seed: int) -> bytes:
    spec = servable.signature.inputs[0]
    values = np.random.default_rng(seed).normal(size=(rows, spec.shape[1])).astype(np.float32)
    item = {"name": spec.name, "datatype": spec.datatype, "shape": [rows, spec.shape[1]],
            "data": values.ravel()}  # fmt: skip
    return orjson.dumps({"inputs": [item]}, option=orjson.OPT_SERIALIZE_NUMPY)


def binary_bodies_of(servable: OnnxServable, rows: int) -> tuple[list[bytes], RequestHead]:
    """Return the same requests with their numbers, and those of their answers, as bytes."""
    spec = servable.signature.inputs[0]
    bodies = []
    for body in bodies_of(servable, rows):
        item = orjson.loads(body)["inputs"][0]
        data = np.array(item.pop("data"), dtype=np.float32).tobytes()
        item["parameters"] = {"binary_data_size": len(data)}
        document = {"inputs": [item], "parameters": {"binary_data_output": True}}
        start = orjson.dumps(document)
        # Clients that care pad the JSON part, so that the numbers lie aligned.
        start += b" " * (-len(start) % 16)
        bodies.append(start + data)
        if len(start) != len(bodies[0]) - len(data):
            raise RuntimeError("the JSON parts differ in length")
    json_bytes = len(bodies[0]) - rows * spec.shape[1] * 4
    return bodies, RequestHead("bench-request-id", json_length=str(json_bytes))


async def closed_loop(
    plane: DataPlane,
    bodies: Sequence[bytes],
    callers: int,
    requests: int,
    head: RequestHead = HEAD,
) -> float:
    """Answer ``requests`` with ``callers`` at once; return processor microseconds each."""
    loop = asyncio.get_running_loop()
    left, open_calls = requests, 0
    ended = loop.create_future()

    def begin() -> None:
        nonlocal left, open_calls
        left -= 1
        open_calls += 1
        body = bodies[left % len(bodies)]
        plane.begin(InferCall("v2", "fraud", None, head, body), answered)

    def answered(answer: Answer) -> None:
        nonlocal open_calls
        open_calls -= 1
        if answer.status != 200:
            raise RuntimeError(answer.body)
        if left > 0:
            loop.call_soon(begin)
        elif not open_calls and not ended.done():
            ended.set_result(None)

    start = time.process_time()
    for _ in range(callers):
        begin()
    await ended
    return (time.process_time() - start) / (requests - left) * 1e6


def timed(function: Callable[[], object], count: int) -> float:
    """Return microseconds a call, the best of rounds."""
    found = []
    for _ in range(ROUNDS):
        start = time.process_time()
        for _ in range(count):
            function()
        found.append((time.process_time() - start) / count * 1e6)
    return min(found)


def stages(
    plane: DataPlane, served: ServedVersion, bodies: Sequence[bytes], rows: int, merged: int
) -> None:
    """Print what each stage takes for a request of ``rows`` rows, ``merged`` to a run."""
    count = max(20, 20000 // (rows * 10))
    call = served.plan.decode(bodies[0], None)
    calls = [served.plan.decode(body, None).inputs for body in bodies]
    joined = [
        {name: np.concatenate([one[name] for one in calls[i : i + merged]]) for name in calls[0]}
        for i in range(0, len(calls) - merged + 1, merged)
    ]
    turn, body_turn = itertools.cycle(joined), itertools.cycle(bodies)
    arrays = served.servable.run(joined[0])
    sizes = range(0, rows * merged, rows)

    def counted() -> None:
        for _ in sizes:
            served.counters.request_started()
        totals = [100_000 + start for start in sizes]
        served.counters.requests_answered(rows * merged, totals, totals, (1000, 1000, 1000))

    def permitted() -> None:
        plane.serving_map.begin_use("fraud", None)[1].end()

    def written() -> None:
        if merged == 1:
            served.plan.encode(call, arrays)
        elif texts := served.plan.texts(arrays, rows * merged):
            for start in sizes:
                texts.body(start, start + rows)

    found = {
        "decode": timed(lambda: served.plan.read(next(body_turn)), count),
        f"run of {merged}": timed(lambda: served.servable.run(next(turn)), len(joined)) / merged,
        "encode": timed(written, count) / merged,
        "count": timed(counted, 500) / merged,
        "version": timed(permitted, 5000),
    }
    text = "  ".join(f"{name} {us:.2f}" for name, us in found.items())
    print(f"  stages, {rows} rows: {text}")


async def latencies(
    plane: DataPlane, bodies: Sequence[bytes], count: int, every_s: float
) -> list[float]:
    """Send ``count`` requests at a fixed rate, whatever comes back; return milliseconds, sorted."""
    loop = asyncio.get_running_loop()
    head = RequestHead("bench-request-id")
    found: list[float] = []
    ended = loop.create_future()

    def send(due: float, body: bytes) -> None:
        def answered(_: Answer) -> None:
            # From when it was due: a loop that is late is late for its callers.
            found.append((time.perf_counter() - due) * 1e3)
            if len(found) == count:
                ended.set_result(None)

        plane.begin(InferCall("v2", "fraud", None, head, body), answered)

    start = time.perf_counter() + 0.01
    for index in range(count):
        due = start + index * every_s
        # The loop's own clock counts whole milliseconds.
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        send(due, bodies[index % len(bodies)])
    await ended
    return sorted(found)


async def neighbours(servable: OnnxServable) -> None:
    """Print what a batch job on another version does to the p99 of a quick one."""
    plane, _ = build_plane(servable, may_inline=True)
    other, _ = build_plane(servable, may_inline=True)
    quick, large = bodies_of(servable, 1), bodies_of(servable, 1000)
    await closed_loop(plane, quick, 1, 200)
    await closed_loop(other, large, 2, 20)

    async def job() -> None:
        while True:
            await closed_loop(other, large, 2, 40)

    ratios = []
    for _ in range(5):
        alone = await latencies(plane, quick, 1000, 0.002)
        task = asyncio.create_task(job())
        beside = await latencies(plane, quick, 1000, 0.002)
        task.cancel()
        await asyncio.wait((task,))
        while other.in_flight:  # noqa: ASYNC110  nothing tells of its end
            await asyncio.sleep(0.01)
        ratios.append(beside[989] / alone[989])
        print(
            f"  quick version, 500/s: alone p50 {alone[499]:.2f} p99 {alone[989]:.2f} ms; beside a "
            f"batch job p50 {beside[499]:.2f} p99 {beside[989]:.2f} ms"
        )
    print(f"  p99 beside / alone: {sorted(ratios)[2]:.2f} (median of 5)")


async def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--neighbours", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="plane-bench-") as folder:
        servable = load_model(Path(folder))
        for may_inline in (True, False):
            plane, _ = build_plane(servable, may_inline=may_inline)
            print("inline" if may_inline else "threads")
            for rows, callers, requests, is_binary in LOADS:
                bodies, head = bodies_of(servable, rows), HEAD
                if is_binary:
                    bodies, head = binary_bodies_of(servable, rows)
                await closed_loop(plane, bodies, callers, requests // 4, head)
                found = [
                    await closed_loop(plane, bodies, callers, requests, head) for _ in range(ROUNDS)
                ]
                print(
                    f"  {callers} callers, {rows} rows{', binary' * is_binary}: "
                    f"{min(found):.1f} us a request ({1e6 / min(found):.0f}/s)"
                )
        plane, served = build_plane(servable, may_inline=True)
        stages(plane, served, bodies_of(servable, 1), 1, 64)
        stages(plane, served, bodies_of(servable, 64), 64, 1)
        if options.neighbours:
            await neighbours(servable)
        if options.profile:
            bodies = bodies_of(servable, 1)
            with cProfile.Profile() as profile:
                await closed_loop(plane, bodies, 64, 20000)
            pstats.Stats(profile, stream=sys.stdout).sort_stats("tottime").print_stats(28)


if __name__ == "__main__":
    uvloop.run(main())
