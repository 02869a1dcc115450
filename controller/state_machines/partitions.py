"""The state machine of partitions; mirrors Kafka's `PartitionStateMachine`.

| to           | from                  | what happens                                            |
|--------------|-----------------------|---------------------------------------------------------|
| New          | NonExistent           | it has an assignment, no leader and ISR yet             |
| Online       | New                   | state znode: first live replica leads, ISR: live ones   |
| Online       | Online, Offline       | a leader is elected, written, and sent to the replicas  |
| Offline      | New, Online, Offline  | the leader's broker failed                              |
| NonExistent  | Offline               | the topic is being deleted                              |

A transition from another state is logged as an error and has no effect.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice

from ottla.controller.errors import StateChangeFailed
from ottla.controller.model import LeaderAndIsr
from ottla.controller.requests.request_batch import RequestBatch
from ottla.controller.state.context import ControllerContext, PartitionState
from ottla.controller.state.fenced_writes import FencedWriter
from ottla.controller.state.leader_selection import (
    ElectionInput,
    ElectionResult,
    ElectionStrategy,
    elect_leader,
)
from ottla.controller.tree import znodes
from ottla.controller.tree.store import StoreError
from ottla.controller.tree.znode_json import MalformedZnode
from ottla.protocol.listed import MAX_LISTED, listed
from ottla.protocol.steps import over
from ottla.protocol.topics import TopicPartition

logger = logging.getLogger("ottla.controller")

VALID_PREVIOUS = {
    PartitionState.NEW: {PartitionState.NON_EXISTENT},
    PartitionState.ONLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
    PartitionState.OFFLINE: {PartitionState.NEW, PartitionState.ONLINE, PartitionState.OFFLINE},
    PartitionState.NON_EXISTENT: {PartitionState.OFFLINE},
}

MAX_WRITE_ATTEMPTS = 20
"""Attempts of a compare-and-set, as the leader may change the ISR at the same time."""

NO_UNCLEAN_MEMBERS: Mapping[TopicPartition, frozenset[int]] = {}

Outcome = LeaderAndIsr | StateChangeFailed | StoreError
Outcomes = dict[TopicPartition, Outcome]
UncleanAllowed = Callable[[Iterable[str]], Awaitable[dict[str, bool]]]
"""Returns unclean.leader.election.enable of the given topics."""


class PartitionStateMachine:
    """`first_epoch(topic)` is the first leader epoch of a new partition.

    A new state is durable in the znode tree before it is sent to brokers.
    """

    def __init__(
        self,
        context: ControllerContext,
        writer: FencedWriter,
        batch: RequestBatch,
        unclean_allowed: UncleanAllowed,
        first_epoch: Callable[[str], int],
    ) -> None:
        self.context = context
        self.writer = writer
        self.batch = batch
        self.unclean_allowed = unclean_allowed
        self.first_epoch = first_epoch
        self.unclean_elections_total = 0

    async def startup(self) -> None:
        """Set the initial states from the context, and elect leaders where none is online."""
        context = self.context
        async for partition in over(context.partitions()):
            state = context.leadership.get(partition)
            if state is None:
                context.partition_states[partition] = PartitionState.NEW
            elif context.is_online(state.leader, partition):
                context.partition_states[partition] = PartitionState.ONLINE
            else:
                context.partition_states[partition] = PartitionState.OFFLINE
        await self.trigger_online_partitions()

    async def elect_after_unclean_restarts(
        self, unclean: Mapping[TopicPartition, frozenset[int]]
    ) -> None:
        """Remove `unclean` members from ISRs, and elect a leader that survived if there is one.

        For a new controller, before `startup`: its predecessor may not have handled the restart
        of these brokers, which a running controller treats as a failure and a start. Each partition
        gets a new leader epoch, so that followers find where their logs diverge.
        """
        if not unclean:
            return
        logger.info(
            "Electing leaders for %d partitions with brokers %s in the ISR, which restarted after "
            "an unclean shutdown",
            len(unclean),
            sorted(frozenset().union(*unclean.values())),
        )
        await self._elect(list(unclean), ElectionStrategy.OFFLINE, unclean)
        await self.batch.send(self.context.epoch)

    async def trigger_online_partitions(self, topic: str | None = None) -> Outcomes:
        """Elect leaders for all new and offline partitions (of a topic)."""
        waiting = (PartitionState.NEW, PartitionState.OFFLINE)
        candidates = [
            partition
            async for partition, state in over(self.context.partition_states.items())
            if state in waiting
            and (topic is None or partition[0] == topic)
            and not self.context.is_exempt_from_election(partition[0])
        ]
        return await self.handle_state_changes(
            candidates, PartitionState.ONLINE, ElectionStrategy.OFFLINE
        )

    async def handle_state_changes(
        self,
        partitions: Iterable[TopicPartition],
        target: PartitionState,
        strategy: ElectionStrategy = ElectionStrategy.OFFLINE,
    ) -> Outcomes:
        """Change the state of partitions, and send the requests that follow from it.

        Returns an outcome for each partition with a leader election. Raises ControllerMoved when
        another controller was elected, ConnectionLost or SessionExpired when the store failed.
        """
        valid = [
            partition
            async for partition in over(partitions)
            if self._is_valid_transition(partition, target)
        ]
        outcomes: Outcomes = {}
        if target is PartitionState.ONLINE:
            states = self.context.partition_states
            new = [p for p in valid if states[p] is PartitionState.NEW]
            others = [p for p in valid if states[p] is not PartitionState.NEW]
            if new:
                await self._initialize(new)
            if others:
                outcomes = await self._elect(others, strategy)
        else:
            async for partition in over(valid):
                self.context.partition_states[partition] = target
        await self.batch.send(self.context.epoch)
        return outcomes

    def _is_valid_transition(self, partition: TopicPartition, target: PartitionState) -> bool:
        current = self.context.partition_states.setdefault(partition, PartitionState.NON_EXISTENT)
        if current in VALID_PREVIOUS[target]:
            return True
        logger.error(
            "Partition %s failed to change state to %s: invalid transition from %s",
            partition,
            target.value,
            current.value,
            extra=partition._asdict(),
        )
        return False

    async def _initialize(self, partitions: list[TopicPartition]) -> None:
        context = self.context
        states: dict[TopicPartition, LeaderAndIsr] = {}
        async for partition in over(partitions):
            replicas = context.assignment(partition).replicas
            live = tuple(each for each in replicas if context.is_online(each, partition))
            if not live:
                logger.error(
                    "Failed to initialize leader and ISR for partition %s: none of its replicas %s "
                    "is alive",
                    partition,
                    list(replicas),
                    extra=partition._asdict(),
                )
                continue
            states[partition] = LeaderAndIsr(
                leader=live[0],
                leader_epoch=self.first_epoch(partition[0]),
                isr=live,
                controller_epoch=context.epoch,
            )
        created = await self.writer.create_states(states)
        async for partition, result in over(created.items()):
            if isinstance(result, StoreError):
                logger.error(
                    "Failed to initialize leader and ISR for partition %s: %s",
                    partition,
                    result,
                    extra=partition._asdict(),
                )
                continue
            context.leadership[partition] = result
            context.partition_states[partition] = PartitionState.ONLINE
            self.batch.add_leader_and_isr(
                result.isr, partition, result, context.assignment(partition), is_new=True
            )

    async def _elect(
        self,
        partitions: list[TopicPartition],
        strategy: ElectionStrategy,
        unclean_members: Mapping[TopicPartition, frozenset[int]] = NO_UNCLEAN_MEMBERS,
    ) -> Outcomes:
        outcomes: Outcomes = {}
        remaining = partitions
        for _attempt in range(MAX_WRITE_ATTEMPTS):
            if not remaining:
                break
            remaining = await self._try_elect(remaining, strategy, outcomes, unclean_members)
        for partition in remaining:
            outcomes[partition] = StateChangeFailed(
                f"The state of {partition} was changed {MAX_WRITE_ATTEMPTS} times during the "
                f"election"
            )
        failed: dict[TopicPartition, StateChangeFailed | StoreError] = {}
        elected: list[TopicPartition] = []
        async for partition, outcome in over(outcomes.items()):
            if isinstance(outcome, LeaderAndIsr):
                self.context.partition_states[partition] = PartitionState.ONLINE
                elected.append(partition)
            else:
                failed[partition] = outcome
        if elected:
            logger.info(
                "Elected leaders of %d partitions under strategy %s: %s",
                len(elected),
                strategy.value,
                listed(elected),
            )
        _log_failed_elections(failed, strategy)
        return outcomes

    async def _try_elect(
        self,
        partitions: list[TopicPartition],
        strategy: ElectionStrategy,
        outcomes: Outcomes,
        unclean_members: Mapping[TopicPartition, frozenset[int]],
    ) -> list[TopicPartition]:
        """Read, elect and write once; return the partitions to retry."""
        current = await self._read(partitions, outcomes)
        allowed = await self._unclean_topics(current, strategy)
        wanted: dict[TopicPartition, LeaderAndIsr] = {}
        recipients: dict[TopicPartition, tuple[int, ...]] = {}
        async for partition, state in over(current.items()):
            election = self._elect_leader(
                partition,
                state,
                strategy,
                partition[0] in allowed,
                unclean_members.get(partition, frozenset()),
            )
            if election.state is None:
                outcomes[partition] = StateChangeFailed(
                    f"No eligible replica of {partition}: assignment "
                    f"{list(self.context.assignment(partition).replicas)}, ISR {list(state.isr)}"
                )
            else:
                wanted[partition] = election.state
                recipients[partition] = election.recipients
        finished, changed_meanwhile = await self.writer.update_states(wanted)
        async for partition, result in over(finished.items()):
            outcomes[partition] = result
            if isinstance(result, LeaderAndIsr):
                if result.leader not in current[partition].isr:
                    logger.warning(
                        "Unclean leader election for partition %s: %s",
                        partition,
                        result,
                        extra=partition._asdict(),
                    )
                    self.unclean_elections_total += 1
                logger.debug("New leader and ISR for partition %s is %s", partition, result)
                self.context.leadership[partition] = result
                self.batch.add_leader_and_isr(
                    recipients[partition],
                    partition,
                    result,
                    self.context.assignment(partition),
                    is_new=False,
                )
        return changed_meanwhile

    async def _read(
        self, partitions: list[TopicPartition], outcomes: Outcomes
    ) -> dict[TopicPartition, LeaderAndIsr]:
        paths = [znodes.state_path(partition) for partition in partitions]
        current: dict[TopicPartition, LeaderAndIsr] = {}
        nodes = await self.writer.store.get_many(paths)
        async for partition, found in over(zip(partitions, nodes, strict=True)):
            if found is None:
                outcomes[partition] = StateChangeFailed(f"{partition} has no state znode")
                continue
            try:
                state = znodes.decode_state(partition, found[0], found[1].version)
            except MalformedZnode as error:
                outcomes[partition] = StateChangeFailed(str(error))
                continue
            if state.controller_epoch > self.context.epoch:
                outcomes[partition] = StateChangeFailed(
                    f"The state of {partition} was written with controller epoch "
                    f"{state.controller_epoch}, ours is {self.context.epoch}: write a number from "
                    f"{state.controller_epoch} on to {znodes.CONTROLLER_EPOCH}"
                )
            else:
                current[partition] = state
        return current

    async def _unclean_topics(
        self, current: dict[TopicPartition, LeaderAndIsr], strategy: ElectionStrategy
    ) -> set[str]:
        """The topics with unclean leader election; read only if no replica in the ISR is online."""
        without = {
            partition[0]: None
            async for partition, state in over(current.items())
            if not any(self.context.is_online(each, partition) for each in state.isr)
        }
        if strategy is ElectionStrategy.UNCLEAN:
            return set(without)
        if strategy is not ElectionStrategy.OFFLINE or not without:
            return set()
        allowed = await self.unclean_allowed(without)
        return {topic for topic, enabled in allowed.items() if enabled}

    def _elect_leader(
        self,
        partition: TopicPartition,
        state: LeaderAndIsr,
        strategy: ElectionStrategy,
        unclean_allowed: bool,
        unclean_members: frozenset[int],
    ) -> ElectionResult:
        context = self.context
        assignment = context.assignment(partition)
        return elect_leader(
            strategy,
            ElectionInput(
                current=state,
                assignment=assignment,
                live=tuple(r for r in assignment.replicas if context.is_online(r, partition)),
                live_or_shutting_down=tuple(
                    r
                    for r in assignment.replicas
                    if context.is_online(r, partition, include_shutting_down=True)
                ),
                shutting_down=frozenset(context.shutting_down),
                unclean_allowed=unclean_allowed,
                recovery_supported=self.batch.versions.leader_recovery,
                unclean_members=unclean_members,
            ),
        )


def _log_failed_elections(
    failed: dict[TopicPartition, StateChangeFailed | StoreError], strategy: ElectionStrategy
) -> None:
    """A line for each of the first partitions: a broker that fails may have led thousands alone."""
    for partition, error in islice(failed.items(), MAX_LISTED):
        logger.warning(
            "Failed to elect leader for partition %s under strategy %s: %s",
            partition,
            strategy.value,
            error,
            extra=partition._asdict(),
        )
    if len(failed) > MAX_LISTED:
        logger.warning(
            "Failed to elect leader for %d more partitions under strategy %s; "
            "`ottla partitions under-replicated` lists them",
            len(failed) - MAX_LISTED,
            strategy.value,
        )
