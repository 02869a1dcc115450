"""The quota callback of a test: Ottla asks the JVM of the test, as Kafka calls the Java class."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.quotas import ClusterMetadata, QuotaEntity
    from tests.compat.kafka_tests.plugins import PluginsOfJvm


class OwnQuotas:
    """Ottla loads this class by its setting, as any that computes quotas."""

    jvm: PluginsOfJvm
    class_name: str

    def __init__(self) -> None:
        # Kinds whose limits are to be requested again: the JVM says it with the tags, which saves
        # half of the questions.
        self._reset: set[str] = set()

    def configure(self, settings: Mapping[str, str]) -> None:
        self.jvm.ask("quotas", self.class_name, settings)

    def reconfigure(self, settings: Mapping[str, str]) -> None:
        self.jvm.ask("quota_settings", settings)

    def quota_metric_tags(self, kind: str, user: str, client_id: str) -> dict[str, str]:
        tags: dict[str, str]
        tags, is_reset = self.jvm.ask("quota_tags", kind, user, client_id)
        if is_reset:
            self._reset.add(kind)
        return tags

    def quota_limit(self, kind: str, tags: Mapping[str, str]) -> float | None:
        limit: float | None = self.jvm.ask("quota_limit", kind, tags)
        return limit

    def update_quota(self, kind: str, entity: QuotaEntity, limit: float) -> None:
        self.jvm.ask("quota_set", kind, *entity, limit)

    def remove_quota(self, kind: str, entity: QuotaEntity) -> None:
        self.jvm.ask("quota_set", kind, *entity, None)

    def quota_reset_required(self, kind: str) -> bool:
        is_required = kind in self._reset
        self._reset.discard(kind)
        return is_required

    def update_cluster_metadata(self, cluster: ClusterMetadata) -> bool:
        leaders = {topic: cluster.leaders[topic] for topic in cluster.leaders}
        is_changed: bool = self.jvm.ask("quota_cluster", leaders)
        return is_changed
