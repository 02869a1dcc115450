"""Command lines of Kafka's tools as command lines of Ottla.

    ottla kafka-topics.sh --create --topic orders --partitions 3     the whole line of Kafka
    ottla topics --create --topic orders --partitions 3              Kafka's action and flags
    ottla topics create --topic orders -p 3                          Kafka's flags among Ottla's

In the first two forms a flag means what it means in Kafka. In the third the options of the command
come first: `--timeout` is in seconds. `kafka_flags.py` has the meaning of each flag.
"""

from __future__ import annotations

import re
import shlex
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ottla.cli.kafka_flags import OTHER_SCRIPTS, SCRIPT_OF_CLASS, TOOLS, Flag, Tool
from ottla.cli.output import USAGE, note, usage

Words = list[str]
#: The options of a command by their names: whether each has a value.
OwnOptions = Callable[[Sequence[str]], dict[str, bool]]

# The families that take the actions of a tool as flags: `ottla topics --list`.
_FAMILIES = {
    ("topics",): "kafka-topics",
    ("configs",): "kafka-configs",
    ("groups",): "kafka-consumer-groups",
    ("acls",): "kafka-acls",
    ("partitions", "reassign"): "kafka-reassign-partitions",
    ("records",): "kafka-delete-records",
    ("log",): "kafka-dump-log",
}
_TOOL_OF = {tuple(words.split()): tool for tool in TOOLS.values() for words in tool.commands}
# `quotas` and `users` have no flags in common with kafka-configs but --user.
_COMPOSED = "kafka-configs"
_RUN_CLASS = "kafka-run-class"
# A name that matches only itself as a regular expression.
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")


class Plan(NamedTuple):
    """The equivalent command lines in order; whether Kafka's tool was named."""

    lines: list[Words]
    is_translated: bool = False


class Given(NamedTuple):
    """The flags of Kafka of one command line, with their values, and all other words in order."""

    tool: Tool
    flags: dict[str, list[str]]
    others: Words
    is_kafka_style: bool
    typed: list[tuple[str, str]]  # the flags with their values, in order

    def last(self, flag: str) -> str | None:
        """The last value of a flag, "" for one without a value; None if it is not there."""
        values = self.flags.get(flag)
        return values[-1] if values else None

    def each(self, flag: str) -> list[str]:
        """All values of a flag, and the items of each that is a list."""
        return [item for value in self.flags.get(flag, ()) for item in value.split(",") if item]


def plan(arguments: Sequence[str], own_options: OwnOptions) -> Plan:
    """The command lines for `arguments`: they themselves, if they have no flag of Kafka.

    Raises Failure (wrong usage) for a flag without an equivalent; the text has the command.
    """
    words = list(arguments)
    name = words[0].removesuffix(".sh") if words else ""
    if name == _RUN_CLASS and len(words) > 1:
        name = SCRIPT_OF_CLASS.get(words[1].rpartition(".")[2], name)
        words = words[1:]
    if name in OTHER_SCRIPTS:
        raise usage(f"{name}: {OTHER_SCRIPTS[name]}")
    if name in TOOLS:
        return _of_tool(TOOLS[name], words[1:])
    for family, tool in _FAMILIES.items():
        rest = words[len(family) :]
        if tuple(words[: len(family)]) == family and rest and _flag(TOOLS[tool], rest[0]):
            if rest[0] == "--help":
                break
            return _of_tool(TOOLS[tool], rest)
    for length in (3, 2, 1):
        command = tuple(words[:length])
        if command in _TOOL_OF:
            return _of_command(_TOOL_OF[command], command, words[length:], own_options(command))
    return Plan([words])


