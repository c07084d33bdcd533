"""Workers of the server before, as their successor sees them."""

from __future__ import annotations

import subprocess
import sys

from serving.web.inherit import LeftWorker
from serving.workers.former import FormerWorkers

MIB = 1 << 20


def test_what_former_workers_hold_is_known_while_they_live() -> None:
    """It comes back with their end, so the budget of their successor may count on it."""
    code = "held = b'x' * (32 << 20); print('held', flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "held\n"
    former = FormerWorkers([LeftWorker(slot=0, pid=child.pid, wire_fd=-1)])
    assert 32 * MIB <= former.private_bytes() < 64 * MIB
    child.communicate("\n")
    assert former.private_bytes() == 0
