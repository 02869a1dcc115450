"""The settings `remote.*` reach the parts that they are for, at the start and at run time.

What each part does with its limit is in the tests of the part.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from ottla.broker.config.errors import ConfigError
from ottla.testing import Broker
from tests.doubles.eventually import eventually
from tests.doubles.tiered_topics import remote_logs, tiered_settings

AT_THE_START = {
    "remote_log_manager_copier_thread_pool_size": 3,
    "remote_log_manager_expiration_thread_pool_size": 2,
    "remote_log_reader_threads": 4,
    "remote_log_reader_max_pending_tasks": 5,
    "remote_log_manager_copy_quota_window_num": 6,
    "remote_log_manager_copy_quota_window_size_seconds": 2,
    "remote_log_manager_fetch_quota_window_num": 7,
    "remote_log_manager_fetch_quota_window_size_seconds": 3,
}


def started(tmp_path: Path, **settings: object) -> Broker:
    (tmp_path / "store").mkdir()
    return Broker(tmp_path / "data", **{**tiered_settings(tmp_path / "store"), **settings})


def test_threads_and_windows(tmp_path: Path) -> None:
    with started(tmp_path, **AT_THE_START) as broker:
        manager = remote_logs(broker)
        fetches = broker.server.parts.replica_manager.remote_fetches
        assert fetches is not None
        assert (manager._copiers._threads, manager._copy_tasks._concurrency) == (3, 3)
        assert (manager._expirers._threads, manager._expiration_tasks._concurrency) == (2, 2)
        assert manager.readers._threads == fetches.reader._threads == 4
        assert fetches.reader._max_reads == 4 + 5
        assert manager.settings.copy_quota_window == (6, 2)
        assert manager.settings.fetch_quota_window == (7, 3)


def test_changes_at_run_time(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        manager = remote_logs(broker)
        fetches = broker.server.parts.replica_manager.remote_fetches
        assert fetches is not None
        reader = fetches.reader
        changes = {
            "remote.fetch.max.wait.ms": 123,
            "remote.log.index.file.cache.total.size.bytes": 4567,
            "remote.log.manager.copy.max.bytes.per.second": 1001,
            "remote.log.manager.fetch.max.bytes.per.second": 1002,
        }
        resource = ConfigResource(
            ResourceType.BROKER,
            str(broker.server.parts.broker_id),
            incremental_configs=[
                ConfigEntry(name, str(value), incremental_operation=AlterConfigOpType.SET)
                for name, value in changes.items()
            ],
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(60)
        eventually(lambda: manager.fetch_quota.limit == 1002)
        eventually(lambda: manager.copy_quota.limit == 1001)
        eventually(lambda: reader.indexes._cache._max_bytes == 4567)
        eventually(lambda: fetches._max_wait_ms() == 123)


def test_without_tiered_storage(tmp_path: Path) -> None:
    with started(tmp_path, remote_log_storage_system_enable=False) as broker:
        replicas = broker.server.parts.replica_manager
        assert (replicas.remote_logs, replicas.remote_fetches) == (None, None)


def test_tiered_storage_is_not_disabled_below_topics_that_have_it(tmp_path: Path) -> None:
    with started(tmp_path) as broker:
        for topic in ("history", "plain"):
            broker.create_topic(topic, config={"remote.storage.enable": topic == "history"})
    disabled = tiered_settings(tmp_path / "store") | {"remote_log_storage_system_enable": False}
    with pytest.raises(ConfigError) as refused, Broker(tmp_path / "data", **disabled):
        pass
    assert str(refused.value) == (
        "remote.log.storage.system.enable=false, and remote.storage.enable=true for the topics "
        "history: delete these topics or set remote.storage.enable=false before you disable "
        "tiered storage. What is in remote storage only cannot be read then"
    )
    with Broker(tmp_path / "data", **tiered_settings(tmp_path / "store")) as broker:
        resource = ConfigResource(
            ResourceType.TOPIC,
            "history",
            incremental_configs=[
                ConfigEntry(
                    "remote.storage.enable", "false", incremental_operation=AlterConfigOpType.SET
                )
            ],
        )
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.incremental_alter_configs([resource])[resource].result(60)
    with Broker(tmp_path / "data", **disabled) as broker:
        assert broker.is_running
