"""One version at a time: how fast it is pushed, loaded, run and gone, and what it leaves behind."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from loadtest.bench._weights_many import TABLE_MIB
from loadtest.bench._weights_rig import Rig, Sizes, plain_session, rig, zoo
from loadtest.lab.bed import Bed
from loadtest.lab.bodies import Tensor, as_json, pairs, tokens
from loadtest.lab.claims import Target, number, ratios
from loadtest.lab.generators import Load, closed_loop
from loadtest.lab.memory import MB, held_by, taken_bytes, unreleased_share
from loadtest.lab.page_cache import cached_bytes, drop
from loadtest.lab.processes import LabFailed

_FULL_MIB: Final = 2048
_DENSE_MIB: Final = 512
_FEATURES: Final = 30
_DENSE_WIDTH: Final = 2048
_BLOCK_BYTES: Final = 1 << 20


def pushes(bed: Bed, sizes: Sizes) -> None:
    """Measure what a push sends, and how long it takes."""
    findings, mib = bed.findings, sizes.mib(_FULL_MIB)
    if sizes.scale < 1:
        findings.doubt("push at a small scale: the start of the command is most of its time")
    took, copied, hashed = [], [], []
    with rig(bed) as here:
        for index in range(1, bed.rounds + 1):
            path = here.make("recommender", "--table", str(index), "--table-mib", str(mib))
            table = here.folder / "items.bin"
            copied.append(_sum_and_copy(table))
            hashed.append(_hash(table))
            took.append(_timed(lambda path=path: here.push("pushed", path)))
            if index < bed.rounds:
                table.unlink()
        findings.claim(
            f"push of {mib} MiB by sha256sum and cp", Target("<=", 1.5), ratios(took, copied),
            f"push {number(min(took))}..{number(max(took))} s, sha256sum and cp "
            f"{number(min(copied))}..{number(max(copied))} s, hashing alone in Python "
            f"{number(min(hashed))} s",
        )  # fmt: skip
        path = here.make("recommender", "--table", str(bed.rounds), "--table-mib", str(mib),
                         "--number", "2")  # fmt: skip
        found = here.push("pushed", path)
        findings.claim("push of other last layers: bytes sent of all", Target("<=", 0.02, ""),
                       [found["bytes_sent"] / found["total_bytes"]])  # fmt: skip


def loads(bed: Bed, sizes: Sizes) -> None:
    """Load and unload one of each kind, from a warm and from a cold page cache."""
    mib, dense_mib = sizes.mib(TABLE_MIB + 100), max(16, sizes.mib(_DENSE_MIB))
    kinds: dict[str, tuple[Sequence[Tensor], tuple[str, ...]]] = {
        "recommender": (pairs(mib, 4), ("--recommender-mib", str(mib))),
        "dense": ([_zeros("x", _DENSE_WIDTH)], ("--dense-mib", str(dense_mib))),
        "forest": ([_zeros("x", _FEATURES)], ("--forest-nodes", str(sizes.nodes))),
    }
    for kind, (tensors, options) in kinds.items():
        with rig(bed) as here:
            zoo("models.zoo.bench", str(here.folder), "--only", kind, *options)
            _one_kind(here, kind, tensors)
    with rig(bed) as here:
        path = here.make("encoder", "--width", str(sizes.width))
        _one_kind(here, "encoder", tokens(32), Path(path))


def encoder(bed: Bed, sizes: Sizes) -> None:
    """Compare what a worker holds for itself of an encoder, and its speed, with a plain session."""
    findings = bed.findings
    tensors = tokens(32)
    body = bed.body("tokens", as_json(tensors))
    with rig(bed, "--threads-per-worker", "1", is_core_left=True) as here:
        path = here.make("encoder", "--width", str(sizes.width))
        pushed = here.push("encoder", path, is_kept=True)
        weights = pushed["weight_bytes"]
        before = {pid: held_by([pid]).anonymous_bytes for pid in here.worker_pids()}
        here.load("encoder", 1)
        load = Load(f"{here.server.url}/v2/models/encoder/infer", body)
        plain = plain_session(bed, path, body, 0.0)
        theirs = next(iter(plain["outputs"].values()))
        ours = here.answer("encoder", None, tensors)
        findings.claim("encoder: largest difference to a plain session", Target("<=", 1e-6, ""),
                       [max(abs(a - b) for a, b in zip(ours, theirs, strict=True))])  # fmt: skip
        speeds, plains = [], []
        for _ in range(bed.rounds):
            speeds.append(_run_ms(here, load))
            plains.append(plain_session(bed, path, body, bed.seconds)["run_ms"])
        findings.claim(
            "encoder: one run by that of a plain session", Target("<=", 1.03),
            ratios(speeds, plains),
            f"ours {number(min(speeds))} ms, plain {number(min(plains))} ms",
        )  # fmt: skip
        grown = [held_by([pid]).anonymous_bytes - base for pid, base in before.items()]
        findings.claim(
            "encoder: anonymous memory of a worker by its weights", Target("<=", 0.20, ""),
            [max(grown) / weights],
            f"weights {weights / MB:,.0f} MB, a plain session "
            f"{plain['anonymous_bytes'] / weights:.2f}; mode {_mode(here)}",
        )  # fmt: skip


def _one_kind(here: Rig, kind: str, tensors: Sequence[Tensor], path: Path | None = None) -> None:
    findings, rounds = here.bed.findings, here.bed.rounds
    path = path or min((here.folder / kind).glob("*.onnx"))
    size = here.push(kind, str(path), is_kept=True)["total_bytes"]
    findings.say(f"{kind}, {size / MB:,.0f} MB:")
    body = here.bed.body(kind, as_json(tensors))
    loaded_s, unloaded_s, left, shown, plains = [], [], [], [], []
    first = here.load(kind, 1)
    findings.say(f"  the first load, with the inspection: {first:.2f} s; mode {_mode(here, kind)}")
    here.release_route(kind)
    here.unload(kind, 1)
    for _ in range(rounds):
        before = here.held()
        loaded_s.append(here.load(kind, 1))
        here.answer(kind, 1, tensors)
        loaded = here.held()
        reserved = here.committed_bytes()
        here.release_route(kind)
        unloaded_s.append(here.unload(kind, 1))
        reserved -= here.committed_bytes()
        left.append(unreleased_share(before, loaded, here.held(), reserved))
        told = here.server.must("GET", "/memory")["unreleased_bytes"]
        shown.append(told / taken_bytes(before, loaded, reserved))
        if kind == "dense":
            plains.append(plain_session(here.bed, str(path), body, 0.0)["load_s"])
    if kind == "recommender":
        findings.claim("recommender: load of a cached table", Target("<=", 1.0, "s"), loaded_s)
    elif kind == "dense":
        findings.claim("dense: load by that of a plain session", Target("<=", 1.3),
                       ratios(loaded_s, plains), f"plain {number(min(plains))} s")  # fmt: skip
    findings.say(f"  load {_spread(loaded_s)} s, unload {_spread(unloaded_s)} s")
    most = Target("<=", 0.02, "of what it took")
    findings.claim(f"{kind}: left after the unload", most, left)
    findings.claim(f"{kind}: the ledger's unreleased_bytes", most, shown)
    if kind in ("recommender", "dense"):
        _cold(here, kind, is_mapped=kind == "recommender")


def _cold(here: Rig, kind: str, *, is_mapped: bool) -> None:
    """Load with nothing in the page cache, beside dd over the files that the load read."""
    took, read, size = [], [], 0
    for _ in range(here.bed.rounds):
        drop(here.objects())
        took.append(here.load(kind, 1))
        files = [path for path in here.objects() if 2 * cached_bytes(path) > path.stat().st_size]
        size = sum(path.stat().st_size for path in files)
        here.release_route(kind)
        here.unload(kind, 1)
        drop(here.objects())
        read.append(_timed(lambda files=files: _dd(files)))
    claim = (f"{kind}: load from a cold page cache by dd", Target("<=", 1.3))
    seen = f"load {_spread(took)} s, dd over {size / MB:,.0f} MB {_spread(read)} s"
    if is_mapped:
        here.bed.findings.claim(*claim, ratios(took, read), seen)
    else:
        # The disk is not what it waits for: both workers pack and compare, and dd computes nothing.
        here.bed.findings.skip(*claim, f"the runtime packs and compares what it reads; {seen}")


def _run_ms(here: Rig, load: Load) -> float:
    """Return the mean time of the runs themselves, as the server's statistics tell."""
    before = _runs(here)
    closed_loop(load, 1, here.bed.seconds, here.bed.client_cores, here.bed.work)
    count, total_ns = (new - old for new, old in zip(_runs(here), before, strict=True))
    if not count:
        raise LabFailed("the encoder was not run")
    return total_ns / count / 1e6


