"""System calls that a process gives up for good: no other process, no socket, no signal to others.

A filter of the kernel (seccomp) in its own small language: it loads a word of what is called, and
jumps by comparing it. Standard library only, as ``models.confinement``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# linux/seccomp.h, linux/bpf_common.h
_SECCOMP_SET_MODE_FILTER: Final = 1
# A filter otherwise turns on protections against speculation that make all code slower, and run
# times are measured in this process.
_SPEC_ALLOW: Final = 4
_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_LOAD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_IF_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_IF_ANY_BIT: Final = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K
# struct seccomp_data, of which the lower half of the first argument; both machines keep it first.
_NUMBER_AT, _MACHINE_AT, _ARGUMENT_AT = 0, 4, 16
_CLONE_THREAD: Final = 0x00010000
# Calls of another table of numbers, for programs with short pointers.
_X32_BIT: Final = 0x40000000

# The same on every machine.
_NEVER: Final = {
    "pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "pidfd_getfd": 438,
}  # fmt: skip
_CLONE3: Final = 435


@dataclass(frozen=True, slots=True)
class _Machine:
    """Numbers of system calls. ``only_self``: those whose first argument must be this process."""

    audit: int
    seccomp: int
    clone: int
    prlimit: int
    never: Mapping[str, int]
    only_self: Mapping[str, int]


_MACHINES: Final[Mapping[str, _Machine]] = {
    "x86_64": _Machine(
        0xC000003E, 317, 56, 302,
        {"socket": 41, "fork": 57, "vfork": 58, "execve": 59, "ptrace": 101,
         "rt_sigqueueinfo": 129, "tkill": 200, "rt_tgsigqueueinfo": 297, "perf_event_open": 298,
         "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "execveat": 322},
        {"kill": 62, "tgkill": 234},
    ),
    "aarch64": _Machine(
        0xC00000B7, 277, 220, 261,
        {"ptrace": 117, "tkill": 130, "rt_sigqueueinfo": 138, "socket": 198, "execve": 221,
         "rt_tgsigqueueinfo": 240, "perf_event_open": 241, "process_vm_readv": 270,
         "process_vm_writev": 271, "bpf": 280, "execveat": 281},
        {"kill": 129, "tgkill": 131},
    ),
}  # fmt: skip


def stay_alone() -> bool:
    """Let this process and its threads reach no other process: what would is a PermissionError.

    No program and no process is started, no socket made, nobody signalled, traced or limited.
    Threads are started as before. Return whether the kernel can do this; it wants
    ``confinement.gain_nothing`` first. For a process of one thread.
    """
    machine = _MACHINES.get(platform.machine())
    if machine is None:
        return False
    program = _program(machine, os.getpid())
    code = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: how many instructions there are, and where.
    head = struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    call = ctypes.CDLL(None, use_errno=True).syscall
    return bool(call(machine.seccomp, _SECCOMP_SET_MODE_FILTER, _SPEC_ALLOW, head) == 0)


def _program(machine: _Machine, pid: int) -> bytes:
    """Return the filter: blocks of which each decides on one call, and the rest is allowed."""
    refuse, allow = _return(_ERRNO | errno.EPERM), _return(_ALLOW)
    number = _step(_LOAD, 0, 0, _NUMBER_AT)
    blocks = [
        _step(_LOAD, 0, 0, _MACHINE_AT) + _step(_IF_EQUAL, 1, 0, machine.audit) + refuse,
        number + _step(_IF_ANY_BIT, 0, 1, _X32_BIT) + refuse,
        # The C library takes the older call instead, whose flags can be looked at.
        _step(_IF_EQUAL, 0, 1, _CLONE3) + _return(_ERRNO | errno.ENOSYS),
        _step(_IF_EQUAL, 0, 4, machine.clone) + _argument()
        + _step(_IF_ANY_BIT, 1, 0, _CLONE_THREAD) + refuse + allow,
        _step(_IF_EQUAL, 0, 5, machine.prlimit) + _argument()
        + _step(_IF_EQUAL, 2, 0, 0) + _step(_IF_EQUAL, 1, 0, pid) + refuse + allow,
    ]  # fmt: skip
    blocks += [
        _step(_IF_EQUAL, 0, 4, call) + _argument() + _step(_IF_EQUAL, 1, 0, pid) + refuse + allow
        for call in machine.only_self.values()
    ]
    blocks += [
        _step(_IF_EQUAL, 0, 1, call) + refuse
        for call in (*_NEVER.values(), *machine.never.values())
    ]
    return b"".join([*blocks, allow])


def _argument() -> bytes:
    return _step(_LOAD, 0, 0, _ARGUMENT_AT)


def _return(value: int) -> bytes:
    return _step(_RETURN, 0, 0, value)


def _step(code: int, if_true: int, if_false: int, value: int) -> bytes:
    """Return one instruction; a jump passes over so many."""
    return struct.pack("HBBI", code, if_true, if_false, value)
