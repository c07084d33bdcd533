"""Puts the parent process together, runs it until a signal, and takes it apart in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import uvloop

from models.pack import VersionInspector
from registry.budget import default_budget_bytes
from registry.errors import RegistryError, StoreFailed
from registry.store import Store
from serving.admin.app import create_admin_app
from serving.auth import admin_tokens, check_exposure, data_tokens
from serving.control.control_plane import ControlPlane
from serving.errors import ServingError
from serving.logs import configure_logs
from serving.machine import Machine, read_machine
from serving.metrics.page import MetricsMemory
from serving.scrape import page_renderer
from serving.settings import Settings
from serving.web.server import HttpServer
from serving.web.sockets import close_all, open_listeners, url_of
from serving.workers.cores import WorkerPlan, plan_workers
from serving.workers.supervisor import Supervisor
from serving.workers.worker_process import WORKER_COMMAND

_log = logging.getLogger(__name__)
# The admin plane outlives the workers by this at most.
ADMIN_DRAIN_S: Final = 5.0
# What a start can end with that a person can mend: one line each, no traceback.
PLANNED: Final = (RegistryError, ServingError, OSError, ssl.SSLError)


class WorkersCannotStart(ServingError):
    """Every attempt to start a worker failed before it was ready."""


class StoreCannotOpen(ServingError):
    """The folder that the setting ``store`` names is no store and cannot become one."""


def run(settings: Settings, worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    0: stopped in order. 1: could not start, or was told twice to stop; stderr says which.
    """
    try:
        return uvloop.run(_serve(settings, worker_command))
    except PLANNED as error:
        print(f"ramrack: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - for a person
        return 1


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


class StopSignals:
    """SIGTERM and SIGINT: the first asks for an orderly stop, the second ends ``at_once``."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.at_once: Sequence[Callable[[], None]] = [_end_process]
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take)
        # Reserved for reading the settings again; its default would end the server.
        loop.add_signal_handler(signal.SIGHUP, _log.info, "SIGHUP does nothing yet")

    def _take(self) -> None:
        if self.first.is_set():
            for step in self.at_once:
                step()
        self.first.set()


def _end_process() -> None:
    """End without waiting for anything. What was acknowledged is on disk already."""
    _log.warning("stopped at once by a second signal")
    logging.shutdown()
    os._exit(1)


@dataclass(frozen=True, slots=True)
class _Sockets:
    data: list[socket.socket]
    admin: socket.socket


async def _serve(settings: Settings, worker_command: Sequence[str]) -> int:
    configure_logs(settings)
    signals = StopSignals()
    tokens = admin_tokens(settings, os.environ)
    check_exposure(settings, tokens)
    machine = read_machine()
    plan = plan_workers(
        sorted(os.sched_getaffinity(0)), machine.usable_cores,
        settings.workers, settings.threads_per_worker,
    )  # fmt: skip
    # What is entered last is closed first: workers, control plane, admin plane, store.
    async with contextlib.AsyncExitStack() as stack:
        store = await asyncio.to_thread(_open_store, settings.store)
        stack.callback(store.close)
        sockets = _open_sockets(settings, plan, stack)
        memory = stack.enter_context(MetricsMemory.create(plan.workers))
        objects_dir = store.objects_dir.resolve()
        supervisor = Supervisor(
            replace(settings, tokens=data_tokens(settings, tokens)), plan=plan,
            listeners=sockets.data, memory=memory, objects_dir=objects_dir,
            worker_command=worker_command,
        )  # fmt: skip
        is_closing = threading.Event()
        inspect = VersionInspector(store, plan.threads, settings.inspect_timeout_s, is_closing)
        control = ControlPlane(
            store, supervisor, settings, inspect,
            budget_bytes=_budget_bytes(settings, machine), workers=plan.workers,
        )  # fmt: skip
        supervisor.before_respawn(control.before_respawn)
        app = create_admin_app(
            control, settings, tokens=tokens,
            render_metrics=page_renderer(control, supervisor, memory),
        )  # fmt: skip
        server = HttpServer(app, settings)
        stack.push_async_callback(server.drain, ADMIN_DRAIN_S)
        stack.push_async_callback(control.close)
        stack.callback(is_closing.set)
        await control.start()
        supervisor.start()
        stack.push_async_callback(supervisor.stop, 0)
        signals.at_once = [supervisor.kill, _end_process]
        await server.start(sockets.admin)
        _say_where(settings, sockets, plan)
        await _reason_to_stop(signals, supervisor)
        _log.info("stopping", extra={"timeout_s": settings.stop_timeout_s})
        is_orderly = await supervisor.stop(settings.stop_timeout_s)
    _log.info("stopped")
    return 0 if is_orderly else 1


def _open_store(root: Path) -> Store:
    """Open the store, or raise StoreCannotOpen: what is wrong, where, and what to change.

    The path is what the operator gave, and only the operator's terminal shows this message.
    """
    where = f"store {str(root)!r}"
    advice = "give a folder with --store, RAMRACK_STORE or store in the config file"
    if os.path.lexists(root) and not os.path.isdir(root):  # noqa: PTH112 - Path's raises EACCES
        raise StoreCannotOpen(f"{where}: it is a file, not a folder: {advice}")
    try:
        return Store.open(root)
    except StoreFailed as error:
        cause = error.__cause__
        why = cause.strerror if isinstance(cause, OSError) else None
        raise StoreCannotOpen(
            f"{where}: the folder cannot be made or opened: {why or error}: {advice}"
        ) from error
    except RegistryError as error:
        raise StoreCannotOpen(f"{where}: {error}") from error


def _open_sockets(
    settings: Settings, plan: WorkerPlan, stack: contextlib.AsyncExitStack
) -> _Sockets:
    data = open_listeners(
        settings.host, settings.port, plan.workers, "data plane",
        advice="stop it, or take another --port (0: any free one)",
    )  # fmt: skip
    stack.callback(close_all, data)
    admin = open_listeners(
        settings.admin_host, settings.admin_port, 1, "admin plane",
        advice="stop it, or take another --admin-port (0: any free one)",
    )  # fmt: skip
    stack.callback(close_all, admin)
    return _Sockets(data, admin[0])


def _budget_bytes(settings: Settings, machine: Machine) -> int:
    return settings.memory_budget or default_budget_bytes(machine.available_bytes)


def _say_where(settings: Settings, sockets: _Sockets, plan: WorkerPlan) -> None:
    is_tls = bool(settings.tls_cert)
    _log.info(
        "listening",
        extra={
            "url": url_of(sockets.data[0], settings.host, is_tls=is_tls),
            "admin_url": url_of(sockets.admin, settings.admin_host, is_tls=is_tls),
            "pid": os.getpid(),
            "workers": plan.workers,
            "threads_per_worker": plan.threads,
        },
    )


async def _reason_to_stop(signals: StopSignals, supervisor: Supervisor) -> None:
    """Wait for a stop signal; raise WorkersCannotStart when there is nobody to serve."""
    failure = asyncio.create_task(supervisor.cannot_start(), name="cannot start")
    stop = asyncio.create_task(signals.first.wait(), name="stop signal")
    try:
        await asyncio.wait([failure, stop], return_when=asyncio.FIRST_COMPLETED)
        if failure.done():
            raise WorkersCannotStart(failure.result())
    finally:
        failure.cancel()
        stop.cancel()
