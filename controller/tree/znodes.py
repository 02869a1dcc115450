"""The paths of Kafka 3.9's znode tree, and the data of the znodes; mirrors Kafka's `ZkData`.

Encoders write the format of a 3.9 broker; decoders accept the formats of all brokers since 0.8,
ignore unknown keys, and raise `MalformedZnode` with the path otherwise. All paths are here; the
data of administrative requests, notifications and configurations is in znodes_admin.py, that of
ACLs and delegation tokens in znodes_security.py.
"""

import re
from collections.abc import Iterable, Mapping

from ottla.controller.model import (
    RECOVERED,
    RECOVERING,
    BrokerInfo,
    Endpoint,
    LeaderAndIsr,
    ReplicaAssignment,
    TopicState,
)
from ottla.controller.tree.znode_json import (
    MalformedZnode,
    decode_json,
    encode_json,
    fits_32_bits,
    integer,
    integer32,
    integers,
    json_object,
    whole_number,
)
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import uuid_from_string, uuid_to_string

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
BROKERS = "/brokers"
BROKER_IDS = "/brokers/ids"
BROKER_SEQUENCE_ID = "/brokers/seqid"
TOPICS = "/brokers/topics"
ADMIN = "/admin"
DELETE_TOPICS = "/admin/delete_topics"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
PREFERRED_REPLICA_ELECTION = "/admin/preferred_replica_election"
ISR_CHANGE_NOTIFICATION = "/isr_change_notification"
ISR_CHANGE_PREFIX = "/isr_change_notification/isr_change_"
LOG_DIR_EVENT_NOTIFICATION = "/log_dir_event_notification"
LOG_DIR_EVENT_PREFIX = "/log_dir_event_notification/log_dir_event_"
CONFIG = "/config"
CONFIG_CHANGES = "/config/changes"
CONFIG_CHANGE_PREFIX = "/config/changes/config_change_"
PRODUCER_ID_BLOCK = "/latest_producer_id_block"
FEATURE = "/feature"
CONSUMERS = "/consumers"
MIGRATION = "/migration"
DELETED_TOPICS = "/ottla/deleted_topics"
"""Not in Kafka: the highest leader epochs of deleted topics; a topic that is created again with the
same name starts above it. Kafka ignores the znode."""

PROCESSED_BROKERS = "/ottla/processed_brokers"
"""Not in Kafka: the broker epochs that the controller has processed. Kafka ignores the znode."""

REGISTRATIONS = "/ottla/registrations"
"""Not in Kafka: the version of the znode counts the registrations of brokers; it has no data. Each
changes it in the multi that creates `/brokers/ids/N`, so that a write can fail after a registration
that its controller has not heard of. Kafka ignores the znode."""

OWN_LEVELS = "/ottla/features"
"""Not in Kafka: the levels of Ottla's own features that an administrator has set. Kafka ignores the
znode, but would end at its start if they were in `/feature`."""

REPLICA_EPOCHS = "/ottla/replica_epochs"
"""Not in Kafka: one znode for each broker, with the leader epochs of replicas that are ahead of the
tree. Kafka ignores it."""

DEFAULT_ENTITY = "<default>"
ENTITY_TOPICS = "topics"
ENTITY_CLIENTS = "clients"
ENTITY_USERS = "users"
ENTITY_BROKERS = "brokers"
ENTITY_IPS = "ips"
ENTITY_CLIENT_METRICS = "client-metrics"
"""Not in ENTITY_TYPES, as in Kafka."""
ENTITY_GROUPS = "groups"
"""Settings of groups; Kafka 4.3 has them in KRaft mode only."""
ENTITY_TYPES = (ENTITY_TOPICS, ENTITY_CLIENTS, ENTITY_USERS, ENTITY_BROKERS, ENTITY_IPS)

PERSISTENT_PATHS = (
    CONSUMERS,
    BROKER_IDS,
    TOPICS,
    CONFIG_CHANGES,
    DELETE_TOPICS,
    BROKER_SEQUENCE_ID,
    ISR_CHANGE_NOTIFICATION,
    PRODUCER_ID_BLOCK,
    LOG_DIR_EVENT_NOTIFICATION,
    REGISTRATIONS,
    *(f"/config/{entity_type}" for entity_type in ENTITY_TYPES),
)
"""Created by each broker when it starts, with all parents."""

