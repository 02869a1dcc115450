"""Which test shows the effect of each setting `remote.*` that docs/configuration.md calls used."""

from __future__ import annotations

_PROBE = "tests/integration/test_remote_settings.py::"
_REMOTE = "tests/unit/broker/remote/"
_TASKS = f"{_REMOTE}test_partition_tasks.py::"

REMOTE_SETTINGS = {
    "remote.fetch.max.wait.ms": f"{_PROBE}test_changes_at_run_time",
    "remote.log.index.file.cache.total.size.bytes": f"{_PROBE}test_changes_at_run_time",
    "remote.log.manager.copier.thread.pool.size": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.copy.max.bytes.per.second": f"{_PROBE}test_changes_at_run_time",
    "remote.log.manager.copy.quota.window.num": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.copy.quota.window.size.seconds": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.expiration.thread.pool.size": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.fetch.max.bytes.per.second": f"{_PROBE}test_changes_at_run_time",
    "remote.log.manager.fetch.quota.window.num": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.fetch.quota.window.size.seconds": f"{_PROBE}test_threads_and_windows",
    "remote.log.manager.task.interval.ms": f"{_TASKS}test_a_leader_copies",
    "remote.log.manager.task.retry.backoff.max.ms": f"{_TASKS}"
    "test_failures_are_retried_with_back_off",
    "remote.log.manager.task.retry.backoff.ms": f"{_TASKS}test_failures_are_retried_with_back_off",
    "remote.log.manager.task.retry.jitter": f"{_TASKS}test_a_leader_copies",
    "remote.log.manager.thread.pool.size": f"{_REMOTE}test_settings.py::"
    "test_threads_default_to_the_pool_of_all_tasks",
    "remote.log.metadata.custom.metadata.max.bytes": f"{_REMOTE}test_segment_copier.py::"
    "test_too_much_custom_metadata_stops_the_copies",
    "remote.log.metadata.manager.class.name": "tests/unit/broker/config/test_rules.py::"
    "test_other_classes_are_refused",
    "remote.log.metadata.manager.impl.prefix": f"{_REMOTE}test_settings.py::"
    "test_settings_of_the_plugins_have_a_prefix",
    "remote.log.metadata.manager.listener.name": "tests/unit/broker/config/test_rules.py::"
    "test_the_listener_of_the_metadata_must_be_there",
    "remote.log.reader.max.pending.tasks": f"{_PROBE}test_threads_and_windows",
    "remote.log.reader.threads": f"{_PROBE}test_threads_and_windows",
    "remote.log.storage.manager.class.name": "tests/unit/broker/config/test_rules.py::"
    "test_other_classes_are_refused",
    "remote.log.storage.manager.impl.prefix": f"{_REMOTE}test_settings.py::"
    "test_settings_of_the_plugins_have_a_prefix",
    "remote.log.storage.system.enable": f"{_PROBE}test_without_tiered_storage",
}