def help_text(tool: Tool) -> str:
    """Return the text of `ottla kafka-topics --help`: each flag and its meaning, in 80 columns."""
    import textwrap

    title = f"Kafka's {tool.name} in Ottla: {', '.join(f'ottla {each}' for each in tool.commands)}."
    lines = [*textwrap.wrap(title, 80), ""]
    for flag in tool.flags.values():
        left = f"  {flag.name} {flag.value}".rstrip()
        prefix = {">": "ottla ", ".": "accepted: ", "!": "refused: "}.get(flag.kind, "")
        if len(left) > 30:
            lines.append(left)
            left = ""
        lines += textwrap.wrap(
            prefix + flag.text,
            80,
            initial_indent=left.ljust(32),
            subsequent_indent=" " * 32,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def _flag(tool: Tool, word: str) -> Flag | None:
    return tool.flags.get(word.partition("=")[0])


def _of_tool(tool: Tool, words: Words) -> Plan:
    if not words or "--help" in words:
        print(help_text(tool))
        raise SystemExit(0 if words else USAGE)
    if "--version" in words:
        return Plan([["--version"]])
    given = _read(tool, words, {}, is_kafka_style=True)
    return Plan([line for line in _lines(given, None) if line], is_translated=True)


def _of_command(tool: Tool, command: tuple[str, ...], words: Words, own: dict[str, bool]) -> Plan:
    if any(role in words for role in _ROLES):  # they divide the resources among two commands
        own = {}
    given = _read(tool, words, own, is_kafka_style=False)
    if not given.flags:
        return Plan([[*command, *words]])
    if tool.name == _COMPOSED:
        if command[0] != "configs":  # --user of quotas is their own
            return Plan([[*command, *words]])
        given.flags["--describe" if command[1] == "describe" else "--alter"] = [""]
    return Plan(_lines(given, list(command)))


def _read(tool: Tool, words: Words, own: dict[str, bool], *, is_kafka_style: bool) -> Given:
    """Raises Failure for a flag without its value, or with one that it does not have."""
    given = Given(tool, {}, [], is_kafka_style, [])
    rest = deque(words)
    while rest:
        word = rest.popleft()
        name, has_value, value = word.partition("=")
        flag = tool.flags.get(name)
        following = value or (rest[0] if rest else "")
        if word == "--":
            given.others.extend((word, *rest))
            break
        if name in own and not (name == "--offset" and following in _OFFSETS):
            given.others.append(word)
            if own[name] and not has_value and rest:
                given.others.append(rest.popleft())
            continue
        if name == "--zookeeper" and flag is None:
            raise usage(
                f"--zookeeper of {tool.name}: Kafka 3.0 has removed it. Use --bootstrap-server "
                "with the address of a broker, such as localhost:9092."
            )
        is_name = not is_kafka_style and not name.startswith("-")  # a topic named list
        if flag is None or is_name or name in ("--help", "--version"):
            given.others.append(word)
            continue
        if has_value and not flag.value:
            raise usage(f"{name} of {tool.name} has no value.")
        if not has_value and flag.value == "V":
            if not rest:
                raise usage(f"{name} of {tool.name} needs a value.")
            value = rest.popleft()
        elif not has_value and flag.value == "[V]" and not following.startswith("-"):
            value = rest.popleft() if rest else ""
        given.flags.setdefault(name, []).append(value)
        given.typed.append((name, value))
    return given


def _lines(given: Given, command: Words | None) -> list[Words]:
    for name in given.flags:
        flag = given.tool.flags[name]
        if flag.kind == "!":
            raise usage(f"{name} of {given.tool.name}: {flag.text}.")
    if given.tool.name == _COMPOSED:
        from ottla.cli.kafka_configs import configs_lines

        return configs_lines(given)
    actions = [name for name in given.flags if given.tool.flags[name].kind == ">"]
    if command is None:
        if given.tool.has_actions and len(actions) != 1:
            names = " ".join(f for f, each in given.tool.flags.items() if each.kind == ">")
            raise usage(f"{given.tool.name} needs exactly one of {names}.")
        command = given.tool.flags[actions[0]].tokens if actions else given.tool.commands[0].split()
    elif actions:
        raise usage(f"{actions[0]}: use `ottla {given.tool.flags[actions[0]].text}`.")
    _check_action(given, command)
    translate = _TRANSLATORS.get(given.tool.name, _simple)
    return translate(given, command)


# Flags that Kafka accepts with these actions only; with others they would be dropped or, as the
# topic of `groups delete`, be read as something else.
_ACTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "kafka-topics": {"--exclude-internal": ("list", "describe")},
    "kafka-consumer-groups": {
        "--group": ("describe", "delete", "delete-offsets", "reset-offsets"),
        "--topic": ("delete-offsets", "reset-offsets"),
        "--members": ("describe",),
        "--offsets": ("describe",),
        "--verbose": ("describe",),
        "--state": ("list", "describe"),
        "--type": ("list",),
        "--dry-run": ("reset-offsets",),
    },
}


