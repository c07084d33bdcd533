"""Loads and unloads one version again and again, and watches what the server's processes keep.

Prints one JSON object; ends with 1 where private memory grew by more than ``--limit``. The version
should not be what answers requests: where a load makes it the route, the route is deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

OPERATION_TIMEOUT_S: Final = 600
_TOKEN_VARIABLE: Final = "RAMRACK_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
# The median over this share of the cycles stands for the beginning, and for the end.
_EDGE_SHARE: Final = 0.2


class Admin:
    """The admin plane, as far as the cycles need it. Raises OSError with what the server said."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r}: only http:// and https:// addresses have an admin plane")
        self._url = url.rstrip("/")
        token = os.environ.get(_TOKEN_VARIABLE, "")
        self._headers = {"content-type": "application/json"}
        if token:
            self._headers["authorization"] = f"Bearer {token}"

    def call(self, method: str, path: str) -> dict[str, Any]:
        """Send one request without a body and return the JSON of its answer."""
        request = urllib.request.Request(  # noqa: S310 - http only, see __init__
            self._url + path, method=method, headers=self._headers
        )
        try:
            with urllib.request.urlopen(  # noqa: S310 - http only, see __init__
                request, timeout=OPERATION_TIMEOUT_S + 30
            ) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            said = error.read().decode(errors="replace")
            raise OSError(f"{method} {path}: {error.code}: {said}") from error
        return found


@dataclass(slots=True)
class Watch:
    """What was seen after each unload. ``anonymous_bytes``: over all processes of the server.

    ``start_bytes``: the same before the first load.
    """

    start_bytes: int = 0
    anonymous_bytes: list[int] = field(default_factory=list)
    unreleased_bytes: list[int | None] = field(default_factory=list)
    load_s: list[float] = field(default_factory=list)
    unload_s: list[float] = field(default_factory=list)

    def report(self) -> dict[str, object]:
        """Return the figures in the form that is printed."""
        edge = max(1, int(len(self.anonymous_bytes) * _EDGE_SHARE))
        # The first cycle pays for what the allocator and the runtime set up once.
        settled = self.anonymous_bytes[1:] or self.anonymous_bytes
        begin = statistics.median(settled[:edge])
        end = statistics.median(settled[-edge:])
        return {
            "cycles": len(self.anonymous_bytes),
            "anonymous_bytes_start": self.start_bytes,
            "anonymous_bytes_first": self.anonymous_bytes[0],
            "anonymous_bytes_begin": int(begin),
            "anonymous_bytes_end": int(end),
            "anonymous_bytes_most": max(self.anonymous_bytes),
            "growth": round(end / begin - 1, 5),
            "unreleased_bytes_last": self.unreleased_bytes[-1],
            "load_s_median": round(statistics.median(self.load_s), 4),
            "unload_s_median": round(statistics.median(self.unload_s), 4),
        }


def anonymous_bytes(pid: int) -> int:
    """Return the anonymous memory of a process: what no mapped file backs."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    return 0


def server_pids(admin: Admin) -> list[int]:
    """Return the workers and their parent; raises OSError while a worker is away."""
    workers = [worker["pid"] for worker in admin.call("GET", "/admin/v1/workers")["workers"]]
    if not workers or None in workers:
        raise OSError("a worker is not running")
    status = Path(f"/proc/{workers[0]}/status").read_text(encoding="ascii")
    parent = next(line.split()[1] for line in status.splitlines() if line.startswith("PPid:"))
    return [int(parent), *workers]


def run(admin: Admin, model: str, version: int, cycles: int) -> Watch:
    """Load and unload ``cycles`` times; raises OSError where the server refuses."""
    watch = Watch()
    versions = f"/admin/v1/models/{model}/versions/{version}"
    pids = server_pids(admin)
    watch.start_bytes = sum(map(anonymous_bytes, pids))
    for _ in range(cycles):
        began = time.perf_counter()
        admin.call("POST", f"{versions}:load?wait={OPERATION_TIMEOUT_S}")
        watch.load_s.append(time.perf_counter() - began)
        route = admin.call("GET", f"/admin/v1/models/{model}")["route"]
        if route and version in [share["version"] for share in route["split"]]:
            admin.call("DELETE", f"/admin/v1/models/{model}/route")
        began = time.perf_counter()
        admin.call("POST", f"{versions}:unload?wait={OPERATION_TIMEOUT_S}")
        watch.unload_s.append(time.perf_counter() - began)
        watch.anonymous_bytes.append(sum(map(anonymous_bytes, pids)))
        watch.unreleased_bytes.append(admin.call("GET", "/admin/v1/memory")["unreleased_bytes"])
    if server_pids(admin) != pids:
        raise OSError("a worker was replaced on the way: the figures say nothing")
    return watch


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.cycles", description=__doc__)
    parser.add_argument("admin_url")
    parser.add_argument("model")
    parser.add_argument("version", type=int)
    parser.add_argument("--cycles", type=int, default=50, help="how often (50)")
    parser.add_argument("--limit", type=float, default=0.05, help="growth that is a failure (0.05)")
    arguments = parser.parse_args(argv)
    if arguments.cycles < 1:
        parser.error(f"--cycles {arguments.cycles}: at least 1")
    try:
        watch = run(Admin(arguments.admin_url), arguments.model, arguments.version,
                    arguments.cycles)  # fmt: skip
    except (OSError, ValueError) as error:
        print(f"cycles: {error}", file=sys.stderr)
        return 1
    report = watch.report()
    print(json.dumps(report))
    return 1 if float(str(report["growth"])) > arguments.limit else 0


if __name__ == "__main__":
    sys.exit(main())
