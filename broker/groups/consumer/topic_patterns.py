"""Subscriptions by regular expression in RE2 syntax, as in Kafka 4.

RE2 matches in time linear in the length of the name for every pattern. With the `re` module one
member could stop the broker: `(a+)+b` takes a day for a name of forty letters. Where there is no
package of RE2, as for free-threaded Python, `ottla.broker.groups.patterns` matches, as linearly.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from typing import Protocol

from ottla.broker.groups.consumer.checks import RejectedRequest
from ottla.broker.groups.patterns.linear import LinearPattern
from ottla.broker.groups.patterns.syntax import BadPattern
from ottla.protocol.errors import ErrorCode

logger = logging.getLogger("ottla.groups")

MAX_MEMORY_BYTES = 1024 * 1024  # for the program of one pattern; a longer one is rejected


class Pattern(Protocol):
    def fullmatch(self, text: str) -> object: ...


@lru_cache(maxsize=256)  # each pattern takes some kilobytes
def compile_pattern(text: str) -> Pattern:
    """The compiled pattern; raises BadPattern."""
    try:
        import re2  # imported late: few groups have patterns
    except ImportError:
        return LinearPattern(text)
    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = MAX_MEMORY_BYTES
    try:
        compiled: Pattern = re2.compile(text, options)
    except re2.error as problem:
        reason = problem.args[0] if problem.args else ""
        message = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise BadPattern(message) from None
    return compiled


def check_pattern(text: str) -> None:
    """Raises RejectedRequest for an invalid regular expression."""
    try:
        compile_pattern(text)
    except BadPattern as problem:
        raise RejectedRequest(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"SubscribedTopicRegex {text!r} is not a valid regular expression: {problem}.",
        ) from None


def find_matching(text: str, names: list[str]) -> frozenset[str]:
    """The names that the pattern matches as a whole; none when it is invalid."""
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
    return frozenset(name for name in names if match(name))
