"""Translates kazoo's exceptions to those of the store."""

from ottla.controller.tree.store import (
    BadVersion,
    ConnectionLost,
    InvalidPath,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    SessionExpired,
    StoreError,
)

_TRANSLATIONS: dict[str, type[StoreError]] = {
    "NoNodeError": NoNode,
    "NodeExistsError": NodeExists,
    "BadVersionError": BadVersion,
    "NotEmptyError": NotEmpty,
    "NoChildrenForEphemeralsError": NoChildrenForEphemerals,
    "NoAuthError": NotPermitted,
    "AuthFailedError": NotPermitted,
    "InvalidACLError": NotPermitted,
    "BadArgumentsError": InvalidPath,
    "ValueError": InvalidPath,  # kazoo's, for a path that it does not send
    "SessionExpiredError": SessionExpired,
    "SessionMovedError": ConnectionLost,
    "ConnectionLoss": ConnectionLost,
    "ConnectionClosedError": ConnectionLost,
    "ConnectionDropped": ConnectionLost,
    "OperationTimeoutError": ConnectionLost,
}


def is_connection_loss(error: BaseException | None) -> bool:
    return error is not None and _translated(error) is ConnectionLost


def _translated(error: BaseException) -> type[StoreError]:
    for base in type(error).__mro__:
        if base.__name__ in _TRANSLATIONS:
            return _TRANSLATIONS[base.__name__]
    return StoreError


def error_from(error: BaseException, path: str) -> StoreError:
    """The error of the store for one of kazoo's; the message has the path."""
    if isinstance(error, StoreError):
        return error
    translated = _translated(error)
    if translated is NoNode:
        return NoNode(path, f"{path} or its parent does not exist")
    if translated is NodeExists:
        return NodeExists(path, f"{path} exists already")
    if translated is BadVersion:
        return BadVersion(path, f"{path} does not have the expected version")
    if translated is NotPermitted:
        return NotPermitted(
            path,
            f"ZooKeeper denied the operation on {path or 'the tree'}: check the "
            f"credentials for ZooKeeper and zookeeper.set.acl ({error or type(error).__name__})",
        )
    return translated(path, f"{path or 'ZooKeeper'}: {error or type(error).__name__}")
