"""Access control of one broker, or its absence; what the rest of the broker sees of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ottla.broker.requests.request_context import OnCluster
from ottla.broker.security.authorization.acl_rules import AclRules
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.broker.cluster.metadata_cache import MetadataCache
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.unusable_znodes import UnusableZnodes
    from ottla.broker.requests.bulk_requests import EarlyCheck
    from ottla.broker.requests.request_context import HandlerEntry, RequestContext
    from ottla.broker.security.audit.security_log import SecurityLog
    from ottla.broker.security.authorization.acl_store import AclStore
    from ottla.broker.security.authorization.acl_types import Operation, ResourceType
    from ottla.broker.security.authorization.guard import Guard
    from ottla.controller.runtime import Runtime
    from ottla.controller.tree.store import ZnodeStore

Allows = Callable[["RequestContext", "Operation", "ResourceType", str], bool]
# For a request, and whether it is a follower's: which topics its sender may read.
MayRead = Callable[["RequestContext", bool], Callable[[str], bool]]
# For a request of a member of a share group, and that group.
MayReadShares = Callable[["RequestContext", str], Callable[[str], bool]]
# For a connection and an API key: whether its client could be allowed to send that API.
MaySend = Callable[[Any, int], bool]


def allow_all(context: RequestContext, operation: Operation, kind: ResourceType, name: str) -> bool:
    """The `Allows` of a broker without an authorizer."""
    return True


def may_read_all(context: RequestContext, is_follower: bool) -> Callable[[str], bool]:
    """The `MayRead` of a broker without an authorizer."""
    return lambda topic: True


def may_read_all_shares(context: RequestContext, group_id: str) -> Callable[[str], bool]:
    """The `MayReadShares` of a broker without an authorizer."""
    return lambda topic: True


class AccessControl:
    """Without `authorizer.class.name` there is no `store` and everything is allowed."""

    def __init__(
        self,
        config: BrokerConfig,
        store: ZnodeStore,
        runtime: Runtime,
        metadata: MetadataCache,
        log: SecurityLog,
        unusable: UnusableZnodes,
    ) -> None:
        self.rules = AclRules()
        self.store: AclStore | None = None
        self.may_read: MayRead = may_read_all
        self.may_read_shares: MayReadShares = may_read_all_shares
        self.allows: Allows = allow_all
        #: The same without a line in the security log.
        self.allows_silently: Allows = allow_all
        #: The checks, by API key, that read nothing of the request; `protect` adds them.
        self.checks_on_cluster: dict[int, EarlyCheck] = {}
        #: Whether the client of a connection may send an API at all; None without an authorizer.
        self.may_send: MaySend | None = None
        self._guards: tuple[Guard, ...] = ()
        self._protect_produce: Callable[[HandlerEntry], HandlerEntry] | None = None
        if not config.authorizer_class_name:
            return
        # Only now: most brokers have none of it.
        from ottla.broker.config.rules import parse_super_users
        from ottla.broker.security.authorization.acl_store import AclStore
        from ottla.broker.security.authorization.admin_guard import AdminGuard
        from ottla.broker.security.authorization.authorizer import Authorizer
        from ottla.broker.security.authorization.data_guard import DataGuard
        from ottla.broker.security.authorization.group_guard import GroupGuard

        self.store = AclStore(store, runtime, self.rules, unusable)
        authorizer = Authorizer(
            self.rules,
            log,
            parse_super_users(config.super_users),
            allow_everyone_if_no_acl_found=config.allow_everyone_if_no_acl_found,
        )
        self.allows = authorizer.allows
        self.may_send = authorizer.may_send
        self.allows_silently = partial(authorizer.allows, log_if_denied=False)
        data = DataGuard(authorizer, metadata, auto_create=config.auto_create_topics_enable)
        self.may_read = data.may_read
        self.may_read_shares = data.may_read_shares
        self._protect_produce = data.protect_produce
        self._guards = (data, GroupGuard(authorizer), AdminGuard(authorizer, metadata))

    def protect(self, table: list[HandlerEntry]) -> list[HandlerEntry]:
        """The handler table with the check that its route names in front of every handler."""
        protect_produce = self._protect_produce
        if protect_produce is None:
            return table
        from ottla.broker.security.authorization.guard import check_of, protect

        protected = []
        for entry in table:
            if entry.before_authentication:
                protected.append(entry)
            elif entry.api_key == ApiKey.PRODUCE:
                protected.append(protect_produce(entry))
            else:
                check = check_of(entry, self._guards)
                if isinstance(entry.check, OnCluster):
                    self.checks_on_cluster[entry.api_key] = check
                protected.append(protect(entry, check))
        return protected

    async def start(self) -> None:
        """Read the ACLs; before the first client is served."""
        if self.store is not None:
            await self.store.start()

    def stop(self) -> None:
        if self.store is not None:
            self.store.stop()