def _check_action(given: Given, command: Words) -> None:
    """Raises Failure for a flag that does not belong to the action."""
    for name, actions in _ACTIONS.get(given.tool.name, {}).items():
        if name in given.flags and command[1] not in actions:
            family = command[0]
            allowed = " and ".join(f"`ottla {family} {action}`" for action in actions)
            raise usage(f"{name} of {given.tool.name} does not fit {command[1]}; see {allowed}.")


def _simple(given: Given, command: Words, special: Words | None = None) -> list[Words]:
    """The command with the flags that have one meaning each, in the order of the table."""
    first: Words = []
    arguments: Words = []
    options: Words = []
    for name, flag in given.tool.flags.items():
        for value in given.flags.get(name, ()):
            if flag.kind == "N":
                (first if flag.text == "GROUP" else arguments).append(value)
            elif flag.kind == "-":
                options += [flag.text, value] if flag.value else [flag.text]
    options += _seconds(given)
    return [[*command, *first, *_of_others(given, arguments), *options, *(special or [])]]


def _of_others(given: Given, arguments: Words) -> Words:
    if "--" in given.others:
        at = given.others.index("--")
        return [*given.others[:at], *arguments, *given.others[at + 1 :]]
    return [*given.others, *arguments]


def _seconds(given: Given) -> Words:
    """Kafka's timeouts in milliseconds as --timeout."""
    for name, flag in given.tool.flags.items():
        value = given.last(name)
        if flag.kind == "*" and flag.text == "--timeout in seconds" and value is not None:
            return ["--timeout", f"{_milliseconds(name, value) / 1000:g}"]
    return []


def _milliseconds(name: str, value: str) -> int:
    if not value.isdecimal() or int(value) > _MAX_INT:
        raise usage(f"{name} {value} is not a number of milliseconds up to {_MAX_INT}.")
    return int(value)


def _topics(given: Given, command: Words) -> list[Words]:
    special: Words = []
    action = command[1]
    if action != "create" and "--topic" in given.flags:
        special += _regex(given, is_always=action == "list")
    if given.is_kafka_style:
        if action == "delete":
            special.append("--yes")  # Kafka's tool asks no question
        is_all = action == "list" or (action == "describe" and "--regex" in special)
        if is_all and "--exclude-internal" not in given.flags:
            special.append("--internal")
    if action == "alter" and "--config" in given.flags:
        raise usage(
            "--config of kafka-topics does not fit alter; use "
            "`ottla configs set topic NAME SETTING=VALUE`."
        )
    return _simple(given, command, special)


def _regex(given: Given, *, is_always: bool) -> Words:
    """Take --topic out of the flags if it is more than a name: in Kafka it is a regular expression,
    where a comma is `|`, and spaces and quotes at both ends do not count."""
    names = given.flags["--topic"]
    if not is_always and all(map(_is_plain, names)):
        return []
    del given.flags["--topic"]
    return ["--regex", "|".join(_include_list(name) for name in names)]


def _is_plain(name: str) -> bool:
    return _PLAIN.fullmatch(name) is not None


def _include_list(text: str) -> str:
    return text.replace(",", "|").replace(" ", "").strip("\"'")


