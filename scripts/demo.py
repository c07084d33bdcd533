"""The demo: trains, pushes, loads, compares, swaps under load, measures, and prints a table."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from demo_models import BULK_ROWS, Exhibit, train, whole_table
from demo_server import DemoFailed, Server, running

from loadtest.lab.processes import LabFailed

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / ".ramrack" / "demo"
MIB = 1024**2
SWAP_S = 2.0
SWAP_CONNECTIONS = 4
EMPTY_WORKER_BYTES = 200_000_000


@dataclass(slots=True)
class Row:
    """One line of the table."""

    name: str
    size_bytes: int
    load_s: float
    difference: float
    p50_ms: float
    p99_ms: float
    rows_per_s: float


@dataclass(slots=True)
class Report:
    """All that is printed at the end. ``problems`` is empty where everything went well.

    ``seconds``: how long each measurement takes.
    """

    seconds: float
    rows: list[Row] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


@contextmanager
def step(name: str) -> Iterator[None]:
    """Say what is done, that it goes on, and how long it took."""
    began = time.monotonic()
    over = threading.Event()

    def beat() -> None:
        while not over.wait(10):
            print(f"   ... {name}: {time.monotonic() - began:.0f} s so far", flush=True)

    print(f"== {name}", flush=True)
    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    print(f"== {name}: done in {time.monotonic() - began:.1f} s", flush=True)


def main() -> int:
    """Run the demo; 0 if everything did what it should."""
    parser = argparse.ArgumentParser(prog="scripts/demo", description=__doc__)
    parser.add_argument("--once", action="store_true", help="end after the table")
    parser.add_argument(
        "--recommender-mib", type=int, default=256, metavar="N",
        help="size of the recommender's table (default 256; 2048 for the large run)",
    )  # fmt: skip
    parser.add_argument(
        "--seconds", type=float, default=2.0, metavar="S",
        help="how long each of a model's two measurements takes (default 2)",
    )  # fmt: skip
    arguments = parser.parse_args()
    if not 1 <= arguments.recommender_mib <= 65536:
        parser.error("--recommender-mib must be from 1 to 65536")
    if not 0.1 <= arguments.seconds <= 3600:
        parser.error("--seconds must be from 0.1 to 3600")
    # A stop from outside takes the same way out as Ctrl-C, through every clean-up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    began = time.monotonic()
    try:
        with _alone():
            return _run(
                arguments.recommender_mib, Report(arguments.seconds), is_once=arguments.once,
                began=began,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 1
    except (LabFailed, OSError, httpx.HTTPError, subprocess.SubprocessError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1


@contextmanager
def _alone() -> Iterator[None]:
    """Hold the demo's folder, so that a second demo does not pull the store from under it."""
    WORK.mkdir(parents=True, exist_ok=True)
    with (WORK / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise DemoFailed("another demo is running in this folder") from error
        yield


def _run(recommender_mib: int, report: Report, *, is_once: bool, began: float) -> int:
    shutil.rmtree(WORK / "store", ignore_errors=True)
    with step("train small models"):
        *exhibits, recommender = train(WORK / "models", recommender_mib)
    with contextlib.ExitStack() as stack:
        with step("start the server"):
            server = stack.enter_context(running(WORK / "store", WORK / "server.log"))
            _weigh_empty(server, report)
        for exhibit in exhibits:
            with step(f"{exhibit.name}: push, load, compare, measure"):
                report.rows.append(_show(server, exhibit, report))
        with step("swap a version under load"):
            _swap(server, exhibits[0], report)
        with step(f"recommender with a table of {recommender_mib} MiB"):
            _recommend(server, recommender, recommender_mib, report)
        _print(report, time.monotonic() - began)
        if not is_once:
            _stay(server, exhibits[0])
    return 1 if report.problems else 0


def _weigh_empty(server: Server, report: Report) -> None:
    """Note what a worker takes before it holds any model."""
    largest = max(server.pss_of_each())
    report.lines.append(f"memory of a worker without a model: {largest / MIB:.0f} MiB (PSS)")
    if largest > EMPTY_WORKER_BYTES:
        report.problems.append(f"a worker without a model takes {largest} bytes")


def _show(server: Server, exhibit: Exhibit, report: Report) -> Row:
    pushed = server.command("push", exhibit.name, exhibit.path, *exhibit.push_options(), "--load")
    details = server.command("ls", exhibit.name)["models"][0]["versions"][-1]
    difference = _difference(server, exhibit)
    if difference > 1e-5:
        report.problems.append(f"{exhibit.name} differs from its library by {difference:.3g}")
    single, bulk = _body(exhibit, 1), _body(exhibit, BULK_ROWS)
    url = f"{server.url}/v1/models/{exhibit.name}:predict"
    one = _load_of(report, url, single, 1)
    many = _load_of(report, url, bulk, 4, "--rows", str(BULK_ROWS))
    return Row(exhibit.name, pushed["total_bytes"], details["load_s"], difference,
               one["p50_ms"], one["p99_ms"], many["rows_per_second"])  # fmt: skip


def _body(exhibit: Exhibit, rows: int) -> Path:
    path = WORK / "models" / exhibit.name / f"request-{rows}.json"
    path.write_bytes(exhibit.with_rows(rows))
    return path


def _difference(server: Server, exhibit: Exhibit) -> float:
    answer = httpx.post(f"{server.url}/v1/models/{exhibit.name}:predict",
                        json=exhibit.body, timeout=60, trust_env=False)  # fmt: skip
    if answer.status_code != 200:
        raise DemoFailed(f"{exhibit.name}: {answer.status_code} {answer.text[:200]}")
    return exhibit.difference(answer.json())


def _load_of(report: Report, url: str, body: Path, connections: int, *more: str) -> dict[str, Any]:
    """Send load from a process of its own and return what it measured."""
    done = subprocess.run(
        _load_command(url, body, connections, report.seconds, *more),
        cwd=ROOT, capture_output=True, text=True, timeout=report.seconds + 60, check=False,
    )  # fmt: skip
    return _load_result(report, done.stdout, done.stderr)


def _load_command(url: str, body: Path, connections: int, seconds: float, *more: str) -> list[str]:
    return [sys.executable, "-m", "loadtest.closed_loop", url, str(body),
            "--connections", str(connections), "--seconds", str(seconds), *more]  # fmt: skip


def _load_result(report: Report, output: str, errors: str) -> dict[str, Any]:
    if not output.strip():
        raise DemoFailed(f"the load generator failed: {errors.strip()[-300:]}")
    result: dict[str, Any] = json.loads(output)
    if result["failed"]:
        report.problems.append(f"{result['failed']} requests failed: {result['errors']}")
    return result


def _swap(server: Server, exhibit: Exhibit, report: Report) -> None:
    """Load and route to a second version while requests run; then count what failed."""
    server.command("push", exhibit.name, str(exhibit.next_path), *exhibit.push_options())
    single = _body(exhibit, 1)
    url = f"{server.url}/v1/models/{exhibit.name}:predict"
    load = subprocess.Popen(
        _load_command(url, single, SWAP_CONNECTIONS, 120.0),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        server.command("load", exhibit.name, "2")
        before = _now_answering(url, single)
        server.command("route", exhibit.name, "2", "--reason", "swap of the demo")
        time.sleep(SWAP_S)
        load.terminate()
        output, errors = load.communicate(timeout=60)
    finally:
        if load.poll() is None:
            load.kill()
            load.wait()
    result = _load_result(report, output, errors)
    versions = result["versions"]
    if before != "1":
        report.problems.append(f"loading version 2 moved traffic: version {before} answered")
    if versions != ["1", "2"] or result["went_back"]:
        report.problems.append(f"the swap was not clean: versions {versions} in this order, "
                               f"{result['went_back']} answers went back")  # fmt: skip
    report.lines.append(
        f"swap of {exhibit.name}: {result['sent']} requests sent, {result['failed']} failed, "
        f"versions seen in order: {' -> '.join(versions)}, p99 {result['p99_ms']} ms"
    )


def _now_answering(url: str, body: Path) -> str:
    answer = httpx.post(url, content=body.read_bytes(), timeout=30, trust_env=False)
    return str(answer.headers.get("x-ramrack-version", "?"))


def _recommend(server: Server, exhibit: Exhibit, mib: int, report: Report) -> None:
    """Show that the weights are in RAM once, and that a second version sends what is new."""
    pss, rss = server.pss_bytes(), server.rss_bytes()
    report.rows.append(_show(server, exhibit, report))
    workers = _touch(server, exhibit, mib)
    pss_grown, rss_grown = server.pss_bytes() - pss, server.rss_bytes() - rss
    report.lines.append(
        f"memory: a table of {mib} MiB, read whole by {workers} workers, made them grow by "
        f"{pss_grown / MIB:.0f} MiB in all (PSS: {pss_grown / MIB / mib:.2f} times the table); "
        f"each of them sees all of it (RSS in all: +{rss_grown / MIB:.0f} MiB)"
    )
    # What is private to each worker (arenas, buffers) comes on top of the table.
    if pss_grown > (mib * 1.1 + workers * 64) * MIB:
        report.problems.append(f"the weights are in RAM more than once: {pss_grown} bytes")
    second = server.command("push", exhibit.name, str(exhibit.next_path), "--load")
    share = second["bytes_sent"] / second["total_bytes"]
    report.lines.append(
        f"second version of {exhibit.name}: {second['bytes_sent'] / 1024:.0f} KiB sent of "
        f"{second['total_bytes'] / MIB:.0f} MiB ({share:.2%})"
    )
    # A small table leaves little to save; the promise is about large ones.
    if mib >= 64 and share >= 0.02:
        report.problems.append(f"the second version sent {share:.1%} of its bytes")


def _touch(server: Server, exhibit: Exhibit, mib: int) -> int:
    """Make every worker read the whole table; return how many workers there are.

    Which worker takes a connection is the kernel's choice, so this goes on until each of them
    has grown by the table.
    """
    url = f"{server.url}/v2/models/{exhibit.name}/infer"
    pids = server.worker_pids()
    for _ in range(32):
        with httpx.Client(trust_env=False, timeout=120) as client:
            for body, headers in whole_table(mib):
                answer = client.post(url, content=body, headers=headers)
                if answer.status_code != 200:
                    raise DemoFailed(f"recommender: {answer.status_code} {answer.text[:200]}")
        if all(server.mapped_bytes(pid) >= mib * MIB for pid in pids):
            return len(pids)
    raise DemoFailed("not every worker was reached by 32 connections")


def _print(report: Report, seconds: float) -> None:
    print()
    head = ("model", "size", "load s", "difference", "p50 ms", "p99 ms", "rows/s")
    lines = [
        (row.name, _size(row.size_bytes), f"{row.load_s:.2f}",
         f"{row.difference:.1e}", f"{row.p50_ms:.2f}", f"{row.p99_ms:.2f}",
         f"{row.rows_per_s:,.0f}")
        for row in report.rows
    ]  # fmt: skip
    widths = [max(len(line[column]) for line in [head, *lines]) for column in range(len(head))]
    for row in [head, *lines]:
        cells = [row[0].ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  ".join(cells))
    print("difference: served answers against the native library, relative to max(1, |native|)")
    print("p50, p99: one row a request on one connection; rows/s: 64 rows a request on four")
    for line in report.lines:
        print(line)
    for problem in report.problems:
        print(f"PROBLEM: {problem}", file=sys.stderr)
    print(f"done in {seconds:.0f} s" if not report.problems else f"FAILED after {seconds:.0f} s")


def _size(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / 1024:.1f} KiB"


def _stay(server: Server, exhibit: Exhibit) -> None:
    body = exhibit.with_rows(1).decode()
    with contextlib.suppress(KeyboardInterrupt):
        print(
            f"\nThe server stays up until Ctrl-C. Try:\n\n"
            f"  curl -s {server.url}/v1/models/{exhibit.name}:predict -d '{body}'\n"
            f"  .venv/bin/ramrack ps --url {server.url} --admin-url {server.admin_url}\n\n"
            f"API documentation: {server.url}/docs and {server.admin_url}/docs",
            flush=True,
        )
        server.process.wait()
        raise DemoFailed("the server ended by itself: see .ramrack/demo/server.log")
    print("\nstopping", flush=True)


if __name__ == "__main__":
    sys.exit(main())
