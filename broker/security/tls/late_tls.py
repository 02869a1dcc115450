"""TLS of a broker whose first listener with it may be opened at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import ssl

    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.broker.security.tls.certificate_dates import CertificateDates
    from ottla.broker.security.tls.listener_tls import ListenerTls


class LateTls:
    """Makes `ListenerTls` for the first listener with TLS: without one `ssl` is not imported."""

    def __init__(self, config: BrokerConfig) -> None:
        """Raises ConfigError when a listener of the settings has no usable keys."""
        self._config = config
        self._made: ListenerTls | None = None
        if any(each.uses_tls for each in config.listener_endpoints()):
            self.listeners()

    def listeners(self) -> ListenerTls:
        """For listeners with TLS. Raises ConfigError."""
        if self._made is None:
            from ottla.broker.security.tls.listener_tls import ListenerTls

            self._made = ListenerTls(self._config)
        return self._made

    def peer(self) -> ssl.SSLContext | None:
        """How other brokers are reached from now on; None: without TLS."""
        return None if self._made is None else self._made.peer()

    def certificates(self) -> dict[str, CertificateDates]:
        """When the certificate of each listener with TLS is valid, by the listener's name."""
        return {} if self._made is None else self._made.certificates()

    def forget(self, listener_name: str) -> None:
        """A listener is closed."""
        if self._made is not None:
            self._made.forget(listener_name)

    def check(self) -> None:
        """Reads again what has changed since the last look."""
        if self._made is not None:
            self._made.check()

    def settings_changed(self, names: list[str]) -> None:
        """Makes contexts again whose settings changed at run time."""
        if self._made is not None:
            self._made.settings_changed(names)

    def validate(self, config: BrokerConfig, names: list[str]) -> None:
        """ConfigError when the changed settings `names`, in `config`, make no usable contexts of
        the open listeners, or when a new listener of `config` has none."""
        if self._made is not None:
            self._made.validate(config, names)
        known = {each.listener_name for each in self._config.listener_endpoints()}
        for endpoint in config.listener_endpoints():
            if endpoint.uses_tls and endpoint.listener_name not in known:
                from ottla.broker.security.tls.contexts import listener_context

                listener_context(config, endpoint.listener_name)
