"""The flags of Kafka's command line tools, and their meaning in Ottla.

One block a tool: its name and the commands that replace it; then a flag a line, with its meaning.
`V` after a flag is a value, `[V]` an optional value. A meaning is

    > topics list     the command that the flag chooses
    --option          an option of that command, with the value of the flag
    NAME              an argument of that command: the value of the flag
    . reason          accepted, nothing to do
    * words           translated by a function of `kafka_tools.py`
    ! words           refused, with the command for the same result
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Flag(NamedTuple):
    """A flag of a tool: whether it has a value ("", "V" or "[V]"), and its meaning here."""

    name: str
    value: str
    kind: str  # one of ">", "-", "N", ".", "*", "!"
    text: str

    @property
    def tokens(self) -> list[str]:
        """The words of a command, or of an option and its value."""
        return self.text.split()


class Tool(NamedTuple):
    """A tool of Kafka and the commands that replace it; the first is the one without an action."""

    name: str
    commands: tuple[str, ...]
    flags: dict[str, Flag]

    @property
    def has_actions(self) -> bool:
        """Whether flags choose the command."""
        return any(flag.kind == ">" for flag in self.flags.values())


_CONNECTION = """
  --bootstrap-server V  --bootstrap
  --command-config V  --command-config
"""
_COMMON = """
  --help  . prints this table
  --version  . prints the version of Ottla
"""
_OFFLINE = ("kafka-dump-log",)

_TABLE = """
kafka-topics: topics list, topics create, topics describe, topics alter, topics delete
  --list  > topics list
  --create  > topics create
  --describe  > topics describe
  --alter  > topics alter
  --delete  > topics delete
  --topic V  NAME; a regular expression, which --create does not take: --regex
  --topic-id V  --topic-id
  --partitions V  --partitions
  --replication-factor V  --replication-factor
  --replica-assignment V  --replica-assignment
  --config V  --config
  --delete-config V  ! use `ottla configs unset topic NAME SETTING`
  --if-exists  --if-exists
  --if-not-exists  --if-not-exists
  --exclude-internal  * the default of `topics list`; --internal lists them, too
  --under-replicated-partitions  --under-replicated
  --unavailable-partitions  --unavailable
  --under-min-isr-partitions  --under-min-isr
  --at-min-isr-partitions  --at-min-isr
  --topics-with-overrides  --with-overrides
  --partition-size-limit-per-response V  . the answer is always complete

kafka-get-offsets: topics offsets
  --topic V  * NAME, or a regular expression: --regex
  --topic-partitions V  * NAME:0,1, or regular expressions and ranges: --regex
  --partitions V  * NAME:0,1
  --time V  --time
  --exclude-internal-topics  * the default; --internal includes them
  --broker-list V  --bootstrap

kafka-console-producer: produce
  --topic V  NAME
  --broker-list V  --bootstrap
  --producer.config V  --command-config
  --compression-codec [V]  * --codec, gzip without a value
  --request-required-acks V  * --acks; -1: all
  --request-timeout-ms V  * --timeout in seconds
  --property V  * key.separator and parse.key=true: --key-separator; null.marker: --null
  --producer-property V  * acks: --acks; compression.type: --codec; others: --command-config FILE
  --line-reader V  ! Java classes cannot be loaded; `ottla produce --json-lines` reads keys and headers
  --reader-config V  ! use `ottla produce --key-separator`, `--null` or `--json-lines`
  --sync  . each batch is awaited
  --batch-size V  . a batch is what one read returns
  --max-partition-memory-bytes V  . a batch is what one read returns
  --max-memory-bytes V  . one batch is in flight
  --max-block-ms V  . --timeout bounds each request
  --message-send-max-retries V  . retries last four times --timeout
  --retry-backoff-ms V  . retries last four times --timeout
  --metadata-expiry-ms V  . metadata is refreshed after each error
  --socket-buffer-size V  . the system chooses it
  --timeout V  . lines are sent at once

