"""The findings of `ottla migrate --to kafka-4`, from settings and states of the cluster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.cli.output import Cell
from ottla.controller.admin.own_features import OWN_FEATURES
from ottla.protocol.messages.metadata import MetadataResponsePartition

OK, NOTE, PROBLEM = "ok", "note", "PROBLEM"

#: Kafka 4.0 does not start with a smaller one (KIP-1030).
MIN_SEGMENT_BYTES = 1024 * 1024
_SHOWN = 20
# The first inter-broker protocol whose brokers take part in the migration to KRaft.
_FIRST_TO_MIGRATE = (3, 4)

_TOKEN_KEY = "delegation.token.secret.key"
_OLD_TOKEN_KEY = "delegation.token.master.key"

# Kafka 4 does not know them; its brokers do not start with some of them.
_REMOVED = (
    "control.plane.listener.name",
    _OLD_TOKEN_KEY,
    "inter.broker.protocol.version",
    "log.message.format.version",
    "log.message.timestamp.difference.max.ms",
    "password.encoder.secret",
)

# Ottla loads Python classes for them. Kafka does not start with a class that it cannot load.
_PYTHON = (
    "alter.config.policy.class.name",
    "client.quota.callback.class",
    "create.topic.policy.class.name",
)

_TIERED = "remote.log.storage.system.enable"
_MANAGER = "remote.log.storage.manager.class.name"
_MANAGER_PATH = "remote.log.storage.manager.class.path"
_AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"


class Finding(NamedTuple):
    """The result of one check."""

    result: str
    what: str
    finding: str

    def as_row(self) -> dict[str, Cell]:
        """For tables and JSON."""
        return {"result": self.result, "what": self.what, "finding": self.finding}


def check_files(
    settings: Mapping[int, Mapping[str, str | None]], given: Mapping[int, Mapping[str, str]]
) -> list[Finding]:
    """Check the settings of brokers: all of each broker, and those `given` in its file."""
    found = []
    for broker_id, values in settings.items():
        what, file = f"broker {broker_id}", given.get(broker_id, {})
        found += [Finding(PROBLEM, what, text) for text in _problems_of(broker_id, values, file)]
        ours = sorted(name for name in file if name.startswith("ottla."))
        if ours:
            text = f"has settings that Kafka ignores with a warning: {listed(ours)}"
            found.append(Finding(NOTE, what, text))
        removed = [name for name in _REMOVED if name in file]
        if _OLD_TOKEN_KEY in file and _TOKEN_KEY not in file:
            removed.remove(_OLD_TOKEN_KEY)
            text = (
                f"rename {_OLD_TOKEN_KEY} in its file to {_TOKEN_KEY} before Kafka 4, which has no "
                "delegation tokens otherwise"
            )
            found.append(Finding(NOTE, what, text))
        if removed:
            text = f"remove from its file before Kafka 4: {listed(removed)}"
            found.append(Finding(NOTE, what, text))
    return found


def _problems_of(
    broker_id: int, values: Mapping[str, str | None], file: Mapping[str, str]
) -> list[str]:
    found = []
    if not values.get("zookeeper.connect"):
        found.append(
            "keeps its znode tree in its directory: stop it, run `ottla zookeeper --data-dir "
            "DIRECTORY`, which serves that tree, and start it with zookeeper.connect"
        )
    size = values.get("log.segment.bytes") or ""
    if size.isdigit() and int(size) < MIN_SEGMENT_BYTES:
        remedy = f"set {MIN_SEGMENT_BYTES} or more in its file"
        if file.get("log.segment.bytes") != size:
            remedy = f"`ottla configs set broker {broker_id} log.segment.bytes={MIN_SEGMENT_BYTES}`"
        found.append(f"log.segment.bytes is {size}: {remedy}")
    version = values.get("inter.broker.protocol.version") or ""
    if _numbers(version) and _numbers(version) < _FIRST_TO_MIGRATE:
        found.append(f"inter.broker.protocol.version is {version}: set 3.9 and restart all brokers")
    found += [
        f"{name}={file[name]} is a Python class, without which Kafka does not start: remove it "
        "from the file, or give the name of a Java class"
        for name in _PYTHON
        if file.get(name)
    ]
    if values.get(_TIERED) == "true":
        missing = []
        if "." not in (values.get(_MANAGER) or ""):
            missing.append(f"{_MANAGER}={_AIVEN}")
        if not values.get(_MANAGER_PATH):
            missing.append(f"{_MANAGER_PATH}=JARS")
        if missing:
            found.append(
                "has tiered storage, which Kafka reads with Aiven's plugin: install it, and set "
                + " and ".join(missing)
            )
    return found


def _numbers(version: str) -> tuple[int, ...]:
    found = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, found.groups())) if found else ()


def listed(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - _SHOWN} more" if len(all_names) > _SHOWN else ""
    return ", ".join(all_names[:_SHOWN]) + more


def check_partitions(
    topics: Iterable[tuple[str, Sequence[MetadataResponsePartition]]],
) -> list[Finding]:
    """Check that every partition has a leader and all replicas in sync."""
    offline, behind, count = [], [], 0
    for topic, partitions in topics:
        for row in partitions:
            count += 1
            name = f"{topic}-{row.partition_index}"
            if row.leader_id < 0:
                offline.append(name)
            elif len(row.isr_nodes) < len(row.replica_nodes):
                behind.append(name)
    found = []
    if offline:
        text = (
            f"{len(offline)} partition(s) have no leader: {listed(offline)}. Start the brokers of "
            "their replicas; `ottla partitions under-replicated` lists them"
        )
        found.append(Finding(PROBLEM, "topics", text))
    if behind:
        text = (
            f"{len(behind)} partition(s) miss in-sync replicas: {listed(behind)}. Wait; "
            "`ottla partitions progress` shows what is left to copy"
        )
        found.append(Finding(PROBLEM, "topics", text))
    return found or [Finding(OK, "topics", f"all {count} partitions are in sync")]


def check_reassignments(partitions: Sequence[str]) -> list[Finding]:
    """Check that no reassignment is in progress."""
    if not partitions:
        return []
    text = (
        f"{len(partitions)} partition(s) are being reassigned: {listed(partitions)}. Wait; "
        "`ottla partitions reassign list` shows the bytes that are left"
    )
    return [Finding(PROBLEM, "topics", text)]


def check_segments(sizes: Mapping[str, int]) -> list[Finding]:
    """Check segment.bytes of topics that set it."""
    small = sorted(topic for topic, size in sizes.items() if size < MIN_SEGMENT_BYTES)
    return [
        Finding(
            PROBLEM,
            f"topic {topic}",
            f"segment.bytes is {sizes[topic]}, and Kafka 4 does not start with less than "
            f"{MIN_SEGMENT_BYTES}: `ottla configs set topic {topic} "
            f"segment.bytes={MIN_SEGMENT_BYTES}`",
        )
        for topic in small
    ]


def check_tiered_topics(topics: Sequence[str]) -> list[Finding]:
    """Name the topics with segments in remote storage."""
    if not topics:
        return []
    text = (
        f"{listed(sorted(topics))}: have tiered storage. Kafka continues with Aiven's plugin in "
        "the same store; `ottla tiered verify` checks the segments first"
    )
    return [Finding(NOTE, "tiered topics", text)]


def check_groups(groups: Mapping[str, tuple[str, str]]) -> list[Finding]:
    """Check for groups with members of kinds that Kafka 3.9 in ZooKeeper mode does not have.

    `groups` has the type and the state of each.
    """
    found = []
    active = {name: kind for name, (kind, state) in groups.items() if state != "Empty"}
    consumer = sorted(name for name, kind in active.items() if kind == "consumer")
    share = sorted(name for name, kind in active.items() if kind == "share")
    if consumer:
        text = (
            f"{listed(consumer)}: use the consumer protocol, which Kafka 3.9 does not offer with "
            "ZooKeeper. Set group.protocol=classic in their consumers; committed offsets stay. "
            f"`ottla groups describe {consumer[0]}` names the members"
        )
        found.append(Finding(PROBLEM, "groups", text))
    if share:
        text = (
            f"{listed(share)}: are share groups, which Kafka 3.9 does not have. Stop their "
            "consumers until the brokers are Kafka 4; what was acknowledged stays. "
            f"`ottla share-groups describe {share[0]} --members` names them"
        )
        found.append(Finding(PROBLEM, "groups", text))
    return found


def check_left_behind(groups: Sequence[str], metrics: Sequence[str]) -> list[Finding]:
    """Name settings that Kafka's migration does not copy: of groups and of client metrics."""
    found = []
    for names, what, kind in ((groups, "group", "groups"), (metrics, "metrics", "client-metrics")):
        if names:
            text = (
                f"settings of {listed(names)} stay behind: keep the output of `ottla configs "
                f"describe {what} {names[0]}`, and set them with Kafka 4 again (kafka-configs.sh "
                f"--entity-type {kind})"
            )
            found.append(Finding(NOTE, kind, text))
    return found


