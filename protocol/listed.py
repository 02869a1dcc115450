"""Lists and values in log lines and error texts, with a bound: a request can name thousands of
topics, and a setting can have a megabyte."""

from collections.abc import Iterable
from itertools import islice

# A line stays below the 1,024 bytes that syslog and some collectors cut at.
MAX_LISTED = 20
MAX_CHARACTERS = 500


def listed(items: Iterable[object]) -> str:
    """`a, b, c` of at most `MAX_LISTED` items and about `MAX_CHARACTERS`, at least one item.

    `... and 5 more` after them counts those left out.
    """
    remaining = iter(items)
    texts: list[str] = []
    characters = 0
    for item in islice(remaining, MAX_LISTED):
        text = str(item)
        characters += len(text) + 2
        if texts and characters > MAX_CHARACTERS:
            left = 1 + sum(1 for _ in remaining)
            break
        texts.append(text)
    else:
        left = sum(1 for _ in remaining)
    shown = ", ".join(texts)
    return f"{shown} ... and {left} more" if left else shown


def abridged(text: str) -> str:
    """`text`, or its first `MAX_CHARACTERS` with "..." after them."""
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "..."
