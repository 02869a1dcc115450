"""The file of --command-config: a client's properties."""

from __future__ import annotations

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import parse_properties
from ottla.cli.output import usage


def read_client_properties(path: str, option: str = "--command-config") -> dict[str, str]:
    """A file of properties as Java's clients read it: with comments, continued lines and escapes.

    Errors name the file by `option`. A line that is only a name is wrong usage, where Java takes an
    empty value.
    """
    try:
        with open(path, "rb") as source:
            data = source.read()
    except OSError as error:
        raise usage(f"{option} {path}: {error.strerror}.") from None
    try:
        text = data.decode()
        items = parse_properties(text, path)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise usage(f"{path}:{line}: the file is not UTF-8 text.") from None
    except ConfigError as error:
        raise usage(str(error)) from None
    lines = text.splitlines()
    for item in items:
        written = lines[int(item.origin.rpartition(":")[2]) - 1]
        if not item.value and "=" not in written and ":" not in written:
            raise usage(f"{item.origin}: {item.name!r} is not name=value.")
    return {item.name: item.value.strip() for item in items}
