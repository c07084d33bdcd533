"""Thread and memory cases on real processes: what they hold, share, lock, and give back."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadtest import cycles
from tests import graphs
from tests.cases.rig import MIB, anonymous_bytes, forget, metric, tensor, unload
from tests.process.server import RunningServer, running_server, wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(300)]
TABLE_MB = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    settings = {"residency_check_s": 0.2, "memory_budget": "64MiB", "inspect_memory": "256MiB"}
    with running_server(tmp_path_factory.mktemp("d"), workers=2, settings=settings) as running:
        yield running


def memory_of(server: RunningServer) -> dict[str, Any]:
    return server.expect(server.admin("GET", "/admin/v1/memory"))


def routeless(server: RunningServer, name: str) -> None:
    server.expect(server.admin("DELETE", f"/admin/v1/models/{name}/route"))


def proportional_bytes(pid: int, name: str) -> int:
    """Return a process's share of what it maps of one file."""
    total, is_ours = 0, False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if "-" in line.partition(" ")[0]:
            is_ours = line.endswith(name)
        elif is_ours and line.startswith("Pss:"):
            total += int(line.split()[1]) * 1024
    return total


def test_d02_no_pool_is_larger_than_the_plan(server: RunningServer) -> None:
    """A loaded version adds no thread to a worker that has one for each run."""
    server.push("small", graphs.gemm(64, 64))
    threads = server.expect(server.admin("GET", "/admin/v1/workers"))["workers"]
    assert all(len(worker["cpus"]) <= os.cpu_count() for worker in threads)
    for pid in server.worker_pids():
        assert len(list(Path(f"/proc/{pid}/task").iterdir())) <= 16
    assert "affinity" not in server.stderr()


def test_d04_models_in_turn_share_the_threads_of_one(server: RunningServer) -> None:
    """No model brings a pool of its own, whose spinning would take the cores from the others."""
    body = {"inputs": [tensor("X", "FP32", [1, 64], [0.5] * 64)]}

    def threads_after(*names: str) -> list[int]:
        for _ in range(20):
            for name in names:
                server.expect(server.data("POST", f"/v2/models/{name}/infer", json=body))
        return [len(list(Path(f"/proc/{pid}/task").iterdir())) for pid in server.worker_pids()]

    for seed in range(3):
        server.push(f"turn-{seed}", graphs.gemm(64, 64, seed), is_loading=False)
    server.expect(server.load("turn-0", 1))
    before = threads_after("turn-0")
    server.expect(server.load("turn-1", 1))
    server.expect(server.load("turn-2", 1))
    after = threads_after("turn-0", "turn-1", "turn-2")
    assert all(now <= old for now, old in zip(after, before, strict=True)), (before, after)


def test_d08_a_table_is_in_ram_once_for_parent_and_workers(server: RunningServer) -> None:
    """All processes together hold it once; each one's private memory hardly grows."""
    pids = server.worker_pids()
    before = [anonymous_bytes(pid) for pid in pids]
    version = server.push("table", graphs.big(TABLE_MB))
    entry = next(v for v in memory_of(server)["versions"] if v["model"] == "table")
    assert entry["resident_bytes"] == entry["object_bytes"] > TABLE_MB * MIB
    assert entry["private_bytes_per_worker"] < 4 * MIB
    grown = [anonymous_bytes(pid) - old for pid, old in zip(pids, before, strict=True)]
    assert max(grown) < 8 * MIB
    (path,) = [p for p in (server.store / "objects").iterdir() if p.stat().st_size > MIB]
    shares = [proportional_bytes(pid, path.name) for pid in (server.pid, *pids)]
    assert sum(shares) <= TABLE_MB * MIB + len(shares) * 8192
    assert shares[0] > 0
    assert metric(server, "ramrack_resident_bytes", model="table", version="1") > TABLE_MB * MIB
    routeless(server, "table")
    server.expect(unload(server, "table", version))
    for pid in (server.pid, *pids):
        assert path.name not in Path(f"/proc/{pid}/maps").read_text()
    forget(server, "table", version)


