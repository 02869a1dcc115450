"""The banner of a broker that serves clients: its listeners, their reach, and its directories."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.broker.cluster.identity import machine_name, reach
from ottla.broker.config.broker_config import KAFKA_LISTENERS
from ottla.broker.observability.logs import TEXT
from ottla.broker.observability.monitoring import http_address
from ottla.broker.runtime.tasks import spawn

if TYPE_CHECKING:
    from ottla.broker.config.broker_config import BrokerConfig, Endpoint

logger = logging.getLogger("ottla.broker")

# A name server that does not respond does not keep a task for ever.
_RESOLVE_SECONDS = 30.0


def announce(
    config: BrokerConfig,
    broker_id: int,
    cluster_id: str,
    ports: dict[str, int],
    http_port: int = 0,
    not_ready: str | None = None,
) -> None:
    """The banner on standard output; with JSON logs as one event. Then advertised
    names are resolved.

    `ports` has what was bound, by listener; `http_port` is that of metrics and console, 0 without;
    `not_ready` is the reason of /readyz for clients not to come, None without one.
    """
    title = f"Ottla broker {broker_id} of cluster {cluster_id} {_readiness(not_ready)}"
    lines = listener_lines(config, ports)
    if http_port:
        lines.append(http_line(config, http_port))
    tree = config.zookeeper_connect or "in the data directory (this broker is alone)"
    _write(config, title, lines, tree)
    names = {each.host: each for each in config.advertised_endpoints() if _is_name(each.host)}
    if names:
        spawn(_check_names(names), name="advertised-names")
    if any(not each.host for each in config.advertised_endpoints()) and not config.embedded:
        spawn(_check_machine_name(), name="machine-name")


def announce_workers(
    config: BrokerConfig,
    workers: Sequence[Mapping[str, Any]],
    bootstrap: Mapping[str, int],
    http_port: int,
) -> None:
    """The banner of a machine with workers. `workers` have broker id, cluster id, the lines of
    their listeners and why they are not ready, if so; `bootstrap` are the ports that all of them
    serve."""
    reasons = [
        f"worker {number}: {worker['not_ready']}"
        for number, worker in enumerate(workers)
        if worker["not_ready"]
    ]
    readiness = _readiness("; ".join(reasons), f" on {len(workers)} workers")
    title = f"Ottla cluster {workers[0]['cluster_id']} {readiness}"
    lines = []
    for endpoint in config.listener_endpoints():
        if endpoint.listener_name in bootstrap:
            shared = endpoint._replace(port=bootstrap[endpoint.listener_name])
            lines.append(f"{shared}  for bootstrap.servers: any worker responds")
    if http_port:
        lines.append(http_line(config, http_port))
    for number, worker in enumerate(workers):
        who = f"worker {number}, broker {worker['broker_id']}"
        lines += [f"{who}:  {line}" for line in worker["listeners"]]
    tree = config.zookeeper_connect or "in the data directory, served by this process"
    _write(config, title, lines, tree)


def _readiness(not_ready: str | None, where: str = "") -> str:
    return f"is not ready{where}: {not_ready}" if not_ready else f"is ready{where}"


def _write(config: BrokerConfig, title: str, lines: list[str], tree: str) -> None:
    directories = ", ".join(os.path.abspath(path) for path in config.log_directories())
    if config.ottla_log_format == TEXT:
        lines += [f"data in {directories}", f"znode tree {tree}"]
        try:
            print("\n  ".join([f"{title}.", *lines]), flush=True)
        except OSError as error:
            # Nobody reads it. What is left in the buffer would fail once more at the exit.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for the life of the process
            logger.info("%s. Standard output cannot be written: %s", title, error.strerror)
    else:
        logger.info("%s: %s; data in %s; znode tree %s", title, "; ".join(lines), directories, tree)


def listener_lines(config: BrokerConfig, ports: dict[str, int]) -> list[str]:
    """A line for each listener: where it is bound, who reaches it, where clients are sent."""
    advertised = {each.listener_name: each for each in config.advertised_endpoints()}
    lines = []
    for endpoint in config.listener_endpoints():
        bound = endpoint._replace(port=ports[endpoint.listener_name])
        advertised_at = advertised.get(endpoint.listener_name)
        line = f"{bound}  reachable {reach(bound)}"
        if "listeners" not in config.given and config.embedded:
            line += f"; for other machines set listeners={KAFKA_LISTENERS}"
        if (
            advertised_at is not None
            and advertised_at.host
            and (advertised_at.host, advertised_at.port) != endpoint[2:]
        ):
            line += f"; clients are sent to {advertised_at.host}:{advertised_at.port or bound.port}"
        lines.append(line)
    return lines


def http_line(config: BrokerConfig, port: int) -> str:
    """Where a browser or a probe finds the HTTP port; without the console's token."""
    host = (http_address(config) or "").rpartition(":")[0]
    if host.strip("[]") in ("", "0.0.0.0", "::"):
        # The console serves requests by this name; other machines put their own in its place.
        host = "localhost"
    address = f"http://{host}:{port}"
    if config.ottla_console_enable:
        token = " (with ottla.console.token)" if config.ottla_console_token else ""
        return f"console {address}/console{token}, metrics {address}/metrics"
    return f"metrics {address}/metrics"


def _is_name(host: str) -> bool:
    """A name to resolve, not an address."""
    return bool(host) and ":" not in host and not host.replace(".", "").isdigit()


async def _check_machine_name() -> None:
    """Warn of a registered name of this machine that leads other machines to themselves."""
    loop = asyncio.get_running_loop()
    name = machine_name()
    try:
        async with asyncio.timeout(_RESOLVE_SECONDS):
            found = await loop.getaddrinfo(name, None)
    except (OSError, UnicodeError):
        problem = "is not known on this machine"
    else:
        if not all(str(each[4][0]).startswith(("127.", "::1")) for each in found):
            return
        problem = "is a loopback address on this machine"
    logger.warning(
        "advertised.listeners is not set, so this broker is registered as %s, the name of this "
        "machine. That name %s: clients and brokers on other machines may not reach it. Set "
        "advertised.listeners to a name or address that they know",
        name,
        problem,
    )


async def _check_names(names: dict[str, Endpoint]) -> None:
    """Warn of the most frequent mistake: clients cannot resolve an advertised name."""
    loop = asyncio.get_running_loop()
    for host, endpoint in names.items():
        try:
            async with asyncio.timeout(_RESOLVE_SECONDS):
                await loop.getaddrinfo(host, None)
        except (OSError, UnicodeError):
            logger.warning(
                "advertised.listeners sends clients to %s, a name that is not known on this "
                "machine. Clients that do not know it either connect once and then get nowhere: "
                "advertise a name or address that they know (`ottla doctor` tries it from where "
                "it runs)",
                endpoint,
            )
