"""A console whose models are made up: the real page, hub and stream over figures of any size."""

from __future__ import annotations

import asyncio
import contextlib
import math
import random
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from serving.admin.console.hub import ConsoleHub
from serving.admin.console.pages import INDEX, page
from serving.admin.console.stream import ConsoleStream
from serving.settings import Settings
from serving.web.server import HttpServer

GIB = 1 << 30
NAMES = ("fraud", "recommender", "search-rank", "churn", "travel", "pricing", "intent", "ads-ctr",
         "eta", "stock", "credit", "claims", "dedupe", "spam", "image-tags", "lookalike", "ltv",
         "basket", "route-time", "anomaly")  # fmt: skip


class Fleet:
    """Models and workers that never were. ``models`` times ``versions`` of them are shown."""

    def __init__(self, models: int = 20, versions: int = 5, workers: int = 8) -> None:
        self.random = random.Random(7)
        self.look = 0
        self.workers = workers
        self.models = [self._model(i, versions) for i in range(models)]

    async def sample(self) -> dict[str, Any]:
        """Return the sections of one look; only rates and resident bytes move."""
        self.look += 1
        held = [v for m in self.models for v in m["versions"] if v["object_bytes"]]
        shared = max((v["shared_bytes"] for v in held), default=0)
        own = sum(v["object_bytes"] - v["shared_bytes"] for v in held)
        private = sum(v["private_bytes"] for v in held)
        committed = own + private + shared
        budget = math.ceil(committed * 1.35 / GIB) * GIB
        return {
            "server": {"version": "0.1.0", "ready": True, "reason": ""},
            "models": {"models": self.models, "left_out": 0},
            "memory": {
                "budget_bytes": budget, "committed_bytes": committed,
                "free_bytes": budget - committed, "unreleased_bytes": 0, "last_unload": None,
                "resident_bytes": own + shared, "locked_bytes": own + shared,
                "workers": self.workers,
            },
            "workers": {"workers": [
                {"slot": slot, "pid": 4100 + slot, "state": "serving", "generation": 12,
                 "cpus": [2 * slot, 2 * slot + 1], "restarts": 0, "reason": "",
                 "memory_bytes": 310 << 20}
                for slot in range(self.workers)
            ]},
            "operations": self._operations(),
            "events": {"latest": self._events()},
            "rates": self._rates(),
        }  # fmt: skip

    def _model(self, index: int, count: int) -> dict[str, Any]:
        name = NAMES[index % len(NAMES)] + ("" if index < len(NAMES) else f"-{index}")
        top = 3 + index
        size = int(GIB * self.random.choice((0.4, 1.1, 2.0, 2.6, 3.4)))
        states = (["READY", "READY", "UNLOADED", "UNLOADED", "UNLOADED"] * count)[:count]
        if index == 2:
            states[0] = "LOADING"
        if index == 4:
            states[2] = "FAILED"
        versions = [
            self._version(top + count - 1 - i, state, size, shared=index == 1 and i < 2)
            for i, state in enumerate(states)
        ]
        ready = [v["version"] for v in versions if v["state"] == "READY"]
        split = [{"version": ready[0], "weight": 100}]
        if index == 0:
            split = [{"version": ready[1], "weight": 90}, {"version": ready[0], "weight": 10}]
        return {
            "name": name,
            "aliases": {"prod": {"version": split[0]["version"], "etag": '"4"'}},
            "route": {
                "split": split, "shadow": [], "latest": index == 5,
                "previous": {"split": [{"version": ready[-1], "weight": 100}], "shadow": []},
                "etag": '"7"',
                "changed": {"time": _ago(60 * (index + 2) ** 2), "who": "ci",
                            "reason": "" if index % 3 else "better on last week's data"},
            },
            "versions": sorted(versions, key=lambda v: v["version"]),
        }  # fmt: skip

    def _version(self, number: int, state: str, size: int, *, shared: bool) -> dict[str, Any]:
        is_held = state in ("READY", "LOADING")
        common = size // 2 if shared else 0
        return {
            "version": number, "state": state, "published": _ago(86400 * (30 - number)),
            "reason": {"LOADING": "load under way: reading weights",
                       "FAILED": "golden row 3: output 'score': 0.4121 is not 0.4119",
                       "READY": "loaded and warmed up in every worker"}.get(state, "not loaded"),
            "load_s": 2.1, "mode": "mapped" if is_held else "", "disk_bytes": size,
            "object_bytes": size if is_held else 0,
            "unique_bytes": size - common if is_held else 0, "shared_bytes": common * is_held,
            # One worker had to copy something that the others share.
            "private_bytes_per_worker": 9 << 20,
            "private_bytes": ((9 << 20) + (self.workers - 1) * (2 << 20)) * is_held,
            "resident_bytes": size if is_held else 0,
        }  # fmt: skip

    def _rates(self) -> dict[str, Any]:
        models: dict[str, Any] = {}
        for index, model in enumerate(self.models):
            versions = {}
            for share in model["route"]["split"]:
                wave = 1 + 0.35 * math.sin(self.look / 6 + index) + 0.1 * self.random.random()
                rate = 900 / (index + 1) * share["weight"] / 100 * wave
                versions[str(share["version"])] = _rate(rate, 0.0012 + 0.0002 * index)
            total = sum(v["requests_per_s"] for v in versions.values())
            models[model["name"]] = {**_rate(total, 0.0013 + 0.0002 * index), "versions": versions}
        total = sum(m["requests_per_s"] for m in models.values())
        return {"window_s": 10.0, "all": _rate(total, 0.0016), "models": models}

    def _operations(self) -> list[dict[str, Any]]:
        loading = [(m["name"], v["version"]) for m in self.models for v in m["versions"]
                   if v["state"] == "LOADING"]  # fmt: skip
        running = [
            {"id": "r", "kind": "load", "model": name, "version": version, "state": "running",
             "progress": 0.62, "stage": "reading weights", "reason": "",
             "started": _ago(4), "ended": None}
            for name, version in loading[:1]
        ]  # fmt: skip
        first, last = self.models[0], self.models[-1]
        return [
            *running,
            {"id": "s", "kind": "load", "model": first["name"], "version": 7, "progress": 1,
             "state": "succeeded", "stage": "done", "reason": "", "started": _ago(200),
             "ended": _ago(198)},
            {"id": "f", "kind": "load", "model": last["name"], "version": 9, "progress": 0.4,
             "state": "failed", "stage": "checking", "started": _ago(900), "ended": _ago(899),
             "reason": "golden row 3: output 'score': 0.4121 is not 0.4119"},
        ]  # fmt: skip

    def _events(self) -> list[dict[str, Any]]:
        kinds = ("route", "load", "alias", "publish")
        return [
            {"seq": 90 - i, "time": _ago(240 * (i + 1)), "kind": kinds[i % 4],
             "model": self.models[i % len(self.models)]["name"],
             "version": self.models[i % len(self.models)]["versions"][-1]["version"],
             "who": "ci" if i % 3 else "mara", "address": "10.0.0.7",
             "reason": "" if i % 4 else "better on last week's data",
             "before": None, "after": None}
            for i in range(40)
        ]  # fmt: skip


