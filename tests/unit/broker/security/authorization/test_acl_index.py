"""What the index of a resource type finds, and that it forgets what is removed."""

from __future__ import annotations

from ottla.broker.security.authorization.acl_index import Rights, TypeIndex, rights_of
from ottla.broker.security.authorization.acl_types import Operation
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource

READ = Acl("User:a", "Allow", "Read", "*")
BITS = 1 << Operation.READ


def resource(name: str, pattern: str = PREFIXED) -> AclResource:
    return AclResource(pattern, "Topic", name)


def test_the_rights_of_a_subject_are_joined() -> None:
    acls = [
        READ,
        READ._replace(operation="Write"),
        READ._replace(operation="Write", permission_type="Deny"),
        READ._replace(host="10.0.0.1"),
    ]
    both = BITS | 1 << Operation.WRITE
    assert rights_of(acls) == {
        ("User:a", "*"): Rights(denied=1 << Operation.WRITE, allowed=both),
        ("User:a", "10.0.0.1"): Rights(allowed=BITS),
    }


def test_operations_and_permissions_of_later_versions_have_no_effect() -> None:
    assert rights_of([READ._replace(operation="TwoPhaseCommit")]) == {("User:a", "*"): Rights()}
    assert rights_of([READ._replace(permission_type="Perhaps")]) == {}


def test_a_name_finds_its_prefixes_and_its_literals() -> None:
    index = TypeIndex()
    for pattern, name in (
        (PREFIXED, "a"),
        (PREFIXED, "ab"),
        (PREFIXED, "b"),
        (LITERAL, "abc"),
        (LITERAL, "ab"),
        (LITERAL, "*"),
    ):
        index.replace(resource(name, pattern), frozenset((READ,)))
    found = {
        name: len(index.matching(name)) for name in ("", "a", "ab", "abc", "abcd", "b", "c", "*")
    }
    # The literal "*" stands for every name.
    assert found == {"": 1, "a": 2, "ab": 4, "abc": 4, "abcd": 3, "b": 2, "c": 1, "*": 2}


def test_nothing_is_left_of_what_is_removed() -> None:
    index = TypeIndex()
    names = ("a", "ab", "abc", "b")
    for name in names:
        index.replace(resource(name), frozenset((READ,)))
    for name in names:
        index.replace(resource(name), frozenset())
    assert index.matching("abc") == []
    assert list(index.of_subjects([("User:a", "*")])) == []
    assert vars(index) == vars(TypeIndex())
