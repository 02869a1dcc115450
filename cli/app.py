"""The tree of commands. A family's module is imported when one of its commands is typed.

So `ottla --help` and every command cost what they use, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ottla import __version__

# Name: (module with an `app`, what `ottla --help` says). `start` is handled before typer is there.
FAMILIES: dict[str, tuple[str, str]] = {
    "start": ("ottla.cli.start", "Start a broker."),
    "healthcheck": ("ottla.cli.healthcheck_command", "Is the broker alive? Fast, for containers."),
    "cluster": (
        "ottla.cli.cluster",
        "The cluster: brokers, controller; start one for trying things.",
    ),
    "topics": ("ottla.cli.topics", "List, create, describe, change and delete topics."),
    "configs": ("ottla.cli.configs", "Settings of topics, brokers and the cluster."),
    "produce": ("ottla.cli.produce", "Write lines of standard input or of a file to a topic."),
    "consume": ("ottla.cli.consume", "Read a topic."),
    "groups": ("ottla.cli.groups", "Consumer groups: lag, members, offsets."),
    "records": ("ottla.cli.records", "Delete the oldest records of partitions."),
    "partitions": (
        "ottla.cli.partitions",
        "Leaders and replicas: elect, reassign, under-replicated.",
    ),
    "transactions": ("ottla.cli.transactions", "List, describe and abort transactions."),
    "quotas": ("ottla.cli.quotas", "Limits of clients and users."),
    "features": ("ottla.cli.features", "What the brokers offer: APIs, versions, features."),
    "log": ("ottla.cli.log", "Look into log files on disk; no broker is asked."),
    "log-dirs": ("ottla.cli.log_dirs", "Sizes of partitions in the brokers' data directories."),
    "doctor": ("ottla.cli.doctor", "Can clients here reach every advertised listener? Why not?"),
    "migrate": ("ottla.cli.migrate", "May an Ottla broker join this Kafka cluster?"),
    "bench": ("ottla.cli.bench", "A small measurement of producing and consuming."),
}

EPILOG = """\
\b
Examples:
  ottla start                                    a broker on 127.0.0.1:9092
  ottla topics create orders --partitions 3
  echo '{"id": 1}' | ottla produce orders
  ottla consume orders --from-beginning --follow
  ottla groups describe billing

\b
Brokers come from --bootstrap or OTTLA_BOOTSTRAP, else 127.0.0.1:9092.
Exit codes: 0 done or yes, 1 the answer is no, 2 wrong usage, 3 the cluster cannot be reached.
"""


class LazyGroup(TyperGroup):
    """The families by name; only the one that is used is imported."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # The names are what a mistyped one is compared with.
        self.commands: Any = dict.fromkeys(FAMILIES)

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(FAMILIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        entry = FAMILIES.get(cmd_name)
        if entry is None:
            return None
        command = get_command(import_module(entry[0]).app)
        command.name = cmd_name
        _share_examples(command, f"ottla {cmd_name}")
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of `--help`, without importing what it lists."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in FAMILIES.items()])


def _share_examples(command: Any, path: str) -> None:
    """Each command of a family shows those of the family's examples that are about it."""
    lines = (command.epilog or "").splitlines()
    for name, each in getattr(command, "commands", {}).items():
        own = [line for line in lines if f"{path} {name} " in f"{line} "]
        if own and not each.epilog and "Examples:" not in (each.help or ""):
            each.epilog = "\n".join(["\b", "Examples:", *own])
        _share_examples(each, f"{path} {name}")


def family(help_text: str, examples: str = "") -> typer.Typer:
    """The typer app of one family of commands; `examples` stand below its --help."""
    return typer.Typer(
        help=help_text,
        epilog=f"\b\nExamples:\n{examples}" if examples else None,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


app = typer.Typer(
    cls=LazyGroup,
    name="ottla",
    help="Ottla, a broker that speaks Kafka's protocol, and its tools.",
    epilog=EPILOG,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"ottla {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Ottla, a broker that speaks Kafka's protocol, and its tools."""
