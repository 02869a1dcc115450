"""The signals that stop a process of Ottla cleanly."""

from __future__ import annotations

import signal

# With SIGHUP a terminal is closed.
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those to handle: not SIGHUP where nohup has it ignored."""
    if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
        return STOP_SIGNALS[:-1]
    return STOP_SIGNALS
