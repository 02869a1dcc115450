"""Each flag of Kafka's tools is an option here, is accepted, or is refused with the right command.

`kafka_flags.txt` has the flags that the tools themselves list (tests/compat/test_kafka_flags.py).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from ottla.cli.app import app
from ottla.cli.kafka_flags import OTHER_SCRIPTS, SCRIPT_OF_CLASS, TOOLS
from ottla.cli.kafka_tools import help_text, plan
from ottla.cli.output import USAGE, Failure
from tools.kafka_tools_page import CLI_PAGE, table

LISTED = {
    line.partition(": ")[0]: line.partition(": ")[2].split()
    for line in (Path(__file__).parent / "kafka_flags.txt").read_text("utf-8").splitlines()
}
ROOT: Any = get_command(app)

# A line of Kafka, and what it is here.
LINES = """\
kafka-topics.sh --create --topic orders --partitions 3 --replication-factor 2 --config a=b
= topics create orders --partitions 3 --replication-factor 2 --config a=b
kafka-topics --list
= topics list --internal
kafka-topics --list --exclude-internal
= topics list
kafka-topics --describe --topic=orders --under-min-isr-partitions
= topics describe orders --under-min-isr
kafka-topics --delete --topic orders --if-exists --bootstrap-server h:1
= topics delete orders --if-exists --bootstrap h:1 --yes
topics --describe --topic orders
= topics describe orders
kafka-topics --describe --topic 'a.*, b|c' --exclude-internal
= topics describe --regex 'a.*|b|c'
kafka-topics --describe --topic a.b
= topics describe --regex a.b --internal
kafka-topics --list --topic orders
= topics list --regex orders --internal
kafka-topics --delete --topic 'test.*' --if-exists
= topics delete --if-exists --regex 'test.*' --yes
kafka-topics --alter --topic 'a|b' --partitions 4
= topics alter --partitions 4 --regex 'a|b'
kafka-topics --create --topic a.b
= topics create a.b
topics delete --topic 'test.*'
= topics delete --regex 'test.*'
topics create --topic orders -p 6
= topics create -p 6 orders
topics alter --topic orders --partitions 12 --if-exists
= topics alter --partitions 12 --if-exists orders
topics describe orders --unavailable-partitions --json
= topics describe orders --json --unavailable
kafka-get-offsets --topic orders --partitions 0,2 --time -2
= topics offsets --time -2 orders:0,2
kafka-get-offsets --topic-partitions orders:0,payments --exclude-internal-topics
= topics offsets orders:0 payments
kafka-get-offsets --topic 'o.*' --partitions 0,2 --exclude-internal-topics
= topics offsets --regex 'o.*:0' --regex 'o.*:2'
kafka-get-offsets --topic-partitions 'o.*:0-2,p:3-,:0'
= topics offsets --regex 'o.*:0-2' --regex p:3- --regex :0 --internal
kafka-get-offsets --topic a,b
= topics offsets --regex 'a|b' --internal
kafka-console-producer --topic orders --compression-codec --broker-list h:1
= produce orders --bootstrap h:1 --codec gzip
kafka-console-producer --topic orders --compression-codec zstd --request-timeout-ms 1500
= produce orders --timeout 1.5 --codec zstd
kafka-console-producer --topic t --property parse.key=true --property key.separator=: --sync
= produce t --key-separator :
kafka-console-producer --topic t --request-required-acks -1
= produce t --acks all
kafka-console-producer --topic t --producer-property acks=1 --property null.marker=NULL
= produce t --acks 1 --null NULL
kafka-console-consumer --topic orders --from-beginning --max-messages 3
= consume orders --max 3 --from-beginning --follow
kafka-console-consumer --topic orders --timeout-ms 1500 --isolation-level read_committed
= consume orders --read-committed --follow --idle 1.5
kafka-console-consumer --topic t --partition 0 --offset earliest --property print.key=true
= consume t --partition 0 --from-beginning --key --follow
kafka-console-consumer --topic t --property print.offset=true --property print.partition=true
= consume t --where --follow
kafka-console-consumer --topic t --consumer-property group.id=g --partition 0 --timeout-ms 5
= consume t --partition 0 --group g --from-end
kafka-console-consumer --topic t --consumer-property group.id=g
= consume t --group g --follow
kafka-console-consumer --topic t --timeout-ms -1
= consume t --follow
kafka-console-consumer --topic t --group g --timeout-ms 5000
= consume t --group g --follow --idle 5
kafka-console-consumer --topic t --group g --consumer-property auto.offset.reset=earliest
= consume t --group g --from-beginning --follow
kafka-console-consumer --topic t --key-deserializer a.StringDeserializer --timeout-ms 5
= consume t --follow --idle 0.005
kafka-console-consumer --topic t --value-deserializer a.StringDeserializer
= consume t --follow
kafka-console-consumer --topic t --formatter kafka.tools.DefaultMessageFormatter
= consume t --follow
kafka-console-consumer --topic t --group g --from-beginning --timeout-ms 5
= consume t --group g --from-beginning --follow --idle 0.005
consume t --timeout-ms 5
= consume t
consume t --timeout-ms 5 --follow
= consume t --follow --idle 0.005
consume t --timeout-ms 5 -fk
= consume t -fk --idle 0.005
consume t --zookeeper h:1 --group g --max-messages 5
= consume t --zookeeper h:1 --group g --max 5
topics delete a.b
= topics delete a.b
consume --topic orders --max-messages 1 --offset latest
= consume orders --max 1 --from-end
kafka-consumer-groups --describe --group billing --members --verbose
= groups describe billing --members
kafka-consumer-groups --describe --all-groups
= groups describe --all
kafka-consumer-groups --describe --state --group g
= groups describe g --state
kafka-consumer-groups --list --state stable --state
= groups list --state stable
kafka-consumer-groups --list --state stable,empty --type classic
= groups list --state stable --state empty --type classic
kafka-consumer-groups --reset-offsets --topic orders:0 --group billing --shift-by -5 --dry-run
= groups reset-offsets billing orders:0 --shift-by -5
kafka-consumer-groups --delete-offsets --group g --topic t --timeout 2500
= groups delete-offsets g t --timeout 2.5
groups reset-offsets --group billing --topic orders --to-earliest --execute
= groups reset-offsets billing --to-earliest --execute orders
groups --delete --group billing
= groups delete billing --yes
kafka-configs --describe --entity-type topics --entity-name orders --all
= configs describe topic orders --all
kafka-configs --alter --topic orders --add-config cleanup.policy=[compact,delete],segment.ms=60000
= configs set topic orders cleanup.policy=compact,delete segment.ms=60000
kafka-configs --alter --broker 1 --add-config a=1 --delete-config b,c --force
= configs set broker 1 a=1
= configs unset broker 1 b c --must-be-set
kafka-configs --alter --entity-type brokers --entity-default --delete-config a
= configs unset cluster a --must-be-set
kafka-configs --describe --entity-type topics --all
= configs describe topic --all
kafka-configs --describe --entity-type brokers
= configs describe broker
kafka-configs --describe --entity-type brokers --entity-default
= configs describe cluster
kafka-configs --describe --broker-defaults --zookeeper zk:2181
= configs describe cluster --offline --zookeeper zk:2181
kafka-configs --describe --broker-logger 1
= configs describe logger 1
kafka-configs --alter --user alice --client c --add-config producer_byte_rate=1024
= quotas alter --user alice --client c --set producer_byte_rate=1024
kafka-configs --alter --user-defaults --delete-config producer_byte_rate
= quotas alter --user-default --remove producer_byte_rate
kafka-configs --describe --entity-type users --entity-default --entity-type clients --entity-name c
= quotas describe --user-default --client c --only user --only client
kafka-configs --alter --topic t --add-config a=1,,b=2,
= configs set topic t a=1 b=2
kafka-configs --describe --client-defaults
= quotas describe --client-default --only client
kafka-configs --describe --ip 10.0.0.1
= quotas describe --ip 10.0.0.1 --only ip
kafka-run-class.sh kafka.tools.GetOffsetShell --broker-list b:1 --topic t --time -1
= topics offsets --time -1 --bootstrap b:1 t
kafka-run-class org.apache.kafka.tools.TopicCommand --list --bootstrap-server b:1
= topics list --bootstrap b:1 --internal
kafka-configs --describe --entity-type users
= quotas describe --only user
= users list
kafka-configs --describe --entity-type users --entity-type clients
= quotas describe --only user --only client
kafka-configs --describe --entity-type users --entity-name alice --bootstrap-server b:1
= quotas describe --user alice --only user --bootstrap b:1
= users list alice --bootstrap b:1
kafka-configs --alter --user alice --delete-config SCRAM-SHA-256,SCRAM-SHA-512
= users remove alice --mechanism SCRAM-SHA-256 --mechanism SCRAM-SHA-512
kafka-configs --alter --user alice --delete-config SCRAM-SHA-256,producer_byte_rate
= users remove alice --mechanism SCRAM-SHA-256
= quotas alter --user alice --remove producer_byte_rate
kafka-configs --zookeeper zk:2181/k --describe --entity-type users
= users list --zookeeper zk:2181/k
kafka-configs --zookeeper zk:2181 --alter --user a --delete-config SCRAM-SHA-256
= users remove a --mechanism SCRAM-SHA-256 --zookeeper zk:2181
kafka-configs --describe --ip-defaults
= quotas describe --ip-default --only ip
configs describe --entity-type brokers --entity-name 1 --json
= configs describe broker 1 --json
kafka-acls --add --allow-principal User:a --allow-host 10.0.0.1 --operation Read --topic orders
= acls add --topic orders -o Read --allow User:a --host 10.0.0.1
kafka-acls --add --deny-principal User:a --deny-host h --topic t --resource-pattern-type prefixed
= acls add --topic t -o all --deny User:a --host h --prefixed
kafka-acls --add --allow-principal User:a --producer --topic orders --idempotent
= acls add --topic orders -o write -o describe -o create --allow User:a
= acls add --cluster -o idempotent-write --allow User:a
kafka-acls --add --allow-principal User:a --consumer --topic orders --group billing
= acls add --topic orders -o read -o describe --allow User:a
= acls add --group billing -o read --allow User:a
kafka-acls --add --allow-principal User:a --operation Alter --cluster
= acls add --cluster -o Alter --allow User:a
kafka-acls --add --allow-principal U:a --transactional-id t --delegation-token x --topic y
= acls add --topic y -o all --allow U:a
= acls add --transactional-id t -o all --allow U:a
= acls add --delegation-token x -o all --allow U:a
kafka-acls --add --allow-principal User:a --operation CreateTokens --user-principal User:b
= acls add --user User:b -o CreateTokens --allow User:a
kafka-acls --list --topic orders --resource-pattern-type match
= acls list --topic orders --matching
kafka-acls --list --principal User:a
= acls list --principal User:a
kafka-acls --remove --allow-principal User:a --operation Read --topic orders --force
= acls remove --topic orders -o Read --principal User:a --permission allow --host '*' --yes
kafka-acls --remove --allow-principal U:a --deny-principal U:b --deny-host h --topic t
= acls remove --topic t -o all --principal U:a --permission allow --host '*'
= acls remove --topic t -o all --principal U:b --permission deny --host h
kafka-acls --remove --topic t
= acls remove --topic t
kafka-acls --add --allow-principal U:a --allow-host h --deny-principal U:b --topic t
= acls add --topic t -o all --allow U:a --host h
= acls add --topic t -o all --deny U:b
kafka-acls --add --allow-principal U:a --deny-host h --topic t
= acls add --topic t -o all --allow U:a
kafka-acls --remove --deny-principal U:a --allow-host h --topic t
= acls remove --topic t -o all --principal U:a --permission deny --host '*'
kafka-acls --remove --allow-host h --topic t
= acls remove --topic t
kafka-acls --list --principal U:a --principal U:b --topic t --resource-pattern-type prefixed
= acls list --topic t --principal U:a --prefixed
= acls list --topic t --principal U:b --prefixed
acls remove --principal User:a --producer --topic t
= acls remove --topic t -o write -o describe -o create --principal User:a
acls add --allow-principal User:a --operation Read --topic orders
= acls add --operation Read --topic orders --allow User:a
kafka-reassign-partitions --generate --topics-to-move-json-file t --broker-list 1,2
= partitions reassign generate --topics-file t --brokers 1,2
kafka-reassign-partitions --generate --disable-rack-aware --topics-to-move-json-file t
= partitions reassign generate --topics-file t --ignore-racks
kafka-reassign-partitions --execute --reassignment-json-file p.json --throttle 100 --timeout 9000
= partitions reassign execute p.json --throttle 100 --timeout 9
partitions reassign --cancel --reassignment-json-file p.json --preserve-throttles
= partitions reassign cancel p.json --keep-throttle
kafka-leader-election --election-type unclean --topic orders --partition 0 --admin.config f
= partitions elect-leaders --command-config f orders:0 --unclean
kafka-leader-election --election-type preferred --all-topic-partitions
= partitions elect-leaders
kafka-log-dirs --describe --broker-list 1,2 --topic-list a,b
= log-dirs a b --broker 1 --broker 2
kafka-delete-records --offset-json-file f.json
= records delete --file f.json --yes
kafka-transactions --bootstrap-server h:1 describe --transactional-id pay
= transactions describe pay --bootstrap h:1
kafka-transactions describe-producers --topic orders --partition 0
= transactions producers orders:0
kafka-transactions find-hanging --topic orders --max-transaction-timeout 20
= transactions find-hanging --max-minutes 20 --topic orders
kafka-transactions abort --topic orders --partition 0 --start-offset 5
= transactions abort --start-offset 5 orders:0 --yes
kafka-dump-log --files a.log,b.log --print-data-log --skip-record-metadata
= log dump --payload a.log b.log
"""


def _options_of(words: Any) -> dict[str, bool]:
    return ROOT._options_of(words)  # type: ignore[no-any-return]


def _cases() -> list[tuple[str, list[str]]]:
    cases: list[tuple[str, list[str]]] = []
    for line in LINES.splitlines():
        if line.startswith("= "):
            cases[-1][1].append(line[2:])
        else:
            cases.append((line, []))
    return cases


def _parse(words: list[str]) -> None:
    """Raises an error of Click for an option that the command does not have."""
    command = ROOT.get_command(None, words[0])
    rest = words[1:]
    while hasattr(command, "commands"):
        command, rest = command.commands[rest[0]], rest[1:]
    command.make_context("ottla", rest)


@pytest.mark.parametrize(("typed", "here"), _cases())
def test_a_line_of_kafka(typed: str, here: list[str]) -> None:
    lines = plan(shlex.split(typed), _options_of).lines
    assert [shlex.join(line) for line in lines] == here
    for line in lines:
        _parse(line)


def test_the_flags_are_those_that_the_tools_list() -> None:
    assert list(TOOLS) == list(LISTED)
    for name, tool in TOOLS.items():
        ours = set(tool.flags) - {"--bootstrap-server", "--command-config"}
        assert ours == set(LISTED[name]) - {"--bootstrap-server", "--command-config"}, name


def test_an_option_that_a_flag_becomes_is_there() -> None:
    for tool in TOOLS.values():
        there = {name for words in tool.commands for name in _options_of(words.split())}
        for flag in tool.flags.values():
            if flag.kind == "-":
                assert flag.text in there, f"{tool.name} {flag.name}"
            if flag.kind == ">":
                assert flag.text in tool.commands, f"{tool.name} {flag.name}"


def test_each_flag_that_needs_thought_has_a_line() -> None:
    typed = [shlex.split(line) for line, _ in _cases()]
    for tool in TOOLS.values():
        words = {
            word.partition("=")[0]
            for line in typed
            if line[0].removesuffix(".sh") == tool.name
            for word in line
        }
        without = {"--add-config-file"}  # it reads the file: see below
        for flag in tool.flags.values():
            if flag.kind == "*" and flag.name not in without:
                assert flag.name in words, f"{tool.name} {flag.name}"


@pytest.mark.parametrize(
    ("tool", "flag"),
    [
        (tool, flag.name)
        for tool in TOOLS.values()
        for flag in tool.flags.values()
        if flag.kind == "!"
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_refused_flag_names_the_command(tool: Any, flag: str) -> None:
    assert "`ottla " in tool.flags[flag].text
    actions = [name for name, each in tool.flags.items() if each.kind == ">"]
    action = actions[:1] or (["--describe"] if tool.name == "kafka-configs" else [])
    for line in ([tool.name, *action, flag, "x"], [*tool.commands[0].split(), flag, "x"]):
        with pytest.raises(Failure, match="`ottla ") as failed:
            plan(line, _options_of)
        assert failed.value.code == USAGE


@pytest.mark.parametrize(
    ("typed", "answer"),
    [
        ("kafka-topics --list --create", "exactly one of"),
        ("kafka-topics --topic orders", "exactly one of"),
        ("kafka-topics --describe --topic", "--topic of kafka-topics needs a value"),
        ("kafka-configs --describe", "name an entity"),
        ("kafka-configs --describe --entity-type groups", "configs describe group NAME"),
        ("kafka-configs --describe --entity-type nonsense", "not one of"),
        ("kafka-configs --alter --topic orders", "--add-config or --delete-config"),
        (
            "kafka-configs --alter --user a --add-config SCRAM-SHA-256=[password=x]",
            "`ottla users add a --mechanism SCRAM-SHA-256` asks",
        ),
        (
            "kafka-configs --zookeeper z:1 --alter --user a --add-config SCRAM-SHA-512=[a=x]",
            "`ottla users add a --mechanism SCRAM-SHA-512 --zookeeper z:1`",
        ),
        (
            "kafka-configs --zookeeper z:1 --alter --user a --add-config request_percentage=1",
            "SCRAM",
        ),
        ("kafka-configs --zookeeper z:1 --alter --user a", "--add-config or --delete-config"),
        ("kafka-configs --zookeeper z:1 --describe --entity-type clients", "not quotas"),
        ("kafka-configs --alter --user-defaults --delete-config SCRAM-SHA-256", "--entity-name"),
        ("kafka-configs --alter --client c --delete-config SCRAM-SHA-256", "of a user"),
        ("kafka-console-consumer --topic t --formatter my.Formatter", "--format json"),
        ("kafka-console-consumer --topic t --consumer-property a=b", "--command-config"),
        ("kafka-console-consumer --topic t --property print.value=false", "--help"),
        ("kafka-console-producer --topic t --property parse.headers=true", "--json-lines"),
        ("kafka-consumer-groups --delete --all-groups", "ottla groups delete GROUP"),
        ("kafka-consumer-groups --list --timeout soon", "number of milliseconds"),
        (
            "kafka-leader-election --all-topic-partitions --election-type best",
            "preferred or unclean",
        ),
        ("kafka-transactions find-hanging --topic t --partition 0", "transactions producers t:0"),
        ("kafka-storage.sh format", "ottla start"),
        ("kafka-verifiable-producer.sh --topic t", "ottla produce"),
        ("kafka-verifiable-consumer.sh --topic t", "ottla consume TOPIC"),
        ("kafka-mirror-maker.sh --help", "connect-mirror-maker.sh"),
        ("kafka-preferred-replica-election --zookeeper z", "ottla partitions elect-leaders"),
        ("kafka-run-class kafka.admin.PreferredReplicaLeaderElectionCommand", "elect-leaders"),
        ("kafka-run-class kafka.tools.JmxTool", "`ottla --help` lists"),
        ("kafka-run-class", "ottla --help"),
        ("kafka-topics --list=x", "--list of kafka-topics has no value"),
        ("kafka-topics --create --topic t --exclude-internal", "does not fit create"),
        ("topics describe --list", "`ottla topics list`"),
        ("kafka-topics --zookeeper localhost:2181 --list", "Use --bootstrap-server"),
        ("topics list --zookeeper=localhost:2181", "Use --bootstrap-server"),
        ("kafka-consumer-groups --list --zookeeper x", "Use --bootstrap-server"),
        ("kafka-topics --alter --topic t --config a=1", "`ottla configs set topic NAME"),
        ("zookeeper-shell.sh localhost:2181", "`zkCli.sh` of ZooKeeper"),
        ("connect-distributed.sh c.properties", "it works with Ottla"),
        ("kafka-configs --alter --topic t --add-config a", "a is not NAME=VALUE"),
        ("kafka-configs --alter --topic t --add-config =a", "=a is not NAME=VALUE"),
        ("kafka-configs --alter --topic a --topic b --add-config a=1", "name one entity"),
        ("kafka-configs --alter --user a --user b --add-config a=1", "name one entity"),
        ("kafka-configs --alter --user a --ip b --add-config a=1", "name one entity"),
        ("kafka-configs --alter --entity-type users --add-config a=1", "--entity-default"),
        ("kafka-configs --describe --entity-name a --topic t", "needs an --entity-type"),
        ("kafka-configs --describe --topic t --add-config a=1", "needs --alter"),
        ("kafka-configs --alter --topic t --add-config-file /no", "--add-config-file /no: No such"),
        ("kafka-console-consumer --topic t --timeout-ms soon", "number of milliseconds"),
        ("kafka-console-consumer --topic t --from-beginning --offset 5", "choose one of"),
        ("kafka-console-consumer --topic t --group g --offset 5", "needs --partition"),
        ("kafka-console-consumer --topic t --group g --partition 0", "does not go with --group"),
        (
            "kafka-console-consumer --topic t --from-beginning "
            "--consumer-property auto.offset.reset=latest",
            "choose one of",
        ),
        (
            "kafka-console-consumer --topic t --consumer-property auto.offset.reset=none",
            "is not earliest or latest",
        ),
        # Kafka's tool refuses it, too; `groups delete g t` would delete the group t.
        ("kafka-consumer-groups --delete --group g --topic t", "does not fit delete"),
        ("kafka-consumer-groups --list --group g", "does not fit list"),
        ("kafka-consumer-groups --list --timeout 2147483648", "number of milliseconds"),
        ("kafka-consumer-groups --reset-offsets --group g --dry-run --execute", "choose one"),
        ("groups reset-offsets g t --dry-run --execute", "choose one"),
        ("kafka-leader-election --election-type preferred", "exactly one of"),
        ("kafka-leader-election --partition 0 --all-topic-partitions", "elect-leaders NAME:0"),
        ("kafka-get-offsets --partitions 0", "name the topic"),
        ("kafka-acls --add --allow-principal U:a", "needs a resource"),
        ("kafka-acls --add --allow-host h --topic t", "needs --allow-principal"),
        ("acls add --allow U:a --allow-host h --topic t", "needs --allow-principal"),
        ("kafka-acls --add --allow-principal U:a --consumer --topic t", "needs --group"),
        ("kafka-acls --add --allow-principal U:a --producer --group g", "needs --topic"),
        ("kafka-acls --add --deny-principal U:a --producer --topic t", "does not go with"),
        ("kafka-acls --add --producer --topic t --cluster", "--cluster of kafka-acls does not"),
        ("kafka-acls --add --allow-principal U:a --idempotent --topic t", "needs --producer"),
        ("kafka-acls --remove --principal U:a --topic t", "needs --list"),
    ],
)
def test_a_wrong_line(typed: str, answer: str) -> None:
    with pytest.raises(Failure) as failed:
        plan(shlex.split(typed), _options_of)
    assert answer in str(failed.value)
    assert failed.value.code == USAGE


def test_hosts_that_have_no_effect_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    line = "kafka-acls --add --allow-principal U:a --deny-host h --topic t --group g"
    plan(shlex.split(line), _options_of)
    note = "ottla: --deny-host without --deny-principal has no effect, as in Kafka.\n"
    assert capsys.readouterr().err == note


def test_no_words_are_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        plan(["kafka-topics"], _options_of)
    assert ended.value.code == USAGE
    assert "--under-replicated-partitions" in capsys.readouterr().out


def test_the_first_of_two_commands_fails_without_a_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    line = "kafka-acls --add --allow-principal U:a --topic t --group g --unknown"
    with pytest.raises(SystemExit) as ended:
        app(shlex.split(line))
    assert ended.value.code == USAGE
    assert capsys.readouterr().err.count("No such option") == 1


def test_settings_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "settings"
    path.write_text("retention.ms=1\ncleanup.policy=compact,delete\n")
    line = ["kafka-configs", "--alter", "--topic", "t", "--add-config-file", str(path)]
    assert plan(line, _options_of).lines == [
        ["configs", "set", "topic", "t", "retention.ms=1", "cleanup.policy=compact,delete"]
    ]


@pytest.mark.parametrize(
    "typed",
    [
        "topics list",
        "consume orders --offset 5 --partition 0",
        "produce orders --key-separator --topic",
        "quotas describe --user alice",
        "acls list --topic orders",
        "status",
        "groups describe billing",
        "transactions describe abort",
        "",
    ],
)
def test_own_lines_stay_as_they_are(typed: str) -> None:
    words = shlex.split(typed)
    found = plan(words, _options_of)
    assert (found.lines, found.is_translated) == ([words], False)


@pytest.mark.parametrize("name", TOOLS)
def test_the_help_of_a_tool_fits_80_columns(name: str) -> None:
    text = help_text(TOOLS[name])
    assert max(map(len, text.splitlines())) <= 80
    assert all(flag in text for flag in LISTED[name])


def test_other_scripts_name_a_way() -> None:
    assert not OTHER_SCRIPTS.keys() & TOOLS.keys()
    for name, sentence in OTHER_SCRIPTS.items():
        assert "`" in sentence, name


def test_the_table_of_the_page_is_up_to_date() -> None:
    """`python -m tools.kafka_tools_page` writes it."""
    assert table() in CLI_PAGE.read_text("utf-8")


def test_the_scripts_of_classes_have_a_meaning() -> None:
    assert set(SCRIPT_OF_CLASS.values()) <= {*TOOLS, *OTHER_SCRIPTS}
