"""Schemathesis against both OpenAPI documents of a real server: every check that it has.

It makes requests of the documents, right and wrong, alone and in sequences of calls that lead to
each other, and holds each answer to what is documented: status, type, schema, headers.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests import graphs
from tests.process.server import ROOT, RunningServer, running_server

PLANES: Final = ("data", "admin")
_TOKEN: Final = "of-the-fuzzer"
_SETTINGS: Final = {
    "admin_token": _TOKEN, "data_auth": "token", "max_body_bytes": "1MiB",
    "invocations_model": "witness",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Attack:
    """What came of one. ``cases``: how many requests were made up. ``text``: what was said."""

    is_held: bool
    cases: int
    text: str


@contextmanager
def attacked_server() -> Iterator[RunningServer]:
    """Give a server that asks for a token on both planes and serves two models."""
    with (
        tempfile.TemporaryDirectory(prefix="openapi-") as folder,
        running_server(Path(folder), settings=_SETTINGS, is_waiting=False) as server,
    ):
        server.headers = {"authorization": f"Bearer {_TOKEN}"}
        server.wait_until_ready()
        server.push("witness", graphs.id32())
        server.push("witness", graphs.log())
        server.push("other", graphs.id32())
        alias = "/admin/v1/models/witness/aliases/prod"
        server.expect(server.admin("PUT", alias, json={"version": 1}))
        yield server


def attack(server: RunningServer, plane: str, options: Sequence[str]) -> Attack:
    """Run Schemathesis against one plane; ``options`` are those of its ``run``."""
    url = server.url if plane == "data" else server.admin_url
    done = subprocess.run(
        [sys.executable, "-m", "schemathesis.cli", "--config-file",
         "tests/fuzz/schemathesis.toml", "run", f"{url}/openapi.json", "--no-color",
         "--header", f"Authorization: Bearer {_TOKEN}", *options],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = done.stdout + done.stderr
    counts = re.findall(r"(\d+) generated", text)
    errors = [each for each in server.logs if each["level"] in ("error", "critical")]
    text += "".join(f"\nin the log: {each}" for each in errors)
    return Attack(not (done.returncode or errors), int(counts[-1]) if counts else 0, text)


def fuzz(plane: str, minutes: float, seed: int) -> int:
    """Attack one plane for minutes by the clock; return 1 and say everything after a find."""
    options = ("--seed", str(seed), "--max-time", str(max(1, int(60 * minutes))))
    with attacked_server() as server:
        found = attack(server, plane, options)
    if not found.is_held:
        sys.stdout.write(found.text + "\n")
        return 1
    sys.stdout.write(f"openapi-{plane}: {found.cases} requests and sequences, every check held\n")
    return 0