kafka-console-consumer: consume
  --topic V  NAME
  --include V  ! one topic at a time: `ottla consume TOPIC`; `ottla topics list` has the names
  --whitelist V  ! one topic at a time: `ottla consume TOPIC`; `ottla topics list` has the names
  --consumer.config V  --command-config
  --consumer-property V  * group.id: --group; auto.offset.reset, isolation.level; others: --command-config FILE
  --group V  --group
  --partition V  --partition
  --offset V  * --offset; earliest: --from-beginning; latest: --from-end
  --from-beginning  * --from-beginning, for a group without committed offsets
  --max-messages V  --max
  --timeout-ms V  * --idle in seconds
  --isolation-level V  * read_committed: --read-committed
  --property V  * print.key: --key; print.headers: --headers; print.timestamp: --timestamp; print.partition, print.offset: --where; key.separator: --separator
  --formatter V  * the default one only: --format text; others: --format json, hex or raw
  --formatter-config V  ! use `ottla consume --format`, `--key`, `--headers` or `--separator`
  --key-deserializer V  * strings only; others: --format json, hex or raw
  --value-deserializer V  * strings only; others: --format json, hex or raw
  --skip-message-on-error  . a record of any bytes is printed
  --enable-systest-events  ! for Kafka's own tests; `ottla consume --json` prints an object a record

kafka-consumer-groups: groups list, groups describe, groups delete, groups delete-offsets, groups reset-offsets
  --list  > groups list
  --describe  > groups describe
  --delete  > groups delete
  --delete-offsets  > groups delete-offsets
  --reset-offsets  > groups reset-offsets
  --group V  GROUP
  --all-groups  * `groups describe --all`; elsewhere name the groups
  --topic V  NAME
  --all-topics  --all-topics
  --members  --members
  --offsets  . the default of `groups describe`
  --verbose  . nothing is left out
  --state [V]  * of `groups list` --state with each state; of `groups describe` --state
  --type [V]  * --type with each type; a column anyway
  --timeout V  * --timeout in seconds
  --dry-run  . the default of `groups reset-offsets`
  --execute  --execute
  --export  --export
  --from-file V  --from-file
  --by-duration V  --by-duration
  --shift-by V  --shift-by
  --to-current  --to-current
  --to-datetime V  --to-datetime
  --to-earliest  --to-earliest
  --to-latest  --to-latest
  --to-offset V  --to-offset

kafka-configs: configs describe, configs set, configs unset, quotas describe, quotas alter, users list, users add, users remove
  --describe  * configs describe; of users, clients and addresses: quotas describe; of users also users list
  --alter  * configs set and unset; of users, clients and addresses: quotas alter
  --entity-type V  * the kind: topic, broker, cluster, logger, metrics
  --entity-name V  * the name
  --entity-default  * cluster; of quotas --user-default, --client-default, --ip-default
  --topic V  * topic NAME
  --broker V  * broker ID
  --broker-defaults  * cluster
  --broker-logger V  * logger ID
  --client V  * --client of quotas
  --client-defaults  * --client-default of quotas
  --user V  * --user of quotas
  --user-defaults  * --user-default of quotas
  --ip V  * --ip of quotas
  --ip-defaults  * --ip-default of quotas
  --add-config V  * configs set NAME=VALUE...; quotas alter --set; SCRAM-SHA-256=[...]: users add, which asks for the password
  --add-config-file V  * configs set with the settings of the file
  --delete-config V  * configs unset NAME...; quotas alter --remove; SCRAM-SHA-256, SCRAM-SHA-512: users remove
  --all  --all
  --force  . there is no question
  --zookeeper V  * --offline --zookeeper, for brokers that do not run; of users: users list, add, remove --zookeeper
  --zk-tls-config-file V  ! use `ottla configs describe --offline --config server.properties`, of users `ottla users list --config server.properties`, which has the zookeeper.ssl.* settings
  --bootstrap-controller V  ! there are no KRaft controllers; `ottla configs` asks a broker: --bootstrap

kafka-acls: acls list, acls add, acls remove
  --list  > acls list
  --add  > acls add
  --remove  > acls remove
  --allow-principal V  * --allow; of `acls remove`: --principal and --permission allow
  --deny-principal V  * --deny; of `acls remove`: --principal and --permission deny
  --allow-host V  * --host
  --deny-host V  * --host
  --principal V  * --principal
  --operation V  * --operation
  --topic V  * --topic
  --group V  * --group
  --cluster  * --cluster
  --transactional-id V  * --transactional-id
  --delegation-token V  * --delegation-token
  --user-principal V  * --user
  --resource-pattern-type V  * prefixed: --prefixed; match: --matching
  --producer  * -o write -o describe -o create of the topic, and write of the transactional id
  --consumer  * -o read -o describe of the topic, and read of the group
  --idempotent  * -o idempotent-write --cluster
  --force  * --yes
  --authorizer V  ! Java classes cannot be loaded; `ottla acls` asks a broker: --bootstrap
  --authorizer-properties V  ! Java classes cannot be loaded; `ottla acls` asks a broker: --bootstrap
  --zk-tls-config-file V  ! `ottla acls` asks a broker and not ZooKeeper: --bootstrap

