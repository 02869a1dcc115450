"""Workers: several brokers of one configuration on one machine, and the settings of each.

A worker is a broker with a broker id, ports and log directories of its own. Worker 0 has those of
the settings, so the data of a single broker continues in it. The settings of the others are
derived here: `broker.id` + n, the ports + n, and `ottla-workers/n` in each log directory, unless
they are listed. The supervisor that starts them is `ottla.broker.workers`.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import Endpoint, check_ports_differ
from ottla.broker.runtime.usable_cores import usable_cores
from ottla.storage.files.layout import parse_partition_directory

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig

AUTO = "auto"
NONE = "none"
MAX_WORKERS = 64
"""Each has a fork, a directory and ports; machines with more cores run several supervisors."""

MAX_PORT = 65_535
# The bootstrap port of a listener is so far above its own: the ports between are those of workers.
BOOTSTRAP_PORT_ABOVE = 100

#: In a log directory: the log directories of workers 1, 2, ... It is no name of a partition.
WORKERS_DIRECTORY = "ottla-workers"
# In an entry of `ottla.workers.log.dirs`: the number of the worker.
PLACEHOLDER = "{worker}"

# One machine has no second one to keep a replica, so internal topics have one replica.
_ONE_REPLICA = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.replication.factor",
    "share.coordinator.state.topic.min.isr",
)


class WorkerPlace(NamedTuple):
    """What a worker knows of its machine, which has `workers` of them. `directory` has the sockets
    of the supervisor; `bootstrap` are the shared ports by listener; `core` is the one that it is
    pinned to, if any."""

    number: int
    workers: int
    machine: str
    directory: str
    bootstrap: Mapping[str, int]
    core: int | None

    @property
    def control_socket(self) -> str:
        """The socket on which the supervisor accepts the connections of workers."""
        return f"{self.directory}/control"

    @property
    def tree_socket(self) -> str:
        """The socket of the znode tree that the supervisor serves without ZooKeeper."""
        return f"{self.directory}/tree"

    def http_socket(self, number: int) -> str:
        """The socket on which a worker serves metrics and console to the supervisor."""
        return f"{self.directory}/http-{number}"


def worker_count(config: BrokerConfig) -> int:
    """The number of workers that the settings request. Raises ConfigError."""
    text = config.ottla_workers.strip().lower()
    if text == AUTO:
        return min(usable_cores(), MAX_WORKERS)
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= MAX_WORKERS):
        raise ConfigError(
            f"ottla.workers: {config.ottla_workers!r} is not a number from 1 to {MAX_WORKERS}, "
            "nor auto."
        )
    return int(text)


def machine_name() -> str:
    """The name by which the workers of a machine belong together."""
    return socket.gethostname()


def check_workers(config: BrokerConfig) -> None:
    """Raise ConfigError for settings of workers that cannot be used."""
    count = worker_count(config)
    if count == 1 or config.worker is not None:
        return
    shared = bootstrap_ports(config)
    _check_ports(
        {
            **{number: worker_endpoints(config, number) for number in range(count)},
            None: [
                each._replace(port=shared[each.listener_name])
                for each in config.listener_endpoints()
                if each.listener_name in shared
            ],
        }
    )
    _check_advertised(config, count)
    _check_directories(config, count)
    ids = [_broker_id(config, number) for number in range(count)]
    if config.broker_id >= 0 and len(set(ids)) < len(ids):
        raise ConfigError("ottla.workers.broker.ids: each worker needs a broker id of its own.")


def _check_ports(endpoints: Mapping[int | None, list[Endpoint]]) -> None:
    """Ports are those of one worker, or of the bootstrap listeners (None). Two listeners of one
    share a port only where a broker could: with addresses of both families."""
    taken: dict[int, tuple[int | None, str]] = {}
    for number, own in endpoints.items():
        for each in own:
            name = f"listener {each.listener_name}"
            whose = (
                f"the bootstrap port of {name}" if number is None else f"{name} of worker {number}"
            )
            if each.port > MAX_PORT:
                raise ConfigError(
                    f"ottla.workers: port {each.port} for {whose} is above {MAX_PORT}; list ports "
                    "in ottla.workers.ports, or set ottla.workers.bootstrap.ports."
                )
            owner, other = taken.setdefault(each.port, (number, whose))
            if each.port and owner != number:
                raise ConfigError(
                    f"ottla.workers: {other} and {whose} would have the same port {each.port}; "
                    "list the ports in ottla.workers.ports (NAME:port,... for several listeners), "
                    "or set ottla.workers.bootstrap.ports."
                )
        check_ports_differ(
            "ottla.workers.bootstrap.ports" if number is None else "ottla.workers.ports", own
        )


def _check_advertised(config: BrokerConfig, count: int) -> None:
    """Two workers with one address would lead clients to the wrong broker. Two listeners of a
    worker may show the same one, as those of any broker behind a proxy."""
    found: dict[tuple[str, int], tuple[int, str]] = {}
    for number in range(count):
        for each in _advertised(config, number) if number else config.advertised_endpoints():
            whose = f"listener {each.listener_name} of worker {number}"
            owner, other = found.setdefault((each.host, each.port), (number, whose))
            if each.port and owner != number:
                raise ConfigError(
                    f"advertised.listeners: {other} and {whose} would both advertise "
                    f"{each.host}:{each.port}; map the listeners to ports that are further apart."
                )


def _check_directories(config: BrokerConfig, count: int) -> None:
    """Two workers with one directory would both open its partitions."""
    found: dict[str, int] = {}
    for number in range(count):
        for path in worker_directories(config, number):
            real = os.path.realpath(path)
            if real in found:
                raise ConfigError(
                    f"ottla.workers.log.dirs: workers {found[real]} and {number} would have the "
                    f"same directory {path}."
                )
            found[real] = number
    for path, number in found.items():
        for other, its in found.items():
            if path.startswith(f"{other}/") and not path.startswith(f"{other}/{WORKERS_DIRECTORY}"):
                raise ConfigError(
                    f"ottla.workers.log.dirs: {path} of worker {number} is inside the log "
                    f"directory {other} of worker {its}; name directories beside it."
                )


def worker_settings(config: BrokerConfig, number: int) -> dict[str, str]:
    """The settings of a worker that differ from the given ones, by name."""
    settings: dict[str, str] = {}
    if not config.broker_rack:
        settings["broker.rack"] = machine_name()
    if config.embedded:
        settings.update((name, "1") for name in _ONE_REPLICA if name not in config.given)
    if number == 0:
        return settings
    endpoints = worker_endpoints(config, number)
    settings["listeners"] = ",".join(map(str, endpoints))
    if config.advertised_listeners is not None:
        settings["advertised.listeners"] = ",".join(map(str, _advertised(config, number)))
    settings["log.dirs"] = ",".join(worker_directories(config, number))
    if config.broker_id >= 0:
        settings["broker.id"] = settings["node.id"] = str(_broker_id(config, number))
    return settings


def worker_endpoints(config: BrokerConfig, number: int) -> list[Endpoint]:
    """The listeners of a worker. Raises ConfigError if a list of ports is too short."""
    endpoints = config.listener_endpoints()
    if number == 0:
        return endpoints
    listed = _listed_ports(config, "ottla.workers.ports", config.ottla_workers_ports)
    found = []
    for endpoint in endpoints:
        ports = listed.get(endpoint.listener_name)
        if ports is None:
            port = endpoint.port + number if endpoint.port else 0
        elif number <= len(ports):
            port = ports[number - 1]
        else:
            raise ConfigError(
                f"ottla.workers.ports: listener {endpoint.listener_name} has {len(ports)} ports "
                f"for workers 1 and higher, and worker {number} has none."
            )
        found.append(endpoint._replace(port=port))
    return found


def kept_ports(config: BrokerConfig, ports: Mapping[str, int]) -> dict[str, str]:
    """The setting of a worker that had these ports before, where any free port will do: another one
    would be another broker for the cluster, as long as the last session lives."""
    endpoints = config.listener_endpoints()
    if not ports or all(each.port for each in endpoints):
        return {}
    kept = [each._replace(port=ports.get(each.listener_name, each.port)) for each in endpoints]
    return {"listeners": ",".join(map(str, kept))}


def _advertised(config: BrokerConfig, number: int) -> list[Endpoint]:
    """A port that is mapped to another one outside is mapped in the same order for each worker.
    Listeners that show one address show one of each worker."""
    own = {each.listener_name: each.port for each in config.listener_endpoints()}
    bound = {each.listener_name: each.port for each in worker_endpoints(config, number)}
    endpoints = config.advertised_endpoints()
    same = {
        (each.host, each.port): bound[each.listener_name]
        for each in endpoints
        if each.port == own.get(each.listener_name)
    }
    found = []
    for each in endpoints:
        port = same.get((each.host, each.port), each.port + number if each.port else 0)
        if port > MAX_PORT:
            raise ConfigError(
                f"advertised.listeners: port {port} of worker {number} is above {MAX_PORT}."
            )
        found.append(each._replace(port=port))
    return found


def bootstrap_ports(config: BrokerConfig) -> dict[str, int]:
    """The shared port of each listener that has one; 0 where any free port will do."""
    endpoints = config.listener_endpoints()
    text = [each.lower() for each in config.ottla_workers_bootstrap_ports]
    if text == [NONE]:
        return {}
    if text in ([], [AUTO]):
        return {
            each.listener_name: each.port + BOOTSTRAP_PORT_ABOVE if each.port else 0
            for each in endpoints
        }
    name = "ottla.workers.bootstrap.ports"
    listed = _listed_ports(config, name, config.ottla_workers_bootstrap_ports)
    for listener, ports in listed.items():
        if len(ports) > 1:
            raise ConfigError(f"{name}: listener {listener} has {len(ports)} ports; one is shared.")
    return {listener: ports[0] for listener, ports in listed.items()}


def _listed_ports(config: BrokerConfig, setting: str, items: Iterable[str]) -> dict[str, list[int]]:
    """`port,port` for the only listener, or `NAME:port,...`. Raises ConfigError."""
    names = [each.listener_name for each in config.listener_endpoints()]
    found: dict[str, list[int]] = {}
    for item in items:
        name, colon, port = item.rpartition(":")
        name = name.strip().upper() if colon else names[0]
        if not colon and len(names) > 1:
            raise ConfigError(
                f"{setting}: write NAME:port, since there are the listeners {', '.join(names)}."
            )
        if name not in names:
            raise ConfigError(f"{setting}: {name} is none of the listeners ({', '.join(names)}).")
        if not (port.isascii() and port.isdigit() and int(port) <= MAX_PORT):
            raise ConfigError(f"{setting}: {item!r} has no port from 0 to {MAX_PORT}.")
        found.setdefault(name, []).append(int(port))
    return found


def worker_directories(config: BrokerConfig, number: int) -> list[str]:
    """The log directories of a worker. Raises ConfigError."""
    if number == 0:
        return config.log_directories()
    patterns = [each for each in config.ottla_workers_log_dirs if each]
    if not patterns:
        return [
            os.path.join(path, WORKERS_DIRECTORY, str(number)) for path in config.log_directories()
        ]
    for pattern in patterns:
        if PLACEHOLDER not in pattern:
            raise ConfigError(
                f"ottla.workers.log.dirs: {pattern} needs {PLACEHOLDER} for the number of the "
                f"worker, such as /var/lib/ottla-{PLACEHOLDER}."
            )
    return [pattern.replace(PLACEHOLDER, str(number)) for pattern in patterns]


def _broker_id(config: BrokerConfig, number: int) -> int:
    listed = config.ottla_workers_broker_ids
    if number == 0 or config.broker_id < 0:
        return config.broker_id
    if not listed:
        return config.broker_id + number
    if number > len(listed):
        raise ConfigError(
            f"ottla.workers.broker.ids: {len(listed)} ids for workers 1 and higher, and worker "
            f"{number} has none."
        )
    text = listed[number - 1]
    if not (text.isascii() and text.isdigit()):
        raise ConfigError(f"ottla.workers.broker.ids: {text!r} is not a broker id.")
    return int(text)


class WorkersLeft(ConfigError):
    """There are fewer workers than before, and those that would not start have partitions."""


def check_no_worker_is_left(config: BrokerConfig) -> None:
    """Raise WorkersLeft if a worker that would not be started any more has partitions: they would
    be offline until it is back."""
    count = worker_count(config)
    left: dict[int, list[str]] = {}
    for number, path in _known_directories(config):
        if number >= count:
            left.setdefault(number, []).extend(_partitions(path))
    with_partitions = {number: names for number, names in sorted(left.items()) if names}
    if with_partitions:
        named = "; ".join(
            f"worker {number} has {len(names)} partition(s), such as {names[0]}"
            for number, names in with_partitions.items()
        )
        most = max(with_partitions) + 1
        raise WorkersLeft(
            f"ottla.workers is {count}, and {named}: these partitions would be offline. Start "
            f"with --workers {most}, run `ottla workers spread --workers {count}`, stop, and "
            f"start with --workers {count} then."
        )


def _known_directories(config: BrokerConfig) -> Iterator[tuple[int, str]]:
    """The existing log directories of workers, also of workers above the present number."""
    patterns = [each for each in config.ottla_workers_log_dirs if PLACEHOLDER in each] or [
        os.path.join(path, WORKERS_DIRECTORY, PLACEHOLDER) for path in config.log_directories()
    ]
    for pattern in patterns:
        before, _, after = pattern.partition(PLACEHOLDER)
        parent, prefix = os.path.split(before)
        suffix, _, below = after.partition("/")
        try:
            names = os.listdir(parent or ".")
        except OSError:
            continue
        for name in names:
            number = name[len(prefix) : len(name) - len(suffix)]
            if name == f"{prefix}{number}{suffix}" and number.isascii() and number.isdigit():
                yield int(number), os.path.join(parent, name, below)


def _partitions(path: str) -> list[str]:
    try:
        names = os.listdir(path)
    except OSError:
        return []
    found = []
    for name in sorted(names):
        parsed = parse_partition_directory(name)
        if parsed is not None and not parsed[2] and os.path.isdir(os.path.join(path, name)):
            found.append(name)
    return found