def test_d08_the_budget_counts_every_worker_and_names_what_could_go(server: RunningServer) -> None:
    """Refused with 507 before anything is loaded, with the versions that nobody would miss."""
    server.push("keep", graphs.id32())
    idle = server.push("keep", graphs.big(24, 1))
    routed = server.push("routed", graphs.big(24, 2))
    new = server.push("new", graphs.big(23, 3), is_loading=False)
    answer = server.load("new", new)
    assert answer.status_code == 507
    (candidate,) = answer.json()["plan"]["would_evict"]
    assert (candidate["model"], candidate["version"]) == ("keep", idle)
    assert candidate["frees_bytes"] >= 24 * MIB
    assert (
        f"unload keep/{idle} (gives {candidate['frees_bytes']}) or raise" in answer.json()["error"]
    )
    plan = server.expect(server.admin("POST", f"/admin/v1/models/new/versions/{new}:plan"))
    assert (plan["fits"], plan["fits_after_evicting"]) == (False, True)
    server.expect(unload(server, "keep", idle))
    server.expect(server.load("new", new))
    for name, version in (("new", new), ("routed", routed)):
        routeless(server, name)
        server.expect(unload(server, name, version))
        forget(server, name, version)


def test_d10_an_unload_proves_what_came_back(server: RunningServer) -> None:
    """After a swap under the eyes of a second version the ledger knows what is still held."""
    server.push("swap", graphs.gemm(1024, 1024))
    second = server.push("swap", graphs.slow(4, 512), is_loading=False)
    for cycle in range(3):
        server.expect(server.load("swap", second))
        server.expect(unload(server, "swap", second))
        memory = memory_of(server)
        assert memory["last_unload"]["version"] == second
        assert memory["last_unload"]["reason"] == ""
        # The first time the allocator's own tables come into it.
        assert memory["unreleased_bytes"] < (8 if cycle == 0 else 2) * MIB


@pytest.mark.parametrize("graph", ["table", "forest"])
def test_d10_thirty_cycles_keep_the_memory_where_it_was(server: RunningServer, graph: str) -> None:
    """Weights of 8 MiB, and a forest that lives on the heap: within 5 % after 30 cycles."""
    model = graphs.big(8) if graph == "table" else graphs.forest(60)
    version = server.push(f"cycled-{graph}", model, is_loading=False)
    watch = cycles.run(cycles.Admin(server.admin_url), f"cycled-{graph}", version, 30)
    report = watch.report()
    assert report["cycles"] == 30
    assert abs(float(str(report["growth"]))) < 0.05, report
    assert watch.unreleased_bytes[-1] is not None
    assert watch.unreleased_bytes[-1] < 2 * MIB, report
    forget(server, f"cycled-{graph}", version)


def test_the_kernel_finds_a_worker_before_the_parent(server: RunningServer) -> None:
    """A worker comes back with all it held; without the parent nothing does."""

    def score(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    for pid in server.worker_pids():
        assert score(pid) == min(1000, score(server.pid) + 900)
    # Content of its own: of what was inspected once, under any name, no child is asked again.
    graph = graphs.identity(graphs.TensorProto.FLOAT, ("N", 7))
    version = server.push("watched", graph, is_loading=False)
    known = {server.pid, *server.worker_pids()}
    path = f"/admin/v1/models/watched/versions/{version}:load"
    operation = server.expect(server.admin("POST", path))["id"]
    seen: list[tuple[int, int]] = []

    def is_seen() -> bool:
        # The children of every thread: it is one beside the main thread that starts an inspection.
        lists = Path(f"/proc/{server.pid}/task").glob("*/children")
        for pid in {int(word) for file in lists for word in file.read_text().split()} - known:
            try:
                found = score(pid), os.getpriority(os.PRIO_PROCESS, pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
            if found[0] > score(server.pid) and found[1] > 0:
                seen.append(found)
        state = server.expect(server.admin("GET", f"/admin/v1/operations/{operation}"))["state"]
        return bool(seen) or state != "running"

    wait_until(is_seen, 60, "the inspection is under way")
    assert (min(1000, score(server.pid) + 1000), 10) in seen


def test_d10_a_truncated_object_of_a_running_server_costs_its_own_version(
    tmp_path: Path,
) -> None:
    """The parent, which maps it too, finds it and lives; the version FAILED, others answer."""
    settings = {"residency_check_s": 0.2}
    with running_server(tmp_path, workers=1, settings=settings) as server:
        server.push("good", graphs.id32())
        server.push("cut", graphs.big(4))
        (path,) = [p for p in (server.store / "objects").iterdir() if p.stat().st_size > MIB]
        path.chmod(0o600)
        os.truncate(path, 4096)

        def is_failed() -> bool:
            answer = server.admin("GET", "/admin/v1/models/cut/versions/1").json()
            return bool(answer["state"] == "FAILED")

        wait_until(is_failed, 60, "the damage is noticed")
        assert server.infer("good", [[1.0, 2.0, 3.0, 4.0]]).status_code == 200
        assert server.process.poll() is None
        reason = server.admin("GET", "/admin/v1/models/cut/versions/1").json()["reason"]
        assert path.name in reason
