"""What the process that first opens a version may not do, seen from outside while it runs."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
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
    assert "TOKEN" not in environ
    assert "RAMRACK" not in environ
    # A group of its own, which is ended as a whole.
    assert group == int(folder.name)
    if can_leave_network():
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


def can_leave_network() -> bool:
    """Return whether the kernel lets this user make a network of its own."""
    code = "from models.confinement import leave_network; print(leave_network())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout == "True\n"
