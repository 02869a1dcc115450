"""For the programs in Python: features as functions, one line printed for each.

Standard library only and Python 3.11: it is imported inside each client's own environment.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable
from typing import Any

BOOTSTRAP = os.environ["COMPAT_BOOTSTRAP"]
PREFIX = os.environ["COMPAT_PREFIX"]
BUILD = os.environ["COMPAT_BUILD"]
VERSION = os.environ["COMPAT_VERSION"]
# One, or the workers of a machine.
BROKERS = int(os.environ["COMPAT_BROKERS"])
DEADLINE_S = 40.0
CODECS = ("gzip", "snappy", "lz4", "zstd")

Feature = Callable[[], Any]
_features: list[tuple[str, Feature]] = []


def feature(name: str) -> Callable[[Feature], Feature]:
    """The function is the check of this feature: what it raises is why it failed."""

    def register(function: Feature) -> Feature:
        _features.append((name, function))
        return function

    return register


def say(state: str, name: str, reason: str = "") -> None:
    print(f"{state} {name}" + (f": {reason}" if reason else ""), flush=True)


def check(name: str, function: Feature) -> None:
    """Runs one feature and prints its line."""
    try:
        function()
    except Exception as error:
        traceback.print_exc()
        say("fail", name, f"{type(error).__name__}: {error}".replace("\n", " ")[:300])
    else:
        say("ok", name)


def run_all() -> None:
    for name, function in _features:
        check(name, function)


def equal(found: object, wanted: object) -> None:
    """An assertion that shows both sides."""
    if found != wanted:
        raise AssertionError(f"{found!r:.200} instead of {wanted!r:.200}")


def until(condition: Callable[[], Any], what: str) -> Any:
    """Waits for a condition; raises TimeoutError with `what` when it does not come."""
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise TimeoutError(what)