def check_features(finalized: Mapping[str, int]) -> list[Finding]:
    """Check the finalized features: Kafka 3.9 with ZooKeeper knows none."""
    found = []
    for name, level in sorted(finalized.items()):
        if name in OWN_FEATURES:
            text = (
                f"{name} {level} is off as soon as Kafka 3.9 registers, and on again with Kafka 4; "
                "open transactions end as they began"
            )
            found.append(Finding(NOTE, "features", text))
        else:
            text = (
                f"{name} {level} is finalized in /feature, and Kafka 3.9 does not start with it: "
                f"`ottla features --set {name}=0`"
            )
            found.append(Finding(PROBLEM, "features", text))
    return found


def check_quotas(count: int) -> list[Finding]:
    if not count:
        return []
    text = f"the migration keeps the quotas of {count} entities; `ottla quotas describe` lists them"
    return [Finding(NOTE, "quotas", text)]


def check_tokens(count: int) -> list[Finding]:
    if not count:
        return []
    text = (
        f"the migration keeps {count} delegation token(s): leave delegation.token.secret.key in "
        "the files of controllers and brokers; `ottla tokens list` lists them"
    )
    return [Finding(NOTE, "delegation tokens", text)]


def check_states(states: Mapping[int, Mapping[str, Any] | None]) -> list[Finding]:
    """Check the states that brokers report, such as records that are set aside; None for a broker
    that reports none."""
    from ottla.broker.observability.faults import STAND_IN_THE_WAY  # not for --help

    found = []
    for broker_id, state in states.items():
        what = f"broker {broker_id}"
        if state is None:
            text = (
                "does not report its state: look for records that are set aside on its host "
                "(`ottla log set-aside list DIRECTORY`)"
            )
            found.append(Finding(NOTE, what, text))
            continue
        for fault in state.get("faults", ()):
            result = PROBLEM if fault["name"] in STAND_IN_THE_WAY else NOTE
            found.append(Finding(result, what, f"{fault['problem']}: {fault['fix']}"))
        compactions = state.get("compactions", 0)
        if compactions:
            text = (
                f"compacts {compactions} log(s): stop it with SIGTERM, which ends compactions "
                "without leaving files behind. Kafka begins them again"
            )
            found.append(Finding(NOTE, what, text))
    return found
