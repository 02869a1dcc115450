"""The names for completion by the shell: topics, groups and broker ids of the cluster.

The cluster is the one of `--bootstrap` on the line, or of the environment. One that does not
respond within two seconds completes nothing, and no error disturbs the line that is typed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from ottla.cli.session import Session

_SECONDS = 2.0
# More names than that are of no use at a prompt; the shell would ask before it shows them.
_MAX_NAMES = 1000


def complete_topics(ctx: Any, incomplete: str) -> list[str]:
    """Names of topics."""
    return _names(ctx, incomplete, _topics)


def complete_groups(ctx: Any, incomplete: str) -> list[str]:
    """Names of consumer groups and share groups."""
    return _names(ctx, incomplete, _groups)


def complete_brokers(ctx: Any, incomplete: str) -> list[str]:
    """Ids of the live brokers."""
    return _names(ctx, incomplete, lambda session: map(str, session.broker_ids()))


def complete_resources(ctx: Any, incomplete: str) -> list[str]:
    """Names of the kind of resource that `ottla configs` has as its first argument."""
    kind = str(ctx.params.get("kind") or "").removesuffix("s")
    named = {"topic": complete_topics, "broker": complete_brokers, "logger": complete_brokers}
    complete = named.get(kind, complete_groups if kind == "group" else None)
    return complete(ctx, incomplete) if complete else []


def complete_kinds(incomplete: str) -> list[str]:
    """Kinds of resources with settings."""
    kinds = ("topic", "broker", "cluster", "logger", "group", "metrics")
    return [kind for kind in kinds if kind.startswith(incomplete)]


def _names(ctx: Any, incomplete: str, read: Callable[[Session], Iterable[str]]) -> list[str]:
    given = ctx.params
    try:
        session = Session(
            given.get("bootstrap") or os.environ.get("OTTLA_BOOTSTRAP") or None,
            given.get("command_config") or os.environ.get("OTTLA_COMMAND_CONFIG", ""),
            _SECONDS,
            json=False,
            notes=False,
        )
        try:
            found = sorted(name for name in read(session) if name.startswith(incomplete))
        finally:
            session.close()
    except Exception:  # of any kind: a message would be written into the line that is typed
        return []
    return found[:_MAX_NAMES]


def _topics(session: Session) -> list[str]:
    return [row.name or "" for row in session.client.metadata(None).topics]


def _groups(session: Session) -> list[str]:
    from ottla.protocol.client.operations import Node
    from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse

    return [
        row.group_id
        for broker_id in session.broker_ids()
        for row in session.call(ListGroupsResponse, ListGroupsRequest(), Node(broker_id)).groups
    ]
