"""The Java consumer and producer, 3.9 and the newest 4.x: members join, leave and crash.

Two of eight combinations: all of them, static members and groups of ten are in `java_matrix.py`,
which takes minutes and a hundred JVMs (`make compat-java`).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compat.clients.java_group import java_group_of, join_leave_and_crash
from tests.doubles.kafka_clients import NEW, OLD

pytestmark = pytest.mark.kafka


@pytest.mark.parametrize(("version", "strategy"), [(OLD, "CooperativeSticky"), (NEW, "Range")])
def test_members_join_leave_and_crash(
    version: str, strategy: str, bootstrap: str, tmp_path: Path
) -> None:
    with java_group_of(version, strategy, bootstrap, tmp_path) as group:
        join_leave_and_crash(group)
