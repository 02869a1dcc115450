"""Brokers for Kafka's own tests: `ottla start`, with a port that shows what those tests read.

    python -m tests.compat.kafka_tests.broker

The harness of Kafka's tests runs its brokers in the JVM of the test and reads their metadata
cache, the offsets of their logs and their producer state. This process starts brokers as processes,
and each has a loopback port that shows the same things: a test waits for the true state.

Each line of the standard input is a JSON object, {"properties": FILE, "log": FILE, "state": FILE,
"options": TEXT}, and makes one broker with this settings file; `options` is its KAFKA_OPTS. Its
process id is the response, a line of the standard output. `plugins`, where it is there, is a
loopback port of the JVM, where the broker asks who a client is and what it may do if a test has
Java classes for that, and for the file of Kerberos: `builders` are principal builders by prefix of
a setting, `authorizer` is an authorizer, `changes_acls` is whether it changes ACLs by itself,
`policies` are policies by their setting, `quotas` computes quotas, and `sasl` is two classes, or
null, which know the passwords of clients and of this broker. When the broker serves
clients it writes `state`: {"ports": {LISTENER: PORT}, "inspection": PORT, "cluster_id": TEXT, ...};
when it has ended, the file `exit-code` beside it.
All brokers are forks of this process, which has imported the modules already: a test starts up to
six. They end with it.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import gc
import inspect
import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ottla.broker.__main__ as start
from ottla.broker.quotas.quota_callback import CallbackTable
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.tls import contexts
from ottla.broker.server import broker_server
from ottla.protocol.errors import ErrorCode
from ottla.protocol.topics import TopicPartition
from ottla.storage.errors import StorageError
from tests.compat.kafka_tests import additions
from tests.compat.kafka_tests.acl_changes import OwnAclChanges
from tests.compat.kafka_tests.control_calls import ask_controller, disconnect_controller
from tests.compat.kafka_tests.log_calls import LogCalls
from tests.compat.kafka_tests.own_quotas import OwnQuotas
from tests.compat.kafka_tests.plugins import (
    KerberosFile,
    OwnAlterConfigPolicy,
    OwnAuthorizer,
    OwnCreateTopicPolicy,
    PluginsOfJvm,
    PrincipalBuilders,
    SaslCallbacks,
)
from tests.compat.kafka_tests.throttles import ThrottleTimes

if TYPE_CHECKING:
    import ssl

    from ottla.broker.quotas.replication_quotas import ReplicationQuota
    from ottla.broker.requests.request_context import RequestConnection
    from ottla.broker.security.audit.security_log import Login
    from ottla.broker.security.tls.contexts import ReadSetting
    from ottla.storage.log.log import Log

# What a fork should not import once more.
_WARM = (
    "ottla.broker.handlers.table",
    "ottla.broker.observability.banner",
    "ottla.broker.server.parts",
    "ottla.controller.tree.zookeeper_store",
)


class InspectedBroker(broker_server.BrokerServer):
    """A broker with the port that shows its state."""

    state_file = Path("state.json")

    async def start(self) -> dict[str, int]:
        """Starts the broker, then writes the state file."""
        ports = await super().start()
        server = await asyncio.start_server(self._serve_inspection, "127.0.0.1", 0)
        state = {
            "ports": ports,
            "inspection": server.sockets[0].getsockname()[1],
            "cluster_id": self.parts.cluster_id,
            "broker_id": self.parts.broker_id,
        }
        partial = self.state_file.with_suffix(".partial")
        partial.write_text(json.dumps(state))
        partial.rename(self.state_file)
        return ports

    async def _serve_inspection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            while line := await reader.readline():
                question = json.loads(line)
                shown = getattr(self, f"_show_{question[0]}")(*question[1:])
                if inspect.isawaitable(shown):
                    shown = await shown
                writer.write(json.dumps(shown).encode() + b"\n")
                await writer.drain()
        writer.close()

    def _show_metadata(self) -> object:
        known = self.parts.metadata.snapshot
        brokers = [
            {
                "id": broker.broker_id,
                "rack": broker.rack,
                "endpoints": [[name, *where] for name, where in broker.endpoints.items()],
            }
            for broker in known.brokers.values()
        ]
        topics = [
            {
                "name": topic.name,
                "id": base64.urlsafe_b64encode(topic.topic_id).decode().rstrip("="),
                "partitions": [list(each) for each in topic.partitions.values()],
            }
            for topic in known.topics.values()
        ]
        return {
            "controller_id": known.controller_id,
            "controller_epoch": known.controller_epoch,
            "brokers": brokers,
            "topics": topics,
        }

    def _show_ports(self) -> object:
        """The port of each open listener."""
        return self.ports

    async def _show_controller_disconnected(self, broker_id: int) -> object:
        return await disconnect_controller(self.parts, broker_id)

    async def _show_controller_asked(self) -> object:
        return await ask_controller(self.parts)

    def _show_log(self, name: str, *arguments: object) -> object:
        return LogCalls(self.parts).call(name, *arguments)

    def _show_default_log_config(self) -> object:
        return self.parts.config.topic_defaults()

    def _show_features(self) -> object:
        """The finalized features of the broker's cache."""
        features = self.parts.features
        return {"finalized": features.finalized, "epoch": features.epoch}

    def _show_supported_features(self, features: dict[str, list[int]]) -> object:
        """Adds supported features: a broker in ZooKeeper mode has none of its own."""
        supported = self.parts.features.supported
        supported.update({name: (low, high) for name, (low, high) in features.items()})
        return supported

    def _show_mutation_quota(self, user: str) -> object:
        """The limit of a user that has created or deleted a topic, and its windows; or null."""
        quota, config = self.parts.quotas.clients.mutation, self.config
        found = quota.table.find(user, "")
        if found is None or found[1] not in quota._buckets:
            return None
        window_seconds = config.controller_quota_window_size_seconds
        return [found[0], config.controller_quota_window_num, window_seconds * 1000]

    def _show_session(self) -> object:
        """The ZooKeeper session: another client can end it."""
        client = self.parts.store.session._client  # type: ignore[attr-defined]
        number, password = client.client_id
        return [number, base64.b64encode(password).decode()]

    def _show_settings(self) -> object:
        """The settings in use that tests read in objects of the server."""
        config = self.config
        return {
            "min.insync.replicas": config.min_insync_replicas,
            "producer.id.expiration.ms": config.producer_id_expiration_ms,
            "transaction.partition.verification.enable": (
                config.transaction_partition_verification_enable
            ),
        }

    def _show_metrics(self) -> object:
        """Metrics of Kafka that tests sum up over the listeners of a broker."""
        statistics = self.parts.network_server.statistics
        topics = self.parts.replica_manager.context.topics
        return {
            "fetch-conversions": sum(count for _, count in topics.rows("fetch_conversions")),
            "produce-conversions": sum(count for _, count in topics.rows("produce_conversions")),
            "fetch-conversion-microseconds": topics.fetch_conversion_seconds * 1e6,
            "fetch-conversion-bytes": topics.fetch_conversion_bytes,
            "corrupt-appends": topics.produce_errors[ErrorCode.CORRUPT_MESSAGE],
            "successful-authentication-total": statistics.authentications,
            "failed-authentication-total": statistics.failed_authentications,
            "expired-connections-killed-count": statistics.expired_sessions,
            "failed-reauthentication-total": failed_renewals.count,
            "unclean-leader-elections": self.parts.controller.unclean_elections_total,
            **throttle_times.longest(),
        }

    def _show_throttles(self) -> object:
        routes = self.parts.request_channel.routes.values()
        exempt = throttle_times.exempt_seconds + sum(
            each.statistics.local_seconds for each in routes if each.throttle is None
        )
        return {"times": throttle_times.averages(), "exempt_percent": exempt * 100}

    def _show_quota(self, kind: str, user: str, client_id: str) -> object:
        """The quota of a client, null where it has none. A class that computes quotas is asked,
        and its response not used for anything else."""
        table = getattr(self.parts.quotas.clients, kind).table
        if isinstance(table, CallbackTable):
            tags = table._callback.tags(table._kind, user, client_id)
            return None if tags is None else table._callback.limit(table._kind, tags)
        found = table.find(user, client_id)
        return None if found is None else found[0]

    def _show_removed_sensor(self, name: str) -> object:
        """Forgets throttle times or rates of the clients whose tags the name ends with."""
        what, _, suffix = name.partition("-")
        kind = what.removesuffix("ThrottleTime").lower()
        if what.endswith("ThrottleTime"):
            throttle_times.remove(kind, suffix)
        else:
            rates = getattr(self.parts.quotas.clients, kind)._rates
            for entity in [each for each in rates if ":".join(each[1::2]) == suffix]:
                del rates[entity]
        return None

    def _show_throttle(self, kind: str) -> object:
        """A throttle of replication: the limit in bytes a second, and the present rate."""
        quota = self._throttle(kind)
        # Leaders and followers record with the clock of the event loop.
        now_ms = int(asyncio.get_running_loop().time() * 1000)
        return {"limit": quota.limit, "rate": quota.bytes_per_second(now_ms)}

    def _show_is_throttled(self, kind: str, topic: str, index: int) -> object:
        return self._throttle(kind).is_throttled(topic, index)

    def _throttle(self, kind: str) -> ReplicationQuota:
        parts = self.parts
        if kind == "alterLogDirs":
            return parts.mover.throttle
        return parts.throttles.leader if kind == "leader" else parts.throttles.follower

    def _show_connections(self, ip: str) -> object:
        """The connections of an address, and how many it may open in a second."""
        limits = self.parts.quotas.connections
        rate = limits.ip_creation_rates.get(ip, limits.default_ip_creation_rate)
        return {"count": limits._by_ip.get(ip, 0), "rate": rate}

    def _show_logs(self) -> object:
        """All logs, by topic and partition."""
        logs = self.parts.logs.logs()
        return {log.name: _shown_log(log) for log in logs}

    def _show_live_brokers(self) -> object:
        """The broker epochs that the active controller knows."""
        context = self.parts.controller._lifecycle.context
        return [[each.broker_id, each.epoch, each.features] for each in context.brokers.values()]

    def _show_tokens(self) -> object:
        """The delegation tokens that the broker knows."""
        return [token._asdict() for token in self.parts.delegation_tokens.all()]

    def _show_offline_directories(self) -> object:
        return self.parts.logs.offline_directories

    def _show_failed_directory(self, path: str) -> object:
        """Takes a log directory offline, as an I/O error of its disk does."""
        for directory in self.parts.logs.directories.all:
            if os.path.realpath(directory.path) == os.path.realpath(path):
                directory.fail(OSError(errno.EIO, "a test of Kafka wants it to fail"))
        self.parts.failures.check()
        return self._show_offline_directories()

    def _show_roll(self, topic: str, index: int) -> object:
        """Starts a new segment of a log; whether its log directory failed."""
        log = self.parts.logs.get(topic, index)
        assert log is not None
        try:
            log.roll(self.parts.clock.now_ms())
            os.stat(log.path)  # Kafka makes a new file, also for an empty log
        except (OSError, StorageError):
            directory = os.path.dirname(log.path)
            self._show_failed_directory(directory)
            return True
        return False

    def _show_checkpointed_high_watermarks(self) -> object:
        self.parts.logs.checkpoint_high_watermarks()
        self.parts.failures.check()
        return self._show_offline_directories()

    def _show_replica_states(self, topic: str) -> object:
        """The states of the replicas of a topic, where this broker is the active controller."""
        context = self.parts.controller._lifecycle.context
        return [
            [key.partition.partition, key.replica, state.value]
            for key, state in context.replica_states.items()
            if key.partition.topic == topic
        ]

    def _show_partition(self, topic: str, index: int) -> object:
        """The replica and the log of a partition, null where there is none."""
        key = TopicPartition(topic, index)
        partition = self.parts.replica_manager.partitions.get(key)
        log = self.parts.logs.get(topic, index)
        if partition is not None and partition.offline:
            log = None
        shown = None
        if partition is not None and not partition.offline:
            shown = {
                "is_leader": partition.is_leader,
                "leader": partition.leader_id,
                "leader_epoch": partition.leader_epoch,
                "isr": sorted(partition.isr),
                "replicas": partition.replicas,
            }
        return {"partition": shown, "log": None if log is None else _shown_log(log)}