def _offsets(given: Given, command: Words) -> list[Words]:
    names = list(given.flags.get("--topic", ()))
    numbers = given.last("--partitions")
    if numbers is not None and not names and not given.others:
        raise usage("--partitions: name the topic, `ottla topics offsets NAME:0,1`.")
    chosen = given.each("--topic-partitions")
    if all(map(_is_plain, names)) and not any(_needs_regex(item) for item in chosen):
        special = [f"{name}:{numbers}" for name in names] if numbers is not None else names
        special += chosen
    else:
        topics = [_include_list(name) for name in names]
        ids = [f":{number}" for number in numbers.split(",")] if numbers is not None else [""]
        special = [f"{topic}{each}" for topic in topics for each in ids] + chosen
        special = [word for item in special for word in ("--regex", item)]
    is_all = not special or special[0] == "--regex"
    if is_all and given.is_kafka_style and "--exclude-internal-topics" not in given.flags:
        special.append("--internal")
    return _simple(given, command, special)


def _needs_regex(item: str) -> bool:
    topic, _, numbers = item.partition(":")
    return not _is_plain(topic) or "-" in numbers


def _properties(given: Given, *flags: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for flag in flags:
        for text in given.flags.get(flag, ()):
            name, _, value = text.partition("=")
            found[name.strip()] = value
    return found


def _is_true(text: str | None) -> bool:
    return (text or "").strip().lower() == "true"


_MAX_INT = 0x7FFFFFFF  # Kafka's timeouts are int32
_CLIENT_FILE = "write it into a file for --command-config"


def _produce(given: Given, command: Words) -> list[Words]:
    special: Words = []
    codec = given.last("--compression-codec")
    settings = _properties(given, "--producer-property")
    if codec is not None or "compression.type" in settings:
        special += ["--codec", settings.pop("compression.type", "") or codec or "gzip"]
    if "acks" in settings:
        special += ["--acks", _acks(settings.pop("acks"))]
    elif (acks := given.last("--request-required-acks")) is not None:
        special += ["--acks", _acks(acks)]
    for name in settings:
        if name not in ("linger.ms", "batch.size", "retries", "enable.idempotence"):
            raise usage(f"--producer-property {name}: {_CLIENT_FILE}.")
    of_lines = _properties(given, "--property")
    separator = of_lines.pop("key.separator", "\\t")
    if _is_true(of_lines.pop("parse.key", "")):
        special += ["--key-separator", separator]
    if "null.marker" in of_lines:
        special += ["--null", of_lines.pop("null.marker")]
    if _is_true(of_lines.get("parse.headers")):
        raise usage("--property parse.headers=true: use `ottla produce --json-lines` or -H.")
    for name, value in of_lines.items():
        if name not in ("ignore.error", "parse.headers") and not name.startswith("headers."):
            raise usage(f"--property {name}={value}: see `ottla produce --help` for lines.")
    return _simple(given, command, special)


def _acks(text: str) -> str:
    return "all" if text == "-1" else text


_OFFSETS = ("earliest", "latest")
_PRINTED = {
    "print.key": "--key",
    "print.headers": "--headers",
    "print.timestamp": "--timestamp",
    "print.partition": "--where",
    "print.offset": "--where",
}
_DEFAULT_FORMATTER = "DefaultMessageFormatter"


def _consume(given: Given, command: Words) -> list[Words]:
    special: Words = []
    settings = _properties(given, "--consumer-property")
    isolation = settings.pop("isolation.level", given.last("--isolation-level") or "")
    if isolation not in ("", "read_committed", "read_uncommitted"):
        raise usage(f"--isolation-level {isolation} is not read_committed or read_uncommitted.")
    if isolation == "read_committed":
        special.append("--read-committed")
    if "group.id" in settings:
        special += ["--group", settings.pop("group.id")]
    start = _start(given, settings.pop("auto.offset.reset", ""))
    for name in settings:
        raise usage(f"--consumer-property {name}: {_CLIENT_FILE}.")
    special += start
    special += _line_options(_properties(given, "--property"))
    for name in ("--key-deserializer", "--value-deserializer"):
        if given.last(name) not in (None, "") and not str(given.last(name)).endswith(
            ".StringDeserializer"
        ):
            raise usage(f"{name}: Java classes cannot be loaded; use `ottla consume --format hex`.")
    if not (given.last("--formatter") or _DEFAULT_FORMATTER).endswith(_DEFAULT_FORMATTER):
        raise usage(
            "--formatter: Java classes cannot be loaded; use `ottla consume --format json`."
        )
    return _simple(given, command, [*special, *_consumer_end(given, start, special)])


def _start(given: Given, reset: str) -> Words:
    """The option for the first offset. As a member of a group, `ottla consume --follow` uses it for
    partitions without a committed offset, as Kafka does."""
    offset = given.last("--offset")
    begins = "--from-beginning" in given.flags
    if begins and offset is not None:
        raise usage("choose one of --from-beginning and --offset.")
    has_partition = "--partition" in given.flags
    if given.is_kafka_style and offset is not None and not has_partition:
        raise usage("--offset of kafka-console-consumer needs --partition.")
    if given.is_kafka_style and has_partition and "--group" in given.flags:
        raise usage("--partition of kafka-console-consumer does not go with --group.")
    if begins and reset == "latest":
        raise usage("choose one of --from-beginning and auto.offset.reset=latest.")
    if reset not in ("", *_OFFSETS):
        raise usage(f"auto.offset.reset={reset} is not {' or '.join(_OFFSETS)}.")
    if begins:
        return ["--from-beginning"]
    wanted = offset or reset
    ends = {"": [], "earliest": ["--from-beginning"], "latest": ["--from-end"]}
    return ends.get(wanted, ["--offset", wanted])


def _consumer_end(given: Given, start: Words, special: Words) -> Words:
    """The options for the end: without --timeout-ms, or a negative one, Kafka's tool waits."""
    text = given.last("--timeout-ms")
    timeout = -1
    if text is not None:
        try:
            timeout = int(text)
        except ValueError:
            raise usage(f"--timeout-ms {text} is not a number of milliseconds.") from None
    idle = ["--idle", f"{timeout / 1000:g}"] if timeout >= 0 else []
    if not given.is_kafka_style:
        return idle if any(map(_follows, given.others)) else []
    if idle and "--group" in special and "--partition" in given.flags:  # it is not a member
        return [] if start else ["--from-end"]
    return ["--follow", *idle]


def _follows(word: str) -> bool:
    """Whether it is --follow, or -f, which may be among other options: -fk."""
    return word == "--follow" or (word[:1] == "-" and word[1:2] != "-" and "f" in word)


def _line_options(properties: dict[str, str]) -> Words:
    words: Words = []
    for name, value in properties.items():
        if name in _PRINTED:
            if _is_true(value) and _PRINTED[name] not in words:
                words.append(_PRINTED[name])
        elif name == "key.separator":
            words += ["--separator", value]
        elif (name, value) != ("print.value", "true"):
            raise usage(
                f"--property {name}={value}: see `ottla consume --help`, or print --format json."
            )
    return words


def _groups(given: Given, command: Words) -> list[Words]:
    special: Words = []
    action = command[1]
    if given.is_kafka_style and action == "delete":
        special.append("--yes")
    if "--dry-run" in given.flags and {"--execute"} & {*given.flags, *given.others}:
        raise usage("choose one of --dry-run and --execute.")
    if "--all-groups" in given.flags:
        if action != "describe":
            raise usage(f"--all-groups: name the groups, `ottla groups {action} GROUP`.")
        special.append("--all")
    if action == "describe" and "--state" in given.flags:
        special.append("--state")
    if action == "list":
        for state in given.each("--state"):
            special += ["--state", state]
        for kind in given.each("--type"):
            special += ["--type", kind]
    return _simple(given, command, special)


_ACL_RESOURCES = {
    "--topic": "--topic",
    "--group": "--group",
    "--transactional-id": "--transactional-id",
    "--delegation-token": "--delegation-token",
    "--user-principal": "--user",
}

_ROLES = {
    "--producer": {
        "--topic": ["write", "describe", "create"],
        "--transactional-id": ["write", "describe"],
    },
    "--consumer": {"--topic": ["read", "describe"], "--group": ["read"]},
}


def _acls(given: Given, command: Words) -> list[Words]:
    """One command for each resource and each of `_subjects`."""
    action = command[1]
    _check_roles(given)
    _check_hosts(given, action)
    common = _pattern(given, action)
    if "--force" in given.flags and action == "remove":
        common.append("--yes")
    resources = [
        [option, name, *_acl_operations(given, flag, action)]
        for flag, option in _ACL_RESOURCES.items()
        for name in given.flags.get(flag, ())
    ]
    if "--idempotent" in given.flags and action != "list":
        resources.append(["--cluster", "-o", "idempotent-write"])
    elif "--cluster" in given.flags:
        resources.append(["--cluster", *_acl_operations(given, "--cluster", action)])
    if not resources and given.is_kafka_style and action != "list":
        raise usage(f"kafka-acls --{action} needs a resource, such as --topic or --cluster.")
    return [
        line
        for resource in resources or [[]]
        for subject in _subjects(given, action)
        for line in _simple(given, command, [*resource, *subject, *common])
    ]


def _check_roles(given: Given) -> None:
    """Raises Failure where Kafka's tool refuses flags beside --producer and --consumer."""
    roles = [role for role in _ROLES if role in given.flags]
    if "--idempotent" in given.flags and "--producer" not in roles:
        raise usage("--idempotent of kafka-acls needs --producer.")
    if not roles:
        return
    allowed = {flag for role in roles for flag in _ROLES[role]}
    for role in roles:
        needed = ["--topic", "--group"] if role == "--consumer" else ["--topic"]
        if missing := [flag for flag in needed if flag not in given.flags]:
            raise usage(f"{role} of kafka-acls needs {' and '.join(missing)}.")
    for flag in ("--operation", "--deny-principal", "--deny-host", "--cluster", *_ACL_RESOURCES):
        if flag in given.flags and flag not in allowed:
            raise usage(f"{flag} of kafka-acls does not go with {' and '.join(roles)}.")


def _check_hosts(given: Given, action: str) -> None:
    """Kafka's tool ignores the hosts of a permission without principals, if it has others."""
    has_principal = any(f"--{verb}-principal" in given.flags for verb in ("allow", "deny"))
    is_ignored = given.is_kafka_style and (has_principal or action == "remove")
    for verb in ("allow", "deny"):
        if f"--{verb}-host" not in given.flags or f"--{verb}-principal" in given.flags:
            continue
        if not is_ignored:
            raise usage(f"--{verb}-host of kafka-acls needs --{verb}-principal.")
        note(f"ottla: --{verb}-host without --{verb}-principal has no effect, as in Kafka.")


def _pattern(given: Given, action: str) -> Words:
    pattern = (given.last("--resource-pattern-type") or "").lower()
    options = {"prefixed": ["--prefixed"], "": [], "literal": []}
    if action == "list":
        options |= {"match": ["--matching"], "any": []}
    if pattern not in options:
        raise usage(
            f"--resource-pattern-type {pattern}: `ottla acls list --matching` lists them; add and "
            "remove literal and prefixed ones."
        )
    return [*options[pattern]]


def _subjects(given: Given, action: str) -> list[Words]:
    """The options of whom the ACLs are about, for one command each.

    Hosts belong to their permission. Like Kafka's tool, a removal with a principal is that of ACLs
    of this permission and host; the host is `*` by default.
    """
    subjects: list[Words] = [["--principal", each] for each in given.flags.get("--principal", ())]
    if action == "list":
        return subjects or [[]]
    if subjects and given.is_kafka_style:
        raise usage("--principal of kafka-acls needs --list; see `ottla acls remove`.")
    for verb in ("allow", "deny"):
        principals = given.flags.get(f"--{verb}-principal", [])
        hosts = given.flags.get(f"--{verb}-host", [])
        if action == "remove":
            of_hosts = [word for host in hosts or ["*"] for word in ("--host", host)]
            subjects += [
                ["--principal", each, "--permission", verb, *of_hosts] for each in principals
            ]
        elif principals:
            words = [word for each in principals for word in (f"--{verb}", each)]
            subjects.append([*words, *(word for host in hosts for word in ("--host", host))])
    return subjects or [[]]


def _acl_operations(given: Given, flag: str, action: str) -> Words:
    """The operations on a resource of this kind. Without any, Kafka adds and removes `all`; a
    removal without a principal is that of each ACL of the resource."""
    if action == "list":
        return []
    names = [each for role in _ROLES if role in given.flags for each in _ROLES[role].get(flag, ())]
    names = names or given.flags.get("--operation", [])
    has_principal = bool({"--allow-principal", "--deny-principal"} & given.flags.keys())
    if not names and (action == "add" or has_principal):
        names = ["all"]
    return [word for name in dict.fromkeys(names) for word in ("-o", name)]


def _elections(given: Given, command: Words) -> list[Words]:
    special: Words = []
    topic, partition = given.last("--topic"), given.last("--partition")
    if partition is not None and topic is None:
        raise usage("--partition: name the topic, `ottla partitions elect-leaders NAME:0`.")
    ways = [
        name
        for name in ("--topic", "--path-to-json-file", "--all-topic-partitions")
        if name in given.flags
    ]
    if given.is_kafka_style and len(ways) != 1:
        raise usage(
            "kafka-leader-election needs exactly one of --topic --path-to-json-file "
            "--all-topic-partitions."
        )
    if topic is not None:
        special.append(topic if partition is None else f"{topic}:{partition}")
    kind = (given.last("--election-type") or "preferred").lower()
    if kind not in ("preferred", "unclean"):
        raise usage(f"--election-type {kind} is not preferred or unclean.")
    if kind == "unclean":
        special.append("--unclean")
    return _simple(given, command, special)


def _log_dirs(given: Given, command: Words) -> list[Words]:
    special = given.each("--topic-list")
    for broker in given.each("--broker-list"):
        special += ["--broker", broker]
    return _simple(given, command, special)


def _records(given: Given, command: Words) -> list[Words]:
    return _simple(given, command, ["--yes"] if given.is_kafka_style else [])


def _transactions(given: Given, command: Words) -> list[Words]:
    special: Words = []
    topic, partition = given.last("--topic"), given.last("--partition")
    if command[1] == "find-hanging":
        if partition is not None:
            raise usage(
                f"--partition: use `ottla transactions producers {topic or 'TOPIC'}:{partition}`."
            )
        special += ["--topic", topic] if topic is not None else []
    elif topic is not None:
        special.append(topic if partition is None else f"{topic}:{partition}")
    if given.is_kafka_style and command[1] == "abort":
        special.append("--yes")
    return _simple(given, command, special)


def _dump(given: Given, command: Words) -> list[Words]:
    return _simple(given, command, given.each("--files"))


_TRANSLATORS: dict[str, Callable[[Given, Words], list[Words]]] = {
    "kafka-topics": _topics,
    "kafka-get-offsets": _offsets,
    "kafka-console-producer": _produce,
    "kafka-console-consumer": _consume,
    "kafka-consumer-groups": _groups,
    "kafka-acls": _acls,
    "kafka-leader-election": _elections,
    "kafka-log-dirs": _log_dirs,
    "kafka-delete-records": _records,
    "kafka-transactions": _transactions,
    "kafka-dump-log": _dump,
}


def shown(lines: list[Words]) -> str:
    """The command lines as text for a shell."""
    return "; ".join(f"ottla {shlex.join(line)}" for line in lines)
