"""CreateTopics, CreatePartitions and DeleteTopics on the active controller.

Checks and messages are those of Kafka's `ZkAdminManager`, `AdminZkClient` and `AdminUtils`.
Configuration and assignment of a topic are written in one multi, fenced by the controller epoch.
The caller validates the configuration values.
"""

import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ottla.controller.admin.placement import (
    Assignment,
    check_added,
    check_factor,
    check_given,
    place,
    start_after,
)
from ottla.controller.admin.topic_limits import encode_new_topic, metric_name, name_problem
from ottla.controller.errors import OK, ApiError
from ottla.controller.model import ReplicaAssignment, TopicState
from ottla.controller.settings import ControllerSettings, control_versions
from ottla.controller.state.context import ControllerContext
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.tree import znodes
from ottla.controller.tree.store import (
    BadVersion,
    CreateOp,
    NodeExists,
    NoNode,
    Op,
    SetOp,
    StoreError,
)
from ottla.controller.tree.znodes_admin import encode_config, encode_config_change
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.steps import Turn, over
from ottla.protocol.topics import TopicPartition
from ottla.protocol.uuids import ZERO_UUID, random_uuid

logger = logging.getLogger("ottla.controller")

MAX_WRITE_ATTEMPTS = 5
"""Settings of the topic may change while it is created; more often than that they do not."""

DEFAULT = -1
"""For partitions and replication factor: num.partitions and default.replication.factor."""

Charge = Callable[[int], None]
"""Records partition mutations; raises KafkaError when the quota is exceeded (KIP-599)."""


def no_mutation_quota(partitions: int) -> None:
    """The default: no quota."""


class NewTopic(NamedTuple):
    """With `assignments` (replicas by partition) the two numbers have to be -1."""

    name: str
    num_partitions: int = DEFAULT
    replication_factor: int = DEFAULT
    assignments: Mapping[int, Sequence[int]] | None = None
    configs: Mapping[str, str | None] | None = None


Admit = Callable[[NewTopic, Assignment], None]
"""Raises KafkaError to reject a topic that is valid otherwise, before it is written. The assignment
has the partitions and replicas that it would have."""


def admit_every_topic(topic: NewTopic, assignment: Assignment) -> None:
    """The default: no policy."""


class CreatedTopic(NamedTuple):
    """With an error `topic_id` is the zero id and the numbers are -1."""

    name: str
    error: ApiError
    topic_id: bytes = ZERO_UUID
    num_partitions: int = -1
    replication_factor: int = -1


class _Creation(NamedTuple):
    """A valid new topic."""

    topic: NewTopic
    topic_id: bytes | None
    assignment: Assignment

    def ops(self, present: set[str]) -> list[Op]:
        """Its writes; `present` has the path of its settings if an earlier topic left some."""
        replicas = {
            index: ReplicaAssignment(tuple(ids)) for index, ids in sorted(self.assignment.items())
        }
        topic = self.topic
        entity = f"{znodes.ENTITY_TOPICS}/{topic.name}"
        configs = {
            name: value for name, value in (topic.configs or {}).items() if value is not None
        }
        path = znodes.config_path(entity)
        payload = encode_config(configs)
        ops: list[Op] = [SetOp(path, payload) if path in present else CreateOp(path, payload)]
        if configs:
            ops.append(
                CreateOp(znodes.CONFIG_CHANGE_PREFIX, encode_config_change(entity), sequential=True)
            )
        data = encode_new_topic(topic.name, TopicState(self.topic_id, replicas))
        ops.append(CreateOp(znodes.topic_path(topic.name), data))
        return ops


class NewPartitions(NamedTuple):
    """`total_count` includes the existing partitions; `assignments` has the replicas of each
    new one."""

    name: str
    total_count: int
    assignments: Sequence[Sequence[int]] | None = None


