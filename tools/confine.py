"""Takes from a process what computing a norm does not need, for good.

For code that somebody else wrote and that is run only to see what it computes. Everywhere: a limit
on memory, processor time and processes, and files of length zero. On Linux (x86-64 and arm64, where
the kernel filters system calls) nothing is left but to compute and to read files: no process is
started, none but the process itself is signaled, no file is opened for writing, made, changed or
removed, and nothing goes to a network, a terminal or a device. See ``seccomp(2)``; the numbers of
the calls are those of the kernel's ``unistd.h``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import signal
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# name: number on x86-64, on arm64; None where the kernel has no such call. All others fail.
_ALLOWED: dict[str, tuple[int | None, int | None]] = {
    # memory and threads
    "brk": (12, 214), "futex": (202, 98), "get_mempolicy": (239, 236),
    "get_robust_list": (274, 100), "getcpu": (309, 168), "gettid": (186, 178),
    "madvise": (28, 233), "membarrier": (324, 283), "mmap": (9, 222), "mprotect": (10, 226),
    "mremap": (25, 216), "munmap": (11, 215), "rseq": (334, 293), "sched_getaffinity": (204, 123),
    "sched_yield": (24, 124), "set_robust_list": (273, 99), "set_tid_address": (218, 96),
    # reading files, and the pipes that are open already
    "access": (21, None), "close": (3, 57), "dup": (32, 23), "faccessat": (269, 48),
    "faccessat2": (439, 439), "fstat": (5, 80), "fstatfs": (138, 44), "getcwd": (79, 17),
    "getdents": (78, None), "getdents64": (217, 61), "lseek": (8, 62), "lstat": (6, None),
    "newfstatat": (262, 79), "poll": (7, None), "ppoll": (271, 73), "pread64": (17, 67),
    "pselect6": (270, 72), "read": (0, 63), "readlink": (89, None), "readlinkat": (267, 78),
    "readv": (19, 65), "select": (23, None), "stat": (4, None), "statfs": (137, 43),
    "statx": (332, 291), "write": (1, 64), "writev": (20, 66),
    # the process itself, time and the machine
    "arch_prctl": (158, None), "clock_getres": (229, 114), "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115), "exit": (60, 93), "exit_group": (231, 94),
    "getegid": (108, 177), "geteuid": (107, 175), "getgid": (104, 176), "getpid": (39, 172),
    "getppid": (110, 173), "getrandom": (318, 278), "getrlimit": (97, 163),
    "getrusage": (98, 165), "gettimeofday": (96, 169), "getuid": (102, 174),
    "nanosleep": (35, 101), "restart_syscall": (219, 128), "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135), "rt_sigreturn": (15, 139), "sigaltstack": (131, 132),
    "sysinfo": (99, 179), "time": (201, None), "times": (100, 153), "uname": (63, 160),
}  # fmt: skip
# Allowed with some arguments only.
_CLONE, _CLONE3, _FCNTL, _IOCTL, _OPEN, _OPENAT, _OPENAT2, _PRLIMIT = (
    (56, 220), (435, 435), (72, 25), (16, 29), (2, None), (257, 56), (437, 437), (302, 261),
)  # fmt: skip
_SIGNALS = ((62, 129), (200, 130), (234, 131))  # kill, tkill, tgkill
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}

_CLONE_THREAD = 0x10000
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_F_GETFL, _F_DUPFD_CLOEXEC = 3, 1030

# The filter's language (linux/bpf_common.h) and its answers (linux/seccomp.h).
_LOAD, _EQUAL, _ANY_BIT, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16

_PR_SET_PDEATHSIG, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 22, 38
_SECCOMP_MODE_FILTER = 2


def confine(memory: int, cpu_s: float) -> None:
    """Limit this process to computing and reading.

    memory: bytes that it may take beyond what it has. cpu_s: seconds of processor time.
    """
    seconds = int(cpu_s) + 2
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    statm = Path("/proc/self/statm")
    if statm.exists():
        most = int(statm.read_text().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    if not (sys.platform == "linux" and _filter_calls()):
        # No thread can be started then either.
        resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))


def end_with_parent() -> None:
    """Let the kernel end this process when the one that forked it ends (on Linux)."""
    if sys.platform == "linux":
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _filter_calls() -> bool:
    """Leave only the calls above; False where the kernel or the machine has no such filter."""
    machine = _MACHINES.get(platform.machine())
    if machine is None or struct.calcsize("P") != 8 or sys.byteorder != "little":
        return False
    program = b"".join(_program(*machine, os.getpid()))
    buffer = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("HP", len(program) // 8, ctypes.addressof(buffer))
    # Without privileges a filter is accepted only from a process that can gain none.
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    holder = ctypes.create_string_buffer(header, len(header))
    return _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(holder))


def _prctl(option: int, *arguments: int) -> bool:
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return bool(ctypes.CDLL(None).prctl(ctypes.c_int(option), *padded) == 0)


def _program(architecture: int, column: int, pid: int) -> Iterator[bytes]:
    """The filter: one 8-byte instruction after the other, for calls numbered as in ``column``."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("HBBI", code, yes, no, value)

    def answer(value: int) -> bytes:
        return step(_RETURN, value)

    def argument(position: int, high: bool = False) -> bytes:
        return step(_LOAD, _ARGUMENTS + 8 * position + 4 * high)

    def rule(numbers: tuple[int | None, int | None], *body: bytes) -> Iterator[bytes]:
        if (number := numbers[column]) is not None:
            yield step(_EQUAL, number, 0, len(body))
            yield from body

    denied, allowed = answer(_ERRNO | errno.EPERM), answer(_ALLOW)
    no_such_call = answer(_ERRNO | errno.ENOSYS)
    yield step(_LOAD, _ARCHITECTURE)
    yield step(_EQUAL, architecture, 1, 0)
    yield answer(_KILL)
    yield step(_LOAD, _NUMBER)
    for numbers in _ALLOWED.values():
        yield from rule(numbers, allowed)
    thread = step(_ANY_BIT, _CLONE_THREAD, 0, 1)
    yield from rule(_CLONE, argument(0), thread, allowed, denied)
    # The C library asks the older call when there is none of these, whose arguments a filter
    # cannot see.
    yield from rule(_CLONE3, no_such_call)
    yield from rule(_OPENAT2, no_such_call)
    reading = step(_ANY_BIT, _WRITING, 1, 0)
    yield from rule(_OPEN, argument(1), reading, allowed, denied)
    yield from rule(_OPENAT, argument(2), reading, allowed, denied)
    for numbers in _SIGNALS:
        yield from rule(numbers, argument(0), step(_EQUAL, pid, 0, 1), allowed, denied)
    # Others would have a pipe send signals; these only look or duplicate.
    harmless = step(_AT_LEAST, _F_GETFL + 1, 1, 0)
    duplicate = step(_EQUAL, _F_DUPFD_CLOEXEC, 0, 1)
    yield from rule(_FCNTL, argument(1), harmless, allowed, duplicate, allowed, denied)
    # As of a file that is no terminal, which is what Python asks whenever it opens one.
    yield from rule(_IOCTL, answer(_ERRNO | errno.ENOTTY))
    only_look = step(_EQUAL, 0, 0, 3), argument(2, high=True), step(_EQUAL, 0, 0, 1)
    yield from rule(_PRLIMIT, argument(2), *only_look, allowed, denied)
    yield denied
