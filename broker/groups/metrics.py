"""The metrics of the group coordinator."""

from collections import Counter
from collections.abc import Callable, Iterator
from time import monotonic

from ottla.broker.groups.coordinator import GroupCoordinator
from ottla.broker.groups.lag import EndOffset, LagReader
from ottla.broker.metrics.statistics import MetricsRegistry, Reading

SHARE_STATES = ("Empty", "Stable")

# Scrapes within this time get the same lags.
_FRESH_SECONDS = 0.5


def add_groups(
    registry: MetricsRegistry,
    coordinator: GroupCoordinator,
    end_offset: EndOffset,
    now_ms: Callable[[], int],
) -> None:
    """Groups by state, rebalances, and the lag of every group, topic and partition."""
    reader = LagReader(coordinator.admin, end_offset, now_ms)
    computed_at = float("-inf")

    def compute() -> Iterator[None]:
        nonlocal computed_at
        if monotonic() - computed_at > _FRESH_SECONDS:
            computed_at = monotonic()
            yield from reader.read()

    def states() -> Reading:
        found = Counter(group.state.value for group in coordinator.admin.all_groups())
        return {(state,): found[state] for state in coordinator.states}

    registry.preparations.append(compute)
    registry.gauge("ottla_groups", "Groups coordinated here by state.", states, "state")
    registry.gauge(
        "ottla_group_members",
        "Members of all groups coordinated here.",
        lambda: sum(len(group.members) for group in coordinator.admin.all_groups()),
    )
    registry.counter(
        "ottla_group_rebalances",
        "Rebalances that ended with an assignment.",
        lambda: coordinator.rebalances_completed,
    )
    registry.gauge(
        "ottla_group_lag_records",
        "Records that a group has not committed yet, of partitions led here.",
        lambda: reader.lags.records,
        "group",
        "topic",
        "partition",
    )
    registry.gauge(
        "ottla_group_lag_seconds",
        "Age of the oldest record that a group has not committed, of partitions led here.",
        lambda: reader.lags.seconds,
        "group",
        "topic",
        "partition",
    )
    shares = coordinator.shares
    if shares is None:
        return

    def share_states() -> Reading:
        found = Counter(group.state for group in shares.all())
        return {(state,): found[state] for state in SHARE_STATES}

    registry.gauge(
        "ottla_share_groups", "Share groups coordinated here by state.", share_states, "state"
    )
    registry.gauge(
        "ottla_share_group_members",
        "Members of all share groups coordinated here.",
        lambda: sum(len(group.members) for group in shares.all()),
    )
