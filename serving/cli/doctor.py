"""``ramrack doctor``: what the machine gives to a server, and what to change where it is short."""

from __future__ import annotations

import os
import resource
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from registry.errors import InvalidInput, RegistryError
from registry.layout import check_adoptable
from serving.cli.options import ADMIN_URL_DEFAULT, AdminUrl, AsJson, admin_client
from serving.cli.output import count_text, print_json, print_table, size_text
from serving.client.errors import ClientError, ServerUnreachable
from serving.machine import Machine, read_machine
from serving.settings import CONFIG_NAME, load_settings
from serving.workers.cores import plan_workers

GIB: Final = 1024**3
_LOW_DISK_SHARE: Final = 0.15
_LOW_FILES: Final = 4096
_RAISE_LOCK: Final = (
    "ulimit -l unlimited, systemd LimitMEMLOCK=infinity, or docker --ulimit memlock=-1"
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing looked at. ``advice`` is empty where nothing is wrong."""

    what: str
    value: str
    advice: str = ""
    is_fault: bool = False


def doctor(
    *,
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Folder of the store.")
    ] = Path("ramrack-store"),
    as_json: AsJson = False,
    admin_url: AdminUrl = ADMIN_URL_DEFAULT,
) -> int:
    """Look at cores, memory, limits and disk; ends with 1 if a server could not run."""
    machine = read_machine()
    findings = [
        *_platform(),
        *_cores(machine),
        *_memory(machine),
        *_limits(),
        _disk(store),
        *_server(admin_url),
    ]
    is_faulty = any(finding.is_fault for finding in findings)
    if as_json:
        print_json({"ok": not is_faulty, "findings": [asdict(finding) for finding in findings]})
    else:
        print_table(
            ("what", "value", "advice"),
            [(finding.what, finding.value, finding.advice or "ok") for finding in findings],
        )
    return 1 if is_faulty else 0


def _platform() -> Iterator[Finding]:
    is_linux = sys.platform == "linux"
    yield Finding(
        "system",
        f"{sys.platform}, Python {sys.version.split()[0]}",
        "" if is_linux else "the server runs on Linux only",
        is_fault=not is_linux,
    )
    try:
        # Read from the package's record: importing the runtime would take a second and threads.
        yield Finding("onnxruntime", metadata.version("onnxruntime"))
    except metadata.PackageNotFoundError:
        yield Finding("onnxruntime", "missing", "pip install onnxruntime", is_fault=True)


def _cores(machine: Machine) -> Iterator[Finding]:
    quota = "no quota" if machine.quota_cores is None else f"quota {machine.quota_cores:g}"
    advice = ""
    if machine.quota_cores is not None and machine.quota_cores < 1:
        advice = "less than one core: answers will stall; give the container at least 1 CPU"
    cpus = sum(map(len, machine.cores))
    siblings = "" if cpus == len(machine.cores) else f" with {cpus} hardware threads"
    yield Finding("cores", f"{len(machine.cores)} by affinity{siblings}, {quota}", advice)
    yield _threads(machine)
    is_set = os.environ.get("OMP_NUM_THREADS", "")
    if is_set:
        yield Finding("OMP_NUM_THREADS", is_set, "unset it: each worker sets its own")


def _threads(machine: Machine) -> Finding:
    """Return the plan that a server started here would follow."""
    config = Path(CONFIG_NAME)
    try:
        settings = load_settings(config if config.is_file() else None, os.environ, {})
    except InvalidInput as error:
        return Finding("threads", "no plan: the settings are wrong", str(error), is_fault=True)
    plan = plan_workers(
        machine.cores, machine.usable_cores, settings.workers, settings.threads_per_worker
    )
    where = ", ".join("+".join(map(str, cpus)) for cpus in plan.cpus)
    pinned = f"pinned to processors {where}" if any(plan.cpus) else "not pinned"
    most_us = plan.busy_poll_us(settings.busy_poll_us)
    polled = f"busy polling up to {most_us} us" if most_us else "no busy polling"
    value = f"{count_text(plan.workers, 'worker')} with {plan.threads} each, {pinned}, {polled}"
    return Finding("threads", value, plan.excess(machine.usable_cores))


def _memory(machine: Machine) -> Iterator[Finding]:
    limit = machine.memory_limit_bytes
    by = "no cgroup limit" if limit is None else f"cgroup limit {size_text(limit)}"
    yield Finding(
        "memory",
        f"{size_text(machine.memory_bytes)}, {size_text(machine.available_bytes)} free, {by}",
        "" if machine.available_bytes >= GIB else "under 1 GiB free: end other programs",
    )
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_unlimited = locked == resource.RLIM_INFINITY
    yield Finding(
        "memory lock limit",
        "unlimited" if is_unlimited else size_text(locked),
        "" if is_unlimited or locked >= machine.memory_bytes // 2
        else f"weights beyond it may be evicted under pressure: {_RAISE_LOCK}",
    )  # fmt: skip
    swap = _meminfo("SwapTotal:") - _meminfo("SwapFree:")
    yield Finding(
        "page cache",
        f"{size_text(_meminfo('Cached:'))} cached, {size_text(swap)} swapped out",
        "" if swap < GIB else "the machine swaps: lower memory_budget or add RAM",
    )


def _limits() -> Iterator[Finding]:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield Finding(
        "open files",
        str(files),
        "" if files >= _LOW_FILES
        else f"each connection takes one: ulimit -n {min(65536, hard)}",
    )  # fmt: skip


def _disk(store: Path) -> Finding:
    folder = store.absolute()
    while not folder.exists():
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    what = f"disk under {store}"
    value = f"{size_text(usage.free)} free of {size_text(usage.total)}"
    if fault := _store_fault(store.absolute(), folder):
        return Finding(what, value, f"{fault}: choose another --store", is_fault=True)
    is_low = usage.free < usage.total * _LOW_DISK_SHARE and usage.free < 50 * GIB
    return Finding(what, value, "little is left: ramrack rm old versions, then ramrack gc"
                   if is_low else "")  # fmt: skip


def _store_fault(store: Path, present: Path) -> str:
    """Return why ``ramrack serve`` would refuse the store; ``present`` is what of it exists."""
    if os.path.lexists(store) and not store.is_dir():
        return "it is a file, not a folder"
    if not present.is_dir():
        return f"it cannot be made: {present.name} is a file, not a folder"
    if not os.access(present, os.W_OK | os.X_OK):
        return "it is not writable" if store.exists() else f"it cannot be made in {present}"
    if store.exists():
        try:
            check_adoptable(store)
        except RegistryError as error:
            return str(error)
    return ""


def _server(admin_url: str) -> Iterator[Finding]:
    try:
        with admin_client(admin_url) as client:
            client.check_live()
            try:
                workers, memory = client.workers(), client.memory()
            except ClientError as error:
                yield Finding("server", f"up at {admin_url}, but tells us nothing", str(error))
                return
    except ServerUnreachable as error:
        yield Finding("server", f"none at {admin_url}", str(error))
        return
    except ClientError as error:
        yield Finding("server", f"something answers at {admin_url}", str(error))
        return
    ill = [worker for worker in workers if worker.get("reason")]
    advice = "; ".join(f"worker {worker['slot']}: {worker['reason']}" for worker in ill)
    yield Finding("server", f"{count_text(len(workers), 'worker')} at {admin_url}", advice)
    yield _weights(memory)


def _weights(memory: Mapping[str, Any]) -> Finding:
    """Return how much of the loaded versions is in RAM, and promised to stay there."""
    resident, locked = memory.get("resident_bytes", 0), memory.get("locked_bytes", 0)
    value = f"{size_text(resident)} in RAM, {size_text(locked)} of it locked"
    return Finding(
        "loaded weights", value,
        "" if locked >= resident
        else f"start the server with more locked memory, or leave it to the page cache: "
        f"{_RAISE_LOCK}",
    )  # fmt: skip


def _meminfo(name: str) -> int:
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0
