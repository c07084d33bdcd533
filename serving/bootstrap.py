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
from registry.budget import default_budget_bytes, default_run_bytes
from registry.errors import RegistryError, StoreFailed
from registry.store import Store
from serving.admin.app import create_admin_app
from serving.admin.console.sampler import console_of
from serving.auth import SERVER, admin_tokens, check_exposure, data_tokens
from serving.control.control_plane import ControlPlane
from serving.errors import ServingError, UpgradeRefused
from serving.logs import configure_logs
from serving.machine import Machine, read_machine
from serving.metrics.page import MetricsMemory
from serving.notify import ServiceManager
from serving.scrape import page_renderer
from serving.settings import MIB, Settings
from serving.thread_pool import DISK_THREADS, started_pool
from serving.upgrade import restart_command, try_release
from serving.web.handover import ConnectionQueue
from serving.web.inherit import Handover, Inherited, copy_of, take_inherited
from serving.web.server import HttpServer
from serving.web.sockets import close_all, fit_listeners, is_at, open_listeners, url_of
from serving.workers.cores import WorkerPlan, plan_workers
from serving.workers.former import FormerWorkers
from serving.workers.supervisor import Supervisor, regions_for
from serving.workers.worker_process import WORKER_COMMAND

_log = logging.getLogger(__name__)
STOP: Final = "stop"
UPGRADE: Final = "upgrade"
TAKING_OVER: Final = "an upgrade is under way: try again when the new workers have taken over"
# The admin plane outlives the workers by this at most.
ADMIN_DRAIN_S: Final = 5.0
# What a start can end with that a person can mend: one line each, no traceback.
PLANNED: Final = (RegistryError, ServingError, OSError, ssl.SSLError)


class WorkersCannotStart(ServingError):
    """Every attempt to start a worker failed before it was ready."""


class NoMemory(ServingError):
    """There is no memory for a single version."""


class StoreCannotOpen(ServingError):
    """The folder that the setting ``store`` names is no store and cannot become one."""


def run(settings: Settings, worker_command: Sequence[str] = WORKER_COMMAND) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    0: stopped in order. 1: could not start, or was told twice to stop; stderr says which.
    """
    try:
        inherited = take_inherited(os.environ)
        # As it was, for the release that may go on in this process; secrets are taken out below.
        environ = dict(os.environ)
        outcome = uvloop.run(_serve(settings, inherited, worker_command))
        if isinstance(outcome, Handover):
            logging.shutdown()
            outcome.replace_process(restart_command(), environ)
            raise AssertionError("not reached")  # the process is another program now
    except PLANNED as error:
        print(f"ramrack: {_one_line(error)}", file=sys.stderr)  # noqa: T201 - for a person
        return 1
    return outcome


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return " ".join(str(error).split())


class StopSignals:
    """SIGTERM and SIGINT: the first asks for an orderly stop, the second ends ``at_once``.

    SIGHUP asks for ``restart``, SIGUSR2 for an upgrade.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.upgrade = asyncio.Event()
        self.at_once: Sequence[Callable[[], None]] = [_end_process]
        self.restart: Callable[[], None] = lambda: _log.info("SIGHUP before the start: ignored")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._take)
        loop.add_signal_handler(signal.SIGHUP, lambda: self.restart())
        loop.add_signal_handler(signal.SIGUSR2, self.upgrade.set)

    def _take(self) -> None:
        if self.first.is_set():
            for step in self.at_once:
                step()
        self.first.set()


def _restart_workers(control: ControlPlane) -> None:
    try:
        control.restart_workers(SERVER, "SIGHUP")
    except PLANNED as error:
        _log.warning("no restart: %s", error)


def _end_process() -> None:
    """End without waiting for anything. What was acknowledged is on disk already."""
    _log.warning("stopped at once by a second signal")
    logging.shutdown()
    os._exit(1)


@dataclass(frozen=True, slots=True)
class _Sockets:
    """``successors``: how many slots' connections move here from workers of the server before."""

    data: list[socket.socket]
    admin: socket.socket
    queues: list[ConnectionQueue]
    successors: int


