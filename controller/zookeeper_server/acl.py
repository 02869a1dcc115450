"""Who may do what with a znode: ZooKeeper's schemes world, auth, digest and ip.

A znode with the open ACL (``world:anyone`` with all permissions) is kept without one.
"""

import base64
import hashlib
from ipaddress import ip_address, ip_network

from ottla.controller.tree.store import Acl
from ottla.controller.zookeeper_server.codes import (
    ALL_PERMISSIONS,
    Code,
    Permission,
    RequestError,
)

OPEN = (Acl(ALL_PERMISSIONS, "world", "anyone"),)
MAX_ENTRIES = 1000
"""More would make each access to the znode slow; ZooKeeper's limit is the size of the request."""

Identity = tuple[str, str]
"""Scheme and name of what a client has proved, such as ``("digest", "user:hash")``."""


def digest(user_and_password: bytes) -> str:
    """``user:password`` -> ``user:`` and the Base64 of the SHA-1, as ZooKeeper has it."""
    user = user_and_password.partition(b":")[0].decode(errors="replace")
    return f"{user}:{base64.b64encode(hashlib.sha1(user_and_password).digest()).decode()}"


def effective_acl(requested: tuple[Acl, ...], identities: list[Identity]) -> tuple[Acl, ...] | None:
    """What is kept for a new znode, None for the open ACL; raises INVALID_ACL.

    The scheme ``auth`` stands for the identities of the client.
    """
    if not requested or len(requested) > MAX_ENTRIES:
        raise RequestError(Code.INVALID_ACL)
    entries: list[Acl] = []
    for entry in requested:
        if entry.scheme == "auth":
            if not identities:
                raise RequestError(Code.INVALID_ACL)
            entries += [Acl(entry.permissions, *identity) for identity in identities]
        elif not _is_valid(entry):
            raise RequestError(Code.INVALID_ACL)
        else:
            entries.append(entry)
    unique = tuple(dict.fromkeys(entries))
    return None if unique == OPEN else unique


def _is_valid(entry: Acl) -> bool:
    if entry.scheme == "world":
        return entry.name == "anyone"
    if entry.scheme == "digest":
        return len(entry.name.split(":")) == 2
    if entry.scheme == "ip":
        try:
            ip_network(entry.name, strict=False)
        except ValueError:
            return False
        return True
    return False


def is_permitted(
    entries: tuple[Acl, ...] | None,
    permission: Permission | int,
    identities: list[Identity],
    address: str,
) -> bool:
    if entries is None:
        return True
    return any(
        entry.permissions & permission and _matches(entry, identities, address) for entry in entries
    )


def _matches(entry: Acl, identities: list[Identity], address: str) -> bool:
    if entry.scheme == "world":
        return True
    if entry.scheme == "ip":
        return ip_address(address) in ip_network(entry.name, strict=False)
    return (entry.scheme, entry.name) in identities
