"""How a process steps back: in a process of its own, for there is no way back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]


def said_by(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_thread_steps_back_alone():
    """The thread that asked has a higher nice value, its siblings keep theirs."""
    here, there = said_by(
        "import os, threading\n"
        "from models import priority\n"
        "mine = os.getpriority(os.PRIO_PROCESS, 0)\n"
        "found = []\n"
        "def work():\n"
        "    priority.step_back_thread()\n"
        "    found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))\n"
        "thread = threading.Thread(target=work); thread.start(); thread.join()\n"
        "print(os.getpriority(os.PRIO_PROCESS, os.getpid()) == mine, found[0])\n"
    )
    assert (here, int(there) >= 10) == ("True", True)


def test_the_score_is_added_to_what_was_inherited_and_has_a_top():
    """An operator's own score counts; the kernel knows nothing above 1000."""
    first, second, third = said_by(
        "from pathlib import Path\n"
        "from models import priority\n"
        "file = Path('/proc/self/oom_score_adj')\n"
        "print(file.read_text())\n"
        "priority.die_before_parent(300); print(file.read_text())\n"
        "priority.die_before_parent(900); print(file.read_text())\n"
    )
    assert int(second) == min(1000, int(first) + 300)
    assert int(third) == min(1000, int(second) + 900)
