"""The servers whose errors are tested: each is shared by the tests of one file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
from onnx import TensorProto

from tests import graphs
from tests.contract.errors.calls import LIMITS, fails_by_itself
from tests.process.server import RunningServer, running_server, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with limits that a test can reach; one worker, so that they are the server's."""
    with running_server(tmp_path_factory.mktemp("errors"), settings=LIMITS) as running:
        running.push("id32", graphs.id32())
        running.push("id32", graphs.identity(TensorProto.FLOAT, ("rows", 4)), is_loading=False)
        running.push("gather", graphs.gath())
        running.push("fails", fails_by_itself())
        running.push("endless", graphs.endless())
        running.push("endless-too", graphs.endless())
        running.push("never-loaded", graphs.id64(), is_loading=False)
        yield running


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server whose admin plane wants tokens: one for all scopes, and one that may only read."""
    folder = tmp_path_factory.mktemp("guarded")
    sha256 = hashlib.sha256(b"reader-secret").hexdigest()
    config = folder / "ramrack.toml"
    config.write_text(
        f'[[tokens]]\nname = "reader"\nsha256 = "{sha256}"\nscopes = ["read"]\n', encoding="utf-8"
    )
    settings = {"admin_token": "owner-secret", "config": config}
    with running_server(folder, settings=settings, is_waiting=False) as running:
        wait_until(
            lambda: running.admin("GET", "/v2/health/ready").status_code == 200, 60, "it is ready"
        )
        yield running
