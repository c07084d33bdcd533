"""The unit files of a systemd service: what a server may do, and nothing more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVICE: Final = "ramrack.service"
ADDRESS: Final = "127.0.0.1:8080"
ADMIN_ADDRESS: Final = "127.0.0.1:8081"
_SOCKETS: Final = {"data": "ramrack-data.socket", "admin": "ramrack-admin.socket"}


@dataclass(frozen=True, slots=True)
class Service:
    """What differs from machine to machine. ``program``: the whole path of ``ramrack``."""

    program: str = "/opt/ramrack/bin/ramrack"
    address: str = ADDRESS
    admin_address: str = ADMIN_ADDRESS


def units(service: Service) -> dict[str, str]:
    """Return the text of each unit by its file name."""
    return {
        SERVICE: _SERVICE.replace("@PROGRAM@", service.program),
        _SOCKETS["data"]: _socket("data", "predictions", service.address),
        _SOCKETS["admin"]: _socket("admin", "admin plane", service.admin_address),
    }


def _socket(name: str, what: str, address: str) -> str:
    return f"""\
# Written by ramrack install-service. Held by systemd: a restart of the service refuses nobody.
[Unit]
Description=Ramrack, {what}

[Socket]
ListenStream={address}
FileDescriptorName={name}
Service={SERVICE}
Backlog=4096
NoDelay=yes

[Install]
WantedBy=sockets.target
"""


_SERVICE: Final = """\
# Written by ramrack install-service. Change it with: systemctl edit ramrack
[Unit]
Description=Ramrack model server
After=network.target
Requires=ramrack-data.socket ramrack-admin.socket
After=ramrack-data.socket ramrack-admin.socket

[Service]
Type=notify
NotifyAccess=main
Sockets=ramrack-data.socket ramrack-admin.socket
ExecStart=@PROGRAM@ serve
# systemctl reload replaces the workers one by one; no request is lost.
ExecReload=/bin/kill -HUP $MAINPID
Environment=RAMRACK_STORE=%S/ramrack
# RAMRACK_ADMIN_TOKEN and any other setting: NAME=value lines, readable for root alone.
EnvironmentFile=-/etc/ramrack/ramrack.env

Restart=on-failure
RestartSec=2
TimeoutStartSec=120
# The server's event loop says every ten seconds that it is alive.
WatchdogSec=30
# SIGTERM goes to the server, which lets its workers answer what was accepted: stop_timeout_s (30)
# and a little more. What is left after TimeoutStopSec is killed.
KillMode=mixed
TimeoutStopSec=45
# The kernel kills a worker first; the server starts another.
OOMPolicy=continue

# Weights are locked in RAM as far as this allows.
LimitMEMLOCK=infinity
LimitNOFILE=65536
# To share the machine, set these with systemctl edit; memory_budget follows MemoryMax by itself.
#MemoryHigh=28G
#MemoryMax=30G
#CPUAffinity=0-7
#NUMAPolicy=bind
#NUMAMask=0

DynamicUser=yes
StateDirectory=ramrack
StateDirectoryMode=0700
WorkingDirectory=%S/ramrack
UMask=0077

NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
PrivateUsers=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""