def _shown_log(log: Log) -> object:
    topic_id = log.topic_id
    return {
        "topic_id": topic_id and base64.urlsafe_b64encode(topic_id).decode().rstrip("="),
        "directory": log.path,
        "start": log.log_start_offset,
        "end": log.log_end_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "size": log.local.size_in_bytes,
        "segments": len(log.segments),
        "epochs": log.leader_epochs.entries,
        "producers": [
            [each.producer_id, each.epoch, each.last_sequence, each.last_offset]
            for each in log.producer_state.producers.values()
        ],
    }


class FailedRenewals:
    """Counts the clients that failed to authenticate again."""

    def __init__(self) -> None:
        self.count = 0

    def install(self) -> None:
        """Every line of the security log is counted from now on."""
        login_failed = SecurityLog.login_failed

        def count_failed(
            log: SecurityLog, connection: RequestConnection, login: Login, reason: str
        ) -> None:
            self.count += login.is_renewal
            login_failed(log, connection, login, reason)

        SecurityLog.login_failed = count_failed  # type: ignore[method-assign]


failed_renewals = FailedRenewals()
throttle_times = ThrottleTimes()


def accept_sha1() -> None:
    """Makes OpenSSL accept what Java accepts: Kafka's tests sign their certificates with SHA-1."""
    limit = contexts.limit_context

    def limit_less(context: ssl.SSLContext, settings: ReadSetting) -> None:
        context.set_ciphers("DEFAULT:@SECLEVEL=0")
        limit(context, settings)

    contexts.limit_context = limit_less