async def _serve(
    settings: Settings, inherited: Inherited, worker_command: Sequence[str]
) -> int | Handover:
    configure_logs(settings)
    asyncio.get_running_loop().set_default_executor(started_pool(DISK_THREADS, "disk"))
    signals = StopSignals()
    tokens = admin_tokens(settings, os.environ)
    check_exposure(_as_reached(settings, inherited), tokens)
    machine = read_machine()
    plan = plan_workers(
        machine.cores, machine.usable_cores, settings.workers, settings.threads_per_worker
    )
    if excess := plan.excess(machine.usable_cores):
        _log.warning(excess)
    # What is entered last is closed first: workers, control plane, admin plane, store.
    async with contextlib.AsyncExitStack() as stack:
        store = await asyncio.to_thread(_open_store, settings.store)
        stack.callback(store.close)
        former = FormerWorkers(inherited.workers)
        await former.open()
        sockets = _open_sockets(settings, plan, inherited, stack)
        memory = stack.enter_context(MetricsMemory.create(regions_for(plan.workers)))
        objects_dir = store.objects_dir.resolve()
        available_bytes = machine.available_bytes + former.private_bytes()
        budget_bytes = _budget_bytes(settings, available_bytes)
        _warn_of(budget_bytes, machine)
        run_memory = settings.run_memory or default_run_bytes(
            available_bytes, budget_bytes, plan.workers
        )
        supervisor = Supervisor(
            replace(
                settings, tokens=data_tokens(settings, tokens), run_memory=run_memory,
                busy_poll_us=plan.busy_poll_us(settings.busy_poll_us),
            ),
            plan=plan,
            listeners=sockets.data, memory=memory, objects_dir=objects_dir,
            worker_command=worker_command, queues=sockets.queues,
            is_lasting=inherited.is_lasting, is_successor=former.are_serving,
        )  # fmt: skip
        is_closing = threading.Event()
        inspect = VersionInspector(store, plan.threads, settings.inspect_timeout_s, is_closing)
        control = ControlPlane(
            store, supervisor, settings, inspect,
            budget_bytes=budget_bytes, workers=plan.workers,
        )  # fmt: skip
        supervisor.before_respawn(control)
        console = console_of(control, settings, memory)
        app = create_admin_app(
            control, settings, tokens=tokens, console=console,
            render_metrics=page_renderer(
                control, supervisor, memory, settings.queue_rows, lambda: former.slots
            ),
            why_held=lambda: TAKING_OVER if former.are_serving else "",
        )  # fmt: skip
        server = HttpServer(app, settings)
        stack.push_async_callback(server.drain, ADMIN_DRAIN_S)
        stack.push_async_callback(control.close)
        stack.callback(is_closing.set)
        # Its streams would hold the drain up, and what it reads is closed next.
        stack.callback(console.close)
        await control.start()
        supervisor.start()
        stack.push_async_callback(supervisor.stop, 0)
        signals.at_once = [supervisor.kill, _end_process]
        signals.restart = lambda: _restart_workers(control)
        control.on_upgrade(lambda: _begin_upgrade(signals, control, former))
        await server.start(sockets.admin)
        _say_where(settings, sockets, plan)
        manager = ServiceManager(os.environ)
        await stack.enter_async_context(manager.told())
        taking_over = asyncio.create_task(
            _take_over(former, supervisor, settings, sockets.successors), name="take over"
        )
        if await _reason_to_end(signals, supervisor, control, former) == UPGRADE:
            _log.info("going on as another release")
            await taking_over
            # Copies before the drain: it closes the admin plane's listener in this process.
            handover = Handover(
                [copy_of(s.fileno()) for s in sockets.data], copy_of(sockets.admin.fileno()),
                is_lasting=inherited.is_lasting,
            )  # fmt: skip
            console.close()
            await server.drain(ADMIN_DRAIN_S, is_lasting=True)
            await control.close()
            handover.workers, handover.queues = await supervisor.leave()
            return handover
        manager.stopping()
        _log.info("stopping", extra={"timeout_s": settings.stop_timeout_s})
        taking_over.cancel()
        is_orderly, _ = await asyncio.gather(
            supervisor.stop(settings.stop_timeout_s),
            former.end(settings.stop_timeout_s, 0, is_lasting=inherited.is_lasting),
        )
    _log.info("stopped")
    return 0 if is_orderly else 1


async def _take_over(
    former: FormerWorkers, supervisor: Supervisor, settings: Settings, slots: int
) -> None:
    """Let the workers of the server before end once those of this one hold all that they held."""
    if former.are_serving:
        await supervisor.all_listen()
        await former.end(settings.stop_timeout_s, slots)
        _log.info("took over")


