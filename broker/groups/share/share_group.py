"""One share group in memory; only the replay of records changes it."""

from __future__ import annotations

from ottla.broker.groups.share import records
from ottla.broker.groups.share.records import ShareRecord, Topics


class ShareMember:
    """A member with its subscription and assignment."""

    __slots__ = (
        "assigned",
        "client_host",
        "client_id",
        "epoch",
        "member_id",
        "previous_epoch",
        "rack_id",
        "topics",
    )

    def __init__(self, member_id: str) -> None:
        self.member_id = member_id
        self.rack_id: str | None = None
        self.client_id = ""
        self.client_host = ""
        self.topics: frozenset[str] = frozenset()
        self.epoch = 0
        self.previous_epoch = 0
        self.assigned: Topics = {}


class ShareGroup:
    """Mirrors Kafka's `ShareGroup`."""

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.epoch = 0
        self.target_epoch = 0
        self.members: dict[str, ShareMember] = {}
        self.targets: dict[str, Topics] = {}
        #: The partitions whose state the share coordinator has.
        self.initialized: Topics = {}
        #: Their names, as they were when the state was initialized.
        self.topic_names: dict[bytes, str] = {}
        #: Initialized partitions to be requested again, as the group was empty: a deletion that was
        #: interrupted leaves some without state.
        self.unconfirmed: dict[bytes, set[int]] = {}
        #: The catalog, group epoch and initialized partitions for which nothing was to be done.
        self.settled: tuple[object, int, Topics] | None = None
        #: The time of the loop when the next initialization may begin, after one that failed.
        self.initialize_at_s = 0.0

    def is_settled(self, catalog_version: object) -> bool:
        """Return whether assignments and states are of this version of the catalog.
        Each change of members or subscriptions has a group epoch of its own."""
        if self.settled is None:
            return False
        version, epoch, initialized = self.settled
        return (
            version is catalog_version and epoch == self.epoch and initialized is self.initialized
        )

    @property
    def state(self) -> str:
        return "Stable" if self.members else "Empty"

    @property
    def is_gone(self) -> bool:
        return not (self.members or self.epoch or self.initialized)

    def replay(self, record: ShareRecord) -> None:
        value, member_id = record.value, record.member_id
        if record.kind == records.EPOCH:
            self.epoch = 0 if value is None else value.epoch
        elif record.kind == records.TARGET_EPOCH:
            self.target_epoch = 0 if value is None else value.assignment_epoch
        elif record.kind == records.STATE_PARTITIONS:
            rows = () if value is None else value.initialized_topics
            self.initialized = {row.topic_id: list(row.partitions) for row in rows}
            self.topic_names = {row.topic_id: row.topic_name for row in rows}
        elif record.kind == records.TARGET:
            if value is None:
                self.targets.pop(member_id, None)
            else:
                rows = value.topic_partitions
                self.targets[member_id] = {row.topic_id: list(row.partitions) for row in rows}
        elif value is None:
            if record.kind == records.MEMBER:
                self.members.pop(member_id, None)
        else:
            self._replay_member(record)

    def _replay_member(self, record: ShareRecord) -> None:
        value = record.value
        member = self.members.get(record.member_id)
        if member is None:
            if record.kind != records.MEMBER:
                return  # of a member that has left
            member = self.members[record.member_id] = ShareMember(record.member_id)
        if record.kind == records.MEMBER:
            member.rack_id = value.rack_id
            member.client_id = value.client_id
            member.client_host = value.client_host
            member.topics = frozenset(value.subscribed_topic_names)
        else:
            member.epoch = value.member_epoch
            member.previous_epoch = value.previous_member_epoch
            rows = value.assigned_partitions
            member.assigned = {row.topic_id: list(row.partitions) for row in rows}
