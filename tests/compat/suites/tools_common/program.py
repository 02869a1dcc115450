"""Kafka's console and admin tools against one broker: the classes behind the scripts in bin/."""

import json
import subprocess
import tempfile
from pathlib import Path

from tests.compat.suites.reporting import (
    BOOTSTRAP,
    BUILD,
    CODECS,
    PREFIX,
    VERSION,
    check,
    equal,
    feature,
    run_all,
    until,
)

JVM = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TOOL_SECONDS = 90
IS_4 = VERSION.startswith("4.")

TOPICS = "org.apache.kafka.tools.TopicCommand"
CONFIGS = "org.apache.kafka.tools.ConfigCommand" if IS_4 else "kafka.admin.ConfigCommand"
PRODUCER = "org.apache.kafka.tools.ConsoleProducer" if IS_4 else "kafka.tools.ConsoleProducer"
CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"
GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"
OFFSETS = "org.apache.kafka.tools.GetOffsetShell"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
ELECTION = "org.apache.kafka.tools.LeaderElectionCommand"
REASSIGN = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
DELETE_RECORDS = "org.apache.kafka.tools.DeleteRecordsCommand"
LOG_DIRS = "org.apache.kafka.tools.LogDirsCommand"
CLUSTER = "org.apache.kafka.tools.ClusterTool"
VERSIONS = (
    "org.apache.kafka.tools.BrokerApiVersionsCommand"
    if IS_4
    else "kafka.admin.BrokerApiVersionsCommand"
)
# The names of some classes moved between releases: the first that exists is taken.
MOVED = {
    "org.apache.kafka.tools.ConfigCommand": "kafka.admin.ConfigCommand",
    "org.apache.kafka.tools.BrokerApiVersionsCommand": "kafka.admin.BrokerApiVersionsCommand",
}


def tool(name: str, *arguments: str, text: str = "", connect: bool = True) -> str:
    where = ("--bootstrap-server", BOOTSTRAP) if connect else ()
    output, code = start(name, (*where, *arguments), text)
    if "ClassNotFoundException" in output and name in MOVED:
        output, code = start(MOVED[name], (*where, *arguments), text)
    if code:
        raise AssertionError(f"exit code {code}: {output[-400:]}")
    return output


def groups(*arguments: str) -> str:
    """kafka-consumer-groups, whose own timeout of 5 s is short for a JVM on a busy machine."""
    return tool(GROUPS, *arguments, "--timeout", "60000")


def start(name: str, arguments: tuple[str, ...], text: str) -> tuple[str, int]:
    done = subprocess.run(
        ["java", *JVM, "-cp", f"{BUILD}/lib/*", name, *arguments],
        input=text, capture_output=True, text=True, timeout=TOOL_SECONDS,
    )  # fmt: skip
    return done.stdout + done.stderr, done.returncode


def written(content: object) -> str:
    """A file for a tool that wants one."""
    path = Path(tempfile.mkstemp(suffix=".json")[1])
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def topic(name: str) -> str:
    return f"{PREFIX}-{name}"


def produce(name: str, count: int, *arguments: str) -> None:
    text = "".join(f"k{n}:value-{n}\n" for n in range(count))
    tool(PRODUCER, "--topic", name, *PROPERTY, "parse.key=true", *PROPERTY,
         "key.separator=:", *arguments, text=text)  # fmt: skip


# 4.2 renamed the options of the readers and formatters.
PROPERTY = ("--reader-property",) if IS_4 else ("--property",)
SHOW = ("--formatter-property",) if IS_4 else ("--property",)
CONFIGURE = ("--command-property",) if IS_4 else ("--producer-property",)


def consume(name: str, count: int, *arguments: str) -> list[str]:
    output = tool(CONSUMER, "--topic", name, "--max-messages", str(count), "--timeout-ms", "40000",
                  *SHOW, "print.key=true", *SHOW, "key.separator=:", *arguments)  # fmt: skip
    return [line for line in output.splitlines() if line.startswith("k")]


