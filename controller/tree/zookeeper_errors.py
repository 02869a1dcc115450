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
    "RequestTimeoutError": ConnectionLost,
    "SessionClosedRequireSaslError": NotPermitted,
}

_SENTENCES = {
    "NoNodeError": "the znode does not exist",
    "NodeExistsError": "the znode exists already",
    "BadVersionError": "the znode has another version",
    "RolledBackError": "another operation of the transaction failed",
    "SystemZookeeperError": "the server has failed; its log says why",
    "RuntimeInconsistency": "the server found its state to be inconsistent; its log says more",
    "DataInconsistency": "the server found its data to be inconsistent; its log says more",
    "MarshallingError": "the server could not read the request, or the client the response",
    "UnimplementedError": "the server does not know this request: it is older than ZooKeeper "
    "3.4.14, or a setting of it switches the request off",
    "NoChildrenForEphemeralsError": "an ephemeral znode cannot have children",
    "NotEmptyError": "the znode has children",
    "UnknownSessionError": "the server does not know the session",
    "InvalidCallbackError": "the server rejected the callback",
    "NotReadOnlyCallError": "the server has lost its quorum and serves reads only",
    "EphemeralOnLocalSessionError": "the session is local to one server, where no ephemeral znode "
    "can be created; set localSessionsUpgradingEnabled=true on the servers",
    "NewConfigNoQuorumError": "the ensemble has no quorum for a new configuration",
    "ReconfigInProcessError": "the ensemble is being reconfigured",
    "ReconfigDisabledError": "the ensemble does not allow reconfiguration",
    "NoWatcherError": "the server does not have the watch",
    "QuotaExceededError": "the znodes have reached a quota of the ZooKeeper server (setquota)",
    "ThrottledOpError": "the server is overloaded and dropped the request",
    "RequestTimeoutError": "the server did not complete the request in time",
    "SessionMovedError": "the session has moved to another server",
    "SessionExpiredError": "the session has expired",
    "ConnectionLoss": "the connection was lost before the response",
    "ConnectionClosedError": "the connection is closed",
    "ConnectionDropped": "the connection was lost",
    "OperationTimeoutError": "no response in time",
    "BadArgumentsError": "the server does not accept the path or the data",
    "InvalidACLError": "the server rejects the ACL of the znode; the broker may not be "
    "authenticated (zookeeper.set.acl)",
    "AuthFailedError": "the server refused the credentials",
    "NoAuthError": "the ACL of the znode does not allow it",
    "SessionClosedRequireSaslError": "the server serves clients with a SASL login only; name a "
    "JAAS file with a Client section in KAFKA_OPTS",
    "ZookeeperError": "the server reported an error of a kind that is not documented",
}
"""Kazoo's exceptions have no text."""


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
            f"credentials for ZooKeeper and zookeeper.set.acl ({sentence(error)})",
        )
    return translated(path, f"{path or 'ZooKeeper'}: {sentence(error)}")


def exception_of(code: int) -> Exception:
    """Kazoo's exception for an error code of ZooKeeper."""
    from kazoo.exceptions import EXCEPTIONS, ZookeeperError

    found: Exception = EXCEPTIONS[code]() if code in EXCEPTIONS else ZookeeperError(str(code))
    return found


def sentence(error: BaseException) -> str:
    """The cause as text: never empty."""
    text = str(error)
    if text and not isinstance(error, KeyError):
        return text
    for base in type(error).__mro__:
        if base.__name__ in _SENTENCES:
            return _SENTENCES[base.__name__]
    return f"{type(error).__name__} {text}".strip()
