"""The responses to all members of a classic group at once, which may be sent later.

Each is what it was when it was taken from the group, whatever the group is when it is sent.
"""

from collections.abc import Callable
from functools import partial

from ottla.broker.groups.classic.group import Group, sync_error
from ottla.broker.groups.classic.member import JoinCallback, Member, SyncCallback
from ottla.protocol.messages.join_group import JoinGroupResponse
from ottla.protocol.messages.sync_group import SyncGroupResponse

DelayedResponse = tuple[Member, Callable[[], None] | None]
"""A member, and what sends its response; None when it does not wait for one."""


def take_joins(group: Group) -> list[DelayedResponse]:
    """The responses to JoinGroup in the current generation, for all members in their order."""
    response_to = group.join_responses()
    return [
        (
            member,
            None
            if callback is None
            else partial(_send_join, callback, response_to, member.member_id),
        )
        for member, callback in group.take_join_callbacks()
    ]


def take_syncs(group: Group) -> list[DelayedResponse]:
    """The assignments, for the members that wait for one."""
    about = (group.protocol_type, group.protocol_name)
    return [
        (member, partial(_send_sync, callback, *about, member.assignment))
        for member, callback in group.take_sync_callbacks()
    ]


def take_sync_errors(group: Group, error_code: int) -> list[DelayedResponse]:
    """The error, for the members that wait for an assignment."""
    return [
        (member, partial(_send_sync_error, callback, error_code))
        for member, callback in group.take_sync_callbacks()
    ]


def _send_join(
    callback: JoinCallback, response_to: Callable[[str], JoinGroupResponse], member_id: str
) -> None:
    callback(response_to(member_id))


def _send_sync(
    callback: SyncCallback, protocol_type: str | None, protocol_name: str | None, assignment: bytes
) -> None:
    callback(
        SyncGroupResponse(
            protocol_type=protocol_type, protocol_name=protocol_name, assignment=assignment
        )
    )


def _send_sync_error(callback: SyncCallback, error_code: int) -> None:
    callback(sync_error(error_code))
