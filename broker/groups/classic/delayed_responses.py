"""The responses to all members of a classic group at once, which may be sent later.

Each is what it was when it was taken from the group, whatever the group is when it is sent.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from ottla.broker.groups.classic.group import Group, sync_error
from ottla.broker.groups.classic.member import Member

DelayedResponse = tuple[Member, Callable[[], None] | None]
"""A member, and what sends its response; None when it does not wait for one."""

A = TypeVar("A")
R = TypeVar("R")


def take_joins(group: Group) -> list[DelayedResponse]:
    """The responses to JoinGroup in the current generation, for all members in their order."""
    response_to = group.join_responses()
    return [
        (member, None if callback is None else _later(callback, response_to, member.member_id))
        for member, callback in group.take_join_callbacks()
    ]


def take_syncs(group: Group) -> list[DelayedResponse]:
    """The assignments, for the members that wait for one."""
    response_with = group.sync_responses()
    return [
        (member, _later(callback, response_with, member.assignment))
        for member, callback in group.take_sync_callbacks()
    ]


def take_sync_errors(group: Group, error_code: int) -> list[DelayedResponse]:
    """The error, for the members that wait for an assignment."""
    return [
        (member, _later(callback, sync_error, error_code))
        for member, callback in group.take_sync_callbacks()
    ]


def _later(
    callback: Callable[[R], None], response_of: Callable[[A], R], argument: A
) -> Callable[[], None]:
    """Makes the response when it is sent: all at once would take longer than a slice."""
    return partial(_send, callback, response_of, argument)


def _send(callback: Callable[[R], None], response_of: Callable[[A], R], argument: A) -> None:
    callback(response_of(argument))
