"""Names from other tools that people try here, and in each error the name to use instead.

testcontainers, pytest-kafka, the clients and Kafka's own commands have their words for the same
things. A name of these tables is neither a setting of Kafka nor a name of the classes here; a test
compares them.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

_ARE_ARGUMENTS = (
    "settings are named arguments: num_partitions=3, or **{'num.partitions': 3} for a dictionary"
)
_USERS = "write users={'alice': 'secret'}; client_config(user='alice') is for clients"
_DIRECTORY = "the directory is the first argument: Broker('some/directory')"
_FREE_PORT = "brokers take free ports of 127.0.0.1; `bootstrap` has the address"
_CREATE_TOPIC = "call create_topic('orders', partitions=3) after the start"
_STARTED = "start() and `with` return when clients are served"

_REGISTRY = (
    "there is no schema registry: the clients of Confluent have one in memory, 'mock://name'"
)

SETTINGS = {
    **dict.fromkeys(("settings", "config", "configs", "properties"), _ARE_ARGUMENTS),
    **dict.fromkeys(("user", "username", "password", "sasl", "sasl_users", "credentials"), _USERS),
    **dict.fromkeys(("ssl", "use_tls", "use_ssl", "secure"), "write tls=True"),
    **dict.fromkeys(
        ("security_protocol", "protocol"),
        "write tls=True for SSL, users={'alice': 'secret'} for SASL, or both for SASL_SSL",
    ),
    **dict.fromkeys(
        ("sasl_mechanism", "sasl_mechanisms", "mechanism"),
        "a broker with users={...} has PLAIN, SCRAM-SHA-256 and SCRAM-SHA-512; "
        "client_config(mechanism='SCRAM-SHA-256') is for clients",
    ),
    **dict.fromkeys(("schema_registry", "registry", "schema_registry_url"), _REGISTRY),
    **dict.fromkeys(("acl", "rules"), "write acls={'alice': ['READ topic:orders']}"),
    **dict.fromkeys(("topic", "topics", "create_topics"), _CREATE_TOPIC),
    **dict.fromkeys(("partitions", "default_partitions"), "write num_partitions=3"),
    "replication_factor": "write default_replication_factor=3, at most the number of brokers",
    **dict.fromkeys(("host", "hostname", "bootstrap", "bootstrap_servers", "address"), _FREE_PORT),
    **dict.fromkeys(("timeout", "start_timeout", "startup_timeout", "wait"), _STARTED),
    "zookeeper": "Broker needs no ZooKeeper, and Cluster starts one; zookeeper_connect names one",
    "kraft": "a broker works as Kafka 3.9 in ZooKeeper mode; clients see no difference",
    **dict.fromkeys(("image", "version", "kafka_version"), "it is always Kafka 3.9"),
}
"""Arguments of `Broker` and `Cluster`."""

_COUNT = "Cluster(brokers=3) has several brokers"
_COUNTS = (
    *("broker", "num_brokers", "n_brokers", "broker_count", "size", "count"),
    *("node", "nodes", "num_nodes", "n_nodes", "node_count"),
)
BROKER = {
    **SETTINGS,
    **dict.fromkeys(("brokers", *_COUNTS), _COUNT),
    **dict.fromkeys(("data_dir", "datadir", "dir", "path", "data_directory"), _DIRECTORY),
}
_BROKERS = "write brokers=3"
NO_DIRECTORY = "a cluster keeps its data until it is stopped only, in directories that it makes"
CLUSTER = {
    **SETTINGS,
    **dict.fromkeys((*_COUNTS, "n"), _BROKERS),
    **dict.fromkeys(("port", "ports"), _FREE_PORT),
    **dict.fromkeys(("directory", "data_dir", "path"), NO_DIRECTORY),
}

TOPIC = {
    **dict.fromkeys(("num_partitions", "partition", "partition_count"), "write partitions=3"),
    **dict.fromkeys(("replicas", "replication", "replicationFactor"), "write replication_factor=3"),
    **dict.fromkeys(
        ("settings", "configs", "topic_config", "topic_configs", "new_topics"),
        "write config={'retention.ms': 1000}, or retention_ms=1000",
    ),
    **dict.fromkeys(("topic", "topic_name", "topics"), "write name='orders'"),
    **dict.fromkeys(("timeout", "timeout_ms", "validate_only"), "it waits until there is a leader"),
}
"""Arguments of `create_topic`."""

_TIMES = "write times=2; without it every request fails until the fault is removed"
FAULT = {
    **dict.fromkeys(("count", "n", "once", "repeat", "max_hits", "limit"), _TIMES),
    **dict.fromkeys(("ms", "delay", "milliseconds", "latency"), "write delay_ms=2000"),
    **dict.fromkeys(("seconds", "duration", "delay_s", "timeout"), "write delay_ms=2000"),
    **dict.fromkeys(("execute", "after", "processed", "committed"), "write executed=True"),
    **dict.fromkeys(("error", "error_code", "error_name"), "write code='NOT_LEADER_OR_FOLLOWER'"),
    **dict.fromkeys(("request", "api_key", "api_name"), "write api='Produce'"),
    **dict.fromkeys(("partition", "partitions"), "a fault applies to all partitions of a topic="),
    **dict.fromkeys(("topics", "topic_name"), "write topic='orders', with a fault for each topic"),
    **dict.fromkeys(("client", "clientid"), "write client_id='slow-reader'"),
    **dict.fromkeys(
        ("group", "groups", "group_id"),
        "a fault applies to all groups; client_id='slow-reader' limits it to one client",
    ),
}
"""Arguments of the methods of `Faults`."""

FORMS = {
    "error": "write error('Produce', 'NOT_LEADER_OR_FOLLOWER')",
    "delay": "write delay('Fetch', 2000)",
    "drop": "write drop('Fetch')",
    "disconnect": "write disconnect('Fetch')",
}
"""How the methods of `Faults` are called, for a call without an argument that they need."""

_CODE = {"code": "only error(api, code) has it"}
_DELAY = {"delay_ms": "only delay(api, delay_ms) has it; add a second fault"}
_EXECUTED = {"executed": "only drop(api, executed=True) and disconnect(api, executed=True) have it"}
FAULT_KINDS = {
    "error": {**FAULT, **_DELAY, **_EXECUTED},
    "delay": {**FAULT, **_CODE, **_EXECUTED},
    "drop": {**FAULT, **_CODE, **_DELAY},
    "disconnect": {**FAULT, **_CODE, **_DELAY},
}
"""The same for each method, also those that only the others have."""

REMOVE = "write fault.remove() for what error() or drop() returned, or clear() for all faults"
"""Of `Faults.remove` with another argument than a fault."""

_SECONDS = "write wait(2, seconds=5) for two requests in at most 5 s"
WAIT = {
    **dict.fromkeys(("timeout", "timeout_s", "secs", "duration", "max_seconds"), _SECONDS),
    **dict.fromkeys(("timeout_ms", "ms", "milliseconds"), _SECONDS),
    **dict.fromkeys(("count", "times", "n", "requests", "calls"), "write hits=2"),
}
"""Arguments of `Fault.wait`."""

RESTART = {
    **dict.fromkeys(("timeout", "seconds", "delay", "wait"), "it returns when clients are served"),
    **dict.fromkeys(("kill", "hard", "force"), "write crash=True"),
    "clean": "write crash=True for a restart that is not clean",
}
"""Arguments of `Broker.restart`."""

CLIENT_CONFIG = {
    **dict.fromkeys(("username", "user_name", "sasl_username", "login"), "write user='alice'"),
    **dict.fromkeys(("password", "sasl_password"), "the password is that of users={...}"),
    **dict.fromkeys(("sasl_mechanism", "sasl_mechanisms"), "write mechanism='SCRAM-SHA-256'"),
    **dict.fromkeys(("client", "lib", "package", "name"), "write library='aiokafka'"),
}
"""Arguments of `client_config`."""

OTHER_SETTINGS = (
    "client_config() returns what a client needs to connect; give the client other settings "
    "beside it: {**client_config('confluent'), 'group.id': 'billing'}, or "
    "AIOKafkaConsumer(**client_config('aiokafka'), group_id='billing')"
)
"""Of `client_config` with a setting of a client."""

PARTITION = {
    **dict.fromkeys(("partitions", "partition_id", "num_partitions"), "write partition=0"),
    **dict.fromkeys(("topics", "name", "topic_name"), "write topic='orders'"),
}
"""Arguments of `end_offset` and `leader_of`."""

_BOOTSTRAP = "use bootstrap, which has the host and the port"
_CLIENT = "a client does it, with the settings of client_config()"
_STOP = "use stop(), or a `with` block"
_ADDRESSES = dict.fromkeys(
    (
        *("bootstrap_servers", "bootstrap_server", "get_bootstrap_server", "get_bootstrap_servers"),
        *("address", "addresses", "url", "host", "port", "hostname", "broker_url", "endpoint"),
        *("get_container_host_ip", "get_exposed_port", "listeners"),
    ),
    _BOOTSTRAP,
)
_OF_BOTH = {
    **_ADDRESSES,
    **dict.fromkeys(("close", "shutdown", "terminate", "quit", "exit", "teardown"), _STOP),
    **dict.fromkeys(("run", "launch", "open", "setup"), "use start(), or a `with` block"),
    **dict.fromkeys(("running", "is_alive", "alive", "started", "is_started"), "use is_running"),
    **dict.fromkeys(("wait_until_ready", "wait", "ready", "wait_for_start"), _STARTED),
    **dict.fromkeys(("topics", "list_topics", "get_topics", "describe_topics"), _CLIENT),
    **dict.fromkeys(("produce", "send", "producer", "get_producer", "publish"), _CLIENT),
    **dict.fromkeys(("consume", "poll", "records", "messages", "consumer"), _CLIENT),
    **dict.fromkeys(("admin", "admin_client", "get_admin_client"), _CLIENT),
    **dict.fromkeys(("create_topics", "add_topic", "new_topic"), "use create_topic(name)"),
    **dict.fromkeys(("delete_topics", "remove_topic", "drop_topic"), "use delete_topic(name)"),
    **dict.fromkeys(
        ("end_offsets", "high_watermark", "count", "latest_offset", "offset", "message_count"),
        "use end_offset(topic, partition)",
    ),
    **dict.fromkeys(
        ("config", "configs", "settings", "properties", "connection_params"),
        "use client_config(), which returns the settings of a client",
    ),
    **dict.fromkeys(
        ("reset", "clear", "clean", "purge", "flush"),
        "give each test a new topic (the fixture kafka_topic, or create_topic), or delete_topic()",
    ),
}
_GROUPS = "use the admin client of a library, with the settings of client_config()"
_OF_BOTH |= {
    **dict.fromkeys(("groups", "consumer_groups", "list_groups", "describe_groups"), _GROUPS),
    **dict.fromkeys(("lag", "group_lag", "consumer_lag", "get_lag"), _GROUPS),
    **dict.fromkeys(("committed", "committed_offset", "committed_offsets", "offsets"), _GROUPS),
    **dict.fromkeys(("read", "fetch", "read_all", "get_messages", "get_records"), _CLIENT),
    **dict.fromkeys(("schema_registry", "schema_registry_url"), _REGISTRY),
}
BROKER_ATTRIBUTES = {
    **_OF_BOTH,
    **dict.fromkeys(("kill", "sigkill"), "use crash()"),
    **dict.fromkeys(("resume", "unpause"), "use start()"),
    **dict.fromkeys(("fault", "inject", "inject_fault", "fail", "errors"), "use faults.error()"),
    **dict.fromkeys(("log_dir", "log_dirs", "data_dir", "path", "dir"), "use directory"),
    "zookeeper": "Broker needs no ZooKeeper; Cluster has one",
    "brokers": _COUNT,
}
_OF_ONE = "use that of one broker, cluster[1].{name}"
CLUSTER_ATTRIBUTES = {
    **_OF_BOTH,
    **dict.fromkeys(("faults", "crash", "pause", "restart", "directory", "server"), _OF_ONE),
    "kill": "use that of one broker, cluster[1].crash()",
    **dict.fromkeys(("broker", "get_broker", "node"), "use cluster[1]"),
    "nodes": "use brokers",
    **dict.fromkeys(("size", "num_brokers", "broker_count"), "use len(cluster)"),
    **dict.fromkeys(("leader", "get_leader"), "use leader_of(topic, partition)"),
    **dict.fromkeys(
        ("controller", "get_controller", "controller_id", "isr", "replicas", "in_sync_replicas"),
        "use the admin client of a library: describe_cluster() and describe_topics()",
    ),
    **dict.fromkeys(("stop_broker", "pause_broker"), "use cluster[1].pause()"),
    **dict.fromkeys(("kill_broker", "crash_broker"), "use cluster[1].crash()"),
    **dict.fromkeys(("start_broker", "resume_broker"), "use cluster[1].start()"),
    "restart_broker": "use cluster[1].restart()",
    **dict.fromkeys(("zookeeper_connect", "zk", "zk_connect"), "use zookeeper"),
}
FAULT_ATTRIBUTES = {
    **dict.fromkeys(("fail", "add", "inject", "raise_error", "errors"), "use error(api, code)"),
    **dict.fromkeys(("slow", "latency", "sleep", "slow_down"), "use delay(api, delay_ms)"),
    **dict.fromkeys(("timeout", "hang", "block", "ignore", "lose"), "use drop(api)"),
    **dict.fromkeys(("close", "reset_connection", "kill", "abort"), "use disconnect(api)"),
    **dict.fromkeys(("reset", "remove_all", "stop", "restore"), "use clear()"),
    **dict.fromkeys(("crash", "restart", "pause"), "use the method of the broker, broker.{name}()"),
}
ONE_FAULT_ATTRIBUTES = {
    **dict.fromkeys(("count", "calls", "call_count", "hit_count", "times", "requests"), "use hits"),
    **dict.fromkeys(("clear", "stop", "end", "cancel", "close", "disable"), "use remove()"),
    **dict.fromkeys(
        ("wait_for", "wait_until", "wait_for_hits", "join"), "use wait(hits, seconds=30)"
    ),
}


def refuse(named: Mapping[str, object], hints: Mapping[str, str]) -> None:
    """Raise TypeError with the hint for the first argument that has one."""
    __tracebackhide__ = True
    for name in named:
        if name in hints:
            raise TypeError(f"{name}=...: {hints[name]}")


def refuses(
    hints: Mapping[str, str],
    named_only: str = "",
    *,
    form: str = "",
    others: str = "",
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorate a function so that it raises TypeError with the hint for an argument.

    `named_only` is the hint for arguments without a name, of a method that has none of them,
    `form` that for a call without an argument that it needs, and `others` that for a name that
    resembles none of the function's."""

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        parameters = inspect.signature(function).parameters
        takes_others = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
        own = [each for each in parameters.values() if each.kind == each.POSITIONAL_OR_KEYWORD]

        @wraps(function)
        def checked(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
            __tracebackhide__ = True
            refuse(named, hints)
            for name in () if takes_others else named.keys() - parameters.keys():
                for near in difflib.get_close_matches(name, parameters, n=1):
                    raise TypeError(f"{name}=...: did you mean {near}?")
                if others:
                    raise TypeError(f"{name}=...: {others}")
            for each in own[len(arguments) :] if form else ():
                if each.default is each.empty and each.name not in named:
                    raise TypeError(f"{function.__name__}() without {each.name}: {form}")
            if named_only and len(arguments) > 1:
                raise TypeError(f"{function.__name__}({arguments[1]!r}): {named_only}")
            return function(*arguments, **named)

        return checked

    return decorate


def missing(owner: object, name: str, hints: Mapping[str, str]) -> AttributeError:
    """The error for an attribute that the class does not have, with the hint if there is one."""
    hint = hints.get(name, "").format(name=name)
    text = f"{type(owner).__name__!r} object has no attribute {name!r}"
    return AttributeError(f"{text}: {hint}" if hint else text, name=name, obj=owner)