LOG_DIR_FAILURE = 1

MAX_EPOCH = 2**31 - 2**20
"""Of controllers and leaders. Epochs are sent as numbers of 32 bits: from here on a million
elections are left, and no cluster has had so many that it comes here."""
_MAX_TEXT_BYTES = 32_767
"""Of a host or rack, as Metadata has it."""
_MAX_FILE_NAME_BYTES = 255
"""Of file systems; the directory of a log is called `TOPIC-PARTITION`."""


# Names in paths


_UNRESERVED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_")


def sanitize(name: str) -> str:
    """A name in a path, URL-encoded; mirrors Kafka's `Sanitizer`."""
    return "".join(chr(byte) if byte in _UNRESERVED else f"%{byte:02X}" for byte in name.encode())


def desanitize(name: str) -> str:
    pieces = name.split("%")
    raw = bytearray(pieces[0].encode())
    for piece in pieces[1:]:
        try:
            raw.append(int(piece[:2], 16))
        except ValueError:
            raise MalformedZnode(f"{name!r} is not a sanitized name") from None
        raw += piece[2:].encode()
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise MalformedZnode(f"{name!r} is not a sanitized name") from None


def broker_path(broker_id: int) -> str:
    return f"{BROKER_IDS}/{broker_id}"


def broker_ids(names: Iterable[str]) -> list[int]:
    """The ids of the brokers with these names below `/brokers/ids`, in order. Others are nobody's:
    no request or response could have them."""
    numbers = [name for name in names if name.isascii() and name.isdecimal() and len(name) <= 10]
    return sorted(each for each in map(int, numbers) if fits_32_bits(each))


def topic_path(topic: str) -> str:
    return f"{TOPICS}/{topic}"


def partitions_path(topic: str) -> str:
    return f"{TOPICS}/{topic}/partitions"


def partition_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition[0]}/partitions/{partition[1]}"


def state_path(partition: TopicPartition) -> str:
    return f"{TOPICS}/{partition[0]}/partitions/{partition[1]}/state"


def replica_epochs_path(broker_id: int) -> str:
    return f"{REPLICA_EPOCHS}/{broker_id}"


def delete_topic_path(topic: str) -> str:
    return f"{DELETE_TOPICS}/{topic}"


def config_path(entity_path: str) -> str:
    """`entity_path` is type and sanitized name: `topics/t`, `users/u/clients/c`."""
    return f"{CONFIG}/{entity_path}"


def consumer_id_path(group: str, consumer_id: str) -> str:
    """The registration of an old consumer (ephemeral)."""
    return f"{CONSUMERS}/{group}/ids/{consumer_id}"


def consumer_owner_path(group: str, topic: str, partition: int) -> str:
    """The claim of an old consumer on a partition (ephemeral)."""
    return f"{CONSUMERS}/{group}/owners/{topic}/{partition}"


def consumer_offset_path(group: str, topic: str, partition: int) -> str:
    return f"{CONSUMERS}/{group}/offsets/{topic}/{partition}"


# Cluster, controller


def encode_cluster_id(cluster_id: str) -> bytes:
    return encode_json({"version": "1", "id": cluster_id})


def decode_cluster_id(data: bytes) -> str:
    cluster_id = decode_json(CLUSTER_ID, data).get("id")
    # It becomes a line of meta.properties, and a text of most responses.
    if not isinstance(cluster_id, str) or not re.fullmatch(r"[!-~]{1,255}", cluster_id):
        raise MalformedZnode(f"{CLUSTER_ID} holds no id: {data[:200]!r}")
    return cluster_id


def encode_controller(broker_id: int, now_ms: int) -> bytes:
    return encode_json(
        {
            "version": 2,
            "brokerid": broker_id,
            "timestamp": str(now_ms),
            "kraftControllerEpoch": -1,
        }
    )


def decode_controller(data: bytes) -> int:
    """The broker id of the controller."""
    return integer32(CONTROLLER, decode_json(CONTROLLER, data), "brokerid")


