"""A consumer group and its coordinator, simulated: clients that behave, and a world that does not.

Everything that can happen is one step: a client sends its next request or goes silent, a record is
committed or fails, time passes, the coordinator crashes and another one loads the log. A seed
chooses the steps. After every step the rules are checked:

* the generation never goes back within a coordinator's term, and a stored one never at all;
* a generation has one leader, and only the leader is given the members;
* a member of a stable group has the assignment that the leader of the generation made for it;
* a committed offset is never older than the newest commit that was confirmed, and never one
  whose commit failed;
* every request gets one response.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ottla.broker.groups.classic.group import Group, GroupState
from ottla.broker.groups.log.records import GroupKey, read_group_value, read_key
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse
from ottla.protocol.steps import run_at_once
from ottla.protocol.topics import TopicPartition
from tests.doubles.coordinator_log import MemoryLog
from tests.unit.broker.groups.helpers import GROUP, PendingResponse, Setup

PARTITIONS = [TopicPartition("t", index) for index in range(3)]
APPEND_ERRORS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.REQUEST_TIMED_OUT)
SETTINGS = {"group_initial_rebalance_delay_ms": 500}


class Client:
    """One consumer: joins, syncs, heartbeats and commits as clients do."""

    def __init__(self, world: World, number: int, instance_id: str | None, version: int) -> None:
        self.world = world
        self.number = number
        self.instance_id = instance_id
        self.version = version
        self.metadata = 0
        self.forget()

    def forget(self) -> None:
        """A new process: nothing is known of the group."""
        self.member_id = ""
        self.generation_id = -1
        self.is_stable = False
        self.joining: PendingResponse[JoinGroupResponse] | None = None
        self.syncing: PendingResponse[SyncGroupResponse] | None = None

    @property
    def is_waiting(self) -> bool:
        return self.joining is not None or self.syncing is not None

    def act(self) -> None:
        """The next thing this client does."""
        if self.is_waiting:
            return
        if self.generation_id < 0:
            self.join()
        elif self.world.random.random() < 0.4:
            self.commit()
        else:
            self.heartbeat()

    def join(self) -> None:
        response = self.world.setup.join(
            self.member_id,
            instance_id=self.instance_id,
            version=self.version,
            protocols=(("range", b"%d" % self.metadata),),
            rebalance_timeout_ms=20_000,
        )
        self.world.responses.append(response)
        self.joining = response

    def heartbeat(self) -> None:
        error = self.world.setup.heartbeat(self.member_id, self.generation_id, self.instance_id)
        if error == ErrorCode.REBALANCE_IN_PROGRESS:
            self.generation_id = -1
        elif error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.generation_id = -1
            self.member_id = "" if error == ErrorCode.UNKNOWN_MEMBER_ID else self.member_id
        elif error == ErrorCode.FENCED_INSTANCE_ID:
            self.world.clients.remove(self)

    def commit(self) -> None:
        self.world.commit(self.member_id, self.generation_id, self.instance_id)

    def take_responses(self) -> None:
        if self.joining is not None and not self.joining.is_pending:
            response, self.joining = self.joining.value, None
            self.joined(response)
        elif self.syncing is not None and not self.syncing.is_pending:
            synced, self.syncing = self.syncing.value, None
            self.synced(synced)

    def joined(self, response: JoinGroupResponse) -> None:
        error = response.error_code
        if error == ErrorCode.NONE:
            self.member_id = response.member_id
            self.generation_id = response.generation_id
            self.world.check_joined(response)
            assignments = {}
            if response.leader == response.member_id and not response.skip_assignment:
                assignments = self.world.assign(response)
            self.syncing = self.world.setup.sync(
                self.member_id, self.generation_id, assignments, instance_id=self.instance_id
            )
            self.world.responses.append(self.syncing)
        elif error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif error == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
        elif error == ErrorCode.FENCED_INSTANCE_ID and self in self.world.clients:
            self.world.clients.remove(self)

    def synced(self, response: SyncGroupResponse) -> None:
        self.is_stable = response.error_code == ErrorCode.NONE
        if not self.is_stable:
            if response.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self.generation_id = -1


class World:
    """The clients, the coordinator of the present term, the log, and the rules."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.pauses = random.Random(f"pauses {seed}")
        self.log = MemoryLog()
        self.log.hold = True
        self.clients: list[Client] = []
        self.started = 0
        self.responses: list[
            PendingResponse[JoinGroupResponse] | PendingResponse[SyncGroupResponse]
        ] = []
        self.commits: list[
            tuple[PendingResponse[dict[TopicPartition, int]], dict[TopicPartition, int]]
        ] = []
        self.confirmed: dict[TopicPartition, int] = {}
        self.failed: set[tuple[TopicPartition, int]] = set()
        self.next_offset = 0
        self.stored_generation = 0
        self.start_term()

    def start_term(self) -> None:
        """A coordinator that knows nothing but the log."""
        self.setup = Setup(self.log, **SETTINGS)
        self.highest_generation = 0
        self.leaders: dict[int, str] = {}
        self.assigned: dict[int, dict[str, bytes]] = {}

    @property
    def group(self) -> Group | None:
        return self.setup.coordinator.partitions.find(GROUP)

    # What may happen.

    def step(self) -> None:
        actions: list[tuple[float, Callable[[], None]]] = [
            (20, self.client_acts),
            (10, self.record_is_committed),
            (2, self.time_passes),
            (0.6, self.client_starts),
            (0.2, self.client_leaves),
            (0.15, self.client_crashes),
            (0.5, self.static_client_restarts),
            (0.3, self.metadata_changes),
            (0.15, self.records_fail),
            (0.1, self.coordinator_crashes),
            (0.1, self.coordinator_moves),
            (0.05, self.group_is_deleted),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights)[0]()
        self.settle()

    def settle(self) -> None:
        """Some of the deferred work is done, clients read responses, the rules are checked."""
        while self.setup.deferred and self.pauses.random() < 0.7:
            self.setup.deferred.pop(0)()
        for client in list(self.clients):
            client.take_responses()
        self.check()

    def commit_all(self) -> None:
        """Until no work is left."""
        self.log.commit_all()
        while self.setup.deferred:
            self.setup.run_deferred()
            self.log.commit_all()

    def client_starts(self) -> None:
        if len(self.clients) < 6:
            is_static = self.random.random() < 0.4
            instance_id = f"i{self.started}" if is_static else None
            version = self.random.choice((2, 3, 5, 9)) if not is_static else 9
            self.clients.append(Client(self, self.started, instance_id, version))
            self.started += 1

    def _any_client(self) -> Client | None:
        return self.random.choice(self.clients) if self.clients else None

    def client_acts(self) -> None:
        client = self._any_client()
        if client is not None:
            client.act()

    def client_leaves(self) -> None:
        client = self._any_client()
        if client is not None:
            self.clients.remove(client)
            if client.member_id:
                self.setup.leave((client.member_id, client.instance_id))

    def client_crashes(self) -> None:
        client = self._any_client()
        if client is not None:
            self.clients.remove(client)

    def static_client_restarts(self) -> None:
        client = self._any_client()
        if client is not None and client.instance_id is not None:
            client.forget()

    def metadata_changes(self) -> None:
        client = self._any_client()
        if client is not None and not client.is_waiting:
            client.metadata += 1
            client.generation_id = -1

    def time_passes(self) -> None:
        self.setup.timer.advance(self.random.choice((10, 500, 500, 3_000, 9_000)))

    def record_is_committed(self) -> None:
        if self.log.held:
            self.log.commit_one()

    def records_fail(self) -> None:
        """Nothing of what is under way gets through; the leader stays."""
        self.log.fail_all(self.random.choice(APPEND_ERRORS))

    def coordinator_crashes(self) -> None:
        """What was not committed may be lost, or be found in the log all the same."""
        for client in self.clients:
            if client.is_waiting:  # its connection breaks
                client.joining = client.syncing = None
                client.generation_id = -1
        self.responses.clear()
        self.commits.clear()
        if self.random.random() < 0.5:
            self.log.lose_held()
        else:
            self.log.held.clear()
        self.start_term()

    def coordinator_moves(self) -> None:
        """The partition goes to another broker in good order, and comes back."""
        self.setup.coordinator.on_resigned(0, 1)
        self.setup.run_deferred()
        assert not [response for response in self.responses if response.is_pending], "forgotten"
        self.log.commit_all()
        self.settle_commits()
        self.start_term()

    def group_is_deleted(self) -> None:
        group = self.group
        results: list[dict[str, int]] = []
        self.setup.coordinator.admin.delete_groups([GROUP], results.append)
        if group is not None and group.state is GroupState.DEAD:
            # Deleting forgets: from here on there is nothing to be older than.
            self.commit_all()
            self.settle_commits()
            assert results == [{GROUP: ErrorCode.NONE}]
            self.confirmed.clear()
            self.stored_generation = self.highest_generation = 0
            self.leaders.clear()

    # Offsets.

    def commit(self, member_id: str, generation_id: int, instance_id: str | None) -> None:
        self.next_offset += 1
        chosen = self.random.sample(PARTITIONS, self.random.randint(1, 3))
        offsets = dict.fromkeys(chosen, self.next_offset)
        response = self.setup.commit(offsets, member_id, generation_id, instance_id=instance_id)
        self.commits.append((response, offsets))

    def settle_commits(self) -> None:
        for response, offsets in list(self.commits):
            if not response.is_pending:
                self.commits.remove((response, offsets))
                for partition, error in response.value.items():
                    if error == ErrorCode.NONE:
                        known = self.confirmed.get(partition, -1)
                        self.confirmed[partition] = max(known, offsets[partition])
                    elif error != ErrorCode.NOT_COORDINATOR:  # then it may be in the log
                        self.failed.add((partition, offsets[partition]))

    # The rules.

    def assign(self, response: JoinGroupResponse) -> dict[str, bytes]:
        made = {
            member.member_id: f"{response.generation_id}/{member.member_id}".encode()
            for member in response.members
        }
        self.assigned[response.generation_id] = made
        return made

    def check_joined(self, response: JoinGroupResponse) -> None:
        generation = response.generation_id
        is_leader = response.leader == response.member_id
        assert bool(response.members) == is_leader, "only the leader gets the members"
        # A static leader that came back may be shown by its old id to clients of old versions;
        # all of these are of version 9.
        known = self.leaders.setdefault(generation, response.leader)
        group = self.group
        assert group is not None
        if group.generation_id == generation and known != response.leader:
            assert group.leader_id == response.leader, "a generation with two leaders"
            self.leaders[generation] = response.leader

    def check(self) -> None:
        self.settle_commits()
        group = self.group
        if group is None:
            return
        assert group.generation_id >= self.highest_generation, "the generation went back"
        self.highest_generation = group.generation_id
        self._check_structure(group)
        if group.state is GroupState.STABLE:
            assert group.generation_id >= self.stored_generation, "a stored generation came back"
            self.stored_generation = group.generation_id
            self._check_assignments(group)
        if group.state is not GroupState.DEAD:
            for partition, offset in self.confirmed.items():
                assert self.setup.offset(partition) >= offset, "an older offset is served"
            for partition in PARTITIONS:
                served = (partition, self.setup.offset(partition))
                assert served not in self.failed, "a commit that failed is served"

    def _check_structure(self, group: Group) -> None:
        waiting = [
            member for member in group.members.values() if member.awaiting_join_callback is not None
        ]
        assert group.num_members_awaiting_join == len(waiting)
        assert group.leader_id in group.members or not group.members
        assert group.pending_sync_members <= set(group.members)
        assert not group.pending_members & set(group.members)
        for instance_id, member_id in group.static_members.items():
            assert group.members[member_id].instance_id == instance_id
        if group.state is GroupState.EMPTY:
            assert not group.members

    def _check_assignments(self, group: Group) -> None:
        assert group.members, "a stable group has members"
        made = self.assigned.get(group.generation_id)
        for member in group.members.values():
            if member.instance_id is None and made is not None:
                assert member.assignment == made.get(member.member_id, b"")

    def check_stored(self) -> None:
        """What another coordinator would load is what this one has, once all is committed."""
        loaded = Setup(self.log, **SETTINGS).coordinator.partitions.find(GROUP)
        group = self.group
        if group is None or loaded is None:
            assert loaded is None
            assert group is None or not group.offsets
            return
        assert {key: value.offset for key, value in loaded.offsets.committed.items()} == {
            key: value.offset for key, value in group.offsets.committed.items()
        }
        if group.state in (GroupState.STABLE, GroupState.EMPTY) and self._has_record():
            assert (loaded.state, loaded.generation_id) == (group.state, group.generation_id)
            assert loaded.static_members == group.static_members
            for member_id, member in loaded.members.items():
                assert member.assignment == group.members[member_id].assignment

    def _has_record(self) -> bool:
        for record in reversed(self.log.records(0)):
            if isinstance(read_key(record.key or b""), GroupKey) and record.value is not None:
                return run_at_once(read_group_value(GROUP, record.value, 0)).generation_id > 0
        return False

    def finish(self) -> None:
        """No more faults: every request gets a response and the group becomes stable."""
        for _ in range(80):
            self.commit_all()
            self.settle()
            for client in list(self.clients):
                client.act()
                self.commit_all()
                self.settle()
            self.setup.timer.advance(1_000)
        self.commit_all()
        self.settle()
        stable = [client for client in self.clients if client.is_stable and not client.is_waiting]
        assert stable == self.clients, "a client that behaves does not get into the group"
        group = self.group
        if self.clients:
            assert group is not None
            assert group.state is GroupState.STABLE
            assert set(group.members) == {client.member_id for client in self.clients}
        self.check_stored()
        self.setup.timer.advance(600_000)
        self.commit_all()
        assert not [response for response in self.responses if response.is_pending], "forgotten"
        assert not self.commits
        for partition, found in self.setup.fetch(*PARTITIONS, require_stable=True).items():
            assert found.error_code == ErrorCode.NONE, f"{partition} never became stable"
