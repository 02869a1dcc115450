"""A broker whose disk fails on command, through the file-system seam of storage.

The broker process is started with a directory of faults. A file in it is a fault, as long as it is
there: the test creates and removes it. `DiskFaults` is the test's side, `FaultyBrokerProcess` the
process, and this module is what the process runs instead of `ottla.broker`.
"""

from __future__ import annotations

import errno
import os
import sys
import time
from pathlib import Path

from ottla.storage.files.fs import Buffer, RealFileSystem
from tests.doubles.broker_process import BrokerProcess

FULL, BROKEN, SLOW, NO_DESCRIPTORS = "full", "broken", "slow", "no-descriptors"
FAULTS = (FULL, BROKEN, SLOW, NO_DESCRIPTORS)

_SYNC_SECONDS = 0.3
_OPTION = "--faults="


class FaultyFileSystem(RealFileSystem):
    """The operating system, with the faults of a directory."""

    def __init__(self, faults: str) -> None:
        self._faults = faults

    def _has(self, fault: str) -> bool:
        return os.path.exists(f"{self._faults}/{fault}")

    def _fail(self, *faults: str) -> None:
        for fault in faults:
            if self._has(fault):
                code = {FULL: errno.ENOSPC, BROKEN: errno.EIO, NO_DESCRIPTORS: errno.EMFILE}[fault]
                raise OSError(code, os.strerror(code))

    def open(self, path: str, flags: int) -> int:  # type: ignore[override] # a staticmethod there
        self._fail(NO_DESCRIPTORS)
        if flags & os.O_CREAT and not os.path.exists(path):
            self._fail(FULL, BROKEN)
        return os.open(path, flags)

    def pwrite(self, descriptor: int, buffer: Buffer, position: int) -> int:  # type: ignore[override]
        self._fail(BROKEN)
        if self._has(FULL) and position + len(buffer) > os.fstat(descriptor).st_size:
            self._fail(FULL)
        return os.pwrite(descriptor, buffer, position)

    def sync(self, descriptor: int) -> None:  # type: ignore[override]
        self._fail(BROKEN)
        if self._has(SLOW):
            time.sleep(_SYNC_SECONDS)
        os.fdatasync(descriptor)

    def free_bytes(self, path: str) -> int:
        return 0 if self._has(FULL) else super().free_bytes(path)


class DiskFaults:
    """The faults of one broker."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory

    def begin(self, fault: str) -> None:
        assert fault in FAULTS
        (self.directory / fault).touch()

    def end(self) -> list[str]:
        """Ends all; returns those that there were."""
        found = [fault for fault in FAULTS if (self.directory / fault).exists()]
        for fault in found:
            (self.directory / fault).unlink()
        return found


class FaultyBrokerProcess(BrokerProcess):
    """A broker process with `faults`."""

    module = "tests.doubles.faulty_disk"

    def __init__(self, directory: Path, settings: dict[str, str]) -> None:
        super().__init__(directory, settings)
        self.faults = DiskFaults(directory / "faults")

    def _arguments(self) -> list[str]:
        return [f"{_OPTION}{self.faults.directory}", *super()._arguments()]


def main() -> int:
    from ottla.broker.__main__ import main as start
    from ottla.storage.directories import log_manager

    option, *arguments = sys.argv[1:]
    faults = option.removeprefix(_OPTION)
    log_manager.RealFileSystem = lambda: FaultyFileSystem(faults)  # type: ignore[misc, assignment]
    return start(arguments)


if __name__ == "__main__":
    sys.exit(main())
