"""ZooKeeper's four-letter words: a monitoring client sends one instead of a first packet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.controller.zookeeper_server.server import ZooKeeperServer

VERSION = "3.9.0-ottla"
"""Monitoring tools read the version up to the hyphen, and choose what they ask for by it."""


def ruok(server: ZooKeeperServer) -> str:
    return "imok"


def srvr(server: ZooKeeperServer) -> str:
    return (
        f"Zookeeper version: {VERSION}, one development server, not highly available\n"
        "Latency min/avg/max: 0/0.0/0\n"
        f"Received: {server.received}\nSent: {server.sent}\n"
        f"Connections: {len(server.connections)}\nOutstanding: 0\n"
        f"Zxid: 0x{server.tree.zxid:x}\nMode: standalone\n"
        f"Node count: {len(server.tree.nodes)}\n"
    )


def stat(server: ZooKeeperServer) -> str:
    head, _, tail = srvr(server).partition("\n")
    clients = "".join(
        f" /{each.peer}[1](queued=0,recved={each.requests},sent={each.requests})\n"
        for each in server.connections
    )
    return f"{head}\nClients:\n{clients}\n{tail}"


def cons(server: ZooKeeperServer) -> str:
    lines: list[str] = []
    for connection in server.connections:
        session = connection.session
        about = (
            ""
            if session is None
            else (f",sid=0x{session.session_id:x},to={session.stored.timeout_ms}")
        )
        lines.append(f" /{connection.peer}[1](queued=0,recved={connection.requests}{about})\n")
    return "".join(lines) + "\n"


def dump(server: ZooKeeperServer) -> str:
    lines = [f"Sessions with Ephemerals ({sum(map(bool, server.tree.sessions.values()))}):\n"]
    for session_id, paths in server.tree.sessions.items():
        if paths:
            lines.append(f"0x{session_id:x}:\n" + "".join(f"\t{path}\n" for path in sorted(paths)))
    return "".join(lines)


def mntr(server: ZooKeeperServer) -> str:
    tree = server.tree
    values = {
        "version": VERSION,
        "server_state": "standalone",
        "packets_received": server.received,
        "packets_sent": server.sent,
        "num_alive_connections": len(server.connections),
        "outstanding_requests": 0,
        "znode_count": len(tree.nodes),
        "watch_count": server.watches.count(),
        "ephemerals_count": sum(map(len, tree.sessions.values())),
        "approximate_data_size": sum(
            len(path) + len(node.data) for path, node in tree.nodes.items()
        ),
        "global_sessions": len(tree.sessions),
    }
    return "".join(f"zk_{name}\t{value}\n" for name, value in values.items())


def conf(server: ZooKeeperServer) -> str:
    return (
        f"clientPort={server.port}\ndataDir={server.path or ''}\n"
        f"tickTime={server.tick_time_ms}\nmaxClientCnxns={server.max_connections}\n"
        f"minSessionTimeout={server.sessions.min_timeout_ms}\n"
        f"maxSessionTimeout={server.sessions.max_timeout_ms}\nserverId=0\n"
    )


def envi(server: ZooKeeperServer) -> str:
    return f"Environment:\nzookeeper.version={VERSION}\n"


def wchs(server: ZooKeeperServer) -> str:
    paths = server.watches.paths()
    clients = {watcher for watchers in paths.values() for watcher in watchers}
    return (
        f"{len(clients)} connections watching {len(paths)} paths\n"
        f"Total watches:{server.watches.count()}\n"
    )


def wchp(server: ZooKeeperServer) -> str:
    return "".join(
        f"{path}\n" + "".join(f"\t0x{watcher.session_id:x}\n" for watcher in watchers)
        for path, watchers in server.watches.paths().items()
    )


def isro(server: ZooKeeperServer) -> str:
    return "rw"


WORDS: dict[bytes, Callable[[ZooKeeperServer], str]] = {
    word.__name__.encode(): word
    for word in (ruok, srvr, stat, cons, dump, mntr, conf, envi, wchs, wchp, isro)
}
