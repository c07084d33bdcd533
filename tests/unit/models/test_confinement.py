"""What the process that first opens a version may not do, seen from outside while it runs."""

from __future__ import annotations

import ast
import os
import resource
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from models.errors import LoadFailed
from models.inspect import Limits, inspect_version
from tests import graphs
from tests.process.server import wait_until
from tests.unit.models.conftest import MIB, Shelf


@contextmanager
def inspecting(shelf: Shelf) -> Iterator[Path]:
    """Give the /proc folder of an inspection that has all its limits, and end it afterwards."""
    model = graphs.endless()
    del model.graph.input[:]
    model.graph.initializer.append(graphs.weights("n", np.array([2**62], np.int64)))
    package, cancelled, found = shelf.put(model), threading.Event(), list[Path]()
    limits = Limits(memory_bytes=256 * MIB, timeout_s=60, threads=1)

    def inspect() -> None:
        with pytest.raises(LoadFailed, match="cancelled"):
            inspect_version(package.manifest, shelf.objects_dir, limits, cancelled)

    def is_confined() -> bool:
        for task in Path("/proc/self/task").iterdir():
            for pid in (task / "children").read_text().split():
                folder = Path("/proc") / pid
                # The limit on memory is the last one: the libraries come before it.
                lines = (folder / "limits").read_text().splitlines()
                memory = next(line for line in lines if line.startswith("Max data size"))
                if b"inspect_child" in (folder / "cmdline").read_bytes() and (
                    "unlimited" not in memory
                ):
                    found.append(folder)
        return bool(found)

    thread = threading.Thread(target=inspect, name="inspection")
    thread.start()
    try:
        wait_until(is_confined, 50, "the inspection is confined")
        yield found[0]
    finally:
        cancelled.set()
        thread.join(60)


@pytest.fixture
def lavish(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let this process hand down as much as it may, and a secret: what a child lacks it gave up."""
    monkeypatch.setenv("RAMRACK_ADMIN_TOKEN", "secret")
    kinds = (resource.RLIMIT_CORE, resource.RLIMIT_NOFILE)
    before = {kind: resource.getrlimit(kind) for kind in kinds}
    for kind, (_, hard) in before.items():
        resource.setrlimit(kind, (hard, hard))
    yield
    for kind, limits in before.items():
        resource.setrlimit(kind, limits)


@pytest.mark.usefixtures("lavish")
def test_least_privilege_of_the_inspection(shelf: Shelf) -> None:
    """Memory, time, files and rights are limited, there is no network, nor any token."""
    with inspecting(shelf) as folder:
        lines = (folder / "limits").read_text().splitlines()[1:]
        limits = {line[:26].strip(): line[26:].split()[0] for line in lines}
        status = (folder / "status").read_text()
        devices = (folder / "net" / "dev").read_text().splitlines()[2:]
        network = (folder / "ns" / "net").readlink()
        environ = (folder / "environ").read_text()
        group = os.getpgid(int(folder.name))
    assert int(limits["Max data size"]) < 2048 * MIB
    assert int(limits["Max cpu time"]) == 121
    assert limits["Max file size"] == limits["Max core file size"] == "0"
    assert int(limits["Max open files"]) == 256
    assert "NoNewPrivs:\t1" in status
    if can("syscall_filter.stay_alone"):
        assert "Seccomp:\t2" in status
    assert "TOKEN" not in environ
    assert "RAMRACK" not in environ
    # A group of its own, which is ended as a whole.
    assert group == int(folder.name)
    if can("confinement.leave_network"):
        assert network != Path("/proc/self/ns/net").readlink()
        assert [line.split(":")[0].strip() for line in devices] in (["lo"], [])


def test_least_privilege_reaches_nobody_outside() -> None:
    """A process that left the network cannot even call this machine, or says that it may not."""
    code = (
        "import socket, sys\n"
        "from models.confinement import leave_network\n"
        "if not leave_network(): sys.exit(7)\n"
        "socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5)"
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        done = subprocess.run(
            [sys.executable, "-c", code, port], capture_output=True, text=True, check=False
        )
    assert done.returncode == 7 or "Network is unreachable" in done.stderr, done.stderr


# What a process that stays alone may not do; each is one expression.
FORBIDDEN = (
    "subprocess.run(['true'])", "os.fork()", "os.execv('/bin/true', ['true'])",
    "os.posix_spawn('/bin/true', ['true'], {})", "socket.socket()", "socket.socket(socket.AF_UNIX)",
    "os.kill(os.getppid(), 0)", "os.kill(0, 0)", "os.kill(-1, 0)", "os.pidfd_open(os.getppid())",
    "resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, (64, 64))",
)  # fmt: skip
ALLOWED = (
    "threading.Thread(target=print).start()", "socket.socketpair()", "os.kill(os.getpid(), 0)",
    "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))", "open('/proc/self/status').read()",
    "resource.prlimit(os.getpid(), resource.RLIMIT_NOFILE)", "signal.raise_signal(signal.SIGCHLD)",
)  # fmt: skip


def test_least_privilege_starts_nothing_and_reaches_no_other_process() -> None:
    """Programs, processes, sockets, signals and limits of others are refused; the rest goes on."""
    if not can("syscall_filter.stay_alone"):
        pytest.skip("the kernel filters no system calls here")
    code = (
        "import os, resource, signal, socket, subprocess, sys, threading\n"
        "from models import confinement, syscall_filter\n"
        "def is_refused(act):\n"
        "    try:\n"
        "        eval(act)\n"
        "    except PermissionError:\n"
        "        return True\n"
        "    return False\n"
        "if sys.argv[1] == 'alone':\n"
        "    confinement.gain_nothing()\n"
        "    assert syscall_filter.stay_alone()\n"
        "sys.stderr.write(repr([act for act in sys.argv[2:] if is_refused(act)]))"
    )

    def refused(how: str, acts: Sequence[str]) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", code, how, *acts], capture_output=True, text=True, check=True
        )
        found: list[str] = ast.literal_eval(done.stderr)
        return found

    assert refused("alone", FORBIDDEN) == list(FORBIDDEN)
    assert refused("alone", ALLOWED) == []
    assert refused("as ever", ("socket.socket()", "os.kill(os.getppid(), 0)")) == []


@cache
def can(step: str) -> bool:
    """Return whether the kernel lets this user take a step of the confinement."""
    code = (
        f"from models import confinement, syscall_filter\n"
        f"confinement.gain_nothing()\nprint({step}())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"
