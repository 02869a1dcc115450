"""Subscriptions by regular expression in RE2 syntax, as in Kafka 4.

RE2 matches in time linear in the length of the name for every pattern. With the `re` module one
member could stop the broker: `(a+)+b` takes a day for a name of forty letters. Where there is no
package of RE2, as for free-threaded Python, `ottla.broker.groups.patterns` matches, as linearly.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Protocol

from ottla.broker.groups.consumer.checks import RejectedRequest
from ottla.broker.groups.patterns.linear import LinearPattern
from ottla.broker.groups.patterns.syntax import BadPattern
from ottla.protocol.errors import ErrorCode
from ottla.protocol.steps import Steps

logger = logging.getLogger("ottla.groups")

MAX_MEMORY_BYTES = 1024 * 1024  # for the program of one pattern; a longer one is rejected


class Pattern(Protocol):
    def fullmatch(self, text: str) -> bool: ...


class _Re2Pattern:
    """Matches bytes: for a `str` the package of RE2 looks for the places of characters in its
    bytes, which takes twice as long as the match."""

    __slots__ = ("_fullmatch",)

    def __init__(self, compiled: Any) -> None:
        self._fullmatch = compiled.fullmatch

    def fullmatch(self, text: str) -> bool:
        return self._fullmatch(text.encode()) is not None


@lru_cache(maxsize=256)  # each pattern takes some kilobytes
def compile_pattern(text: str) -> Pattern:
    """Return the compiled pattern. Raises BadPattern."""
    try:
        import re2  # imported late: few groups have patterns
    except ImportError:
        return LinearPattern(text)
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_MEMORY_BYTES
    try:
        return _Re2Pattern(re2.compile(text, options))
    except re2.error as problem:
        reason = problem.args[0] if problem.args else ""
        message = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern(message) from None


def check_pattern(text: str) -> None:
    """Raise RejectedRequest for an invalid regular expression."""
    try:
        compile_pattern(text)
    except BadPattern as problem:
        raise RejectedRequest(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex {text!r} is not a valid regular expression: {problem}.",
        ) from None


def find_matching(text: str, names: Iterable[str]) -> Steps[frozenset[str]]:
    """Return the names that the pattern matches as a whole; none if it is invalid."""
    try:
        match = compile_pattern(text).fullmatch
    except BadPattern as problem:
        # Another coordinator accepted it; it is in the record of its member.
        logger.warning(
            "Ignoring SubscribedTopicRegex %r, which is not a valid regular expression: %s",
            text,
            problem,
        )
        return frozenset()
    matched = set()
    for name in names:
        if match(name):
            matched.add(name)
        yield
    return frozenset(matched)