def _as_reached(settings: Settings, inherited: Inherited) -> Settings:
    """Return the settings with the address that the admin plane really has."""
    if inherited.admin is None or not inherited.is_lasting:
        return settings
    return replace(settings, admin_host=str(inherited.admin.getsockname()[0]))


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
    settings: Settings, plan: WorkerPlan, inherited: Inherited, stack: contextlib.AsyncExitStack
) -> _Sockets:
    found = [
        s for s in inherited.data
        if inherited.is_lasting or is_at(s, settings.host, settings.port, "data plane")
    ]  # fmt: skip
    stack.callback(close_all, inherited.data)
    data = fit_listeners(found, plan.workers) if found else open_listeners(
        settings.host, settings.port, plan.workers, "data plane",
        advice="stop it, or take another --port (0: any free one)",
    )  # fmt: skip
    stack.callback(close_all, data)
    admin = inherited.admin
    if admin is not None:
        stack.callback(admin.close)
    if admin is None or not (
        inherited.is_lasting
        or is_at(admin, settings.admin_host, settings.admin_port, "admin plane")
    ):
        (admin,) = open_listeners(
            settings.admin_host, settings.admin_port, 1, "admin plane",
            advice="stop it, or take another --admin-port (0: any free one)",
        )  # fmt: skip
        stack.callback(admin.close)
    queues = [ConnectionQueue.of_fds(*fds) for fds in inherited.queues]
    # A slot that is no more leaves its queue empty: its worker answers what it has and closes.
    queues = [*queues, *(ConnectionQueue.open() for _ in data)][: plan.workers]
    return _Sockets(data, admin, queues, min(len(found), plan.workers))


def _warn_of(budget_bytes: int, machine: Machine) -> None:
    if budget_bytes > machine.memory_bytes > 0:
        _log.warning(
            "memory_budget is more than there is: loads may end in the kernel's killer",
            extra={"budget_bytes": budget_bytes, "memory_bytes": machine.memory_bytes},
        )


def _budget_bytes(settings: Settings, available_bytes: int) -> int:
    """Return what versions may take, or raise NoMemory where host and cgroup leave nothing.

    ``available_bytes``: with what workers of the server before still hold, or an upgrade would have
    less than the server that it goes on for, and leave versions out.
    """
    budget_bytes = settings.memory_budget or default_budget_bytes(available_bytes)
    if budget_bytes < MIB:
        raise NoMemory(
            f"host and cgroup leave {available_bytes} bytes, which is no budget to load "
            "anything with: end other programs, raise the cgroup's limit, or set memory_budget"
        )
    return budget_bytes


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


async def _check_upgrade(control: ControlPlane, former: FormerWorkers) -> None:
    if former.are_serving:
        raise UpgradeRefused(TAKING_OVER)
    control.check_upgrade()
    await asyncio.to_thread(try_release)


async def _begin_upgrade(
    signals: StopSignals, control: ControlPlane, former: FormerWorkers
) -> None:
    """Raise why there can be no upgrade, or begin one; the caller's answer is still sent."""
    await _check_upgrade(control, former)
    signals.upgrade.set()


async def _reason_to_end(
    signals: StopSignals, supervisor: Supervisor, control: ControlPlane, former: FormerWorkers
) -> str:
    """Wait for a signal; return STOP, or UPGRADE where another release can take over.

    Raises WorkersCannotStart when there is nobody to serve.
    """
    failure = asyncio.create_task(supervisor.cannot_start(), name="cannot start")
    stop = asyncio.create_task(signals.first.wait(), name="stop signal")
    try:
        while True:
            upgrade = asyncio.create_task(signals.upgrade.wait(), name="upgrade signal")
            await asyncio.wait([failure, stop, upgrade], return_when=asyncio.FIRST_COMPLETED)
            upgrade.cancel()
            if failure.done():
                raise WorkersCannotStart(failure.result())
            if stop.done():
                return STOP
            signals.upgrade.clear()
            try:
                await _check_upgrade(control, former)
            except PLANNED as error:
                _log.error("no upgrade: %s", error)
            else:
                return UPGRADE
    finally:
        failure.cancel()
        stop.cancel()
