"""Machine: the share of cores and memory that is ours, from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.machine import read_machine
from serving.workers.cores import plan_workers

GIB = 1 << 30


def fake_host(tmp_path: Path, cgroup_line: str) -> tuple[Path, Path]:
    """Make /proc of a host with 16 GiB, 12 of them available."""
    proc = tmp_path / "proc"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\n")
    (proc / "self/cgroup").write_text(cgroup_line)
    root = tmp_path / "cgroup"
    root.mkdir()
    return root, proc


def write(folder: Path, **values: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in values.items():
        (folder / name.replace("__", ".")).write_text(value)


def test_without_limits_the_host_counts(tmp_path: Path):
    """No cgroup files: the host's memory, and every core of the affinity."""
    root, proc = fake_host(tmp_path, "0::/\n")
    machine = read_machine(root, proc)
    assert (machine.memory_bytes, machine.available_bytes) == (16 * GIB, 12 * GIB)
    assert (machine.quota_cores, machine.usable_cores) == (None, len(machine.cores))


def test_the_tightest_limit_above_us_counts(tmp_path: Path):
    """A parent's lower memory limit and CPU quota bind us too."""
    root, proc = fake_host(tmp_path, "0::/slice/unit\n")
    write(root / "slice", memory__max=str(4 * GIB), memory__current=str(3 * GIB),
          memory__stat=f"inactive_file {GIB}\n", cpu__max="50000 100000\n")  # fmt: skip
    write(root / "slice/unit", memory__max="max\n", memory__current="1", cpu__max="max 100000\n")
    machine = read_machine(root, proc)
    assert machine.memory_bytes == machine.memory_limit_bytes == 4 * GIB
    assert machine.available_bytes == 2 * GIB
    assert (machine.quota_cores, machine.usable_cores) == (0.5, 1)


def test_a_container_sees_its_own_root(tmp_path: Path):
    """Where the path is the host's and not there, the files at the root are ours."""
    root, proc = fake_host(tmp_path, "0::/kubepods/pod1/abc\n")
    write(root, memory__max=str(2 * GIB), memory__current="0", cpu__max="150000 100000\n")
    machine = read_machine(root, proc)
    assert machine.memory_bytes == 2 * GIB
    assert machine.quota_cores == 1.5


def test_version_1_cgroups_are_read(tmp_path: Path):
    """The older layout has a folder for each controller and other file names."""
    root, proc = fake_host(tmp_path, "5:memory:/box\n4:cpu,cpuacct:/box\n")
    write(root / "memory/box", memory__limit_in_bytes=str(GIB), memory__usage_in_bytes="4096",
          memory__stat="total_inactive_file 4096\n")  # fmt: skip
    write(root / "cpu/box", cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    machine = read_machine(root, proc)
    assert (machine.memory_bytes, machine.available_bytes) == (GIB, GIB)
    assert machine.quota_cores == 2


def test_no_limit_in_version_1_is_no_limit(tmp_path: Path):
    """The huge number that stands for no limit is not taken for one, nor is a quota of -1."""
    root, proc = fake_host(tmp_path, "5:memory:/\n4:cpu:/\n")
    write(root / "memory", memory__limit_in_bytes="9223372036854771712")
    write(root / "cpu", cpu__cfs_quota_us="-1", cpu__cfs_period_us="100000")
    machine = read_machine(root, proc)
    assert (machine.memory_limit_bytes, machine.quota_cores) == (None, None)


def fake_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, affinity: set[int]) -> Path:
    """Make /sys of eight cores with two hardware threads each, n and n + 8."""
    for cpu in range(16):
        siblings = f"{cpu % 8},{cpu % 8 + 8}\n"
        write(tmp_path / f"cpu/cpu{cpu}/topology", core_cpus_list=siblings)
    monkeypatch.setattr("serving.machine.os.sched_getaffinity", lambda _: affinity)
    return tmp_path / "cpu"


def test_d01_hardware_threads_of_a_core_are_one_core(tmp_path: Path, monkeypatch):
    """What may be used is counted in cores; the processors outside the affinity are left out."""
    root, proc = fake_host(tmp_path, "0::/\n")
    cpus = fake_cpus(tmp_path, monkeypatch, {0, 8, 1, 3, 11, 12})
    machine = read_machine(root, proc, cpus)
    assert machine.cores == ((0, 8), (1,), (3, 11), (12,))
    assert machine.usable_cores == 4


@pytest.mark.parametrize(
    ("quota", "usable"), [("200000 100000", 2), ("max 100000", 8), ("350000 100000", 3)]
)
def test_d01_workers_and_threads_stay_within_a_quota(tmp_path, monkeypatch, quota, usable):
    """A quota of version 2 binds on a host with many more cores, and "max" is none."""
    root, proc = fake_host(tmp_path, "0::/\n")
    write(root, cpu__max=quota + "\n")
    machine = read_machine(root, proc, fake_cpus(tmp_path, monkeypatch, set(range(16))))
    plan = plan_workers(machine.cores, machine.usable_cores)
    assert machine.usable_cores == plan.workers * plan.threads == usable


def test_d01_a_quota_of_version_1_and_a_single_cpu_bind(tmp_path: Path, monkeypatch):
    """The older files count the same, and a cpuset of one leaves one worker with one thread."""
    root, proc = fake_host(tmp_path, "4:cpu,cpuacct:/box\n")
    write(root / "cpu/box", cpu__cfs_quota_us="200000", cpu__cfs_period_us="100000")
    cpus = fake_cpus(tmp_path, monkeypatch, set(range(16)))
    assert read_machine(root, proc, cpus).usable_cores == 2
    monkeypatch.setattr("serving.machine.os.sched_getaffinity", lambda _: {5})
    machine = read_machine(root, proc, cpus)
    plan = plan_workers(machine.cores, machine.usable_cores)
    assert (plan.workers, plan.threads) == (1, 1)
