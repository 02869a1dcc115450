"""The tree of commands. The module of a family is imported when one of its commands runs.

`ottla --help` and every command import only what they use.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from copy import copy
from importlib import import_module
from typing import Annotated, Any, get_args

import typer
from typer.core import TyperGroup
from typer.main import get_command

from ottla import __version__
from ottla.cli.families import DIRECT, FAMILIES
from ottla.cli.kafka_tools import plan, shown
from ottla.cli.output import FAILED, Failure, note, print_error

HELP = """\
Ottla, a broker that speaks Kafka's protocol, and its tools.

\b
Examples:
  ottla start                                    a broker on 127.0.0.1:9092
  ottla topics create orders --partitions 3
  echo '{"id": 1}' | ottla produce orders
  ottla consume orders --from-beginning --follow
  ottla groups describe billing
"""
EPILOG = """\
\b
Bootstrap brokers: --bootstrap, else OTTLA_BOOTSTRAP, else bootstrap.servers in
the file of --command-config, else 127.0.0.1:9092.
Exit codes: 0 success, 1 failed check or rejected request, 2 wrong usage,
3 cluster not reachable, 4 authentication failed.
Kafka's tools: ottla kafka-topics --help, and so on; their flags work here.
"""


class LazyGroup(TyperGroup):
    """The families by name; each is imported on first use."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # Typer suggests one of these names for a mistyped one.
        self.commands: Any = dict.fromkeys(FAMILIES)

    def main(self, args: Any = None, *positional: Any, **options: Any) -> Any:
        """Flags of Kafka's tools are translated first (`kafka_tools.py`)."""
        arguments = list(sys.argv[1:] if args is None else args)
        try:
            todo = plan(arguments, self._options_of)
        except Failure as failure:
            print_error(str(failure), failure.code, as_json="--json" in arguments)
            sys.exit(failure.code)
        if todo.is_translated and sys.stderr.isatty():
            note(f"ottla: the same as {shown(todo.lines)}")
        *first, last = todo.lines
        for line in first:
            try:
                self._main(line, *positional, **options)
            except SystemExit as done:  # the end of each command; without a code it was a success
                if done.code:
                    raise
        return self._main(last, *positional, **options)

    def _options_of(self, words: Sequence[str]) -> dict[str, bool]:
        """The options of a command, and whether each has a value; none if there is no command."""
        command: Any = self.get_command(None, words[0])
        for word in words[1:]:
            command = getattr(command, "commands", {}).get(word)
        return {
            name: not parameter.is_flag
            for parameter in getattr(command, "params", ())
            if parameter.param_type_name == "option"
            for name in parameter.opts
        }

    def _main(self, arguments: list[str], *positional: Any, **options: Any) -> Any:
        """With --json, wrong usage is reported as JSON, too."""
        if "--json" not in arguments or options.get("standalone_mode") is False:
            return super().main(arguments, *positional, **options)
        try:
            code = super().main(arguments, *positional, **{**options, "standalone_mode": False})
        except typer.Abort:
            print_error("aborted", FAILED, as_json=True)
            code = FAILED
        except Exception as error:
            # Some releases of Typer bring their own Click, whose classes cannot be named here.
            if not (hasattr(error, "format_message") and hasattr(error, "exit_code")):
                raise
            code = error.exit_code
            print_error(error.format_message(), code, as_json=True)
        sys.exit(code if isinstance(code, int) else 0)

    def list_commands(self, ctx: Any) -> list[str]:
        del ctx
        return list(FAMILIES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        del ctx
        entry = FAMILIES.get(cmd_name)
        if entry is None:
            return None
        module, line = entry
        command = get_command(
            _direct(module, line) if cmd_name in DIRECT else import_module(module).app
        )
        command.name = cmd_name
        _share_examples(command, f"ottla {cmd_name}")
        _use_plain_words(command)
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """The list of `--help`, without importing what it lists."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in FAMILIES.items()])


def _share_examples(command: Any, path: str) -> None:
    """Gives each command of a family the family's examples of that command."""
    _, _, examples = (command.help or "").partition(_EXAMPLES)
    lines = examples.splitlines()
    for name, each in getattr(command, "commands", {}).items():
        own = [line for line in lines if f"{path} {name} " in f"{line} "]
        if own and "Examples:" not in (each.help or ""):
            each.help = "\n".join([f"{each.help}{_EXAMPLES}".rstrip(), *own])
        _share_examples(each, f"{path} {name}")


# Typer names a value by its Python type; wrong values and --help use these words.
_WORDS = {
    "int": ("whole number", "N"),
    "int range": ("whole number", "N"),
    "float": ("number", "NUMBER"),
    "float range": ("number", "NUMBER"),
    "str": ("text", "TEXT"),
    "text": ("text", "TEXT"),
    "Path": ("file", "PATH"),
}


def _use_plain_words(command: Any) -> None:
    """Replaces the Python types in --help and in errors of a command and of those below it."""
    for parameter in command.params:
        word, metavar = _WORDS.get(_type_name(parameter), ("", ""))
        if not word:
            continue
        if hasattr(parameter, "type"):
            parameter.type = copy(parameter.type)  # one object serves all parameters of a type
            parameter.type.name = word
        else:
            parameter.display_type = lambda ctx, text=f"<{word}>": text
        if parameter.metavar is None and parameter.param_type_name == "option":
            parameter.metavar = metavar
        elif parameter.metavar is None:
            parameter.metavar = parameter.name.upper() + ("..." if parameter.nargs != 1 else "")
    for each in getattr(command, "commands", {}).values():
        _use_plain_words(each)


def _type_name(parameter: Any) -> str:
    """The type of a value as Typer names it; from Typer 0.29 on it is an annotation, and errors
    have plain words already."""
    if hasattr(parameter, "type"):
        return str(parameter.type.name)
    annotation = parameter.type_descriptor.annotation
    value = next(iter(get_args(annotation)), annotation)  # of a list, of its elements
    return value.__name__ if isinstance(value, type) else ""


_EXAMPLES = "\n\n\b\nExamples:\n"


# Words of other tools, each with the command of that meaning.
_OTHER_WORDS = {"get": "describe", "show": "describe"}


class Family(TyperGroup):
    """The commands of a family; "get" would be taken for a mistyped "set"."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """As the base class does, with the right suggestion for a word of another tool."""
        word = args[0] if args else ""
        meant = _OTHER_WORDS.get(word)
        if meant in self.commands and word not in self.commands:
            ctx.fail(f"No such command {word!r}. Did you mean {meant!r}?")
        return super().resolve_command(ctx, args)


def family(help_text: str, examples: str = "") -> typer.Typer:
    """The typer app of one family of commands; `examples` stand at the top of its --help."""
    return typer.Typer(
        cls=Family,
        help=f"{help_text}{_EXAMPLES}{examples}" if examples else help_text,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


def _direct(module: str, line: str) -> typer.Typer:
    """The app of a command of `families.DIRECT`, for the list of commands and for completion."""
    command = typer.Typer(add_completion=False, rich_markup_mode=None)

    @command.command(
        help=line,
        add_help_option=False,  # the command has its own
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
    def run(context: typer.Context) -> None:
        raise typer.Exit(import_module(module).main(context.args))

    return command


app = typer.Typer(
    cls=LazyGroup,
    name="ottla",
    help=HELP,
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
