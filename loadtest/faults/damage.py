"""F6: objects that are cut short or have a bit flipped, under a server that serves others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from loadtest.faults.lab import (
    Fault,
    Lab,
    judge_recovery,
    judge_store,
    settled,
    watched,
)
from loadtest.faults.outcome import Outcome
from loadtest.faults.server import FaultServer

_MODEL: Final = "spare"


def damage(lab: Lab, outcome: Outcome) -> None:
    """Harm an object at ``count`` places: each load says which one; others' requests go on.

    Every tenth time the version is loaded when it happens, and the workers lose its pages.
    """
    dice = random.Random(6)
    with lab.own_server() as server:
        package = lab.packages.spare(0)
        version = int(server.publish(package)["version"])
        objects = [server.store / "objects" / each.partition(":")[2] for each in package.objects]
        whole = {path: path.read_bytes() for path in objects}
        with watched(lab, server, outcome):
            for turn in range(outcome.count):
                path = dice.choice(objects)
                if turn % 10 == 0:
                    _harm_loaded(lab, server, outcome, version, path, whole[path], dice)
                else:
                    _harm(path, whole[path], dice)
                    _refused(server, outcome, version, path)
                mend(server, path, whole[path])
        server.call("POST", f"/admin/v1/models/{_MODEL}/versions/{version}:unload?wait=60")
        judge_store(server, outcome)


def _harm(path: Path, data: bytes, dice: random.Random) -> None:
    """Give the name to other bytes: half of the times fewer, half of the times one bit off."""
    at = dice.randrange(len(data))
    if dice.random() < 0.5:
        harmed = data[:at]
    else:
        harmed = data[:at] + bytes([data[at] ^ 1 << dice.randrange(8)]) + data[at + 1 :]
    path.chmod(0o600)
    path.write_bytes(harmed)


def mend(server: FaultServer, path: Path, data: bytes) -> None:
    """Upload the right bytes of an object again, as a push would."""
    answer = server.call("PUT", f"/admin/v1/blobs/sha256:{path.name}", content=data)
    answer.raise_for_status()


def _refused(server: FaultServer, outcome: Outcome, version: int, path: Path) -> None:
    """Load the version: it must fail by the digest, and say so."""
    answer = server.call("POST", f"/admin/v1/models/{_MODEL}/versions/{version}:load?wait=60")
    outcome.judge(
        "A", not answer.is_success and path.name in answer.text,
        f"a damaged object was answered with {answer.status_code} {answer.text[:200]}",
    )  # fmt: skip
    state = server.versions(_MODEL)[version]["state"]
    outcome.judge("A", state == "FAILED", f"the version is {state}")


def _harm_loaded(
    lab: Lab, server: FaultServer, outcome: Outcome, version: int, path: Path, data: bytes,
    dice: random.Random,
) -> None:  # fmt: skip
    """Cut the object of a loaded version, and replace a worker: that version is FAILED, no other.

    The file is replaced, not written to: what is mapped stays, and the digest tells at the respawn.
    ``loadtest.faults.cuts`` writes to it.
    """
    server.load(_MODEL, version)
    path.unlink()
    path.write_bytes(data[: dice.randrange(len(data))])
    pids: Sequence[int] = server.worker_pids()
    answer = server.call("POST", "/admin/v1/workers:restart?wait=90", {})
    outcome.judge("C", answer.is_success, f"the workers were not replaced: {answer.text[:200]}")
    took_s = server.wait_until(
        lambda: server.is_whole() and not set(pids) & set(server.worker_pids()), 60, "it is whole"
    )
    judge_recovery(lab, outcome, took_s)
    seen = settled(server, lambda: server.versions(_MODEL)[version]["state"] == "FAILED", 60)
    outcome.judge("A", seen, "the damaged version is not FAILED after a respawn")


FAULTS: Final = (Fault("F6", "objects cut short or with a bit flipped", 500, damage),)
