"""`ottla migrate`: checks whether an Ottla broker can join a cluster of Apache Kafka brokers.

The checks send requests to the brokers and change nothing. A problem prevents an Ottla broker from
joining, a note is information; the output ends with the settings to start it with.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from typing import Annotated, NamedTuple

import typer

from ottla.cli.app import family
from ottla.cli.leaving import find_obstacles
from ottla.cli.leaving_checks import NOTE, OK, PROBLEM, Finding
from ottla.cli.output import Failure, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected, explain
from ottla.protocol.client.operations import Controller, Node
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.registry import API, ApiKey

app = family("Check whether an Ottla broker can join a Kafka cluster.")

KAFKA_4 = "kafka-4"

_TOPIC, _BROKER = 2, 4
_FROM_FILE = 4
_DESCRIBE_QUORUM = 55  # only brokers without ZooKeeper have it
_ZOOKEEPER_SECONDS = 5.0
_TOPICS_AT_ONCE = 500
_TOPICS_SHOWN = 20

# The requests between brokers.
_BETWEEN_BROKERS = (
    ApiKey.FETCH,
    ApiKey.LEADER_AND_ISR,
    ApiKey.STOP_REPLICA,
    ApiKey.UPDATE_METADATA,
    ApiKey.CONTROLLED_SHUTDOWN,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.ALTER_PARTITION,
)

# Settings of Java plugins, which an Ottla broker does not load.
_PLUGINS = {
    "alter.config.policy.class.name": "changes of settings need it in Python (ottla.policies)",
    "client.quota.callback.class": "quotas need it in Python (ottla.quotas)",
    "create.topic.policy.class.name": "new topics need it in Python (ottla.policies)",
    "principal.builder.class": "clients would have other principals",
    "ssl.engine.factory.class": "it would not configure TLS",
}

_HOST = re.compile(r"://(\[[^\]]*\]|[^:,]*):")

# Each broker has its own.
_OWN = frozenset(
    ("advertised.listeners", "broker.id", "broker.rack", "listeners", "log.dir", "log.dirs")
    + ("kafka.metrics.reporters", "metadata.log.dir", "metric.reporters", "node.id")
)

# These refer to the names in `listeners`, so they are only right together with them.
_OF_LISTENERS = (
    "inter.broker.listener.name",
    "listener.security.protocol.map",
    "security.inter.broker.protocol",
)

_MODES = (
    "remote.log.metadata.manager.class.name",
    "remote.log.storage.manager.class.name",
    "remote.log.storage.system.enable",
    "zookeeper.metadata.migration.enable",
)
_TIERED = "remote.log.storage.system.enable"
_DEFAULT_METADATA_MANAGER = (
    "org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager"
)


class BrokerFacts(NamedTuple):
    """The versions and settings of one broker."""

    broker_id: int
    versions: Mapping[int, tuple[int, int]]
    settings: Mapping[str, str | None]
    given: Mapping[str, str]  # those of its file, without secrets
    hidden: frozenset[str] = frozenset()  # also of its file; brokers do not return these values


@app.command()
@connected
def migrate(
    session: Session,
    to: Annotated[
        str | None,
        typer.Option("--to", metavar="kafka-4", help="Check the migration to Kafka 4 instead."),
    ] = None,
) -> None:
    """Check whether an Ottla broker can join this cluster. Exit code 1 if it cannot.

    With --to kafka-4, list the obstacles to the migration of this cluster to Kafka 4.

    \b
    Examples:
      ottla migrate -b kafka-1:9092
      ottla migrate -b kafka-1:9092 --json
      ottla migrate -b ottla-1:9092 --to kafka-4
    """
    if to not in (None, KAFKA_4):
        raise usage(f"--to {to}: the only migration that is checked is the one to {KAFKA_4}.")
    metadata = session.client.metadata()
    brokers = [_facts(session, row.node_id) for row in metadata.brokers]
    if to is not None:
        _leave(session, metadata, brokers)
        return
    findings = [*check_brokers(brokers), *check_topics(metadata)]
    findings += _check_tiered(session, [topic.name or "" for topic in metadata.topics])
    findings += _check_moves(session)
    findings += check_hidden(brokers)
    zookeeper = _common(brokers, "zookeeper.connect")
    if zookeeper:
        findings.append(check_zookeeper(zookeeper))
    settings, to_copy = new_settings(brokers), sorted(hidden_settings(brokers))
    if session.json:
        print_json(
            {
                "ok": all(each.result != PROBLEM for each in findings),
                "checks": [each.as_row() for each in findings],
                "settings": settings,
                "settings_to_copy": to_copy,
            }
        )
    else:
        print_rows((each.as_row() for each in findings), ["result", "what", "finding"])
        say("\n# server.properties of a new Ottla broker; other settings have Kafka's defaults")
        say("\n".join(property_line(name, value) for name, value in settings.items()))
        for name in to_copy:
            say(f"# {name}=   copy it from a broker's file: brokers do not return its value")
    bad = sum(each.result == PROBLEM for each in findings)
    if bad:
        raise Failure(f"{bad} of {len(findings)} checks found a problem.")


def _leave(session: Session, metadata: MetadataResponse, brokers: list[BrokerFacts]) -> None:
    found = find_obstacles(
        session,
        metadata,
        {broker.broker_id: broker.settings for broker in brokers},
        {broker.broker_id: broker.given for broker in brokers},
    )
    bad = sum(each.result == PROBLEM for each in found)
    if session.json:
        print_json({"ok": not bad, "checks": [each.as_row() for each in found]})
    else:
        print_rows((each.as_row() for each in found), ["result", "what", "finding"])
    if bad:
        raise Failure(f"{bad} of {len(found)} checks found a problem.")


def _facts(session: Session, broker_id: int) -> BrokerFacts:
    (result,) = _describe(session, [(_BROKER, str(broker_id))], None, Node(broker_id))
    return BrokerFacts(
        broker_id,
        session.client.api_versions(broker_id),
        {row.name: row.value for row in result.configs},
        {
            row.name: row.value
            for row in result.configs
            if row.config_source == _FROM_FILE and row.value is not None
        },
        frozenset(
            row.name
            for row in result.configs
            if row.config_source == _FROM_FILE and row.value is None
        ),
    )


def _describe(
    session: Session,
    resources: Iterable[tuple[int, str]],
    keys: list[str] | None,
    route: Node | None = None,
) -> list[DescribeConfigsResult]:
    resources_with_keys = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
        for kind, name in resources
    ]
    response = session.call(
        DescribeConfigsResponse, DescribeConfigsRequest(resources_with_keys), route
    )
    for result in response.results:
        check(result.error_code, result.resource_name, result.error_message)
    return response.results


def check_brokers(brokers: list[BrokerFacts]) -> list[Finding]:
    """The kind of cluster, its versions, its settings."""
    found: list[Finding] = []
    for broker in brokers:
        what = f"broker {broker.broker_id}"
        if _DESCRIBE_QUORUM in broker.versions or ApiKey.LEADER_AND_ISR not in broker.versions:
            found.append(
                Finding(
                    PROBLEM,
                    what,
                    "runs without ZooKeeper (KRaft). An Ottla broker cannot join; copy the topics "
                    "with MirrorMaker",
                )
            )
            continue
        found.append(_check_versions(broker, what))
        found += _check_settings(broker, what)
    protocols = {broker.settings.get("inter.broker.protocol.version") for broker in brokers}
    if len(protocols) > 1:
        shown = ", ".join(sorted(map(str, protocols)))
        text = f"inter.broker.protocol.version differs ({shown}): finish that upgrade first"
        found.append(Finding(PROBLEM, "cluster", text))
    return found


def _check_versions(broker: BrokerFacts, what: str) -> Finding:
    for key in _BETWEEN_BROKERS:
        low, high = broker.versions.get(key, (0, -1))
        own = API[key]
        if high < 0:
            return Finding(PROBLEM, what, f"{own.name}: it does not have this request")
        if high < own.min_version or low > own.max_version:
            text = (
                f"{own.name}: it has versions {low} to {high}, Ottla has {own.min_version} to "
                f"{own.max_version}"
            )
            return Finding(PROBLEM, what, text)
    version = broker.settings.get("inter.broker.protocol.version")
    return Finding(OK, what, f"is on ZooKeeper and speaks inter-broker protocol {version}")


def _check_settings(broker: BrokerFacts, what: str) -> list[Finding]:
    from ottla.broker.config.broker_config import BrokerConfig, ConfigError  # not for --help

    found: list[Finding] = []
    for name, consequence in _PLUGINS.items():
        if name in broker.given:
            text = f"{name}={broker.given[name]} is a Java class: {consequence}"
            found.append(Finding(PROBLEM, what, text))
    if broker.settings.get("zookeeper.metadata.migration.enable") == "true":
        text = "migrates to KRaft (zookeeper.metadata.migration.enable)"
        found.append(Finding(PROBLEM, what, text))
    if broker.settings.get(_TIERED) == "true":
        found.append(check_tiered(broker, what))
    # Listeners and keys can differ between brokers; what was found above has its own words.
    left_out = {*_OWN, *_PLUGINS, *_MODES, *_OF_LISTENERS}
    shared = {
        name: value
        for name, value in broker.given.items()
        if name not in left_out and not name.startswith(("ssl.", "sasl.", "listener.name."))
    }
    try:
        BrokerConfig(shared)
    except ConfigError as error:
        found.append(Finding(PROBLEM, what, f"has a setting that Ottla rejects: {error}"))
    return found


def check_tiered(broker: BrokerFacts, what: str) -> Finding:
    """Tiered storage is carried over if the segments are in the layout of Aiven's plugin."""
    from ottla.broker.config.broker_config import ConfigError  # not for --help
    from ottla.broker.config.rules import check_remote_log_classes
    from ottla.storage.remote.store_settings import (
        RemoteStorageSettingsError,
        parse_store_settings,
    )

    settings = broker.settings
    manager = settings.get("remote.log.storage.manager.class.name") or None
    metadata = settings.get("remote.log.metadata.manager.class.name") or _DEFAULT_METADATA_MANAGER
    prefix = settings.get("remote.log.storage.manager.impl.prefix") or "rsm.config."
    store = {
        name.removeprefix(prefix): value
        for name, value in broker.given.items()
        if name.startswith(prefix)
    }
    # Brokers do not return the values of a plugin's settings; those are checked at the start.
    hidden = any(name.startswith(prefix) for name in broker.hidden)
    try:
        check_remote_log_classes(manager, metadata)
        if store and not hidden:
            parse_store_settings(store)
    except (ConfigError, RemoteStorageSettingsError) as error:
        return Finding(PROBLEM, what, f"has tiered storage that Ottla cannot read: {error}")
    text = (
        "has tiered storage of Aiven's plugin, which Ottla continues with: the segments in the "
        f"store, __remote_log_metadata, and the settings remote.log.*, {prefix}* and "
        "remote.storage.enable of topics. Encrypted segments cannot be read"
    )
    if hidden or not store:
        text += f". Brokers do not return {prefix}*: copy these settings from its file"
    return Finding(NOTE, what, text)


