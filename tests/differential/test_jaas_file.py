"""Logins of a JAAS file: which section a listener has, and what its text means."""

from __future__ import annotations

import pytest

from tests.differential.guarded import SHA_256, Both
from tests.differential.jaas_listeners import JAAS_LISTENERS

pytestmark = pytest.mark.kafka

ANNAS = ("own", "shared", "setting", "file", "upper", "client")
OTHERS = (
    *("dora:", "emil:bare", 'fred:a"b\\cA;{}', "gina:there/x", "gina:${where}${/}x"),
    *("twice:first", "twice:second", "late:late"),
)


@pytest.mark.parametrize("listener", JAAS_LISTENERS)
def test_who_gets_in(both: Both, listener: str) -> None:
    allowed = []
    for login in (*(f"anna:{password}" for password in ANNAS), *OTHERS):
        token = f":{login}".replace(":", "\0").encode()
        last = both.compare(lambda talk: talk.plain(token), listener)[-1]  # noqa: B023 - at once
        if isinstance(last, tuple) and last[1] == 0:
            allowed.append(login)
    assert allowed == {
        "OWN": ["anna:own"],
        "SHARED": [
            *("anna:shared", "emil:bare", 'fred:a"b\\cA;{}', "gina:there/x"),
            *("twice:first", "late:late"),
        ],
        "SET": ["anna:setting"],
    }.get(listener)


@pytest.mark.parametrize("listener", JAAS_LISTENERS)
def test_scram(both: Both, listener: str) -> None:
    """Its users are not in the file."""
    for password in ("s3cret", "shared"):
        both.compare(lambda talk: talk.scram(SHA_256, "anna", password), listener)  # noqa: B023
