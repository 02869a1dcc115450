"""Quotas that an installation computes by itself: the public names. docs/operations.md has an
example.

    class GroupQuotas:
        def quota_metric_tags(self, kind: str, user: str, client_id: str) -> dict[str, str]: ...
        def quota_limit(self, kind: str, tags: dict[str, str]) -> float | None: ...
        def update_quota(self, kind: str, entity: QuotaEntity, limit: float) -> None: ...
        def remove_quota(self, kind: str, entity: QuotaEntity) -> None: ...

with `client.quota.callback.class=module.GroupQuotas`. These methods, which are those of Kafka's
ClientQuotaCallback (KIP-257), are required. `kind` is PRODUCE and FETCH (bytes a second), REQUEST
(percent of the time of the event loop) or CONTROLLER_MUTATION (partitions a second). Clients with
the same tags share a quota; a limit of None is no limit. The limit of tags is requested once, for
fetches each time, and again after a change of a quota and where one of these, which are optional,
returns True:

    quota_reset_required(kind)        after the tags of each request
    update_cluster_metadata(cluster)  a `ClusterMetadata`, after each change of the metadata

Also optional: `configure(settings)` and, after each change of the broker's settings at run time,
`reconfigure(settings)`, with all settings that are set, as text; `close()`, when the broker stops.

All are called on the event loop: they must return at once, without input or output. A method that
raises is logged, and the client has no limit.
"""

from ottla.broker.quotas.quota_callback import ClusterMetadata, QuotaEntity

__all__ = ["ClusterMetadata", "QuotaEntity"]