def _runs(here: Rig) -> tuple[int, int]:
    body = here.bed.get("ramrack", "/v2/models/stats")
    found = [each for each in body["model_stats"] if each["name"] == "encoder"]
    times = [each["inference_stats"]["compute_infer"] for each in found]
    return sum(each["count"] for each in times), sum(each["ns"] for each in times)


def _mode(here: Rig, kind: str = "encoder") -> str:
    """Return how the workers hold the weights, where the server says so."""
    line: dict[str, Any] = next(iter(here.ledger(kind)), {})
    return str(line.get("mode") or "not shown")


def _zeros(name: str, width: int) -> Tensor:
    return Tensor(name, "FP32", (1, width), [0.5] * width)


def _sum_and_copy(path: Path) -> float:
    copy = path.with_suffix(".copy")

    def work() -> None:
        subprocess.run(["sha256sum", str(path)], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cp", str(path), str(copy)], check=True)

    try:
        return _timed(work)
    finally:
        copy.unlink(missing_ok=True)


def _hash(path: Path) -> float:
    def work() -> None:
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")

    return _timed(work)


def _dd(paths: Sequence[Path]) -> None:
    if shutil.which("dd") is None:
        raise LabFailed("dd is not installed")
    for path in paths:
        subprocess.run(
            ["dd", f"if={path}", "of=/dev/null", f"bs={_BLOCK_BYTES}"],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def _timed(work: Any) -> float:
    began = time.monotonic()
    work()
    return time.monotonic() - began


def _spread(values: Sequence[float]) -> str:
    ordered = sorted(values)
    return f"{ordered[len(ordered) // 2]:.3f} ({ordered[0]:.3f}..{ordered[-1]:.3f})"