def decode_kraft_epoch(data: bytes) -> int:
    """The epoch of the KRaft controller that has the znode, in a migration; -1 for a broker's."""
    payload = decode_json(CONTROLLER, data)
    if "kraftControllerEpoch" not in payload:
        return -1
    return integer32(CONTROLLER, payload, "kraftControllerEpoch")


def encode_controller_epoch(epoch: int) -> bytes:
    return b"%d" % epoch


def decode_controller_epoch(data: bytes) -> int:
    if len(data) <= 10 and data.isdigit() and int(data) <= MAX_EPOCH:
        return int(data)
    raise MalformedZnode(
        f"{CONTROLLER_EPOCH} holds {data[:200]!r}, not a number from 0 to {MAX_EPOCH}: write one "
        f"above the controller_epoch of all partition states"
    )


# Brokers


_DEFAULT_SECURITY = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


def format_endpoint(endpoint: Endpoint) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{endpoint.listener_name}://{host}:{endpoint.port}"


def _parse_endpoint(path: str, text: object, security: Mapping[str, object]) -> Endpoint:
    listener, separator, address = str(text).partition("://")
    host, colon, port = address.rpartition(":")
    listener = listener.upper()
    protocol = security.get(listener, listener if listener in _DEFAULT_SECURITY else None)
    if not separator or not colon or protocol not in _DEFAULT_SECURITY:
        raise MalformedZnode(f"{path} holds an endpoint that cannot be read: {text!r}")
    if not port.isdecimal() or len(port) > 9:
        raise MalformedZnode(f"{path} holds an endpoint without a port: {text!r}")
    if len(host.encode()) > _MAX_TEXT_BYTES:
        raise MalformedZnode(f"{path} holds a host that is too long: {host[:200]!r}...")
    return Endpoint(listener, str(protocol), host.strip("[]"), int(port))


def encode_broker(
    broker: BrokerInfo,
    now_ms: int,
    *,
    jmx_port: int = -1,
    version: int = 5,
    instance: str | None = None,
) -> bytes:
    """Versions: 2 before 0.10, 4 (rack, listener map) before 2.7, 5 (features) since.

    `instance` identifies the data directory of the broker. It shows whether a registration with
    the same id is from the same broker before its restart. Kafka ignores this key and that of
    `unclean_shutdown`.
    """
    plaintext = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
    payload: dict[str, object] = {}
    if version >= 5:
        payload["features"] = {
            name: {"min_version": low, "max_version": high}
            for name, (low, high) in broker.features.items()
        }
    if version >= 4:
        payload["listener_security_protocol_map"] = {
            endpoint.listener_name: endpoint.security_protocol for endpoint in broker.endpoints
        }
    payload["endpoints"] = [format_endpoint(endpoint) for endpoint in broker.endpoints]
    if version >= 3 and broker.rack is not None:
        payload["rack"] = broker.rack
    payload["jmx_port"] = jmx_port
    payload["port"] = plaintext.port if plaintext else -1
    payload["host"] = plaintext.host if plaintext else None
    payload["version"] = version
    payload["timestamp"] = str(now_ms)
    if instance is not None:
        payload["ottla_instance"] = instance
    if broker.unclean_shutdown:
        payload["ottla_unclean_shutdown"] = True
    return encode_json(payload)


def decode_broker_instance(broker_id: int, data: bytes) -> str | None:
    instance = decode_json(broker_path(broker_id), data).get("ottla_instance")
    return instance if isinstance(instance, str) else None


