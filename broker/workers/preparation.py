"""The checks and preparations before a supervisor forks: nothing here starts a thread or a loop."""

from __future__ import annotations

import errno
import importlib
import logging
import os
import shutil
import socket
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.workers import (
    MAX_WORKERS,
    WORKERS_DIRECTORY,
    WorkerPlace,
    bootstrap_ports,
    machine_name,
    worker_count,
    worker_settings,
)
from ottla.broker.net.listener import reserve
from ottla.broker.runtime.usable_cores import allowed_cores, usable_cores
from ottla.broker.server.start_checks import check_ports, check_rights
from ottla.broker.server.znode_store import embedded_path
from ottla.storage.directories.log_directories import DirectoryLock
from ottla.storage.errors import DirectoryInUse
from ottla.storage.files.fs import RealFileSystem

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

logger = logging.getLogger("ottla.workers")

# The path of a Unix socket has 108 bytes on Linux and 104 on macOS; ours end in `/control`.
_MAX_DIRECTORY_BYTES = 90
_RUN_DIRECTORY = "run"


class Prepared(NamedTuple):
    """`configs` of the workers by number; `held` keep the bootstrap ports while no worker serves
    them; `tree_file` is None with ZooKeeper."""

    configs: list[BrokerConfig]
    place: WorkerPlace
    held: list[socket.socket]
    tree_file: str | None

    def clean_up(self) -> None:
        """Removes what only a running supervisor needs."""
        for each in self.held:
            each.close()
        shutil.rmtree(self.place.directory, ignore_errors=True)


def prepare(config: BrokerConfig) -> Prepared:
    """Raises ConfigError, ListenError, DirectoryInUse and others, with a sentence."""
    count = worker_count(config)
    cores = usable_cores()
    if count > cores:
        logger.warning(
            "ottla.workers is %d, and this process may use %d core(s): workers that share a core "
            "are no faster than one",
            count,
            cores,
        )
    drafts = _configs(config, count, WorkerPlace(0, count, "", "", {}, None))
    for draft in drafts:
        check_rights(draft.log_directories())
    for draft in drafts:
        _check_locks(draft)
    for draft in drafts:
        check_ports(draft)
    _make_directories(config)
    tree_file = embedded_path(config.log_directories()) if config.embedded else None
    held, ports = _hold_bootstrap_ports(config)
    place = WorkerPlace(0, count, machine_name(), _run_directory(config), ports, None)
    return Prepared(_configs(config, count, place), place, held, tree_file)


def _configs(config: BrokerConfig, count: int, place: WorkerPlace) -> list[BrokerConfig]:
    assert count <= MAX_WORKERS
    cores = allowed_cores() if config.ottla_workers_pin else []
    found = []
    for number in range(count):
        core = cores[number % len(cores)] if cores else None
        try:
            found.append(
                config.for_worker(
                    worker_settings(config, number), place._replace(number=number, core=core)
                )
            )
        except ConfigError as error:
            raise type(error)(f"worker {number}: {error}") from None
    return found


def _check_locks(config: BrokerConfig) -> None:
    assert config.worker is not None
    for path in config.log_directories():
        if not os.path.isdir(path):
            continue
        try:
            DirectoryLock(path).release()
        except DirectoryInUse as error:
            raise DirectoryInUse(
                f"worker {config.worker.number} cannot have its directory: {error}. If it is a "
                "worker of an earlier supervisor, it is still stopping: wait until its process has "
                "ended (`fuser` on that file names it)"
            ) from None
        except OSError:
            continue  # the worker reports it as a broken directory


def _make_directories(config: BrokerConfig) -> None:
    """With the modes of log directories, independent of the umask of the process."""
    fs = RealFileSystem()
    for path in map(os.path.abspath, config.log_directories()):
        with suppress(OSError):  # its worker reports a broken directory
            fs.make_directory(path)
            fs.make_directory(os.path.join(path, WORKERS_DIRECTORY))


def _hold_bootstrap_ports(config: BrokerConfig) -> tuple[list[socket.socket], dict[str, int]]:
    """The workers share these ports; another program, or another supervisor, must not."""
    endpoints = {each.listener_name: each for each in config.listener_endpoints()}
    held: list[socket.socket] = []
    ports: dict[str, int] = {}
    try:
        for name, port in bootstrap_ports(config).items():
            what = f"{name} (ottla.workers.bootstrap.ports)"
            held.append(reserve(what, endpoints[name].host, port))
            ports[name] = held[-1].getsockname()[1]
    except BaseException:
        for each in held:
            each.close()
        raise
    return held, ports


def _run_directory(config: BrokerConfig) -> str:
    """A directory for sockets that only this user can enter."""
    first = os.path.abspath(config.log_directories()[0])
    path = os.path.join(first, WORKERS_DIRECTORY, _RUN_DIRECTORY)
    if len(os.fsencode(path)) <= _MAX_DIRECTORY_BYTES:
        with suppress(OSError):
            # Sockets that a killed supervisor left are replaced by those of this one.
            RealFileSystem().make_directory(path)
            os.chmod(path, 0o700)
            if _takes_sockets(path):
                return path
    return tempfile.mkdtemp(prefix="ottla-")


def _takes_sockets(path: str) -> bool:
    """Some network file systems have none. What is bound here is replaced by the real socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.bind(os.path.join(path, "control"))
        except OSError as error:
            return error.errno == errno.EADDRINUSE  # that of a supervisor that was killed
    return True


# Used by workers, but not imported by the modules that the supervisor needs.
_PRELOADED = (
    "kazoo.client",
    "kazoo.handlers.threading",
    "ottla.broker.server.broker_server",
    "ottla.broker.server.handlers",
    "ottla.controller.tree.zookeeper_store",
    "prometheus_client",
)


def preload() -> None:
    """Imports what the workers need, so that their processes share it."""
    for name in _PRELOADED:
        importlib.import_module(name)
    with suppress(ImportError):  # as `new_event_loop`
        importlib.import_module("uvloop")
