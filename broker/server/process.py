"""A process that runs one broker: signals, the end of the start, and the exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.config.exit_codes import exit_code
from ottla.broker.observability.log_stream import LogStream, reopen_without_waiting
from ottla.broker.runtime.event_loop import new_event_loop
from ottla.broker.runtime.garbage import ShortFullRuns
from ottla.broker.runtime.memory_limit import resident_bytes
from ottla.broker.runtime.signals import STOP_SIGNALS, stop_signals
from ottla.broker.runtime.tasks import abandoned_threads

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.observability.logs import LineFormatter
    from ottla.broker.security.sasl.scram_admin import NewUser
    from ottla.broker.server.broker_server import BrokerServer

logger = logging.getLogger("ottla.broker")

# How long a worker thread that computes keeps the interpreter when the loop wants it back. By
# default it is 5 ms, and the loop would wait so long after every system call it makes.
_SWITCH_SECONDS = 0.0005

# Errors of a start that are the business of the person who started it: a sentence, no traceback.
_EXPECTED = (
    "ConfigError",
    "StartError",
    "ListenError",
    "DirectoryInUse",
    "InconsistentMetadata",
    "InconsistentClusterId",
    "MigratedToKraft",
    "BrokerIdTaken",
    "AdvertisedAddressTaken",
    "StoreError",
    "MalformedZnode",
    "LogDirectoryOffline",
    "CorruptFile",
)

# Work that the start postponed runs after this time, when the first clients have their responses.
_CALM_SECONDS = 2.0

SUPERVISOR = "its supervisor"
"""The reason of a stop that the supervisor of a worker requests."""
_CLEAN_REASONS = (*(number.name for number in STOP_SIGNALS), SUPERVISOR)


def is_expected(error: Exception) -> bool:
    """Whether an error of a start is a sentence for the person who started it."""
    return any(cls.__name__ in _EXPECTED for cls in type(error).__mro__)


def allow_many_files() -> None:
    """Segments and connections take descriptors: as many as the system lets us have."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard if hard != resource.RLIM_INFINITY else 1 << 20
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (ValueError, OSError) as error:
        logger.warning(
            "cannot raise the limit of open files above %d: %s; raise it with ulimit -n, or with "
            "LimitNOFILE= of the systemd unit",
            soft,
            error,
        )


def dump_stacks_on_quit() -> None:
    """Write the stacks of all threads to standard error on SIGQUIT, as a JVM does, and go on.

    In the signal handler, so that it shows a loop that hangs, too; it does not wait for a reader.
    Processes that are forked later do the same.
    """
    import faulthandler

    try:
        opened = reopen_without_waiting(sys.stderr.fileno())
    except (OSError, ValueError):  # there is no standard error
        return
    faulthandler.register(signal.SIGQUIT, sys.stderr if opened is None else opened)


def run_process(main: Coroutine[Any, Any, int]) -> int:
    """Runs `main` on a new event loop; returns its exit code. Ends the process itself if threads
    of the broker hang."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    LogStream.start_draining()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(main)
        # The interpreter gives them their default again when it ends: one more signal would end the
        # process with another exit code than that of a clean stop.
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    abandoned = abandoned_threads()
    if abandoned:
        # The data is closed. The interpreter would wait for these threads as long as they hang.
        logger.warning("ending although %d threads still wait: %s", len(abandoned), abandoned[0])
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


class BrokerProcess:
    """One broker on the loop of this process, until a signal or `stop`."""

    def __init__(
        self, config: BrokerConfig, lines: LineFormatter, new_users: Sequence[NewUser] = ()
    ) -> None:
        from ottla.broker.server.broker_server import (
            BrokerServer,  # not for --help, nor for a setting that is wrong
        )

        self.server = BrokerServer(
            config, lambda: self.stop("the failure of all log directories"), new_users=new_users
        )
        self._lines = lines
        self._stopping = asyncio.Event()
        self._reasons: list[str] = []
        self._task: asyncio.Task[Any] | None = None

    def stop(self, reason: str) -> None:
        """Ends `run`, also during the start. The exit code is 0 if it is for a signal or the
        supervisor."""
        self._reasons.append(reason)
        self._stopping.set()
        if len(self._reasons) == 1 and self._task is not None:
            self.server.cancel_start(self._task)

    async def run(
        self, on_ready: Callable[[BrokerServer], None], on_failure: Callable[[Exception, int], None]
    ) -> int:
        """Runs the broker; returns the exit code. `on_ready` is called when clients are served,
        `on_failure` if the start fails, with the exit code."""
        loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        for number in stop_signals():
            loop.add_signal_handler(number, self.stop, number.name)
        server = self.server
        try:
            await server.start()
        except asyncio.CancelledError:
            reason = self._reasons[0]
            logger.info("stopped because of %s, before the start was complete", reason)
            return 0
        except Exception as error:
            if not is_expected(error):
                logger.exception("the broker cannot start")
            code = exit_code(error)
            on_failure(error, code)
            return code
        collections = ShortFullRuns(
            loop, resident_bytes, lambda: server.parts.memory_watch.available
        )
        collections.start()
        on_ready(server)
        loading = threading.Thread(target=self._lines.prepare, name="log-lines", daemon=True)
        loop.call_later(_CALM_SECONDS, loading.start)
        await self._stopping.wait()
        reason = self._reasons[0]
        logger.info("stopping because of %s", reason)
        collections.stop()
        await server.stop()
        if reason not in _CLEAN_REASONS:
            logger.error("stopped because of %s", reason)
            return 1
        logger.info("stopped cleanly; the next start has nothing to recover")
        return 0