def check_topics(metadata: MetadataResponse) -> list[Finding]:
    """Offline and under-replicated partitions are to be repaired first."""
    partitions = [row for topic in metadata.topics for row in topic.partitions]
    offline = sum(row.leader_id < 0 for row in partitions)
    behind = sum(len(row.isr_nodes) < len(row.replica_nodes) for row in partitions)
    found: list[Finding] = []
    if offline:
        found.append(Finding(PROBLEM, "topics", f"{offline} partition(s) have no leader"))
    if behind:
        text = f"{behind} partition(s) miss in-sync replicas: wait, or repair them first"
        found.append(Finding(PROBLEM, "topics", text))
    if not found:
        text = f"all {len(partitions)} partitions of {len(metadata.topics)} topics are in sync"
        found.append(Finding(OK, "topics", text))
    return found


def _check_tiered(session: Session, names: list[str]) -> list[Finding]:
    tiered: list[str] = []
    for start in range(0, len(names), _TOPICS_AT_ONCE):
        some = [(_TOPIC, name) for name in names[start : start + _TOPICS_AT_ONCE]]
        for result in _describe(session, some, ["remote.storage.enable"]):
            if any(row.value == "true" for row in result.configs):
                tiered.append(result.resource_name)
    if not tiered:
        return []
    shown = ", ".join(tiered[:_TOPICS_SHOWN])
    more = f" and {len(tiered) - _TOPICS_SHOWN} more" if len(tiered) > _TOPICS_SHOWN else ""
    return [Finding(NOTE, "topics", f"tiered storage is on for {shown}{more}")]


