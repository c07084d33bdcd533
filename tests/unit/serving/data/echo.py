"""An application that says what it got, and raw requests to it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from tests.unit.serving.data.rig import Response


class EchoApp:
    """Answers with what it received; paths make it wait, ignore the body, or answer largely."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.entered = asyncio.Event()
        self.left: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        path = scope["path"]
        body = b""
        if path != "/early":
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    self.left.append(path)
                    return
                body += message["body"]
                if not message["more_body"]:
                    break
        if path.startswith("/wait"):
            self.entered.set()
            await self.gate.wait()
        if path == "/listen":
            self.entered.set()
            while not self.gate.is_set():
                # Listens anew again and again, as an application may; each time asks to read on.
                listening = asyncio.ensure_future(receive())
                await asyncio.sleep(0.005)
                listening.cancel()
        if path == "/watch":
            self.entered.set()
            await receive()
            self.left.append(path)
            return
        names = sorted(name.decode() for name, _ in scope["headers"])
        answer = json.dumps(
            {"method": scope["method"], "path": path, "body": body.decode(), "headers": names}
        ).encode()
        if path == "/large":
            answer = b"x" * (64 * 1024 * 1024)
        headers = [(b"content-length", str(len(answer)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


def request(path: str, body: bytes = b"", *more: str, method: str = "POST") -> bytes:
    """Return the bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: h", f"Content-Length: {len(body)}", *more]
    return "\r\n".join([*lines, "", ""]).encode() + body


def said(response: Response) -> dict[str, Any]:
    """Return the JSON of an answer."""
    document: dict[str, Any] = json.loads(response.body)
    return document


OFFER = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAEAAEAAAAIAAAAB")
