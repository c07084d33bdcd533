"""What a bench reads from /proc, and the verdicts that it makes of it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from loadtest.lab.memory import (
    MB,
    Held,
    allowed_pss_bytes,
    held_by,
    in_use_bytes,
    parse_rollup,
    private_bytes,
    tree_of,
    unreleased_share,
)

ROLLUP = """\
00400000-7ffd5 ---p 00000000 00:00 0                             [rollup]
Rss:               10000 kB
Pss:                4000 kB
Pss_Anon:           1000 kB
Anonymous:          1500 kB
"""


def line(unique: int, shared: int, private: int | None) -> dict[str, int | None]:
    return {
        "unique_bytes": unique, "shared_bytes": shared, "private_bytes_per_worker": private,
    }  # fmt: skip


def test_shares_and_anonymous_pages_are_read_from_the_kernels_words():
    """The proportional size is not its anonymous part, and kB are KiB."""
    assert parse_rollup(ROLLUP) == Held(4000 * 1024, 1500 * 1024)
    assert parse_rollup("") == Held()


def test_a_tree_is_a_process_with_all_below_it():
    """Children and their children count; who ended counts nothing."""
    script = (
        "import subprocess, sys; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        found = tree_of(os.getpid())
        assert {os.getpid(), child.pid, grandchild} <= set(found)
        assert held_by([child.pid, grandchild]).pss_bytes > held_by([grandchild]).pss_bytes > 0
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    assert held_by([child.pid]) == Held()


def test_shared_weights_are_counted_once():
    """Each version's own weights add up; what they share is one and the same."""
    lines = [line(5, 100, 2), line(7, 100, None)]
    assert in_use_bytes(lines) == 112
    assert private_bytes(lines, workers=3) == 6
    assert (in_use_bytes([]), private_bytes([], 2)) == (0, 0)


def test_a_server_may_hold_its_weights_and_something_for_each_worker():
    """A tenth more than the weights, 150 MB a worker, and the private bytes that it shows."""
    assert allowed_pss_bytes(1000 * MB, 50 * MB, 2) == pytest.approx(1450 * MB)


def test_what_an_unload_left_is_told_by_what_the_load_took():
    """Half of it is half, nothing is nothing, and less than before is nothing, too."""
    before, loaded = Held(100), Held(300)
    assert unreleased_share(before, loaded, Held(200)) == 0.5
    assert unreleased_share(before, loaded, Held(100)) == 0.0
    assert unreleased_share(before, loaded, Held(90)) == 0.0


def test_weights_that_were_reserved_but_not_read_count_as_taken():
    """A mapped table is in no process before somebody reads it."""
    assert unreleased_share(Held(100), Held(110), Held(105), reserved_bytes=500) == 0.01
    assert unreleased_share(Held(100), Held(300), Held(200), reserved_bytes=10) == 0.5


def test_a_load_that_took_nothing_proves_nothing():
    """There is no share of nothing."""
    with pytest.raises(ValueError, match="nothing to give back"):
        unreleased_share(Held(100), Held(100), Held(100))