class TopicAdmin:
    """Topics are durable in the znode tree when a method returns; leaders are elected later."""

    def __init__(
        self, context: ControllerContext, writer: FencedWriter, settings: ControllerSettings
    ) -> None:
        self.context = context
        self.writer = writer
        self.settings = settings
        self.random = random.Random()

    def _racks(self) -> dict[int, str | None]:
        """The racks of the live brokers, by id."""
        brokers = {
            broker.broker_id: broker.rack
            for broker in self.context.brokers.values()
            if broker.broker_id not in self.context.shutting_down
        }
        known = sum(rack is not None for rack in brokers.values())
        if 0 < known < len(brokers):
            logger.warning("Ignoring racks for the replica placement: not all brokers have one")
        return brokers

    # CreateTopics

    async def create_topics(
        self,
        topics: Iterable[NewTopic],
        *,
        validate_only: bool = False,
        charge: Charge = no_mutation_quota,
        admit: Admit = admit_every_topic,
    ) -> list[CreatedTopic]:
        """Check the topics and write the valid ones, pipelined."""
        results: dict[str, CreatedTopic] = {}
        creations: dict[str, _Creation] = {}
        wanted = list(topics)
        similar = await self._similar_names(topic.name for topic in wanted)
        present = await self._present_paths(topic.name for topic in wanted)
        planned = 0
        turn = Turn()
        for topic in wanted:
            await turn.share()
            if topic.name in results:
                duplicate = ApiError(
                    ErrorCode.INVALID_REQUEST,
                    "Create topics request contains multiple entries "
                    f"for the topic '{topic.name}'.",
                )
                results[topic.name] = CreatedTopic(topic.name, duplicate)
                if creations.pop(topic.name, None):
                    similar[metric_name(topic.name)].remove(topic.name)
                continue
            try:
                assignment = self._check(topic, similar, present, planned)
                admit(topic, assignment)
                if not validate_only:
                    charge(len(assignment))
            except KafkaError as error:
                results[topic.name] = CreatedTopic(
                    topic.name, ApiError(error.code, error.message or None)
                )
                continue
            topic_id = random_uuid() if self._uses_topic_ids() else None
            results[topic.name] = CreatedTopic(
                topic.name,
                OK,
                ZERO_UUID if topic_id is None or validate_only else topic_id,
                len(assignment),
                len(assignment[0]),
            )
            creations[topic.name] = _Creation(topic, topic_id, assignment)
            planned += len(assignment)
            await turn.share()
            similar.setdefault(metric_name(topic.name), []).append(topic.name)
        if not validate_only:
            for name, failure in (await self._write(creations, present)).items():
                results[name] = CreatedTopic(name, failure)
        return list(results.values())

    async def _write(
        self, creations: Mapping[str, _Creation], present: set[str]
    ) -> dict[str, ApiError]:
        """Create the topics; return the errors by topic."""
        errors: dict[str, ApiError] = {}
        left = dict(creations)
        for attempt in range(MAX_WRITE_ATTEMPTS):
            batches: list[list[Op]] = []
            turn = Turn()
            for name, each in list(left.items()):
                try:
                    batches.append(each.ops(present))
                except KafkaError as error:
                    errors[name] = ApiError(error.code, error.message)
                    del left[name]
                await turn.share()
            responses = await self.writer.multi_many(batches)
            for name, response in zip(list(left), responses, strict=True):
                path = znodes.config_path(f"{znodes.ENTITY_TOPICS}/{name}")
                settings_changed = (
                    isinstance(response, NodeExists | NoNode) and response.path == path
                )
                if settings_changed and attempt < MAX_WRITE_ATTEMPTS - 1:
                    # A broker wrote settings of a topic that does not exist, as AlterConfigs may,
                    # or the last of them were deleted.
                    present ^= {path}
                    continue
                del left[name]
                if isinstance(response, StoreError):
                    errors[name] = self._creation_error(name, response)
            if not left:
                break
        return errors

    def _uses_topic_ids(self) -> bool:
        return control_versions(self.settings.inter_broker_protocol_version).topic_ids

    @staticmethod
    def _creation_error(name: str, error: StoreError) -> ApiError:
        if isinstance(error, NodeExists):
            return ApiError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        logger.error("Failed to create topic %s: %s", name, error)
        return ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(error))

    async def _similar_names(self, names: Iterable[str]) -> dict[str, list[str]]:
        """The existing topics by the name that they share with one of these in metrics."""
        shared = {metric_name(name) for name in names if "." in name or "_" in name}
        similar: dict[str, list[str]] = {}
        if shared:
            async for name in over(list(self.context.assignments)):
                if (key := metric_name(name)) in shared:
                    similar.setdefault(key, []).append(name)
        return similar

    def _check(
        self,
        topic: NewTopic,
        similar: Mapping[str, list[str]],
        present: set[str],
        planned: int,
    ) -> Assignment:
        """The assignment of a valid topic; raises KafkaError otherwise. `similar`: the names of
        existing topics, and of those created before, by their name in metrics. `planned`: the
        partitions of those before in the request."""
        name = topic.name
        if name in self.context.topics_to_delete or znodes.delete_topic_path(name) in present:
            raise KafkaError(
                ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' is marked for deletion."
            )
        if self._exists(name, present):
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"Topic '{name}' already exists.")
        nulls = [key for key, value in (topic.configs or {}).items() if value is None]
        if nulls:
            raise KafkaError(
                ErrorCode.INVALID_CONFIG,
                f"Null value not supported for topic configs: {','.join(nulls)}",
            )
        if topic.assignments and (
            topic.num_partitions != DEFAULT or topic.replication_factor != DEFAULT
        ):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                "Both numPartitions or replicationFactor and replicasAssignments were set. Both "
                "cannot be used at the same time.",
            )
        problem = name_problem(name)
        if problem is not None:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, problem)
        clashes = [other for other in similar.get(metric_name(name), ()) if other != name]
        if clashes:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"Topic '{name}' collides with existing topics: {', '.join(clashes)}",
            )
        if topic.assignments:
            return check_given(topic.assignments)
        return self._place_new(topic, planned)

    async def _present_paths(self, names: Iterable[str]) -> set[str]:
        """The existing znodes of these topics: topic, deletion request, configuration."""
        legal = [name for name in dict.fromkeys(names) if name_problem(name) is None]
        paths = [
            path
            for name in legal
            for path in (
                znodes.topic_path(name),
                znodes.delete_topic_path(name),
                znodes.config_path(f"{znodes.ENTITY_TOPICS}/{name}"),
            )
        ]
        found = await self.writer.store.get_many(paths)
        return {path for path, node in zip(paths, found, strict=True) if node is not None}

    def _exists(self, name: str, present: set[str]) -> bool:
        """Whether a topic exists, also if it is not in the context yet."""
        return name in self.context.assignments or znodes.topic_path(name) in present

    def _check_number(self, partitions: int) -> None:
        limit = self.settings.max_topic_partitions_per_request
        if partitions > limit:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Number of partitions must not be above {limit} in one request.",
            )

    def _place_new(self, topic: NewTopic, planned: int) -> Assignment:
        settings = self.settings
        partitions = topic.num_partitions
        factor = topic.replication_factor
        if partitions == DEFAULT:
            partitions = settings.num_partitions
        if factor == DEFAULT:
            factor = settings.default_replication_factor
        if partitions <= 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, "Number of partitions must be larger than 0."
            )
        self._check_number(planned + partitions)
        racks = self._racks()
        check_factor(factor, len(racks))
        count = len(racks)
        return place(
            racks,
            partitions,
            factor,
            start=self.random.randrange(count),
            shift=self.random.randrange(count),
        )

    # CreatePartitions

    async def create_partitions(
        self,
        requests: Iterable[NewPartitions],
        *,
        validate_only: bool = False,
        charge: Charge = no_mutation_quota,
    ) -> dict[str, ApiError]:
        """A row for each topic; leaders of the new partitions are elected later."""
        rows: dict[str, ApiError] = {}
        planned = 0
        for request in requests:
            if request.name in rows:
                rows[request.name] = ApiError(
                    ErrorCode.INVALID_REQUEST, "Duplicate topic in request."
                )
                continue
            try:
                planned += await self._add_partitions(request, validate_only, charge, planned)
                rows[request.name] = OK
            except KafkaError as error:
                rows[request.name] = ApiError(error.code, error.message or None)
        return rows

    async def _add_partitions(
        self, request: NewPartitions, validate_only: bool, charge: Charge, planned: int
    ) -> int:
        """Return the number of partitions to add; `planned`: by earlier topics of the request."""
        name = request.name
        unknown = KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"The topic '{name}' does not exist."
        )
        if name_problem(name) is not None:
            raise unknown
        try:
            data, stat = await self.writer.store.get(znodes.topic_path(name))
        except NoNode:
            raise unknown from None
        if name in self.context.topics_to_delete:
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "The topic is queued for deletion.")
        state = znodes.decode_topic(name, data)
        added = self._plan_partitions(request, state, planned)
        if validate_only:
            return len(added)
        grown = state._replace(
            assignments={
                **state.assignments,
                **{index: ReplicaAssignment(ids) for index, ids in added.items()},
            }
        )
        data = encode_new_topic(name, grown)
        charge(len(added))
        try:
            await self.writer.set(znodes.topic_path(name), data, stat.version)
        except NoNode:
            raise unknown from None
        except BadVersion:
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"The topic '{name}' was changed at the same time.",
            ) from None
        return len(added)

    def _plan_partitions(
        self, request: NewPartitions, state: TopicState, planned: int
    ) -> Assignment:
        name, existing = request.name, state.assignments
        if any(assignment.is_being_reassigned for assignment in existing.values()):
            raise KafkaError(
                ErrorCode.REASSIGNMENT_IN_PROGRESS,
                f"A partition reassignment is in progress for the topic '{name}'.",
            )
        added = request.total_count - len(existing)
        if added < 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS,
                f"Topic currently has {len(existing)} partitions, which is higher than the "
                f"requested {request.total_count}.",
            )
        if added == 0:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"Topic already has {len(existing)} partitions."
            )
        self._check_number(planned + added)
        if 0 not in existing:
            raise KafkaError(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"Unexpected existing replica assignment for topic '{name}', partition id 0 is "
                f"missing.",
            )
        racks = self._racks()
        first = existing[0].replicas
        if request.assignments is not None:
            return check_added(request.assignments, added, len(existing), len(first), set(racks))
        check_factor(len(first), len(racks))
        start = start_after(list(racks), first[0])
        return place(
            racks, added, len(first), start=start, shift=start, first_partition=len(existing)
        )

    # DeleteTopics

    async def request_deletion(self, topics: Iterable[str]) -> dict[str, ApiError]:
        """Create `/admin/delete_topics/<topic>`; no error if it exists already."""
        if not self.settings.delete_topic_enable:
            disabled = ApiError(ErrorCode.TOPIC_DELETION_DISABLED, "Topic deletion is disabled.")
            return dict.fromkeys(topics, disabled)
        rows: dict[str, ApiError] = {}
        known: list[str] = []
        wanted = list(dict.fromkeys(topics))
        present = await self._present_paths(wanted)
        for topic in wanted:
            if self._exists(topic, present):
                known.append(topic)
            else:
                rows[topic] = ApiError(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic `{topic}` to delete does not exist",
                )
        responses = await self.writer.multi_many(
            [[CreateOp(znodes.delete_topic_path(topic))] for topic in known]
        )
        for topic, response in zip(known, responses, strict=True):
            if isinstance(response, StoreError) and not isinstance(response, NodeExists):
                rows[topic] = ApiError(ErrorCode.UNKNOWN_SERVER_ERROR, str(response))
            else:
                rows[topic] = OK
        return rows

    def partitions_without_leader(self, topic: str) -> list[TopicPartition]:
        """The partitions of the topic without a leader and ISR."""
        return [
            partition
            for partition in self.context.partitions_of(topic)
            if partition not in self.context.leadership
        ]
