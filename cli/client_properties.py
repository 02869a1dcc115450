"""The file of --command-config: a client's properties."""

from __future__ import annotations

from ottla.cli.output import usage


def read_client_properties(path: str) -> dict[str, str]:
    """A file of `name=value` lines, as Java's clients read it; # and ! begin a comment."""
    try:
        with open(path, encoding="utf-8") as source:
            lines = source.read().splitlines()
    except OSError as error:
        raise usage(f"--command-config {path}: {error.strerror}.") from None
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        name, separator, value = text.partition("=")
        if not separator:
            raise usage(f"{path}:{number}: {text!r} is not name=value.")
        found[name.strip()] = value.strip()
    return found
