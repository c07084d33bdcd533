"""Where a memory limit is made, what it is told, and why there is none."""

from __future__ import annotations

import pytest

from loadtest.faults.memory_group import NoMemoryGroup, memory_group, oom_kills


def host(tmp_path, line, folder, controllers=""):
    """Return the roots of a machine whose cgroup is ``line`` and has a folder."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "self/cgroup").write_text(line)
    (root / folder).mkdir(parents=True)
    if controllers:
        (root / folder / "cgroup.subtree_control").write_text(controllers)
    return root, proc


def test_a_machine_without_the_control_of_memory_says_so(tmp_path):
    """The fault is skipped then, with these words."""
    root, proc = host(tmp_path, "0::/ours\n", "ours", "cpu pids")
    with (
        pytest.raises(NoMemoryGroup, match="passes the control of memory on"),
        memory_group(1 << 20, root, proc),
    ):
        pass


def test_a_folder_that_limits_nothing_is_taken_away_again(tmp_path):
    """A made group without a file for the limit is no group."""
    root, proc = host(tmp_path, "0::/ours/deep\n", "ours", "memory")
    with pytest.raises(NoMemoryGroup, match="has no limit"), memory_group(1 << 20, root, proc):
        pass
    assert list((root / "ours").glob("ramrack*")) == []


def test_without_the_right_to_make_one_the_reason_is_told(tmp_path):
    """As where the folder is not ours, or not there."""
    root, proc = host(tmp_path, "4:memory:/ours\n", "elsewhere")
    with pytest.raises(NoMemoryGroup, match="can be made in"), memory_group(1, root, proc):
        pass


@pytest.mark.parametrize("name", ["memory.events", "memory.oom_control"])
def test_kills_are_read_from_either_version(tmp_path, name):
    """Both name them alike, among other lines."""
    assert oom_kills(tmp_path) == 0
    (tmp_path / name).write_text("low 0\nunder_oom 0\noom 9\noom_kill 3\n")
    assert oom_kills(tmp_path) == 3
