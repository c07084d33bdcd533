"""A headless Chromium, a real server for each file, and pages whose faults fail the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import graphs
from tests.process.server import RunningServer, running_server

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the machine, driven by playwright."""
    api = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: scripts/test-console does it"
    )
    if CHROMIUM is None:
        pytest.skip("no chromium on the path: scripts/test-console installs it")
    # Chromium's sandbox needs rights that root in a container does not have.
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open pages in contexts of their own; what they report as wrong fails the test.

    ``expected``: parts of console messages that belong to what is tested.
    """
    contexts, faults = [], []

    def open_one(url: str, *, expected: tuple[str, ...] = (), **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page = context.new_page()

        def note(message: str) -> None:
            if not any(part in message for part in expected):
                faults.append(message)

        page.on("pageerror", lambda error: note(f"error: {error}"))
        page.on("console", lambda m: note(f"console: {m.text}") if m.type == "error" else None)
        page.goto(url)
        return page

    yield open_one
    for context in contexts:
        context.close()
    assert faults == []


@pytest.fixture(scope="module")
def server(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A real server with one worker; each test brings its own model."""
    folder = tmp_path_factory.mktemp("console")
    with running_server(folder, settings={"memory_budget": 64 << 20}) as started:
        yield started


@pytest.fixture
def model(server: RunningServer, request: pytest.FixtureRequest) -> Callable[..., str]:
    """Push a model named after the test, with as many versions as wanted; return its name."""

    def push(loaded: int = 1, unloaded: int = 0) -> str:
        name = request.node.name.removeprefix("test_")[:40]
        for seed in range(loaded + unloaded):
            server.push(name, graphs.gemm(seed=seed), is_loading=seed < loaded)
        return name

    return push
