"""A consumer group of the new protocol (KIP-848) under every kind of trouble, by seed.

As in `group_world`, everything that can happen is one step, and a seed chooses the steps: members
heartbeat, join, leave, crash, come back under another id; topics come, grow and go; records are
committed, fail, or come through late; the coordinator crashes or moves. After every step:

* no partition is with two members, as far as the coordinator and as far as the members know;
* no epoch goes back within a term; no member is ahead of its group;
* a stable group has given out every partition of its topics, each to a member that wants it;
* another coordinator that loads the log finds the very same group;
* every request gets one response;
* a commit counts exactly when it was made with the member's epoch, or with one since which the
  partition has been the member's;
* a partition that changes its member gets a later assignment epoch.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ottla.broker.groups.consumer.consumer_group import ConsumerGroup, ConsumerGroupState
from ottla.broker.groups.consumer.member import AWAY, ConsumerMember
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.unit.broker.groups.consumer_helpers import Catalog, ConsumerSetup, Owned
from tests.unit.broker.groups.helpers import GROUP, PendingResponse

SETTINGS = {"group_consumer_max_size": 8}
TOPICS = ("t", "u", "other")
START_OVER = (
    ErrorCode.FENCED_MEMBER_EPOCH,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.GROUP_ID_NOT_FOUND,
)
TRY_AGAIN = (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR)


class Member:
    """One consumer: heartbeats, releases and claims partitions as clients do."""

    def __init__(self, world: World, number: int, instance_id: str | None) -> None:
        self.world = world
        self.instance_id = instance_id
        self.assignor = world.random.choice((None, None, "range", "uniform"))
        self.start(number)

    def start(self, number: int) -> None:
        """A new process."""
        self.member_id = f"m{number}"
        self.choose_topics()
        self.lose_everything()
        self.in_flight: PendingResponse[ConsumerGroupHeartbeatResponse] | None = None

    def choose_topics(self) -> None:
        chance = self.world.random
        self.topics = chance.sample(TOPICS, chance.randint(1, 2))
        self.pattern = chance.choice((None, None, "[tu]"))
        self.says_all = True

    def lose_everything(self) -> None:
        """It may not be in the group any more: it gives up all it had, and joins."""
        self.epoch = 0
        self.owned: Owned = {}
        self.says_all = True

    def act(self) -> None:
        if self.in_flight is not None:
            return
        if self.epoch == 0 or self.says_all:
            self.in_flight = self.world.setup.beat(
                self.member_id,
                self.epoch,
                topics=self.topics,
                pattern=self.pattern or "",
                owned=self.owned,
                instance_id=self.instance_id,
                timeout_ms=60_000,
                assignor=self.assignor,
            )
        else:
            reported = self.owned if self.world.random.random() < 0.5 else None
            self.in_flight = self.world.setup.beat(
                self.member_id, self.epoch, owned=reported, instance_id=self.instance_id
            )
        self.world.responses.append(self.in_flight)

    def take_response(self) -> None:
        if self.in_flight is None or self.in_flight.is_pending:
            return
        response, self.in_flight = self.in_flight.value, None
        error = response.error_code
        if error == ErrorCode.NONE:
            self.epoch, self.says_all = response.member_epoch, False
            given = self.world.setup.given(response)
            if given is not None:
                self.says_all = given != self.owned  # to confirm it soon
                self.owned = {name: indexes for name, indexes in given.items() if indexes}
        elif error in START_OVER:
            self.lose_everything()
        elif error == ErrorCode.UNRELEASED_INSTANCE_ID:
            self.epoch = 0
        elif error == ErrorCode.FENCED_INSTANCE_ID:
            self.world.members.remove(self)
        else:
            # The result is unknown; the client sends its full state again.
            assert error in (*TRY_AGAIN, ErrorCode.GROUP_MAX_SIZE_REACHED), error
            self.says_all = True


class World:
    """The members, the coordinator of the present term, the log, and the rules."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.log = MemoryLog()
        self.log.hold = True
        self.catalog = Catalog(t=4, u=3)
        self.members: list[Member] = []
        self.started = 0
        self.responses: list[PendingResponse[ConsumerGroupHeartbeatResponse]] = []
        self.next_offset = 0
        # The member of each partition and the epoch of its assignment, at the last check.
        self.assigned_at: dict[tuple[bytes, int], tuple[str, int]] = {}
        self.start_term()

    def start_term(self) -> None:
        """A coordinator that knows nothing but the log."""
        self.setup = ConsumerSetup(self.log, self.catalog, **SETTINGS)
        self.highest_epoch = 0

    @property
    def group(self) -> ConsumerGroup | None:
        return self.setup.found

    # What may happen.

    def step(self) -> None:
        actions: list[tuple[float, Callable[[], None]]] = [
            (20, self.member_acts),
            (15, self.record_is_committed),
            (2, self.time_passes),
            (0.8, self.member_starts),
            (0.3, self.member_leaves),
            (0.2, self.member_crashes),
            (0.4, self.static_member_restarts),
            (0.4, self.member_wants_something_else),
            (0.2, self.topics_change),
            (0.2, self.records_fail),
            (0.2, self.records_are_late),
            (0.4, self.response_is_lost),
            (0.1, self.coordinator_crashes),
            (0.1, self.coordinator_moves),
            (1, self.commit),
            (0.05, self.group_is_deleted),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()
        self.settle()
        if not self.log.held and self.random.random() < 0.1:
            self.check_stored()

    def commit_all(self) -> None:
        """Until nothing is left to do, in a later turn of the loop either."""
        self.log.commit_all()
        while self.setup.deferred:
            self.setup.run_deferred()
            self.log.commit_all()

    def settle(self) -> None:
        self.setup.run_deferred()
        for member in list(self.members):
            member.take_response()
        self.check()

    def _any(self) -> Member | None:
        return self.random.choice(self.members) if self.members else None

    def _next_number(self) -> int:
        self.started += 1
        return self.started

    def member_starts(self) -> None:
        if len(self.members) < 6:
            number = self._next_number()
            instance_id = f"i{number}" if self.random.random() < 0.4 else None
            self.members.append(Member(self, number, instance_id))

    def member_acts(self) -> None:
        member = self._any()
        if member is not None:
            member.act()

    def member_leaves(self) -> None:
        member = self._any()
        if member is not None and member.in_flight is None:
            self.members.remove(member)
            self.responses.append(
                self.setup.beat(member.member_id, -1, instance_id=member.instance_id)
            )

    def member_crashes(self) -> None:
        member = self._any()
        if member is not None:
            self.members.remove(member)

    def static_member_restarts(self) -> None:
        member = self._any()
        if member is None or member.instance_id is None or member.in_flight is not None:
            return
        if self.random.random() < 0.7:
            away = self.setup.beat(member.member_id, AWAY, instance_id=member.instance_id)
            self.responses.append(away)
        member.start(self._next_number())

    def member_wants_something_else(self) -> None:
        member = self._any()
        if member is not None and member.in_flight is None:
            member.choose_topics()

    def topics_change(self) -> None:
        name = self.random.choice(TOPICS)
        count = self.catalog.count(name)
        if not count:
            self.catalog.create(name, self.random.randint(1, 4))
        elif self.random.random() < 0.5 and count < 6:
            self.catalog.grow(name, count + 1)
        else:
            self.catalog.delete(name)

    def time_passes(self) -> None:
        self.setup.timer.advance(self.random.choice((10, 500, 500, 5_000, 20_000)))

    def record_is_committed(self) -> None:
        if self.log.held:
            self.log.commit_one()

    def records_fail(self) -> None:
        """Nothing of what is under way gets into the log; the leader stays."""
        self.log.fail_all(ErrorCode.NOT_ENOUGH_REPLICAS)

    def records_are_late(self) -> None:
        """It is in the log, and is committed after the waiting requests got an error."""
        late = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
        self.log.time_out_all(self.random.choice(late))

    def response_is_lost(self) -> None:
        """The member does not learn of its new epoch, and sends the last request again."""
        member = self._any()
        if member is not None and member.in_flight is not None:
            member.in_flight = None
            member.says_all = True

    def coordinator_crashes(self) -> None:
        """What was not committed may be lost, or be found in the log all the same."""
        for member in self.members:
            if member.in_flight is not None:  # its connection breaks
                member.in_flight = None
                member.says_all = True
        self.responses.clear()
        if self.random.random() < 0.5:
            self.log.lose_held()
        else:
            self.log.held.clear()
        self.start_term()

    def coordinator_moves(self) -> None:
        """The partition goes to another broker in good order, and comes back."""
        self.setup.coordinator.on_resigned(0, 1)
        self.commit_all()
        assert not [response for response in self.responses if response.is_pending], "forgotten"
        self.settle_responses()
        self.start_term()

    def settle_responses(self) -> None:
        for member in list(self.members):
            member.take_response()
        self.responses = [response for response in self.responses if response.is_pending]

    def group_is_deleted(self) -> None:
        results: list[dict[str, int]] = []
        group = self.group
        had_members = (
            group is not None
            and not group.is_empty
            and not self.log.held
            and not self.setup.deferred
        )
        self.setup.coordinator.admin.delete_groups([GROUP], results.append)
        self.commit_all()
        assert len(results) == 1
        if had_members:
            assert results == [{GROUP: ErrorCode.NON_EMPTY_GROUP}]
        if self.setup.coordinator.partitions.find(GROUP) is None:
            self.highest_epoch = 0

    def commit(self) -> None:
        """With the right epoch or a wrong one, and nothing else under way."""
        member = self._any()
        if member is None:
            return
        self.commit_all()
        group = self.group
        known = None if group is None else group.members.get(member.member_id)
        epoch = member.epoch + self.random.choice((0, 0, -1, -2, 1))
        self.next_offset += 1
        partition = TopicPartition("t", 0)
        offsets = {partition: self.next_offset}
        response = self.setup.commit(offsets, member.member_id, epoch, version=9)
        self.commit_all()
        error = response.value[partition]
        if known is not None:
            since = None
            if "t" in group.topics:  # type: ignore[union-attr]  # it has the member
                since = known.assignment_epoch(group.topics["t"].topic_id, 0)  # type: ignore[union-attr]
            is_valid = since is not None and since <= epoch <= known.epoch
            is_valid = is_valid or epoch == known.epoch
            assert error == (ErrorCode.NONE if is_valid else ErrorCode.STALE_MEMBER_EPOCH)
        if not error:
            assert self.setup.offset(partition) == self.next_offset
        elif self.setup.coordinator.partitions.find(GROUP) is not None:
            assert self.setup.offset(partition) != self.next_offset

    # The rules.

    def check(self) -> None:
        self.responses = [response for response in self.responses if response.is_pending]
        group = self.group
        if group is None:
            self.highest_epoch = 0
            self.assigned_at.clear()
            return
        assert group.epoch >= self.highest_epoch, "the epoch went back"
        self.highest_epoch = group.epoch
        assert group.assignment_epoch <= group.epoch
        assert group.targets.keys() <= group.members.keys(), "a target without a member"
        self._check_partitions(group)
        self._check_members(group)
        if group.state is ConsumerGroupState.STABLE:
            self._check_stable(group)

    def _check_partitions(self, group: ConsumerGroup) -> None:
        holders: dict[tuple[bytes, int], str] = {}
        for member in group.members.values():
            assert member.epoch <= group.epoch, "a member is ahead of its group"
            held = 0
            for partitions in (member.assigned, member.revoking):
                for topic_id, indexes in partitions.items():
                    for index in indexes:
                        held += 1
                        other = holders.setdefault((topic_id, index), member.member_id)
                        assert other == member.member_id, "a partition with two members"
                        self._check_assigned_at(member, topic_id, index)
            assert held == sum(map(len, member.assigned_at.values()))
        assert holders == group.owners, "the index of owners is wrong"
        for instance_id, member_id in group.static_members.items():
            assert group.members[member_id].instance_id == instance_id

    def _check_assigned_at(self, member: ConsumerMember, topic_id: bytes, index: int) -> None:
        epoch = member.assignment_epoch(topic_id, index)
        assert epoch is not None
        assert 0 <= epoch <= max(member.epoch, member.previous_epoch, 0) or member.epoch <= 0
        before = self.assigned_at.get((topic_id, index))
        if before is not None and before[0] != member.member_id and member.instance_id is None:
            assert epoch > before[1], "a partition moved within an epoch"
        self.assigned_at[topic_id, index] = member.member_id, epoch

    def _check_members(self, group: ConsumerGroup) -> None:
        """Those whom the coordinator knows at their epoch own nothing twice."""
        owners: dict[tuple[str, int], str] = {}
        for member in self.members:
            known = group.members.get(member.member_id)
            if known is None or known.epoch != member.epoch:
                continue
            for name, indexes in member.owned.items():
                for index in indexes:
                    other = owners.setdefault((name, index), member.member_id)
                    assert other == member.member_id, f"two members read {name}-{index}"

    def _check_stable(self, group: ConsumerGroup) -> None:
        given: dict[tuple[str, int], str] = {}
        for member in group.members.values():
            for topic_id, indexes in member.assigned.items():
                name = next(t.name for t in group.topics.values() if t.topic_id == topic_id)
                for index in indexes:
                    given[name, index] = member.member_id
        wanted = {
            (topic.name, index)
            for topic in group.topics.values()
            for index in range(topic.partition_count)
        }
        assert set(given) == wanted, "a partition without a reader"

    def check_stored(self) -> None:
        """What another coordinator would load is what this one has."""
        loaded = ConsumerSetup(self.log, self.catalog, **SETTINGS).found
        group = self.group
        if group is None or loaded is None:
            assert loaded is group
            return
        for name in ("members", "static_members", "targets", "topics", "owners", "epoch", "state"):
            assert getattr(loaded, name) == getattr(group, name), name

    def finish(self) -> None:
        """No more faults: the group becomes stable."""
        for _ in range(30):
            for member in list(self.members):
                member.act()
                self.commit_all()
                self.settle()
            self.setup.timer.advance(5_000)
            self.commit_all()
        group = self.group
        if self.members:
            assert group is not None
            assert group.state is ConsumerGroupState.STABLE
            assert set(group.members) == {member.member_id for member in self.members}
            for member in self.members:
                held = group.members[member.member_id].assigned
                assert {name: len(found) for name, found in member.owned.items()} == {
                    self.catalog.name_of(topic_id): len(found) for topic_id, found in held.items()
                }
        self.setup.timer.advance(600_000)
        self.commit_all()
        assert not [response for response in self.responses if response.is_pending], "forgotten"
        assert group is None or group.is_empty, "a silent member is still in the group"
        self.check_stored()
