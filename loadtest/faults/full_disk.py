"""F5: the disk under the store is full to the last byte."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from loadtest.faults.lab import Fault, Lab, judge_store, watched
from loadtest.faults.outcome import Outcome

_SIZE_BYTES: Final = 64 << 20
_INODES: Final = 10_000


class NoSmallDisk(Exception):
    """A small disk cannot be mounted here; the text says why."""


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a tmpfs of 64 MiB on ``folder``; raises NoSmallDisk where that is not allowed."""
    options = f"size={_SIZE_BYTES},nr_inodes={_INODES},mode=0700"
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise NoSmallDisk("there is no mount command") from None
    if done.returncode:
        raise NoSmallDisk(done.stderr.strip())
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def fill(folder: Path) -> None:
    """Take the last byte and the last file of a disk, as somebody else's log does."""
    with contextlib.suppress(OSError), (folder / "log").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while file.write(b"x" * size):
                    pass
    with contextlib.suppress(OSError):
        for number in range(_INODES):
            os.close(os.open(folder / f"log.{number}", os.O_WRONLY | os.O_CREAT))


def full_disk(lab: Lab, outcome: Outcome) -> None:
    """Fill the disk: uploads get 507, the way back and predictions go on."""
    with tempfile.TemporaryDirectory(dir=lab.work) as folder:
        try:
            with small_disk(Path(folder)) as disk, lab.own_server(disk / "store") as server:
                spares = [server.publish(lab.packages.spare(n))["version"] for n in (0, 1)]
                server.load("spare", spares[0])
                with watched(lab, server, outcome) as watch:
                    fill(disk)
                    watch.load.wait_for(100)
                    package = lab.packages.spare(2)
                    digest, path = next(iter(package.objects.items()))
                    answer = server.call(
                        "PUT", f"/admin/v1/blobs/{digest}", content=path.read_bytes()
                    )
                    outcome.judge("A", answer.status_code == 507, f"upload: {answer.status_code}")
                    watch.change(2, lambda: server.route("echo", 2))
                    back = "/models/echo/route:rollback"
                    watch.change(1, lambda: server.must("POST", back, {}))
                    server.must("PUT", "/models/echo/aliases/live", {"version": 1})
                    server.must("DELETE", "/models/spare/route")
                    server.must("POST", f"/models/spare/versions/{spares[0]}:unload?wait=60")
                    for version in spares:
                        server.must("DELETE", f"/models/spare/versions/{version}")
                    server.must("POST", "/gc")
                judge_store(server, outcome)
        except NoSmallDisk as error:
            outcome.skipped = str(error)


FAULTS: Final = (Fault("F5", "a full disk", 1, full_disk),)
