"""Which ACLs allow what, and which a filter finds."""

from __future__ import annotations

import pytest

from ottla.broker.security.authorization.acl_rules import AclFilter, AclRules
from ottla.broker.security.authorization.acl_types import Operation, PatternType, ResourceType
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource
from ottla.protocol.steps import run_at_once

ALICE, HOST = "User:alice", "10.0.0.1"


def topic(name: str, pattern: str = LITERAL) -> AclResource:
    return AclResource(pattern, "Topic", name)


def acl(
    operation: str = "Read", permission: str = "Allow", principal: str = ALICE, host: str = "*"
) -> Acl:
    return Acl(principal, permission, operation, host)


def rules(**found: Acl) -> AclRules:
    made = AclRules()
    for name, line in found.items():
        made.replace(topic(name), [line])
    return made


def allows(
    made: AclRules,
    operation: Operation = Operation.READ,
    name: str = "t",
    principal: str = ALICE,
    host: str = HOST,
    *,
    without_acls: bool = False,
) -> bool:
    return made.allows(
        principal, host, operation, ResourceType.TOPIC, name, without_acls=without_acls
    )


def test_without_acls_the_setting_decides() -> None:
    assert not allows(AclRules())
    assert allows(AclRules(), without_acls=True)
    # A resource with ACLs is closed to all clients whom they do not name.
    assert not allows(rules(t=acl()), principal="User:bob", without_acls=True)


@pytest.mark.parametrize(
    ("line", "principal", "host", "expected"),
    [
        (acl(), ALICE, HOST, True),
        (acl(), "User:bob", HOST, False),
        (acl(principal="User:*"), "User:bob", HOST, True),
        (acl(host=HOST), ALICE, HOST, True),
        (acl(host="10.0.0.2"), ALICE, HOST, False),
        (acl("All"), ALICE, HOST, True),
        (acl("Write"), ALICE, HOST, False),
    ],
)
def test_who_from_where_and_what(line: Acl, principal: str, host: str, expected: bool) -> None:
    assert allows(rules(t=line), principal=principal, host=host) is expected


def test_a_denial_wins() -> None:
    made = AclRules()
    made.replace(topic("t"), [acl("All"), acl("Read", "Deny")])
    assert not allows(made)
    assert allows(made, Operation.WRITE)
    made.replace(topic("*"), [acl("All", "Deny", host=HOST)])
    assert not allows(made, Operation.WRITE)
    assert allows(made, Operation.WRITE, host="10.9.9.9")


@pytest.mark.parametrize("operation", ["Read", "Write", "Delete", "Alter", "Describe", "All"])
def test_what_includes_describing(operation: str) -> None:
    assert allows(rules(t=acl(operation)), Operation.DESCRIBE)


@pytest.mark.parametrize("operation", ["Create", "AlterConfigs", "DescribeConfigs"])
def test_what_does_not_include_describing(operation: str) -> None:
    assert not allows(rules(t=acl(operation)), Operation.DESCRIBE)


def test_altering_settings_includes_describing_them() -> None:
    assert allows(rules(t=acl("AlterConfigs")), Operation.DESCRIBE_CONFIGS)
    assert not allows(rules(t=acl("DescribeConfigs")), Operation.ALTER_CONFIGS)


def test_a_denial_of_what_includes_describing_is_none_of_it() -> None:
    made = AclRules()
    made.replace(topic("t"), [acl("Describe"), acl("Read", "Deny")])
    assert allows(made, Operation.DESCRIBE)


def test_prefixes_and_the_name_for_all() -> None:
    made = AclRules()
    made.replace(topic("in-", PREFIXED), [acl()])
    assert allows(made, name="in-1")
    assert allows(made, name="in-")
    assert not allows(made, name="in")
    made.replace(topic("*"), [acl("Write")])
    assert allows(made, Operation.WRITE, name="anything")
    made.replace(topic("in-", PREFIXED), [])
    assert not allows(made, name="in-1")
    assert made.of(topic("in-", PREFIXED)) == frozenset()


