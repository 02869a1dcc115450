"""`ottla migrate --to kafka-4`: the obstacles to the migration of this cluster to Kafka 4.

The migration runs Apache Kafka 3.9 on the same directories and znodes first, then migrates that to
KRaft (docs/leaving.md). A problem stops a broker or clients during it, a note is for information;
each names the command or setting that fixes it. The checks send requests and change nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ottla.cli.leaving_checks import (
    NOTE,
    Finding,
    check_features,
    check_files,
    check_groups,
    check_left_behind,
    check_partitions,
    check_quotas,
    check_reassignments,
    check_segments,
    check_states,
    check_tiered_topics,
    check_tokens,
)
from ottla.cli.session import Session, check, explain
from ottla.protocol.client.operations import Controller, Node, Versions
from ottla.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.messages.describe_client_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from ottla.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from ottla.protocol.messages.describe_delegation_token import (
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
)
from ottla.protocol.messages.list_config_resources import (
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from ottla.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from ottla.protocol.messages.metadata import MetadataResponse
from ottla.protocol.registry import ApiKey

SEGMENT_BYTES = "segment.bytes"
REMOTE_STORAGE = "remote.storage.enable"
SHARE_STATE_TOPIC = "__share_group_state"
BROKER_STATE = "ottla.broker.state"
# The first versions of ListGroups and ListConfigResources with types.
_GROUPS_WITH_TYPES = Versions(5, 5)
_RESOURCES_WITH_TYPES = Versions(1)
_FIRST_WITH_FEATURES = Versions(3)
_TOPIC, _BROKER, _CLIENT_METRICS, _GROUP = 2, 4, 16, 32
_FROM_TOPIC = 1
_TOPICS_AT_ONCE = 500


def find_obstacles(
    session: Session,
    metadata: MetadataResponse,
    settings: Mapping[int, Mapping[str, str | None]],
    given: Mapping[int, Mapping[str, str]],
) -> list[Finding]:
    """Return the findings of all checks.

    `settings` has all settings of each broker, `given` those of its file.
    """
    topics = [topic.name or "" for topic in metadata.topics]
    found = check_partitions((topic.name or "", topic.partitions) for topic in metadata.topics)
    found += _check_moves(session)
    found += check_files(settings, given)
    found += check_states({broker_id: _state(session, broker_id) for broker_id in settings})
    own = _own_settings(session, topics)
    found += check_segments(
        {name: int(row[SEGMENT_BYTES]) for name, row in own.items() if SEGMENT_BYTES in row}
    )
    found += check_tiered_topics(
        [name for name, row in own.items() if row.get(REMOTE_STORAGE) == "true"]
    )
    if SHARE_STATE_TOPIC in topics:
        text = (
            f"{SHARE_STATE_TOPIC} has the state of share groups: Kafka 3.9 keeps it as any topic, "
            "and Kafka 4 continues with it"
        )
        found.append(Finding(NOTE, "share groups", text))
    found += check_groups(_groups(session))
    found += check_left_behind(*_resources(session))
    found += check_features(_finalized(session))
    found += check_quotas(_quotas(session))
    found += check_tokens(_tokens(session))
    return found


def _check_moves(session: Session) -> list[Finding]:
    response = session.call(
        ListPartitionReassignmentsResponse, ListPartitionReassignmentsRequest(), Controller()
    )
    if response.error_code:
        why = explain(response.error_code, response.error_message)
        text = f"cannot list the reassignments in progress: {why}"
        return [Finding(NOTE, "topics", text)]
    moving = [
        f"{topic.name}-{row.partition_index}"
        for topic in response.topics
        for row in topic.partitions
    ]
    return check_reassignments(moving)


def _own_settings(session: Session, topics: list[str]) -> dict[str, dict[str, str]]:
    """Return the settings that can be obstacles, of the topics that set them."""
    found: dict[str, dict[str, str]] = {}
    for start in range(0, len(topics), _TOPICS_AT_ONCE):
        rows = [
            DescribeConfigsResource(_TOPIC, name, [SEGMENT_BYTES, REMOTE_STORAGE])
            for name in topics[start : start + _TOPICS_AT_ONCE]
        ]
        for result in _described(session, rows):
            found[result.resource_name] = {
                row.name: row.value
                for row in result.configs
                if row.config_source == _FROM_TOPIC and row.value is not None
            }
    return found


def _described(
    session: Session, rows: list[DescribeConfigsResource], where: Node | None = None
) -> Iterator[DescribeConfigsResult]:
    response = session.call(DescribeConfigsResponse, DescribeConfigsRequest(rows), where)
    for result in response.results:
        check(result.error_code, result.resource_name, result.error_message)
        yield result


def _state(session: Session, broker_id: int) -> dict[str, Any] | None:
    """Return the state that a broker reports; None if it is not an Ottla broker."""
    resource = DescribeConfigsResource(_BROKER, str(broker_id), [BROKER_STATE])
    for result in _described(session, [resource], Node(broker_id)):
        for row in result.configs:
            if row.name == BROKER_STATE and row.value is not None:
                found: dict[str, Any] = json.loads(row.value)
                return found
    return None


def _groups(session: Session) -> dict[str, tuple[str, str]]:
    """Return the type and the state of each group."""
    found: dict[str, tuple[str, str]] = {}
    for broker_id in session.broker_ids():
        response = session.call(
            ListGroupsResponse, ListGroupsRequest(), Node(broker_id), versions=_GROUPS_WITH_TYPES
        )
        check(response.error_code, f"broker {broker_id}")
        for row in response.groups:
            found[row.group_id] = row.group_type.lower(), row.group_state
    return found


def _resources(session: Session) -> tuple[list[str], list[str]]:
    """Return the groups and the subscriptions to client metrics that have settings."""
    if ApiKey.LIST_CONFIG_RESOURCES not in session.client.api_versions(session.broker_ids()[0]):
        return [], []  # a broker of Kafka 3
    response = session.call(
        ListConfigResourcesResponse,
        ListConfigResourcesRequest([_GROUP, _CLIENT_METRICS]),
        versions=_RESOURCES_WITH_TYPES,
    )
    check(response.error_code, "settings of groups")
    names: dict[int, list[str]] = {_GROUP: [], _CLIENT_METRICS: []}
    for row in response.config_resources:
        names[row.resource_type].append(row.resource_name)
    return names[_GROUP], names[_CLIENT_METRICS]


def _finalized(session: Session) -> dict[str, int]:
    request = ApiVersionsRequest(client_software_name="ottla-cli", client_software_version="1")
    response = session.call(ApiVersionsResponse, request, versions=_FIRST_WITH_FEATURES)
    return {row.name: row.max_version_level for row in response.finalized_features}


def _quotas(session: Session) -> int:
    response = session.call(DescribeClientQuotasResponse, DescribeClientQuotasRequest())
    check(response.error_code, "quotas", response.error_message)
    return len(response.entries or ())


def _tokens(session: Session) -> int:
    response = session.call(DescribeDelegationTokenResponse, DescribeDelegationTokenRequest(None))
    # An error: no tokens here, or none for this user.
    return 0 if response.error_code else len(response.tokens)
