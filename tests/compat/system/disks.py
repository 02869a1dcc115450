"""The disks of the brokers: ext4 on a loop device, so that a power failure can be played.

A power failure is the ioctl with which the kernel's own file system tests play it: ext4 stops at
once and neither data nor journal is written any more. After the next mount there is what was
synced, and of the rest what the kernel happened to have written. A disk can also go back to an
earlier state, as one does that confirms a sync and keeps the data in a cache without power: then
synced data is lost, too.

Where there are no loop devices (or no root), a disk is a tmpfs, which can only be filled.
"""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

from tests.compat.system.hosts import run
from tests.doubles.eventually import eventually

# For everything that one run writes, several times over; only what is written takes memory.
DISK_MIB = 2_048
# FS_IOC_SHUTDOWN of linux/fs.h, and its flag NOLOGFLUSH: the journal is not written either.
_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, 2
# The last descriptors of a process that was killed are closed a moment after it.
_UNMOUNT_S = 30.0


class Disk:
    """The file system at `place`; `image` is its file below a tmpfs."""

    def __init__(self, place: Path, image: Path) -> None:
        self.place = place
        self._image, self._kept = image, image.with_suffix(".kept")
        place.mkdir(parents=True)
        self.loses_power = True
        with image.open("wb") as file:
            file.truncate(DISK_MIB << 20)
        try:
            run("mkfs.ext4", "-q", "-m", "0", str(image))
            self._mount()
        except (AssertionError, FileNotFoundError):
            self.loses_power = False
            run("mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "none", str(place))

    def lose_power(self) -> None:
        """What was not synced is gone. No process may have files open."""
        self._shut_down()
        self._mount()

    def keep_state(self) -> None:
        """Keeps the present state for `lose_syncs`; writers wait for a moment."""
        self._require()
        run("fsfreeze", "--freeze", str(self.place))
        try:
            run("cp", "--sparse=always", str(self._image), str(self._kept))
        finally:
            run("fsfreeze", "--unfreeze", str(self.place))

    def lose_syncs(self) -> None:
        """Goes back to the kept state. No process may have files open."""
        self._shut_down()
        self._kept.rename(self._image)
        self._mount()

    def sync(self) -> None:
        """Writes everything, as `sync -f` does."""
        run("sync", "-f", str(self.place))

    def _mount(self) -> None:
        run("mount", "-o", "loop,discard", str(self._image), str(self.place))

    def _shut_down(self) -> None:
        self._require()
        descriptor = os.open(self.place, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(descriptor)
        eventually(self._unmount, f"{self.place} is in use", seconds=_UNMOUNT_S)

    def _unmount(self) -> bool:
        try:
            run("umount", str(self.place))
        except AssertionError:
            return False
        return True

    def _require(self) -> None:
        assert self.loses_power, "power failures need root, mkfs.ext4 and loop devices"