def decode_broker(broker_id: int, data: bytes, epoch: int) -> BrokerInfo:
    path = broker_path(broker_id)
    payload = decode_json(path, data)
    version = integer(path, payload, "version")
    if version < 1:
        raise MalformedZnode(f"{path} has unknown version {version}")
    if version == 1:
        address = f"PLAINTEXT://{payload.get('host') or ''}:{integer(path, payload, 'port')}"
        return BrokerInfo(broker_id, (_parse_endpoint(path, address, {}),), epoch=epoch)
    security = json_object(path, payload.get("listener_security_protocol_map") or {})
    security = {name.upper(): protocol for name, protocol in security.items()}
    listed = payload.get("endpoints")
    if not isinstance(listed, list):
        raise MalformedZnode(f"{path} lists no endpoints: {data!r}")
    rack = payload.get("rack")
    if isinstance(rack, str) and len(rack.encode()) > _MAX_TEXT_BYTES:
        raise MalformedZnode(f"{path} holds a rack that is too long: {rack[:200]!r}...")
    features: dict[str, tuple[int, int]] = {}
    for name, levels in json_object(path, payload.get("features") or {}).items():
        span = json_object(path, levels)
        features[name] = (
            integer(path, span, "min_version"),
            integer(path, span, "max_version"),
        )
    return BrokerInfo(
        broker_id,
        tuple(_parse_endpoint(path, text, security) for text in listed),
        rack if isinstance(rack, str) else None,
        epoch,
        features,
        payload.get("ottla_unclean_shutdown") is True,
    )


# Topics and partitions


def encode_topic(state: TopicState) -> bytes:
    items = sorted(state.assignments.items())
    payload: dict[str, object] = {
        "partitions": {str(p): list(a.replicas) for p, a in items},
    }
    if state.topic_id is not None:
        payload["topic_id"] = uuid_to_string(state.topic_id)
    payload["adding_replicas"] = {str(p): list(a.adding) for p, a in items if a.adding}
    payload["removing_replicas"] = {str(p): list(a.removing) for p, a in items if a.removing}
    payload["version"] = 3
    return encode_json(payload)


def decode_topic(topic: str, data: bytes) -> TopicState:
    path = topic_path(topic)
    payload = decode_json(path, data)
    # All versions write it. Kafka reads a topic without it as one without partitions, whose logs
    # would be nobody's.
    partitions = json_object(path, payload.get("partitions"))
    if len(topic.encode()) + max(map(len, partitions), default=0) >= _MAX_FILE_NAME_BYTES:
        # A broker that fails to create the log takes the whole log directory offline.
        raise MalformedZnode(f"{path} has a name that is too long for the directory of a log")
    adding = json_object(path, payload.get("adding_replicas") or {})
    removing = json_object(path, payload.get("removing_replicas") or {})
    topic_id = payload.get("topic_id")
    assignments: dict[int, ReplicaAssignment] = {}
    for name, replicas in partitions.items():
        if not name.isdecimal() or not fits_32_bits(int(name)):
            raise MalformedZnode(f"{path} holds a partition called {name!r}")
        listed = integers(path, replicas)
        if not listed or min(listed) < 0 or len(set(listed)) < len(listed):
            raise MalformedZnode(f"{path} holds replicas that no partition can have: {replicas!r}")
        assignments[int(name)] = ReplicaAssignment(
            listed,
            integers(path, adding[name]) if name in adding else (),
            integers(path, removing[name]) if name in removing else (),
        )
    try:
        known_id = uuid_from_string(topic_id) if isinstance(topic_id, str) else None
    except ValueError as error:
        raise MalformedZnode(f"{path} holds a topic id that is none: {error}") from None
    return TopicState(known_id, assignments)


def encode_state(state: LeaderAndIsr) -> bytes:
    payload: dict[str, object] = {
        "controller_epoch": state.controller_epoch,
        "leader": state.leader,
        "version": 1,
        "leader_epoch": state.leader_epoch,
        "isr": list(state.isr),
    }
    if state.recovery_state != RECOVERED:
        payload["leader_recovery_state"] = state.recovery_state
    return encode_json(payload)


def decode_state(partition: TopicPartition, data: bytes, version: int) -> LeaderAndIsr:
    path = state_path(partition)
    payload = decode_json(path, data)
    return LeaderAndIsr(
        leader=integer32(path, payload, "leader"),
        leader_epoch=whole_number(path, payload, "leader_epoch", 0, MAX_EPOCH),
        isr=integers(path, payload.get("isr")),
        recovery_state=(
            whole_number(path, payload, "leader_recovery_state", RECOVERED, RECOVERING)
            if "leader_recovery_state" in payload
            else RECOVERED
        ),
        partition_epoch=version,
        controller_epoch=whole_number(path, payload, "controller_epoch", 0, MAX_EPOCH),
    )
