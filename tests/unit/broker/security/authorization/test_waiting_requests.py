"""Rights that change while a request waits: each kind of request that does is checked again.

Fetch and ShareFetch ask for each topic again when they complete (`test_fetch.py`,
`test_delayed_share_fetch.py`); Produce has appended its records before it waits.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ottla.broker.cluster.metadata_cache import MetadataCache
from ottla.broker.requests.request_context import Principal, apply
from ottla.broker.security.audit.security_log import SecurityLog
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.authorizer import Authorizer
from ottla.broker.security.authorization.data_guard import DataGuard
from ottla.broker.security.authorization.group_guard import GroupGuard
from ottla.controller.tree.znodes_security import LITERAL, Acl, AclResource
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from ottla.protocol.steps import run_at_once

READ = Acl("User:anna", "Allow", "Read", "*")
ACTION = Acl("User:anna", "Allow", "ClusterAction", "*")
TOPIC, GROUP = AclResource(LITERAL, "Topic", "t"), AclResource(LITERAL, "Group", "g")
CLUSTER = AclResource(LITERAL, "Cluster", "kafka-cluster")


def a_context() -> Any:
    connection = SimpleNamespace(
        principal=Principal("User", "anna"),
        client_host="127.0.0.1",
        client_port=50_000,
        listener_name="SSL",
        decisions=None,
    )
    return SimpleNamespace(
        amend=None,
        connection=connection,
        principal=connection.principal,
        client_host=connection.client_host,
        client_port=connection.client_port,
        listener_name=connection.listener_name,
        header=SimpleNamespace(api_key=1, api_version=1, client_id="c"),
        route=SimpleNamespace(entry=SimpleNamespace(name="Fetch")),
    )


def an_authorizer() -> Authorizer:
    rules = AclRules()
    rules.replace(TOPIC, [READ])
    rules.replace(GROUP, [READ])
    rules.replace(CLUSTER, [ACTION])
    return Authorizer(rules, SecurityLog(None))


@pytest.mark.parametrize(("is_follower", "resource"), [(False, TOPIC), (True, CLUSTER)])
def test_the_check_of_a_fetch_follows_the_rules(is_follower: bool, resource: AclResource) -> None:
    authorizer = an_authorizer()
    check = DataGuard(authorizer, MetadataCache(), auto_create=False).may_read(
        a_context(), is_follower
    )
    assert check("t")
    granted = authorizer.rules.version
    authorizer.rules.replace(resource, [])
    assert authorizer.rules.version != granted
    assert not check("t")
    authorizer.rules.replace(resource, [ACTION if is_follower else READ])
    assert check("t")


@pytest.mark.parametrize("is_revoked", [False, True])
@pytest.mark.parametrize("is_joining", [False, True])
def test_a_member_that_waits_learns_nothing_without_its_right(
    is_joining: bool, is_revoked: bool
) -> None:
    request_: Any = JoinGroupRequest("g") if is_joining else SyncGroupRequest("g")
    response: Any = SyncGroupResponse(assignment=b"assigned")
    if is_joining:
        response = JoinGroupResponse(members=[JoinGroupResponseMember("m", None)])
    authorizer = an_authorizer()
    context = a_context()
    GroupGuard(authorizer).waiting_member(context, request_)
    if is_revoked:
        authorizer.rules.replace(GROUP, [])
    response.error_code = ErrorCode.NONE
    run_at_once(apply(context.amend, response))
    content = getattr(response, "members", None) or getattr(response, "assignment", None)
    assert bool(content) is not is_revoked
    expected = ErrorCode.GROUP_AUTHORIZATION_FAILED if is_revoked else ErrorCode.NONE
    assert response.error_code == expected
