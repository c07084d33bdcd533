"""Locust's users for any running Ramrack server: ``locust -f loadtest/locustfile.py``.

Requests are made from what the server says of its models, answers are checked, and a run can be
held to promises: docs/LOADTEST.md. A closed loop waits for a stalled server as its users would;
what a tail latency really is, ``python -m loadtest open-loop`` measures.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

# Locust reads this as a file: without the package installed, its folder must be found.
sys.path.append(str(Path(__file__).resolve().parent.parent))

import gevent
from locust import LoadTestShape, events
from locust.runners import MasterRunner, WorkerRunner

from loadtest.users.classes import (
    TOKEN_VARIABLE,
    MixedUser,
    RamrackUser,
    V1User,
    V2BinaryUser,
    V2JsonUser,
)
from loadtest.users.gate import Seen, broken
from loadtest.users.loads import Loads
from loadtest.users.options import (
    DEFAULT_RUN_S,
    STOP_TIMEOUT_S,
    add_options,
    chosen_shape,
    promise_of,
)
from loadtest.users.shapes import SHAPES, users_at
from loadtest.wire.discover import NoServer, Server
from loadtest.wire.signature import NotMadeUp

__all__ = ["MixedUser", "V1User", "V2BinaryUser", "V2JsonUser"]

events.init_command_line_parser.add_listener(add_options)  # type: ignore[no-untyped-call]

_SHAPE = chosen_shape(sys.argv[1:])

if _SHAPE in SHAPES:

    class ChosenShape(LoadTestShape):
        """The shape of ``--shape``, within ``--run-time`` and up to ``--users``."""

        use_common_options = True

        def tick(self) -> tuple[int, float] | None:
            """Return users and how many may come or go a second; None ends the run."""
            options = self.runner.environment.parsed_options if self.runner else None
            most = getattr(options, "num_users", None) or 1
            total_s = getattr(options, "run_time", None) or DEFAULT_RUN_S
            elapsed_s = float(self.get_run_time())  # type: ignore[no-untyped-call]
            users = users_at(_SHAPE, elapsed_s, float(total_s), most)
            return None if users is None else (users, float(most))


@events.init.add_listener  # type: ignore[untyped-decorator]
def settle(environment: Any, **_: Any) -> None:
    """Let what is under way at the end of a run be answered, unless --stop-timeout says else.

    And set the loop's clock: it stood still while modules were imported, so that on a slow machine
    a short --run-time would be over before it began.
    """
    gevent.get_hub().loop.update_now()
    if not environment.stop_timeout:
        environment.stop_timeout = STOP_TIMEOUT_S


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Any, **_: Any) -> None:
    """Make the requests of the run; end it with the reason where that cannot be done."""
    if isinstance(environment.runner, MasterRunner):
        return
    options = environment.parsed_options
    RamrackUser.per_s = options.per_user
    try:
        server = Server(environment.host or "", os.environ.get(TOKEN_VARIABLE, ""))
        RamrackUser.loads = Loads(server, options.rows, options.models)
    except (NoServer, NotMadeUp) as error:
        RamrackUser.loads = None
        print(f"cannot start: {error}", file=sys.stderr)
        environment.process_exit_code = 1
        # The run is being started at this moment: it can only be ended once it goes.
        gevent.spawn_later(0.2, environment.runner.quit)


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def judge(environment: Any, **_: Any) -> None:
    """Hold the run to its promises: exit code 1 and the reasons where one was broken."""
    promise = promise_of(environment.parsed_options)
    if isinstance(environment.runner, WorkerRunner) or not promise.is_given:
        return
    total = environment.stats.total
    p99 = total.get_response_time_percentile(0.99) if total.num_requests else None
    reasons = broken(promise, Seen(total.num_requests, total.num_failures, p99))
    for reason in reasons:
        print(f"SLO missed: {reason}", file=sys.stderr)
    if reasons:
        environment.process_exit_code = 1
        return
    print(f"SLO met: {total.num_requests} requests, {total.num_failures} failed, p99 {p99} ms",
          file=sys.stderr)  # fmt: skip
    if promise.error_rate is not None and environment.process_exit_code is None:
        # Locust ends with 1 for any failure; within the promised share they are no reason to.
        environment.process_exit_code = 0