def _check_moves(session: Session) -> list[Finding]:
    response = session.call(
        ListPartitionReassignmentsResponse, ListPartitionReassignmentsRequest(), Controller()
    )
    if response.error_code:
        why = explain(response.error_code, response.error_message)
        return [
            Finding(NOTE, "topics", f"it is not known whether a reassignment is going on: {why}")
        ]
    if not response.topics:
        return []
    return [Finding(NOTE, "topics", "a reassignment is in progress; wait until it is complete")]


def hidden_settings(brokers: list[BrokerFacts]) -> set[str]:
    """Settings of the brokers' files whose values they do not return: passwords, and settings that
    Kafka's own table does not have, such as super.users."""
    return set().union(*(broker.hidden for broker in brokers)) - _OWN


def check_hidden(brokers: list[BrokerFacts]) -> list[Finding]:
    """Without super.users, for example, a new broker would reject the controller's requests."""
    return [
        Finding(
            NOTE, name, "is set, and brokers do not return its value: copy it from a broker's file"
        )
        for name in sorted(hidden_settings(brokers))
    ]


def check_zookeeper(connect: str) -> Finding:
    """Whether this machine reaches one of the ZooKeeper servers."""
    reasons = []
    for server in connect.partition("/")[0].split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            address = (host.strip("[]"), int(port))
            with socket.create_connection(address, timeout=_ZOOKEEPER_SECONDS):
                return Finding(OK, "ZooKeeper", f"{connect} can be reached from here")
        except (OSError, ValueError) as error:
            reasons.append(f"{server}: {error}")
    text = f"cannot be reached from here ({'; '.join(reasons)}); the new broker needs it"
    return Finding(NOTE, "ZooKeeper", text)


