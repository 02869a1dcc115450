"""The listeners of a broker: opened at the start, added and removed at run time (KIP-226)."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from ottla.broker.cluster.identity import broker_info, wildcard_listeners
from ottla.broker.config.errors import ConfigError
from ottla.broker.config.listeners import is_of_login
from ottla.broker.config.sasl import max_receive_size
from ottla.broker.net.listener import ListenError
from ottla.broker.runtime.tasks import spawn
from ottla.controller.registration import AdvertisedAddressTaken, check_advertised_addresses
from ottla.controller.tree.store import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ottla.broker.cluster.endpoints import Endpoints
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.config.listeners import Endpoint
    from ottla.broker.net.server import NetworkServer
    from ottla.broker.requests.request_context import Principal
    from ottla.broker.runtime.timer import DelayQueue
    from ottla.broker.security.sasl.listeners import SaslListeners
    from ottla.broker.security.sasl.session import NewSession
    from ottla.broker.security.tls.late_tls import LateTls
    from ottla.broker.server.quota_limits import QuotaLimits
    from ottla.controller.model import BrokerInfo
    from ottla.controller.registration import BrokerRegistration

logger = logging.getLogger("ottla.broker")

# How long a broker waits that could not write its new addresses to ZooKeeper.
_RETRY_MS = 1_000


class OpenListeners:
    """Opens and closes listeners as the settings name them. Loop only."""

    def __init__(
        self,
        config: BrokerConfig,
        broker_id: int,
        timer: DelayQueue,
        tls: LateTls,
        quotas: QuotaLimits,
        server: NetworkServer,
        endpoints: Endpoints,
        registration: BrokerRegistration,
        new_sasl: Callable[[], SaslListeners],
    ) -> None:
        """`new_sasl` is called for the first SASL listener."""
        #: The port of each open listener by name.
        self.ports: dict[str, int] = {}
        self._config = config
        self._broker_id = broker_id
        self._timer = timer
        self._tls = tls
        self._quotas = quotas
        self._server = server
        self._endpoints = endpoints
        self._registration = registration
        self._new_sasl = new_sasl
        self._sasl: SaslListeners | None = None
        self._is_changed = False
        self._is_applying = False
        self._stopped = False

    def open_all(self) -> None:
        """Binds all listeners of a broker that starts. Raises ConfigError or ListenError."""
        for endpoint in self._config.listener_endpoints():
            self._open(endpoint)
        self._registration.info = self._info()

    async def start_sasl(self) -> None:
        """Reads what is not in the settings: keys of issuers. Raises ConfigError."""
        if self._sasl is not None:
            await self._sasl.start()

    def stop(self) -> None:
        """Nothing changes after this."""
        self._stopped = True
        if self._sasl is not None:
            self._sasl.stop()

    def changed(self) -> None:
        """Opens, closes and registers what the settings name otherwise than before, in a task."""
        self._is_changed = True
        if not self._is_applying and not self._stopped:
            self._is_applying = True
            spawn(self._apply_changes(), name="listeners")

    def settings_changed(self, names: Sequence[str]) -> None:
        """New connections of open listeners authenticate as changed settings say."""
        wants_keys = False
        for endpoint in self._config.listener_endpoints():
            name = endpoint.listener_name
            if name not in self.ports or not any(is_of_login(each, name) for each in names):
                continue
            try:
                principal_of_certificate, new_session = self._authentication(endpoint)
                limit = max_receive_size(self._config, name)
            except ConfigError as error:
                logger.error("Listener %s authenticates clients as before: %s", name, error)
                continue
            self._server.renew_authentication(name, principal_of_certificate, new_session, limit)
            wants_keys |= new_session is not None
        if wants_keys:
            spawn(self._read_keys(), name="listener-keys")

    async def _read_keys(self) -> None:
        try:
            await self.start_sasl()
        except ConfigError as error:
            logger.error("A changed listener rejects bearer tokens: %s", error)

    def validate(self, config: BrokerConfig, names: Sequence[str]) -> None:
        """Raises ConfigError when an open listener could not authenticate clients with `config`, in
        which the settings `names` changed."""
        for endpoint in config.listener_endpoints():
            name = endpoint.listener_name
            if name not in self.ports or not endpoint.uses_sasl or self._sasl is None:
                continue
            if any(is_of_login(each, name) for each in names):
                self._sasl.validate(config, name)

    def _authentication(
        self, endpoint: Endpoint
    ) -> tuple[Callable[[bytes], Principal] | None, NewSession | None]:
        """The authentication of clients on a listener: by certificate, or SASL."""
        name = endpoint.listener_name
        if endpoint.uses_sasl:
            if self._sasl is None:
                self._sasl = self._new_sasl()
            return None, self._sasl.new_session(name)
        if endpoint.uses_tls:
            return self._tls.listeners().listener(name).principal_of_certificate, None
        return None, None

    async def _apply_changes(self) -> None:
        try:
            while self._is_changed and not self._stopped:
                self._is_changed = False
                await self._apply()
        finally:
            self._is_applying = False

    async def _apply(self) -> None:
        wanted = {each.listener_name: each for each in self._config.listener_endpoints()}
        for name in [name for name in self.ports if name not in wanted]:
            self._close(name)
        new = [each for name, each in wanted.items() if name not in self.ports]
        self._quotas.apply_listeners(self._config)
        for endpoint in new:
            try:
                self._open(endpoint)
            except (ConfigError, ListenError) as error:
                logger.error("Cannot add the listener %s: %s", endpoint, error)
            else:
                logger.info(
                    "Added the listener %s with port %d",
                    endpoint,
                    self.ports[endpoint.listener_name],
                )
        self._endpoints.wildcard_listeners = wildcard_listeners(
            self._config, self._endpoints.container
        )
        if any(each.uses_sasl for each in new):
            try:
                await self.start_sasl()
            except ConfigError as error:
                logger.error("A new listener rejects bearer tokens: %s", error)
        await self._register()

    async def _register(self) -> None:
        """Writes changed addresses to the znode of this broker; the controller reads them there."""
        info, registration = self._info(), self._registration
        if info.endpoints == registration.info.endpoints and registration.is_written:
            return
        try:
            await check_advertised_addresses(registration.store, info)
            await registration.update(info)
        except AdvertisedAddressTaken as error:
            logger.error("The advertised listeners stay as they were: %s", error)
        except StoreError as error:
            logger.warning("Cannot register the changed listeners, retrying: %s", error)
            self._timer.schedule(_RETRY_MS, self.changed)
        else:
            logger.info(
                "Registered the listeners %s", ", ".join(str(each) for each in info.endpoints)
            )

    def _info(self) -> BrokerInfo:
        """A listener that could not be opened is not advertised."""
        return broker_info(self._config, self._broker_id, self.ports)

    def _open(self, endpoint: Endpoint) -> None:
        """Raises ConfigError or ListenError, and leaves nothing of the listener then."""
        try:
            port = self._bind(endpoint)
        except (ConfigError, ListenError):
            self._forget(endpoint.listener_name)
            raise
        self.ports[endpoint.listener_name] = port

    def _bind(self, endpoint: Endpoint) -> int:
        name, protocol, host, port = endpoint
        tls = self._tls.listeners().listener(name) if endpoint.uses_tls else None
        principal_of_certificate, new_session = self._authentication(endpoint)
        server = self._server
        bound = server.add_listener(
            name,
            host,
            port,
            security_protocol=protocol,
            limits=self._quotas.listeners[name],
            tls_context=None if tls is None else tls.context,
            principal_of_certificate=principal_of_certificate,
            new_session=new_session,
            first_frame_max_bytes=max_receive_size(self._config, name),
        )
        worker = self._config.worker
        if worker is not None and name in worker.bootstrap:
            server.add_bootstrap_port(name, host, worker.bootstrap[name])
        if tls is not None:
            self._tls.listeners().on_renewed(name, partial(server.renew_tls, name))
        return bound

    def _close(self, name: str) -> None:
        del self.ports[name]
        self._forget(name)
        logger.info("Removed the listener %s", name)

    def _forget(self, name: str) -> None:
        self._tls.forget(name)
        if self._sasl is not None:
            self._sasl.forget(name)
        self._server.remove_listener(name)
