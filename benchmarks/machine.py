"""One line that states on what machine a figure was taken; a figure without it means nothing."""

import os
import platform
import signal
import sys
from pathlib import Path

from benchmarks import interpreter


def describe(python: Path = Path(sys.executable)) -> str:
    """Of the machine and of the broker's interpreter."""
    model = "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    load = os.getloadavg()[0]
    return (
        f"{model}, {os.cpu_count()} cores, {platform.system()} {platform.release()}, "
        f"{interpreter.describe(python)}, load before the run {load:.1f}"
    )


def end_on_sigterm() -> None:
    """Leave by SystemExit on SIGTERM, as by Ctrl-C: brokers are stopped and folders removed."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def client_seconds() -> float:
    """Processor time of this process and of the processes that it has started and waited for."""
    times = os.times()
    return times.user + times.system + children_seconds()


def children_seconds() -> float:
    """Processor time of the processes that this one has started and waited for."""
    times = os.times()
    return times.children_user + times.children_system
