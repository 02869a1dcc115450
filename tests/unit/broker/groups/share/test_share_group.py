from ottla.broker.groups.share import records
from ottla.broker.groups.share.records import tombstone_record
from ottla.broker.groups.share.share_group import ShareGroup

TOPIC = bytes(16)


def joined() -> ShareGroup:
    group = ShareGroup("g")
    for record in (
        records.member_record("g", "m", "rack", ("client", "/host"), ["t"]),
        records.epoch_record("g", 1),
        records.target_record("g", "m", {TOPIC: [0]}),
        records.target_epoch_record("g", 1),
        records.current_record("g", "m", (1, 0), {TOPIC: [0]}),
        records.state_partitions_record("g", {TOPIC: [0]}, {TOPIC: "t"}),
    ):
        group.replay(record)
    return group


def test_a_member_joins() -> None:
    group = joined()
    member = group.members["m"]
    assert (group.epoch, group.target_epoch, group.state) == (1, 1, "Stable")
    assert (member.epoch, member.assigned, member.topics) == (1, {TOPIC: [0]}, {"t"})
    assert (member.rack_id, member.client_id, member.client_host) == ("rack", "client", "/host")
    assert group.targets == {"m": {TOPIC: [0]}}
    assert group.initialized == {TOPIC: [0]}


def test_a_member_leaves_and_the_group_is_deleted() -> None:
    group = joined()
    for kind in (records.CURRENT, records.TARGET, records.MEMBER):
        group.replay(tombstone_record(kind, "g", "m"))
    assert (group.members, group.targets, group.state) == ({}, {}, "Empty")
    assert not group.is_gone
    for kind in (records.STATE_PARTITIONS, records.TARGET_EPOCH, records.EPOCH):
        group.replay(tombstone_record(kind, "g"))
    assert group.is_gone


def test_the_assignment_of_a_member_that_has_left_is_ignored() -> None:
    group = ShareGroup("g")
    group.replay(records.current_record("g", "m", (1, 0), {}))
    assert not group.members