def property_line(name: str, value: str) -> str:
    """A setting as a file of properties has it, in which a backslash escapes what follows."""
    text = value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return f"{name}={text}"


def _common(brokers: list[BrokerFacts], name: str) -> str | None:
    values = {broker.settings.get(name) for broker in brokers}
    return values.pop() if len(values) == 1 else None


def new_settings(brokers: list[BrokerFacts]) -> dict[str, str]:
    """The settings that a new broker needs, and those that the files of all brokers share."""
    if not brokers:
        return {}
    names = set.intersection(*(set(broker.given) for broker in brokers)) - _OWN - {*_OF_LISTENERS}
    first = brokers[0]
    shared = {
        name: first.given[name]
        for name in sorted(names)
        if len({broker.given[name] for broker in brokers}) == 1
    }
    own = {
        "broker.id": str(max(broker.broker_id for broker in brokers) + 1),
        "listeners": _HOST.sub("://:", first.given.get("listeners") or "PLAINTEXT://:9092"),
        **{name: first.given[name] for name in _OF_LISTENERS if name in first.given},
        "log.dirs": "/var/lib/ottla",
        "inter.broker.protocol.version": first.settings.get("inter.broker.protocol.version"),
        "zookeeper.connect": first.settings.get("zookeeper.connect"),
    }
    return {**{name: value for name, value in own.items() if value}, **shared}
