"""Serve the one ONNX model of a folder under a name: ``python -m serving.serve_folder``.

For platforms that put a model's file into a container and start it, as KServe does: the server is
started, the model pushed and loaded, and the server waited for. Settings come from the environment,
as always. A model that is there already, after a restart of the container, keeps its version.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Final

_TOKEN: Final = "RAMRACK_ADMIN_TOKEN"  # noqa: S105 - the name of a variable
_LOOK_S: Final = 0.1
_DEFAULT_PORT: Final = "8081"


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; return the server's exit code, 1 where there is no model."""
    parser = argparse.ArgumentParser(prog="python -m serving.serve_folder", description=__doc__)
    parser.add_argument("--name", required=True, help="name of the model")
    parser.add_argument("--folder", required=True, type=Path, help="where its .onnx file is")
    options = parser.parse_args(argv)
    found = sorted(options.folder.rglob("*.onnx"))
    if len(found) != 1:
        return _failed(f"{options.folder}: {len(found)} .onnx files, exactly one is needed")
    # Whoever may call the admin plane from outside was given the token; if nobody was, nobody may.
    environ = {_TOKEN: secrets.token_urlsafe(32)} | dict(os.environ)
    port = environ.get("RAMRACK_ADMIN_PORT", _DEFAULT_PORT)
    environ["RAMRACK_ADMIN_URL"] = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "serving"], env=environ)
    stops: list[int] = []

    def stop(number: int, _: object) -> None:
        stops.append(number)
        server.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if _is_up(server, environ["RAMRACK_ADMIN_URL"]):
        push = [sys.executable, "-m", "serving.cli", "push", options.name, str(found[0]), "--load"]
        code = subprocess.run(push, env=environ, check=False).returncode
        if code != 0 and server.poll() is None and not stops:
            _failed(f"{found[0]} cannot be served: the server ends")
            server.terminate()
            server.wait()
            return 1
    return server.wait()


def _is_up(server: subprocess.Popen[bytes], url: str) -> bool:
    """Wait for the admin plane; return False where the server ended first."""
    while server.poll() is None:
        try:
            # The address is this machine's own.
            urllib.request.urlopen(f"{url}/v2/health/live", timeout=5).close()  # noqa: S310
        except OSError:
            time.sleep(_LOOK_S)
        else:
            return True
    return False


def _failed(reason: str) -> int:
    print(f"ramrack: {reason}", file=sys.stderr)  # noqa: T201 - for a person
    return 1


if __name__ == "__main__":
    sys.exit(main())
