"""The indexes over ACLs decide as a plain scan of all of them does.

Random ACLs, changes and questions over few names, so that they meet. `OTTLA_EXPLORE=1` draws new
ones; a failure prints its seed.
"""

from __future__ import annotations

from random import Random

import pytest

from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.broker.security.authorization.acl_types import (
    OPERATION_NAMES,
    RESOURCE_NAMES,
    Operation,
    ResourceType,
)
from ottla.controller.tree.znodes_security import LITERAL, PREFIXED, Acl, AclResource
from tests.doubles.acl_reference import ReferenceRules
from tests.doubles.seeds import seeds

SEEDS = seeds(30)
STEPS = 150

NAMES = ("*", "a", "ab", "abc", "b", "ba", "x" * 40)
PRINCIPALS = ("User:a", "User:b", "User:*", "Group:a")
HOSTS = ("*", "10.0.0.1", "10.0.0.2")
KINDS = (ResourceType.TOPIC, ResourceType.GROUP)
OPERATIONS = [each for each in Operation if each > Operation.ANY]


def random_acl(random: Random) -> Acl:
    return Acl(
        random.choice(PRINCIPALS),
        # Denials are rarer, or nothing is ever allowed.
        random.choice(("Allow", "Allow", "Allow", "Deny", "Perhaps")),
        random.choice([*(OPERATION_NAMES[each] for each in OPERATIONS), "TwoPhaseCommit"]),
        random.choice(HOSTS),
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_decisions_are_those_of_a_plain_scan(seed: int) -> None:
    random = Random(seed)
    rules, reference = AclRules(), ReferenceRules()
    for _ in range(STEPS):
        resource = AclResource(
            random.choice((LITERAL, PREFIXED)),
            RESOURCE_NAMES[random.choice(KINDS)],
            random.choice(NAMES),
        )
        acls = [random_acl(random) for _ in range(random.randrange(4))]
        rules.replace(resource, acls)
        reference.replace(resource, acls)
        for _ in range(10):
            who, host = random.choice(PRINCIPALS), random.choice(HOSTS)
            operation, kind = random.choice(OPERATIONS), random.choice(KINDS)
            name = random.choice(NAMES) + random.choice(("", "", "c", "*"))
            without_acls = random.random() < 0.5
            question = (who, host, operation, kind, name)
            assert rules.allows(*question, without_acls=without_acls) == reference.allows(
                *question, without_acls=without_acls
            ), (seed, question, without_acls, reference.acls)
            of_type = (who, host, operation, kind)
            assert rules.allows_any(*of_type, without_acls=without_acls) == reference.allows_any(
                *of_type, without_acls=without_acls
            ), (seed, of_type, without_acls, reference.acls)
