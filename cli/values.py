"""Command-line values of several commands."""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.output import usage

ConfigOption = Annotated[
    list[str] | None,
    typer.Option("--config", "-c", help="A setting as name=value; repeatable."),
]
ValidateOption = Annotated[
    bool, typer.Option("--validate-only", help="Validate only, change nothing.")
]

# The codecs by id, as in `compression.type`; written out so that --help imports no codec.
CODEC_NAMES = ("none", "gzip", "snappy", "lz4", "zstd")


def codec_id(name: str) -> int:
    """The id of a codec on the wire."""
    if name not in CODEC_NAMES:
        raise usage(f"--codec {name} is not one of {', '.join(CODEC_NAMES)}.")
    return CODEC_NAMES.index(name)


def parse_settings(texts: list[str] | None) -> dict[str, str]:
    """name=value, several of them; a list as value keeps its commas."""
    found: dict[str, str] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name.strip():
            raise usage(f"{text!r} is not name=value, for example retention.ms=86400000.")
        found[name.strip()] = value
    return found


def typed_bytes(text: str) -> bytes:
    """The bytes of an argument as they were typed, which need not be UTF-8."""
    return text.encode("utf-8", "surrogateescape")


def read_json_file(path: str) -> object:
    """The document in a file ("-": standard input); a Failure that names the line otherwise."""
    import json
    import sys

    try:
        if path == "-":
            return json.load(sys.stdin)
        with open(path, encoding="utf-8-sig") as source:
            return json.load(source)
    except OSError as error:
        raise usage(f"{path}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise usage(f"{path} is not JSON: {error}.") from None
