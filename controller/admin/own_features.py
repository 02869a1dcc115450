"""Features that are finalized among Ottla brokers: now `transaction.version` (KIP-890).

Kafka 3.9 in ZooKeeper mode knows no feature, and ends at its start if `/feature` finalizes one. So
the levels of these features are not there. What an administrator has set with UpdateFeatures is in
a znode of Ottla's own; a feature that is not set has the highest level. In effect is what every
registered broker supports: its registration lists the levels, and that of Kafka 3 or of an older
Ottla lists none. Each broker finds out for itself, so that a feature is off as soon as another
broker registers, also while that is the controller.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ottla.controller.model import BrokerInfo
from ottla.controller.settings import parse_protocol_version

TRANSACTION_VERSION = "transaction.version"

#: Lowest and highest level by feature. Level 0, off, is not listed: registrations of Kafka list
#: levels from 1 on.
OWN_FEATURES: dict[str, tuple[int, int]] = {TRANSACTION_VERSION: (1, 2)}

OFF = 0

_SINCE = (3, 9, 0)


def own_features(inter_broker_protocol_version: str) -> dict[str, tuple[int, int]]:
    """The levels that a broker registers: none while the protocol between brokers is older than
    ours, so that brokers that do not have the features may be in the cluster."""
    if parse_protocol_version(inter_broker_protocol_version) < _SINCE:
        return {}
    return dict(OWN_FEATURES)


def unsupporting(name: str, level: int, brokers: Iterable[BrokerInfo]) -> list[int]:
    """The ids of the brokers that do not support this level of a feature."""
    found = []
    for broker in brokers:
        low, high = broker.features.get(name, (0, -1))
        if not low <= level <= high:
            found.append(broker.broker_id)
    return sorted(found)


def levels_in_effect(
    levels: Mapping[str, int],
    supported: Mapping[str, tuple[int, int]],
    brokers: Iterable[BrokerInfo],
) -> dict[str, int]:
    """The levels of the features that are on.

    `levels` are those that are set. A feature that is not set has the highest level that all
    `brokers` and this one, which has `supported`, have in common. A level that is set and that one
    of them does not support is off.
    """
    found: dict[str, int] = {}
    brokers = list(brokers)
    for name, (_, high) in supported.items():
        level = levels.get(name)
        if level is None:
            level = min((each.features.get(name, (0, OFF))[1] for each in brokers), default=high)
            level = min(level, high)
        if OFF < level <= high and not unsupporting(name, level, brokers):
            found[name] = level
    return found
