"""`ottla` in a process in which the operating system fails calls on some files from a moment on.

A filter of the kernel (seccomp) returns the error, so that a library which makes its own calls, as
SQLite does, is tested as it is. `FailingCalls` is the test's side; this module is what the process
runs instead of `ottla.cli.main`. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys
import time
from pathlib import Path
from types import FrameType
from typing import NamedTuple

SECONDS = 60.0
# By machine: the calls that write, those that flush, and seccomp itself.
_CALLS = {
    "x86_64": {"write": (1, 18, 20, 296), "sync": (74, 75), "seccomp": (317,)},
    "aarch64": {"write": (64, 66, 68, 70), "sync": (82, 83), "seccomp": (277,)},
}
_OPTION = "--failing="
_NO_NEW_PRIVILEGES, _SET_MODE_FILTER, _ALL_THREADS = 38, 1, 1
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
# Offsets in the kernel's description of a call: its number, the lower half of its first argument.
_NUMBER, _FIRST_ARGUMENT = 0, 16


class FailingCalls(NamedTuple):
    """Calls of a kind (`write` or `sync`) on files whose names end with `suffix` fail."""

    kind: str
    error: int
    suffix: str

    def command(self, *arguments: str) -> list[str]:
        """Of a process of `ottla` that is well until `begin`."""
        option = f"{_OPTION}{self.kind},{self.error},{self.suffix}"
        return [sys.executable, "-m", __spec__.name, option, *arguments]

    @staticmethod
    def begin(pid: int) -> None:
        """The calls of the process fail from the return on."""
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + SECONDS
        while "Seccomp:\t2" not in Path(f"/proc/{pid}/status").read_text():
            assert time.monotonic() < deadline, "the process has no filter"
            time.sleep(0.005)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def _instruction(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _fail_calls(numbers: tuple[int, ...], descriptors: list[int], error: int) -> None:
    """All threads of this process get the error for these calls on these files."""
    tests: list[bytes] = []
    for number in numbers:
        tests.append(_instruction(_LOAD, _NUMBER))
        tests.append(_instruction(_JUMP_IF_EQUAL, number, 0, 1 + 2 * len(descriptors)))
        tests.append(_instruction(_LOAD, _FIRST_ARGUMENT))
        for descriptor in descriptors:
            tests.append(_instruction(_JUMP_IF_EQUAL, descriptor, 0, 1))
            tests.append(_instruction(_RETURN, _FAIL | error))
    program = b"".join((*tests, _instruction(_RETURN, _ALLOW)))
    buffer = ctypes.create_string_buffer(program)
    filtered = _Filter(len(program) // 8, ctypes.addressof(buffer))
    library = ctypes.CDLL(None, use_errno=True)
    (seccomp,) = _CALLS[platform.machine()]["seccomp"]
    if library.prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) or library.syscall(
        seccomp, _SET_MODE_FILTER, _ALL_THREADS, ctypes.byref(filtered)
    ):
        raise OSError(ctypes.get_errno(), "the kernel takes no filter")


def _open_files(suffix: str) -> list[int]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # that of the directory itself
            continue
        if target.endswith(suffix):
            found.append(int(name))
    return found


def main() -> int:
    """Runs `ottla` with the arguments after the option."""
    kind, error, suffix = sys.argv[1].removeprefix(_OPTION).split(",")
    numbers = _CALLS[platform.machine()][kind]

    def begin(number: int, frame: FrameType | None) -> None:
        descriptors = _open_files(suffix)
        assert descriptors, f"no open file ends with {suffix}"
        _fail_calls(numbers, descriptors, int(error))

    assert int(error) in errno.errorcode
    signal.signal(signal.SIGUSR1, begin)
    from ottla.cli import main as ottla

    del sys.argv[1]
    ottla.main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
