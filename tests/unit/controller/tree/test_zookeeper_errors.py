"""kazoo's exceptions as those of the store."""

from __future__ import annotations

import pytest
from kazoo import exceptions

from ottla.controller.tree.store import (
    BadVersion,
    ConnectionLost,
    InvalidPath,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    SessionExpired,
    StoreError,
)
from ottla.controller.tree.zookeeper_errors import error_from, is_connection_loss, sentence


@pytest.mark.parametrize(
    ("error", "meaning"),
    [
        (exceptions.NoNodeError(), NoNode),
        (exceptions.NodeExistsError(), NodeExists),
        (exceptions.BadVersionError(), BadVersion),
        (exceptions.NotEmptyError(), NotEmpty),
        (exceptions.NoChildrenForEphemeralsError(), NoChildrenForEphemerals),
        (exceptions.NoAuthError(), NotPermitted),
        (exceptions.AuthFailedError(), NotPermitted),
        (exceptions.SessionExpiredError(), SessionExpired),
        (exceptions.ConnectionLoss(), ConnectionLost),
        (exceptions.ConnectionClosedError(), ConnectionLost),
        (exceptions.SessionMovedError(), ConnectionLost),
        (exceptions.MarshallingError(), StoreError),
        (ValueError("relative paths not allowed"), InvalidPath),
        (exceptions.BadArgumentsError(), InvalidPath),
    ],
)
def test_meanings(error: Exception, meaning: type[StoreError]) -> None:
    found = error_from(error, "/path")
    assert type(found) is meaning
    assert found.path == "/path"
    assert "/path" in str(found)
    assert is_connection_loss(error) == (meaning is ConnectionLost)


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in vars(exceptions).values()
        if isinstance(each, type) and issubclass(each, exceptions.ZookeeperError)
    ],
)
def test_each_error_has_a_sentence(kind: type[Exception]) -> None:
    assert " " in sentence(kind()), kind
    assert "ZooKeeper" not in sentence(kind("a text"))
    assert kind.__name__ not in str(error_from(kind(), "/path"))


def test_an_error_without_a_text_is_named() -> None:
    assert sentence(TimeoutError()) == "TimeoutError"
    assert sentence(KeyError("scheme")) == "KeyError 'scheme'"


def test_nothing_is_no_loss() -> None:
    assert not is_connection_loss(None)
