"""F8: what waits, expires and is supervised goes by the monotonic clock; the bench lets it jump."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.process.server import ROOT

# Where the hour of the day is written down for people, and decides nothing.
WRITES_THE_HOUR = {"registry/events.py", "serving/logs.py", "serving/metrics/counters.py"}


def looks(path: Path) -> list[str]:
    """Return the calls of a file that read the wall clock."""
    names = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "date.today"}
    return [
        ast.unparse(node.func)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in names
    ]


def test_f8_nothing_is_decided_by_the_wall_clock() -> None:
    """Deadlines, leases and time-outs never look at it."""
    found = {
        str(path.relative_to(ROOT))
        for folder in ("registry", "serving")
        for path in (ROOT / folder).rglob("*.py")
        if looks(path)
    }
    assert found <= WRITES_THE_HOUR


def test_f8_a_look_at_the_wall_clock_is_seen(tmp_path: Path) -> None:
    """The search finds what it is for."""
    (tmp_path / "x.py").write_text("import time\ndeadline = time.time() + 5\n")
    assert looks(tmp_path / "x.py") == ["time.time"]