def round_trip(name: str, *arguments: str) -> None:
    produce(topic(name), 100, *arguments)
    equal(consume(topic(name), 100, "--from-beginning"), [f"k{n}:value-{n}" for n in range(100)])


@feature("connect")
def connect() -> None:
    output = tool(VERSIONS)
    assert "Produce(0)" in output, output
    assert "UNKNOWN" not in output.split("id: ")[0]


@feature("create-topic")
def create_topic() -> None:
    tool(TOPICS, "--create", "--topic", topic("created"), "--partitions", "3")


@feature("list-topics")
def list_topics() -> None:
    assert topic("created") in tool(TOPICS, "--list").split()
    assert "PartitionCount: 3" in tool(TOPICS, "--describe", "--topic", topic("created"))


@feature("create-partitions")
def create_partitions() -> None:
    tool(TOPICS, "--alter", "--topic", topic("created"), "--partitions", "5")
    until(
        lambda: "PartitionCount: 5" in tool(TOPICS, "--describe", "--topic", topic("created")),
        "not seen",
    )


@feature("auto-create")
def auto_create() -> None:
    round_trip("auto")


@feature("idempotent")
def idempotent() -> None:
    round_trip("idempotent", *CONFIGURE, "enable.idempotence=true")


@feature("headers")
def headers() -> None:
    name = topic("headers")
    tool(PRODUCER, "--topic", name, *PROPERTY, "parse.headers=true", text="a:1,b:2\tvalue\n")
    output = tool(CONSUMER, "--topic", name, "--from-beginning", "--max-messages", "1",
                  "--timeout-ms", "40000", *SHOW, "print.headers=true")  # fmt: skip
    assert "a:1,b:2\tvalue" in output, output


@feature("consume")
def consumed() -> None:
    produce(topic("consume"), 200)
    equal(len(consume(topic("consume"), 200, "--partition", "0", "--offset", "earliest")), 200)


@feature("list-offsets")
def list_offsets() -> None:
    # A line of its own, beside what the tool's logging says.
    assert f"{topic('consume')}:0:200" in tool(OFFSETS, "--topic", topic("consume")).split()


@feature("seek-by-time")
def seek_by_time() -> None:
    found = tool(OFFSETS, "--topic", topic("consume"), "--time", "1700000000000").split()
    assert f"{topic('consume')}:0:0" in found, found


@feature("group")
def group() -> None:
    rows = consume(topic("consume"), 200, "--group", topic("g"), "--from-beginning")
    equal(len(rows), 200)


@feature("group-commit")
def group_commit() -> None:
    produce(topic("consume"), 10)
    equal(
        consume(topic("consume"), 10, "--group", topic("g")), [f"k{n}:value-{n}" for n in range(10)]
    )


def describe_offsets() -> list[str]:
    output = groups("--describe", "--group", topic("g"), "--offsets")
    rows = [line.split() for line in output.splitlines() if topic("consume") in line]
    assert rows, output
    return rows[0]


@feature("group-consumer-protocol")
def group_consumer_protocol() -> None:
    option = "--command-property" if IS_4 else "--consumer-property"
    rows = consume(topic("consume"), 210, "--group", topic("g848"), "--from-beginning",
                   option, "group.protocol=consumer")  # fmt: skip
    equal(len(rows), 210)


@feature("list-groups")
def list_groups() -> None:
    assert topic("g") in groups("--list").split()


@feature("describe-group")
def describe_group() -> None:
    assert "Empty" in groups("--describe", "--group", topic("g"), "--state")


@feature("group-offsets")
def group_offsets() -> None:
    equal(describe_offsets()[2:6], ["0", "210", "210", "0"])


@feature("reset-offsets")
def reset_offsets() -> None:
    groups("--reset-offsets", "--group", topic("g"), "--topic", topic("consume"),
         "--to-offset", "17", "--execute")  # fmt: skip
    equal(describe_offsets()[2:6], ["0", "17", "210", "193"])


