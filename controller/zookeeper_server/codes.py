"""Numbers of ZooKeeper's client protocol, with the names of `ZooDefs` and `KeeperException`."""

from enum import IntEnum

from ottla.controller.tree.store import (
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NoNode,
    NotEmpty,
    NotPermitted,
    SessionExpired,
    StoreError,
)


class OpCode(IntEnum):
    CREATE = 1
    DELETE = 2
    EXISTS = 3
    GET_DATA = 4
    SET_DATA = 5
    GET_ACL = 6
    SET_ACL = 7
    GET_CHILDREN = 8
    SYNC = 9
    PING = 11
    GET_CHILDREN2 = 12
    CHECK = 13
    MULTI = 14
    CREATE2 = 15
    CHECK_WATCHES = 17
    REMOVE_WATCHES = 18
    MULTI_READ = 22
    AUTH = 100
    SET_WATCHES = 101
    GET_EPHEMERALS = 103
    GET_ALL_CHILDREN_NUMBER = 104
    SET_WATCHES2 = 105
    ADD_WATCH = 106
    WHO_AM_I = 107
    CLOSE_SESSION = -11
    ERROR = -1
    """In the results of a multi."""


class Xid(IntEnum):
    """Ids that are not those of a request."""

    NOTIFICATION = -1
    PING = -2
    AUTH = -4
    SET_WATCHES = -8


class Code(IntEnum):
    OK = 0
    RUNTIME_INCONSISTENCY = -2
    MARSHALLING_ERROR = -5
    UNIMPLEMENTED = -6
    BAD_ARGUMENTS = -8
    NO_NODE = -101
    NO_AUTH = -102
    BAD_VERSION = -103
    NO_CHILDREN_FOR_EPHEMERALS = -108
    NODE_EXISTS = -110
    NOT_EMPTY = -111
    SESSION_EXPIRED = -112
    INVALID_ACL = -114
    AUTH_FAILED = -115
    NO_WATCHER = -121


class Permission(IntEnum):
    READ = 1
    WRITE = 2
    CREATE = 4
    DELETE = 8
    ADMIN = 16


ALL_PERMISSIONS = 31


class RequestError(Exception):
    """A request that is refused with this code."""

    def __init__(self, code: Code) -> None:
        super().__init__(code.name)
        self.code = code


_CODES: dict[type[StoreError], Code] = {
    NoNode: Code.NO_NODE,
    NodeExists: Code.NODE_EXISTS,
    BadVersion: Code.BAD_VERSION,
    NotEmpty: Code.NOT_EMPTY,
    NoChildrenForEphemerals: Code.NO_CHILDREN_FOR_EPHEMERALS,
    NotPermitted: Code.NO_AUTH,
    SessionExpired: Code.SESSION_EXPIRED,
}


def code_of(error: StoreError) -> Code:
    return _CODES.get(type(error), Code.RUNTIME_INCONSISTENCY)