def _run_broker(order: dict[str, Any]) -> int:
    """One broker in this process, which is a fork."""
    with open(order["log"], "ab") as log, open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ["KAFKA_OPTS"] = options = order.get("options", "")
    kerberos = re.search(r"-Djava\.security\.krb5\.conf=(\S+)", options)
    if kerberos is not None:
        os.environ["KRB5_CONFIG"] = kerberos[1]
    # One test sets it, which is no setting: Kafka stores it.
    # Two are of the class that computes quotas in another test.
    own = "default.produce.quota,default.fetch.quota"
    os.environ["OTTLA_IGNORE_UNKNOWN"] = f"some.config,{own}"
    InspectedBroker.state_file = Path(order["state"])
    if "plugins" in order:
        jvm = PluginsOfJvm(order["plugins"])
        KerberosFile(jvm).install()
        if order["builders"]:
            PrincipalBuilders(jvm, order["builders"]).install()
        if "authorizer" in order:
            OwnAuthorizer(jvm, order["authorizer"]).install()
        if order["changes_acls"]:
            OwnAclChanges(order["plugins"], order["properties"]).install()
        for policy in (OwnCreateTopicPolicy, OwnAlterConfigPolicy):
            policy.jvm = jvm
            policy.class_name = order["policies"].get(policy.setting)
        if "quotas" in order:
            OwnQuotas.jvm = jvm
            OwnQuotas.class_name = order["quotas"]
        if "sasl" in order:
            SaslCallbacks(jvm, *order["sasl"]).install()
    code = start.main([order["properties"]])
    Path(order["state"]).with_name("exit-code").write_text(str(code), "ascii")
    return code


def main() -> None:
    """Starts a broker for each line; kills all of them at the end of the input."""
    for name in _WARM:
        __import__(name)
    broker_server.BrokerServer = InspectedBroker  # type: ignore[misc]
    accept_sha1()
    failed_renewals.install()
    throttle_times.install()
    if additions.VARIABLE in os.environ:
        additions.hide_additions()
    started: set[int] = set()

    def forget_ended(*_: object) -> None:
        with contextlib.suppress(ChildProcessError):
            while child := os.waitpid(-1, os.WNOHANG)[0]:
                started.discard(child)

    signal.signal(signal.SIGCHLD, forget_ended)
    gc.freeze()
    for line in sys.stdin:
        # A broker that ended is not forgotten before it is known, or while all of them are killed:
        # another process could have its id by then.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
            code = 1
            try:
                code = _run_broker(json.loads(line))
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        started.add(child)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, (signal.SIGCHLD,))
        print(child, flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGCHLD,))
    for child in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main()
