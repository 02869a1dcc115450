"""CreateTopics (19), DeleteTopics (20), CreatePartitions (37), all versions.

Handled by the controller; any other broker responds with NOT_CONTROLLER, and clients refresh their
metadata. A response waits, at most `timeout_ms`, until every live broker has the change in its
metadata, so that clients can use a new topic on any broker. With a timeout of 0 or less it is
REQUEST_TIMED_OUT although the change is made, as in Kafka. From version 5 on CreateTopics returns
the configuration of the topic; from 6 on DeleteTopics has topic ids.

Created and deleted partitions count against the `controller_mutation_rate` of the client (KIP-599):
CreateTopics from version 6, DeleteTopics from 5 and CreatePartitions from 3 fail with
THROTTLING_QUOTA_EXCEEDED, older versions are throttled afterwards.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Protocol

from ottla.broker.config.resource_rules import validate_topic_config
from ottla.broker.handlers.common.mutation_quota import RequestMutationQuota
from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_parts import NAME, Items, itself, weigh_assignments, weigh_topic
from ottla.controller.admin.topic_admin import Charge, CreatedTopic, NewPartitions, NewTopic
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopicResult,
)
from ottla.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from ottla.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from ottla.protocol.registry import ApiKey
from ottla.protocol.steps import run_in_turns
from ottla.protocol.uuids import ZERO_UUID

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.handlers.admin.describe_configs import ConfigDescriber
    from ottla.broker.quotas.client_quotas import MutationQuota
    from ottla.controller.errors import ApiError
    from ottla.protocol.steps import Steps

# The log of a KRaft quorum; a topic of this name cannot be created in either mode.
_CLUSTER_METADATA_TOPIC = "__cluster_metadata"


class TopicController(Protocol):
    """The controller in this process, as far as it is used here."""

    @property
    def is_active(self) -> bool: ...

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool,
        timeout_ms: int,
        charge: Charge,
    ) -> list[CreatedTopic]: ...

    async def create_partitions(
        self,
        requests: Iterable[NewPartitions],
        *,
        validate_only: bool,
        timeout_ms: int,
        charge: Charge,
    ) -> dict[str, ApiError]: ...

    async def delete_topics(
        self, topics: Iterable[str], *, timeout_ms: int = 30_000
    ) -> dict[str, ApiError]: ...


class TopicAdminHandlers:
    """Validates requests, hands them to the controller, waits for the metadata."""

    def __init__(
        self,
        controller: TopicController,
        config: BrokerConfig,
        metadata: MetadataCache,
        describer: ConfigDescriber,
        quota: MutationQuota,
    ) -> None:
        self._controller = controller
        self._config = config
        self._metadata = metadata
        self._describer = describer
        self._quota = quota

    # -- CreateTopics ---------------------------------------------------------------------------

    async def create_topics(
        self, context: RequestContext, request: CreateTopicsRequest
    ) -> CreateTopicsResponse:
        results = {
            topic.name: CreatableTopicResult(topic.name, error_message=None)
            for topic in request.topics
        }
        # A duplicate name has two rows in the response, as in Kafka.
        response = CreateTopicsResponse(topics=[results[topic.name] for topic in request.topics])
        if not self._controller.is_active:
            _fail_all(results.values(), KafkaError(ErrorCode.NOT_CONTROLLER))
            return response
        valid = self._validated(request, results)
        mutations = RequestMutationQuota(self._quota, context, strict_since=6)
        created = await self._controller.create_topics(
            [_new_topic(topic) for topic in valid.values()],
            validate_only=request.validate_only,
            timeout_ms=request.timeout_ms,
            charge=mutations.record,
        )
        mutations.throttle()
        for outcome in created:
            result = results[outcome.name]
            if outcome.error.code != ErrorCode.NONE:
                result.error_code, result.error_message = outcome.error
                continue
            result.topic_id = outcome.topic_id
            if context.header.api_version >= 5:
                await run_in_turns(self._describe(result, outcome, valid[outcome.name]))
        return response

    def _validated(
        self, request: CreateTopicsRequest, results: dict[str, CreatableTopicResult]
    ) -> dict[str, CreatableTopic]:
        counted = Counter(topic.name for topic in request.topics)
        valid: dict[str, CreatableTopic] = {}
        defaults = self._config.topic_defaults()
        has_remote_storage = self._config.remote_log_storage_system_enable
        known = self._metadata.snapshot.topics
        for topic in request.topics:
            try:
                if topic.name == _CLUSTER_METADATA_TOPIC:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST,
                        f"Creation of internal topic {topic.name} is prohibited.",
                    )
                if counted[topic.name] > 1:
                    raise KafkaError(
                        ErrorCode.INVALID_REQUEST, "Found multiple entries for this topic."
                    )
                if topic.name not in known:  # TOPIC_ALREADY_EXISTS precedes INVALID_CONFIG.
                    given = {row.name: row.value for row in topic.configs if row.value is not None}
                    validate_topic_config(given, defaults, has_remote_storage=has_remote_storage)
            except KafkaError as error:
                _fail(results[topic.name], error)
                continue
            valid[topic.name] = topic
        return valid

    def _describe(
        self, result: CreatableTopicResult, outcome: CreatedTopic, topic: CreatableTopic
    ) -> Steps[None]:
        overrides = {row.name: row.value for row in topic.configs if row.value is not None}
        result.num_partitions = outcome.num_partitions
        result.replication_factor = outcome.replication_factor
        result.configs = [
            CreatableTopicConfigs(
                row.name, row.value, row.read_only, row.config_source, row.is_sensitive
            )
            for row in (yield from self._describer.topic_rows(overrides))
        ]

    # -- CreatePartitions -----------------------------------------------------------------------

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        results = {
            topic.name: CreatePartitionsTopicResult(topic.name, error_message=None)
            for topic in request.topics
        }
        response = CreatePartitionsResponse(results=list(results.values()))
        if not self._controller.is_active:
            for result in results.values():
                result.error_code = ErrorCode.NOT_CONTROLLER
            return response
        mutations = RequestMutationQuota(self._quota, context, strict_since=3)
        outcomes = await self._controller.create_partitions(
            [
                NewPartitions(
                    topic.name,
                    topic.count,
                    None
                    if topic.assignments is None
                    else [row.broker_ids for row in topic.assignments],
                )
                for topic in request.topics
            ],
            validate_only=request.validate_only,
            timeout_ms=request.timeout_ms,
            charge=mutations.record,
        )
        mutations.throttle()
        for name, error in outcomes.items():
            results[name].error_code, results[name].error_message = error
        return response

    # -- DeleteTopics ---------------------------------------------------------------------------

    async def delete_topics(
        self, context: RequestContext, request: DeleteTopicsRequest
    ) -> DeleteTopicsResponse:
        version = context.header.api_version
        results = self._deletions(request, version)
        response = DeleteTopicsResponse(responses=results)
        whole_error = self._whole_error(version)
        if whole_error is not None:
            for result in results:
                result.error_code = whole_error
            return response
        topics = self._metadata.snapshot.topics
        names: dict[str, None] = {}
        mutations = RequestMutationQuota(self._quota, context, strict_since=5)
        for result in results:
            if result.error_code != ErrorCode.NONE or result.name is None:
                continue
            topic = topics.get(result.name)
            if topic is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif result.name not in names:
                try:
                    mutations.record(len(topic.partitions))
                except KafkaError as error:
                    result.error_code = error.code
                else:
                    names[result.name] = None
        if names:
            outcomes = await self._controller.delete_topics(names, timeout_ms=request.timeout_ms)
            for result in results:
                if result.name in outcomes:
                    result.error_code, result.error_message = outcomes[result.name]
        mutations.throttle()
        return response

    def _deletions(self, request: DeleteTopicsRequest, version: int) -> list[DeletableTopicResult]:
        if version < 6:
            # A duplicate name has two rows in the response, as in Kafka.
            return [DeletableTopicResult(name) for name in request.topic_names]
        results = []
        names = self._metadata.snapshot.topic_names
        for topic in request.topics:
            if topic.name is not None and topic.topic_id != ZERO_UUID:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    "Topic name and topic ID can not both be specified.",
                )
            name = names.get(topic.topic_id) if topic.name is None else topic.name
            result = DeletableTopicResult(name, topic.topic_id)
            if name is None:
                result.error_code = ErrorCode.UNKNOWN_TOPIC_ID
            results.append(result)
        return results

    def _whole_error(self, version: int) -> int | None:
        if not self._controller.is_active:
            return ErrorCode.NOT_CONTROLLER
        if not self._config.delete_topic_enable:
            return ErrorCode.INVALID_REQUEST if version < 3 else ErrorCode.TOPIC_DELETION_DISABLED
        return None


def _new_topic(topic: CreatableTopic) -> NewTopic:
    return NewTopic(
        topic.name,
        topic.num_partitions,
        topic.replication_factor,
        {row.partition_index: row.broker_ids for row in topic.assignments} or None,
        {row.name: row.value for row in topic.configs},
    )


def _fail(result: CreatableTopicResult, error: KafkaError) -> None:
    result.error_code = error_code(error)
    result.error_message = error_message(error)
    result.topic_id = ZERO_UUID
    result.num_partitions = result.replication_factor = -1
    result.configs = []


def _fail_all(results: Iterable[CreatableTopicResult], error: KafkaError) -> None:
    for result in results:
        _fail(result, error)


def _create_topics_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        response.topics.append(
            CreatableTopicResult(topic.name, error_code=code, error_message=message)
        )


def _delete_topics_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for name in request.topic_names:
        response.responses.append(DeletableTopicResult(name, error_code=code))
    for topic in request.topics:
        response.responses.append(DeletableTopicResult(topic.name, topic.topic_id, code, message))


def _create_partitions_errors(request: Any, response: Any, code: int, message: str | None) -> None:
    for topic in request.topics:
        response.results.append(CreatePartitionsTopicResult(topic.name, code, message))


ROUTES = (
    ApiRoute(
        ApiKey.CREATE_TOPICS,
        TopicAdminHandlers.create_topics,
        check="create_topics",
        errors=_create_topics_errors,
        items=(Items("topics", "topics", key=NAME, weigh=weigh_topic),),
    ),
    ApiRoute(
        ApiKey.DELETE_TOPICS,
        TopicAdminHandlers.delete_topics,
        check="delete_topics",
        errors=_delete_topics_errors,
        items=(
            Items("topic_names", "responses", key=itself),
            Items("topics", "responses", key=attrgetter("name", "topic_id")),
        ),
    ),
    ApiRoute(
        ApiKey.CREATE_PARTITIONS,
        TopicAdminHandlers.create_partitions,
        check="create_partitions",
        errors=_create_partitions_errors,
        items=(Items("topics", "results", key=NAME, weigh=weigh_assignments),),
    ),
)