@feature("delete-offsets")
def delete_offsets() -> None:
    groups("--delete-offsets", "--group", topic("g"), "--topic", topic("consume"))
    output = groups("--describe", "--group", topic("g"), "--offsets")
    assert topic("consume") not in output, output


@feature("delete-group")
def delete_group() -> None:
    name = topic("g-delete")
    consume(topic("consume"), 5, "--group", name, "--from-beginning")
    # Its exit code is 0 for a group that it could not delete.
    output = groups("--delete", "--group", name)
    assert "successful" in output, output
    assert name not in groups("--list").split()


@feature("txn-admin")
def txn_admin() -> None:
    tool(TRANSACTIONS, "list")
    tool(TRANSACTIONS, "describe-producers", "--topic", topic("consume"), "--partition", "0")


@feature("describe-cluster")
def describe_cluster() -> None:
    equal(tool(CLUSTER, "cluster-id", "--bootstrap-server", BOOTSTRAP, connect=False)
          .startswith("Cluster ID: "), True)  # fmt: skip


@feature("describe-configs")
def describe_configs() -> None:
    output = tool(CONFIGS, "--describe", "--all", "--topic", topic("consume"))
    assert "cleanup.policy=delete" in output, output
    assert "log.dirs=" in tool(CONFIGS, "--describe", "--all", "--broker", "0")


@feature("alter-configs")
def alter_configs() -> None:
    tool(CONFIGS, "--alter", "--topic", topic("consume"), "--add-config", "retention.ms=1234567890")
    assert "retention.ms=1234567890" in tool(CONFIGS, "--describe", "--topic", topic("consume"))


@feature("quotas")
def quotas() -> None:
    client = topic("client")
    tool(CONFIGS, "--alter", "--client", client, "--add-config", "producer_byte_rate=1000000")
    assert "producer_byte_rate=1000000" in tool(CONFIGS, "--describe", "--client", client)


@feature("delete-records")
def delete_records() -> None:
    place = {"topic": topic("consume"), "partition": 0, "offset": 50}
    path = written({"partitions": [place], "version": 1})
    assert "low_watermark: 50" in tool(DELETE_RECORDS, "--offset-json-file", path)


@feature("log-dirs")
def log_dirs() -> None:
    output = tool(LOG_DIRS, "--describe", "--topic-list", topic("consume"))
    found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    names = [each["partition"] for each in found["brokers"][0]["logDirs"][0]["partitions"]]
    equal(names, [f"{topic('consume')}-0"])


@feature("elect-leaders")
def elect_leaders() -> None:
    output = tool(ELECTION, "--election-type", "preferred", "--topic", topic("consume"),
                  "--partition", "0")  # fmt: skip
    assert "Valid replica already elected" in output, output


@feature("reassign")
def reassign() -> None:
    moved = written({"topics": [{"topic": topic("created")}], "version": 1})
    output = tool(REASSIGN, "--generate", "--topics-to-move-json-file", moved, "--broker-list", "0")
    plan = written(output.split("Proposed partition reassignment configuration")[1].strip())
    tool(REASSIGN, "--execute", "--reassignment-json-file", plan)
    until(
        lambda: "is completed" in tool(REASSIGN, "--verify", "--reassignment-json-file", plan),
        "still in progress",
    )
    tool(REASSIGN, "--list")


@feature("delete-topic")
def delete_topic() -> None:
    tool(TOPICS, "--delete", "--topic", topic("created"))
    until(lambda: topic("created") not in tool(TOPICS, "--list").split(), "still listed")


for acks in ("1", "all"):
    check(
        f"acks-{acks}",
        lambda acks=acks: round_trip(f"acks-{acks}", *CONFIGURE, f"acks={acks}"),
    )
for codec in CODECS:
    check(f"codec-{codec}", lambda codec=codec: round_trip(codec, "--compression-codec", codec))
run_all()