kafka-reassign-partitions: partitions reassign list, partitions reassign generate, partitions reassign execute, partitions reassign verify, partitions reassign cancel
  --list  > partitions reassign list
  --generate  > partitions reassign generate
  --execute  > partitions reassign execute
  --verify  > partitions reassign verify
  --cancel  > partitions reassign cancel
  --reassignment-json-file V  PLAN
  --topics-to-move-json-file V  --topics-file
  --broker-list V  --brokers
  --disable-rack-aware  --ignore-racks
  --throttle V  --throttle
  --additional  --additional
  --preserve-throttles  --keep-throttle
  --timeout V  * --timeout in seconds
  --replica-alter-log-dirs-throttle V  ! use `ottla configs set broker ID replica.alter.log.dirs.io.max.bytes.per.second=BYTES`

kafka-leader-election: partitions elect-leaders
  --topic V  * NAME:PARTITION
  --partition V  * NAME:PARTITION
  --all-topic-partitions  . the default without names
  --election-type V  * preferred is the default; unclean: --unclean
  --path-to-json-file V  --file
  --admin.config V  --command-config

kafka-log-dirs: log-dirs
  --describe  . the command has no other action
  --broker-list V  * --broker of each
  --topic-list V  * NAME of each

kafka-delete-records: records delete
  --offset-json-file V  --file

kafka-transactions: transactions list, transactions describe, transactions producers, transactions abort, transactions find-hanging
  list  > transactions list
  describe  > transactions describe
  describe-producers  > transactions producers
  abort  > transactions abort
  find-hanging  > transactions find-hanging
  --transactional-id V  NAME
  --topic V  * NAME:PARTITION; of find-hanging --topic
  --partition V  * NAME:PARTITION; of find-hanging `ottla transactions producers NAME:PARTITION`
  --start-offset V  --start-offset
  --producer-id V  --producer-id
  --duration-filter V  --longer-than-ms
  --max-transaction-timeout V  --max-minutes
  --broker-id V  ! the leader is asked; `ottla transactions producers` and `find-hanging` take --topic
  --producer-epoch V  ! only brokers older than 3.0 need it: `ottla transactions abort NAME:PARTITION --start-offset N`
  --coordinator-epoch V  ! only brokers older than 3.0 need it: `ottla transactions abort NAME:PARTITION --start-offset N`

kafka-dump-log: log dump
  --files V  * FILE...
  --print-data-log  --payload
  --deep-iteration  --records
  --skip-record-metadata  . lines are JSON, with all fields
  --offsets-decoder  --payload
  --transaction-log-decoder  --payload
  --remote-log-metadata-decoder  --payload
  --cluster-metadata-decoder  ! there is no KRaft metadata log here; the tree is read by `ottla configs describe --offline`
  --key-decoder-class [V]  ! Java classes cannot be loaded; `ottla log dump --payload` prints bytes that are not text as base64
  --value-decoder-class [V]  ! Java classes cannot be loaded; `ottla log dump --payload` prints bytes that are not text as base64
  --max-bytes V  ! use `ottla log dump --limit LINES`
  --max-message-size V  . batches of any size are read
  --index-sanity-check  ! use `ottla log index-check DIRECTORY`
  --verify-index-only  ! use `ottla log index-check DIRECTORY`
