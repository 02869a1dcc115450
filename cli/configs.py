"""`ottla configs`: settings of topics, brokers, loggers, groups and client metrics."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.app import family
from ottla.cli.cluster_checks import KINDS_BY_SOURCE, TOPICS_PER_REQUEST
from ottla.cli.completion import complete_kinds, complete_resources
from ottla.cli.output import Cell, Failure, print_json, print_rows, say, usage
from ottla.cli.session import Session, check, connected
from ottla.cli.values import ValidateOption, parse_settings
from ottla.protocol.client.operations import Node, Route
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
)
from ottla.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from ottla.cli.offline_configs import OfflineConfigs

EXAMPLES = """\
  ottla configs describe topic orders
  ottla configs describe broker 1 --all
  ottla configs describe cluster
  ottla configs set topic orders retention.ms=86400000 cleanup.policy=compact
  ottla configs set broker 1 log.cleaner.threads=2
  ottla configs append topic orders cleanup.policy=delete
  ottla configs subtract topic orders cleanup.policy=delete
  ottla configs unset topic orders retention.ms
  ottla configs unset broker 1 max.connections --offline --data-dir data
  ottla configs describe cluster --offline --zookeeper zk1:2181,zk2:2181/kafka
"""

app = family("Describe and alter settings of topics and brokers.", EXAMPLES)

RESOURCE_TYPES = {"topic": 2, "broker": 4, "cluster": 4, "logger": 8, "group": 32, "metrics": 16}
SOURCES = {
    1: "topic",
    2: "this broker",
    3: "all brokers",
    4: "at start",  # the file, the environment or --override
    5: "default",
    6: "logger",
    7: "client metrics",
    8: "group",
}
TYPES = ("unknown", "boolean", "string", "int", "short", "long", "double", "list", "class")
TYPE_NAMES = dict(enumerate((*TYPES, "password")))
SET, DELETE, APPEND, SUBTRACT = range(4)
_DEFAULT_SOURCES = {4, 5}
# Of a setting that is set for the resource itself.
_OWN_SOURCES = {kind: source for source, kind in KINDS_BY_SOURCE.items()}

KindArgument = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        autocompletion=complete_kinds,
        help="topic, broker, cluster (the default of all brokers), logger, group, metrics",
    ),
]
RestArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME] SETTING...", show_default=False, autocompletion=complete_resources
    ),
]
OfflineOption = Annotated[
    bool, typer.Option("--offline", help="In the znode tree itself; no broker is needed.")
]
DataDirOption = Annotated[
    str,
    typer.Option(
        "--data-dir",
        help="With --offline: first directory of log.dirs of a stopped broker without ZooKeeper.",
    ),
]
ZooKeeperOption = Annotated[
    str, typer.Option("--zookeeper", help="With --offline: zookeeper.connect of the brokers.")
]
ServerFileOption = Annotated[
    str,
    typer.Option(
        "--config", help="With --offline: properties file of the broker, which names the tree."
    ),
]


@app.command()
@connected
def describe(
    session: Session,
    kind: KindArgument,
    name: Annotated[
        str,
        typer.Argument(
            help="Name, or broker id; none: all topics or all brokers; none for cluster.",
            autocompletion=complete_resources,
        ),
    ] = "",
    setting: Annotated[
        list[str] | None, typer.Option("--setting", "-s", help="Only this one; repeatable.")
    ] = None,
    show_all: Annotated[
        bool, typer.Option("--all", help="Also settings with their defaults.")
    ] = False,
    synonyms: Annotated[
        bool, typer.Option("--synonyms", help="Where else a value could come from.")
    ] = False,
    documentation: Annotated[bool, typer.Option("--documentation", help="What it means.")] = False,
    offline: OfflineOption = False,
    data_dir: DataDirOption = "",
    zookeeper: ZooKeeperOption = "",
    config: ServerFileOption = "",
) -> None:
    """Settings with their values and where they come from."""
    stored = _offline(offline, data_dir, zookeeper, config)
    if stored is not None:
        kind, name = resource_of(kind, name)
        found = [
            row for row in stored.describe(kind, name) if not setting or row["setting"] in setting
        ]
        if session.json:
            print_json(found)
        else:
            print_rows(found, ("setting", "value"), empty="Nothing is stored.")
        return
    kind, names = _resources(session, kind, name)
    chosen = [
        (each, row)
        for each, rows in _described(session, kind, names, setting, documentation)
        for row in rows
        if show_all or setting or row.config_source not in _DEFAULT_SOURCES
    ]
    has_names = names != [name]
    if session.json:
        print_json([{**({kind: each} if has_names else {}), **_value(row)} for each, row in chosen])
        return
    table = [_row(row, synonyms) | {kind: each} for each, row in chosen]
    columns = [kind] if has_names else []
    columns += ["setting", "value", "source", "type"]
    columns += ["read_only"] if kind == "broker" else []
    columns += ["synonyms"] if synonyms else []
    columns += ["documentation"] if documentation else []
    print_rows(table, columns, empty="Nothing differs from the defaults; --all shows those too.")


def _resources(session: Session, kind: str, name: str) -> tuple[str, list[str]]:
    """The kind and the one name; without a name all topics or brokers. Raises Failure."""
    singular = kind.removesuffix("s")
    if not name and singular == "topic":
        topics = session.client.metadata(None).topics
        return singular, sorted(row.name or "" for row in topics)
    if not name and singular == "broker":
        return singular, [str(each) for each in session.broker_ids()]
    kind, name = resource_of(kind, name)
    return kind, [name]


def _described(
    session: Session,
    kind: str,
    names: list[str],
    settings: list[str] | None,
    documentation: bool = False,
) -> Iterator[tuple[str, list[DescribeConfigsResourceResult]]]:
    """The settings of each resource in the order of their names. Raises Failure."""
    step = TOPICS_PER_REQUEST if kind == "topic" else 1  # only a broker itself describes it
    for start in range(0, len(names), step):
        some = names[start : start + step]
        wanted = [
            DescribeConfigsResource(RESOURCE_TYPES[kind], each, settings or None) for each in some
        ]
        request = DescribeConfigsRequest(
            wanted,
            include_synonyms=True,
            include_documentation=documentation,
        )
        response = session.call(DescribeConfigsResponse, request, _route(kind, some[0]))
        for result in response.results:
            name = result.resource_name
            if result.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and len(names) > 1:
                continue  # it is deleted meanwhile
            check(result.error_code, f"{kind} {name}".strip(), result.error_message)
            yield name, sorted(result.configs, key=lambda each: each.name)


def _type_name(row: DescribeConfigsResourceResult) -> str:
    if SOURCES.get(row.config_source) == "logger":
        return "level"  # Kafka sends no type for it, and neither does Ottla
    return TYPE_NAMES.get(row.config_type, str(row.config_type))


def _row(row: DescribeConfigsResourceResult, synonyms: bool) -> dict[str, Cell]:
    others = [f"{item.name}={item.value} ({SOURCES.get(item.source)})" for item in row.synonyms]
    return {
        "setting": row.name,
        "value": "(secret)" if row.is_sensitive else row.value,
        "source": SOURCES.get(row.config_source, str(row.config_source)),
        "type": _type_name(row),
        "read_only": row.read_only,
        "synonyms": "; ".join(others) if synonyms else None,
        "documentation": row.documentation,
    }


def _value(row: DescribeConfigsResourceResult) -> dict[str, object]:
    value: dict[str, object] = {
        "name": row.name,
        "value": row.value,
        "source": SOURCES.get(row.config_source, str(row.config_source)),
        "type": _type_name(row),
        "read_only": row.read_only,
        "sensitive": row.is_sensitive,
        "synonyms": [
            {"name": item.name, "value": item.value, "source": SOURCES.get(item.source)}
            for item in row.synonyms
        ],
    }
    if row.documentation:
        value["documentation"] = row.documentation
    return value


@app.command("set")
@connected
def set_(
    session: Session,
    kind: KindArgument,
    rest: RestArgument = None,
    validate: ValidateOption = False,
) -> None:
    """Set one or more settings as name=value."""
    _change(session, SET, kind, rest or [], validate)


@app.command()
@connected
def unset(
    session: Session,
    kind: KindArgument,
    rest: RestArgument = None,
    validate: ValidateOption = False,
    remove_all: Annotated[
        bool, typer.Option("--all", help="With --offline: all that is stored, also garbage.")
    ] = False,
    must_be_set: Annotated[
        bool, typer.Option("--must-be-set", help="Fail if one of them is not set there.")
    ] = False,
    offline: OfflineOption = False,
    data_dir: DataDirOption = "",
    zookeeper: ZooKeeperOption = "",
    config: ServerFileOption = "",
) -> None:
    """Remove settings, so that the next lower level is effective."""
    stored = _offline(offline, data_dir, zookeeper, config)
    if stored is None:
        if remove_all:
            raise usage("--all needs --offline.")
        _change(session, DELETE, kind, rest or [], validate, must_be_set)
        return
    name, texts = _named(kind, rest or [])
    kind, name = resource_of(kind, name)
    if bool(texts) == remove_all:
        raise usage("name the settings to remove, or all of them with --all.")
    removed = stored.unset(kind, name, texts)
    where = f"{kind} {name}".strip()
    if texts and not removed:
        raise Failure(f"{where} has no {', '.join(texts)} stored; see `ottla configs describe`.")
    if session.json:
        print_json({"kind": kind, "name": name, "removed": removed})
    else:
        say(f"{where}: {', '.join(removed) or 'all'} removed.")


def _offline(offline: bool, data_dir: str, zookeeper: str, config: str) -> OfflineConfigs | None:
    if not offline:
        if data_dir or zookeeper or config:
            raise usage("--data-dir, --zookeeper and --config need --offline.")
        return None
    from ottla.cli.offline_configs import OfflineConfigs
    from ottla.cli.offline_tree import Place

    return OfflineConfigs(Place(data_dir, zookeeper, config))


def _named(kind: str, rest: list[str]) -> tuple[str, list[str]]:
    """The name of the resource, and the other arguments."""
    if kind == "cluster" or not rest:
        return "", rest
    return rest[0], rest[1:]


@app.command()
@connected
def append(
    session: Session,
    kind: KindArgument,
    rest: RestArgument = None,
    validate: ValidateOption = False,
) -> None:
    """Add items to a setting that is a list."""
    _change(session, APPEND, kind, rest or [], validate)


@app.command()
@connected
def subtract(
    session: Session,
    kind: KindArgument,
    rest: RestArgument = None,
    validate: ValidateOption = False,
) -> None:
    """Remove items from a setting that is a list."""
    _change(session, SUBTRACT, kind, rest or [], validate)


def _change(
    session: Session,
    operation: int,
    kind: str,
    rest: list[str],
    validate: bool,
    must_be_set: bool = False,
) -> None:
    name, texts = _named(kind, rest)
    kind, name = resource_of(kind, name)
    if not texts:
        raise usage("name a setting, for example retention.ms=86400000.")
    changes: dict[str, str | None]
    if operation == DELETE:
        changes = dict.fromkeys(texts)
        _check_names(session, kind, name, texts, must_be_set)
    else:
        changes = {**parse_settings(texts)}
    resource = AlterConfigsResource(
        resource_type=RESOURCE_TYPES[kind],
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=operation, value=value)
            for key, value in changes.items()
        ],
    )
    response = session.call(
        IncrementalAlterConfigsResponse,
        IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate),
        _route(kind, name),
    )
    result = response.responses[0]
    where = f"{kind} {name}".strip()
    check(result.error_code, where, result.error_message)
    if session.json:
        print_json({"kind": kind, "name": name, "changed": {} if validate else changes})
    else:
        done = "removed" if operation == DELETE else "done"
        say(f"{where}: {', '.join(texts)} {'would be accepted' if validate else done}.")


def _check_names(
    session: Session, kind: str, name: str, settings: list[str], must_be_set: bool
) -> None:
    """Brokers accept the removal of any name, and a mistyped one would seem to be removed."""
    for text in settings:
        if "=" in text:
            raise usage(f"unset takes names only: {text.partition('=')[0]}, not {text}.")
    if kind != "topic" and not must_be_set:
        return
    ((_, rows),) = _described(session, kind, [name], settings)
    sources = {row.name: row.config_source for row in rows}
    # Brokers also have settings of plugins, which they do not describe.
    if kind == "topic" and (unknown := sorted({*settings}.difference(sources))):
        raise Failure(f"topics have no setting {unknown[0]}; see `ottla configs describe`.")
    own = _OWN_SOURCES.get(kind)
    missing = [text for text in settings if own and sources.get(text, own) != own]
    if must_be_set and missing:
        where = f"{kind} {name}".strip()
        raise Failure(f"Invalid config(s): {','.join(missing)}. Not set for {where}.")


def resource_of(kind: str, name: str) -> tuple[str, str]:
    """The kind and name of a resource; raises Failure for an invalid combination."""
    singular = kind.removesuffix("s") if kind != "metrics" else kind
    if singular not in RESOURCE_TYPES:
        raise usage(f"{kind!r} is not one of {', '.join(RESOURCE_TYPES)}.")
    if singular == "cluster":
        if name:
            raise usage("cluster is the default of all brokers and has no name.")
        return singular, ""
    if not name:
        raise usage(f"{singular} needs a name after it.")
    if singular in ("broker", "logger") and not (name.isascii() and name.isdigit()):
        raise usage(f"{name!r} is not the id of a broker; see `ottla cluster info`.")
    return singular, name


def _route(kind: str, name: str) -> Route | None:
    """A broker describes its own settings; every broker describes the others."""
    return Node(int(name)) if kind in ("broker", "logger") else None