def test_other_types_of_resource_are_none_of_it() -> None:
    made = rules(t=acl("All"))
    assert not made.allows(ALICE, HOST, Operation.READ, ResourceType.GROUP, "t", without_acls=False)


def any_topic(made: AclRules, *, without_acls: bool = False) -> bool:
    return made.allows_any(
        ALICE, HOST, Operation.WRITE, ResourceType.TOPIC, without_acls=without_acls
    )


def test_any_resource_will_do() -> None:
    assert not any_topic(AclRules())
    assert any_topic(AclRules(), without_acls=True)
    assert any_topic(rules(t=acl("Write")))
    assert any_topic(rules(t=acl("All")))
    assert not any_topic(rules(t=acl("Read")))


def test_without_acls_any_resource_will_do_unless_all_are_denied() -> None:
    made = rules(t=acl("Write", "Deny"))
    assert any_topic(made, without_acls=True)
    assert not any_topic(made)
    made.replace(topic("*"), [acl("Write", "Deny")])
    assert not any_topic(made, without_acls=True)


def test_resources_of_other_types_do_not_count() -> None:
    made = AclRules()
    made.replace(AclResource(LITERAL, "Group", "g"), [acl("Write")])
    assert not any_topic(made)
    made.replace(topic("t"), [acl("Write")])
    assert any_topic(made)


def test_a_denied_prefix_of_one_character() -> None:
    made = rules(t1=acl("Write"))
    made.replace(topic("t", PREFIXED), [acl("Write", "Deny")])
    assert not any_topic(made)
    made.replace(topic("u"), [acl("Write")])
    assert any_topic(made)


def test_any_resource_but_those_that_are_denied() -> None:
    made = rules(t=acl("Write"))
    made.replace(topic("u"), [acl("Write", "Deny")])
    assert any_topic(made)
    made.replace(topic("t"), [acl("Write"), acl("Write", "Deny")])
    assert not any_topic(made)
    made.replace(topic("ab", PREFIXED), [acl("Write")])
    assert any_topic(made)
    made.replace(topic("a", PREFIXED), [acl("All", "Deny")])
    assert not any_topic(made)
    made.replace(topic("*"), [acl("Write")])
    assert any_topic(made)
    made.replace(topic("*"), [acl("Write", "Deny")])
    assert not any_topic(made)
    assert not any_topic(made, without_acls=True)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (AclFilter(), {"*", "tax", "t"}),
        (AclFilter(resource_type=ResourceType.GROUP), set()),
        (AclFilter(resource_name="tax"), {"tax"}),
        (AclFilter(resource_name="t"), {"t"}),
        (AclFilter(resource_name="t", resource_type=ResourceType.GROUP), set()),
        (AclFilter(resource_name="tax", pattern_type=PatternType.MATCH), {"*", "tax", "t"}),
        (AclFilter(resource_name="toe", pattern_type=PatternType.MATCH), {"*", "t"}),
        (AclFilter(pattern_type=PatternType.PREFIXED), {"t"}),
        (AclFilter(resource_name="t", pattern_type=PatternType.LITERAL), set()),
        (AclFilter(principal="User:bob"), {"tax"}),
        (AclFilter(operation=Operation.WRITE), {"t"}),
        (AclFilter(host=HOST), set()),
    ],
)
def test_what_a_filter_finds(wanted: AclFilter, found: set[str]) -> None:
    made = rules(tax=acl(principal="User:bob"))
    made.replace(topic("*"), [acl()])
    made.replace(topic("t", PREFIXED), [acl("Write")])
    assert {resource.name for resource, _ in run_at_once(made.find(wanted))} == found


def test_a_filter_of_a_later_version_is_known_as_such() -> None:
    assert not AclFilter().is_unknown
    assert AclFilter(resource_type=99).is_unknown
    assert AclFilter(operation=0).is_unknown
    assert AclFilter(pattern_type=9).is_unknown
    assert AclFilter(permission=9).is_unknown