"""

# Other scripts of Kafka's bin/, and their replacements.
OTHER_SCRIPTS = {
    "kafka-server-start": "use `ottla start server.properties`.",
    "kafka-server-stop": "send SIGTERM to the broker; `kill PID` does.",
    "kafka-storage": "a log directory needs no format; `ottla start` prepares it, "
    "`ottla start --add-scram` sets first passwords.",
    "kafka-cluster": "use `ottla cluster info`.",
    "kafka-broker-api-versions": "use `ottla features --apis`.",
    "kafka-features": "use `ottla features`.",
    "kafka-delegation-tokens": "use `ottla tokens`.",
    "kafka-verifiable-producer": "use `ottla produce`, or Kafka's own script: it works with Ottla.",
    "kafka-verifiable-consumer": "use `ottla consume TOPIC --group GROUP --follow --json`, or "
    "Kafka's own script: it works with Ottla.",
    "kafka-mirror-maker": "use `connect-mirror-maker.sh` of Kafka (MirrorMaker 2): it works with "
    "Ottla.",
    "kafka-preferred-replica-election": "Kafka 3.0 has removed it: use "
    "`ottla partitions elect-leaders`.",
    "kafka-producer-perf-test": "use `ottla bench`, or Kafka's own script: it works with Ottla.",
    "kafka-consumer-perf-test": "use `ottla bench`, or Kafka's own script: it works with Ottla.",
    "kafka-share-groups": "use `ottla share-groups`.",
    "kafka-console-share-consumer": "use `ottla consume TOPIC --share-group GROUP`.",
    "kafka-metadata-quorum": "there is no KRaft here; `ottla cluster info` names the controller.",
    "kafka-metadata-shell": "there is no KRaft here; `ottla cluster info` names the controller.",
    "kafka-client-metrics": "use `ottla configs describe metrics NAME`.",
    "kafka-run-class": "there are no Java classes here; `ottla --help` lists the commands.",
    "zookeeper-server-start": "use `ottla zookeeper zookeeper.properties` for development, "
    "ZooKeeper's own script else.",
    "zookeeper-server-stop": "send SIGTERM to `ottla zookeeper`; `kill PID` does.",
    "zookeeper-shell": "use `zkCli.sh` of ZooKeeper; `ottla cluster info` shows brokers and controller.",
    "connect-standalone": "use `connect-standalone.sh` of Kafka: it works with Ottla.",
    "connect-distributed": "use `connect-distributed.sh` of Kafka: it works with Ottla.",
    "connect-mirror-maker": "use `connect-mirror-maker.sh` of Kafka: it works with Ottla.",
    "kafka-e2e-latency": "use `ottla bench`, or Kafka's own script: it works with Ottla.",
}


#: The script of a class of `kafka-run-class`, by its name without the package: packages have changed.
SCRIPT_OF_CLASS = {
    "TopicCommand": "kafka-topics",
    "GetOffsetShell": "kafka-get-offsets",
    "ConsoleProducer": "kafka-console-producer",
    "ConsoleConsumer": "kafka-console-consumer",
    "ConsumerGroupCommand": "kafka-consumer-groups",
    "ConfigCommand": "kafka-configs",
    "AclCommand": "kafka-acls",
    "ReassignPartitionsCommand": "kafka-reassign-partitions",
    "LeaderElectionCommand": "kafka-leader-election",
    "PreferredReplicaLeaderElectionCommand": "kafka-preferred-replica-election",
    "LogDirsCommand": "kafka-log-dirs",
    "DeleteRecordsCommand": "kafka-delete-records",
    "TransactionsCommand": "kafka-transactions",
    "DumpLogSegments": "kafka-dump-log",
    "Kafka": "kafka-server-start",
    "StorageTool": "kafka-storage",
    "ClusterTool": "kafka-cluster",
    "BrokerApiVersionsCommand": "kafka-broker-api-versions",
    "FeatureCommand": "kafka-features",
    "DelegationTokenCommand": "kafka-delegation-tokens",
    "ProducerPerformance": "kafka-producer-perf-test",
    "ConsumerPerformance": "kafka-consumer-perf-test",
    "VerifiableProducer": "kafka-verifiable-producer",
    "VerifiableConsumer": "kafka-verifiable-consumer",
    "ClientMetricsCommand": "kafka-client-metrics",
    "EndToEndLatency": "kafka-e2e-latency",
    "MirrorMaker": "kafka-mirror-maker",
    "QuorumPeerMain": "zookeeper-server-start",
}


def _parsed(table: str) -> dict[str, Tool]:
    tools: dict[str, Tool] = {}
    for block in table.strip().split("\n\n"):
        heading, *lines = block.splitlines()
        name, _, commands = heading.partition(": ")
        flags: dict[str, Flag] = {}
        connection = "" if name in _OFFLINE else _CONNECTION
        for line in (*lines, *connection.split("\n"), *_COMMON.split("\n")):
            if not line:
                continue
            left, right = re.split(r"\s{2,}", line.strip(), maxsplit=1)
            flag, _, value = left.partition(" ")
            kind = right[0] if right[0] in ">.*!-" else "N"
            text = right if kind in "-N" else right[2:]
            flags.setdefault(flag, Flag(flag, value, kind, text))
        tools[name] = Tool(name, tuple(commands.split(", ")), flags)
    return tools


TOOLS = _parsed(_TABLE)
