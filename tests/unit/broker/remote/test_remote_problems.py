from __future__ import annotations

import logging
from uuid import UUID

import pytest

from ottla.broker.remote.remote_problems import RemoteProblems
from ottla.storage.remote.remote_storage import RemoteStorageError
from ottla.storage.remote.segments import TopicIdPartition

ONE, OTHER = (TopicIdPartition(UUID(int=1), "t", index) for index in range(2))
AWAY = RemoteStorageError("the store is away")


def test_a_failure_of_all_partitions_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    problems = RemoteProblems()
    with caplog.at_level(logging.INFO, "ottla.remote"):
        for partition in (ONE, OTHER, ONE):
            problems.failed(partition, "copy", AWAY)
        assert problems.count("copy") == 2
        assert problems.first() == ("copy", "t-0", "the store is away")
        problems.worked(ONE, "copy")
        assert problems.first() == ("copy", "t-1", "the store is away")
        problems.worked(OTHER, "copy")
        problems.worked(OTHER, "copy")
    assert problems.first() is None
    assert [record.levelno for record in caplog.records] == [logging.ERROR, logging.INFO]


def test_a_partition_that_left_is_no_problem() -> None:
    problems = RemoteProblems()
    problems.failed(ONE, "expiration", AWAY)
    problems.forget(ONE)
    assert problems.count("expiration") == problems.count("copy") == 0
