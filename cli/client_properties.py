"""The file of --command-config: a client's properties."""

from __future__ import annotations

from collections.abc import Mapping

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.properties_file import parse_properties
from ottla.cli.output import usage

# What a command uses of the file, beside the names that a broker has as well.
_USED = (
    *("bootstrap.servers", "client.id"),
    *("sasl.mechanism", "sasl.mechanisms", "sasl.password", "sasl.username"),
    *("security.protocol", "ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
)
_SECURITY = ("sasl.", "security.", "ssl.")
_LIKENESS = 0.85


def mistyped(properties: Mapping[str, str]) -> list[tuple[str, str]]:
    """The names that look like one that a command uses, with that one. Others may be meant for
    other clients that read the file."""
    unknown = [name for name in properties if name not in _USED]
    if not unknown:
        return []
    import difflib

    from ottla.broker.config.definitions import broker_settings

    of_brokers = broker_settings()
    known = [*_USED, *(name for name in of_brokers if name.startswith(_SECURITY))]
    found = []
    for name in unknown:
        if name not in of_brokers:
            near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=_LIKENESS)
            found += [(name, each) for each in near]
    return found


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
