"""Topics and partitions by regular expression, as `--topic` of Kafka's tools chooses them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Annotated

import typer

from ottla.cli.output import Failure, usage
from ottla.cli.session import Session
from ottla.protocol.messages.metadata import MetadataResponseTopic
from ottla.protocol.topics import TopicPartition

RegexOption = Annotated[
    str,
    typer.Option(
        "--regex",
        help="The topics whose whole name matches this regular expression, in place of names.",
    ),
]
_PARTITIONS = re.compile(r"(\d{1,9})?(-)?(\d{1,9})?")
_END = 1 << 31  # beyond each partition number


def matching_topics(
    session: Session, regex: str, *, internal: bool = True, if_exists: bool = False
) -> list[MetadataResponseTopic]:
    """Topics whose whole name matches, sorted. Raises Failure if there is none."""
    pattern = _compiled(regex)
    found = [
        row
        for row in session.client.metadata(None).topics
        if (internal or not row.is_internal) and pattern.fullmatch(row.name or "")
    ]
    if not found and not if_exists:
        raise Failure(f"no topic matches --regex {regex}; see `ottla topics list`.")
    return sorted(found, key=lambda row: row.name or "")


def matching_partitions(
    session: Session, texts: Iterable[str], *, internal: bool
) -> list[TopicPartition]:
    """Partitions of `regex`, or of `regex:0`, `:0-2` (without 2), `:3-` and `:-3`.

    Raises Failure if there is none.
    """
    rows = session.client.metadata(None).topics
    found: set[TopicPartition] = set()
    for text in texts:
        regex, _, numbers = text.partition(":")
        pattern, wanted = _compiled(regex or ".*"), _range(text, numbers)
        found.update(
            TopicPartition(row.name or "", item.partition_index)
            for row in rows
            if (internal or not row.is_internal) and pattern.fullmatch(row.name or "")
            for item in row.partitions
            if item.partition_index in wanted
        )
    if not found:
        raise Failure(f"no partition matches --regex {' '.join(texts)}; see `ottla topics list`.")
    return sorted(found)


def _compiled(regex: str) -> re.Pattern[str]:
    try:
        return re.compile(regex)
    except re.error as error:
        raise usage(f"--regex {regex} is not a regular expression: {error}.") from None


def _range(text: str, numbers: str) -> range:
    found = _PARTITIONS.fullmatch(numbers)
    if found is None or numbers == "-":
        raise usage(f"--regex {text}: write partitions as 0, 0-2, 3- or -3 after the colon.")
    first, dash, end = found.groups()
    start = int(first or 0)
    if not dash:
        return range(start, start + 1) if numbers else range(_END)
    return range(start, int(end) if end else _END)