def _rate(per_s: float, p50_s: float) -> dict[str, Any]:
    return {
        "now_per_s": round(per_s, 2),
        "requests_per_s": round(per_s, 2),
        "refused_per_s": 0.0,
        "failed_per_s": 0.0,
        "p50_s": round(p50_s, 6),
        "p99_s": round(p50_s * 3.4, 6),
    }


def _ago(seconds: float) -> str:
    # One moment for the whole run: times that move on would be changes at each look.
    return (_START - timedelta(seconds=seconds)).isoformat()


_START = datetime.now(UTC)


@contextlib.contextmanager
def serve(fleet: Fleet, every_s: float = 1.0) -> Iterator[str]:
    """Serve the console of a made-up fleet in a thread; yield its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    loop = asyncio.new_event_loop()
    started = threading.Event()
    stop = asyncio.Event()

    async def run() -> None:
        hub = ConsoleHub(fleet.sample, every_s=every_s)

        async def stream(_: Request) -> Response:
            scopes = ["admin", "promote", "read"]
            return ConsoleStream(hub, {"who": "mara", "scopes": scopes}, 0)

        async def file(request: Request) -> Response:
            return page(request.path_params.get("file", INDEX))

        app = Starlette(routes=[
            Route("/", file), Route("/console/{file}", file),
            Route("/admin/v1/console/stream", stream),
        ])  # fmt: skip
        server = HttpServer(app, Settings())
        await server.start(listener)
        started.set()
        await stop.wait()
        hub.close()
        await server.drain(10)

    thread = threading.Thread(target=loop.run_until_complete, args=(run(),), name="synthetic")
    thread.start()
    try:
        started.wait(60)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()
        listener.close()
