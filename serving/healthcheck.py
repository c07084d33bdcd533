"""Ask the server of this machine whether it lives: ``python -m serving.healthcheck``.

For the health checks of containers, which have no curl. Address, port and TLS are those of the
server's own settings, wherever these were made: a check of a fixed address would call a server ill
that was given another one. Never asks for a model.
"""

from __future__ import annotations

import http.client
import os
import ssl
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from registry.errors import InvalidInput
from serving.settings import CONFIG_NAME, Settings, load_settings

PATH: Final = "/v2/health/live"
_TIMEOUT_S: Final = 3.0
# Where a server that listens on all addresses is asked.
_LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing listens here


def main() -> int:
    """Return 0 if the server of these settings answers, else 1, with the reason on stderr."""
    try:
        settings = _settings(os.environ)
        status = _status(settings)
    except (InvalidInput, OSError, http.client.HTTPException) as error:
        return _failed(str(error) or type(error).__name__)
    return 0 if status == 200 else _failed(f"{PATH}: status {status}")


def _settings(environ: Mapping[str, str]) -> Settings:
    named = environ.get("RAMRACK_CONFIG")
    here = Path(CONFIG_NAME)
    config = Path(named) if named else here if here.is_file() else None
    return load_settings(config, environ, {})


def _status(settings: Settings) -> int:
    host = _LOOPBACK.get(settings.host, settings.host)
    connection: http.client.HTTPConnection
    if settings.tls_cert:
        context = ssl.create_default_context()
        # It is this machine's own server; its certificate has the name that others call it by.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            host, settings.port, timeout=_TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection(host, settings.port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", PATH)
        return connection.getresponse().status
    finally:
        connection.close()


def _failed(reason: str) -> int:
    print(f"ramrack: not healthy: {reason}", file=sys.stderr)  # noqa: T201 - for a person
    return 1


if __name__ == "__main__":
    sys.exit(main())
