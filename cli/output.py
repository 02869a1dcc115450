"""The output of commands: tables for people, JSON for programs, one sentence for an error.

Rich is imported only for a table on a terminal; a pipe gets plain columns. Names and errors come
from the cluster: their control characters are escaped, so that none forges a row or controls the
terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence

from ottla.broker.runtime.printable import printable, printable_json, printable_lines

# Exit codes. 0 is success.
FAILED = 1
USAGE = 2
UNREACHABLE = 3
UNAUTHENTICATED = 4

Cell = str | int | float | bool | None | Sequence[int] | Sequence[str]
Row = Mapping[str, Cell]


class Failure(Exception):
    """Ends the command: a sentence with the cause and the remedy, and the exit code."""

    def __init__(self, message: str, code: int = FAILED) -> None:
        super().__init__(message)
        self.code = code


def usage(message: str) -> Failure:
    """The Failure for invalid arguments."""
    return Failure(message, USAGE)


def print_error(message: str, code: int, *, as_json: bool) -> None:
    """The reason why a command failed, on standard error: a sentence, or a JSON object."""
    if not as_json:
        note(f"ottla: {message}")
        return
    import json

    document = json.dumps({"error": message, "exit_code": code}, ensure_ascii=False)
    print(printable_json(document), file=sys.stderr)


def print_json(value: object) -> None:
    """One JSON document on standard output, indented, keys in the order given."""
    import json

    print(printable_json(json.dumps(value, indent=2, ensure_ascii=False)))


def print_json_line(value: object) -> None:
    """One JSON value on one line: for streams."""
    import json

    document = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    sys.stdout.write(printable_json(document) + "\n")


def print_rows(rows: Iterable[Row], columns: Sequence[str], *, empty: str = "") -> None:
    """A table of some fields of `rows`; `empty` is printed when there are none.

    A column's heading is its name in capitals with spaces for `_`.
    """
    headings = [name.replace("_", " ").upper() for name in columns]
    texts = [[cell_text(row.get(name)) for name in columns] for row in rows]
    if not texts:
        if empty:
            print(empty)
        return
    right = [all(is_number(text) for text in column) for column in zip(*texts, strict=True)]
    if sys.stdout.isatty():
        _print_rich(headings, texts, right)
    else:
        _print_plain(headings, texts, right)


def print_fields(fields: Mapping[str, Cell]) -> None:
    """Names and values, one a line."""
    width = max(map(len, fields), default=0)
    for name, value in fields.items():
        print(f"{name.replace('_', ' ')}{' ' * (width - len(name))}  {cell_text(value)}")


def note(message: str) -> None:
    """A note on standard error, so that it never mixes with results."""
    print(printable_lines(message), file=sys.stderr)


def say(message: str) -> None:
    """Lines on standard output for people."""
    print(printable_lines(message))


def cell_text(value: Cell) -> str:
    """The text of a value in a table: "-" for none, lists with commas."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.1f}"
    if isinstance(value, (str, int)):
        return printable(str(value))
    return printable(",".join(map(str, value))) or "-"


def is_number(text: str) -> bool:
    """Whether a cell is right-aligned."""
    return text == "-" or text.replace(",", "").replace(".", "", 1).removeprefix("-").isdigit()


def is_measure(text: str) -> bool:
    """Whether a cell is a number with a unit, such as 1.5 KiB."""
    number, _, unit = text.partition(" ")
    return is_number(number) and (not unit or unit.isalpha())


def bytes_text(count: int) -> str:
    """1536 is 1.5 KiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{count} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def time_text(timestamp_ms: int) -> str | None:
    """Local time with its offset, as ISO 8601; None for "no time" (a negative number).

    The number itself after the year 9999: producers that send microseconds are common.
    """
    if timestamp_ms < 0:
        return None
    from datetime import UTC, datetime

    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds")


def _print_plain(headings: list[str], texts: list[list[str]], right: list[bool]) -> None:
    widths = [max(map(len, column)) for column in zip(headings, *texts, strict=True)]
    for line in (headings, *texts):
        cells = (
            text.rjust(width) if on_right else text.ljust(width)
            for text, width, on_right in zip(line, widths, right, strict=True)
        )
        print("  ".join(cells).rstrip())


# A column of text needs that much to be readable; with less, rows are printed as blocks of fields.
_MIN_TEXT_WIDTH = 12


def _print_rich(headings: list[str], texts: list[list[str]], right: list[bool]) -> None:
    """A table that fits the terminal: names fold, numbers stay whole."""
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console()
    longest = [max(map(cell_len, column)) for column in zip(*texts, strict=True)]
    # A heading wraps between its words only.
    words = [max(map(len, heading.split())) for heading in headings]
    is_whole = [
        on_right or all(map(is_measure, column))
        for on_right, column in zip(right, zip(*texts, strict=True), strict=True)
    ]
    least = [
        max(word, width if whole else min(width, _MIN_TEXT_WIDTH))
        for word, width, whole in zip(words, longest, is_whole, strict=True)
    ]
    if sum(least) + 2 * (len(least) - 1) > console.width:
        _print_blocks(headings, texts, console.width)
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for heading, on_right, whole, width in zip(headings, right, is_whole, least, strict=True):
        table.add_column(
            heading,
            justify="right" if on_right else "left",
            overflow="fold",
            no_wrap=whole and " " not in heading,
            min_width=width,
        )
    for line in texts:
        table.add_row(*(Text(text, no_wrap=False) for text in line))
    console.print(table)


def _print_blocks(headings: list[str], texts: list[list[str]], width: int) -> None:
    """Each row as lines of heading and value, a long value folded under itself."""
    from rich.cells import chop_cells  # wide characters have two

    margin = max(map(len, headings)) + 2
    room = max(_MIN_TEXT_WIDTH, width - margin)
    for number, line in enumerate(texts):
        if number:
            print()
        for heading, text in zip(headings, line, strict=True):
            pieces = chop_cells(text, room) or [""]
            for index, piece in enumerate(pieces):
                print(f"{heading if index == 0 else '':{margin}}{piece}")
