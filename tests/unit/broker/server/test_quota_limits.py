"""What the settings make of quotas and connection limits."""

from __future__ import annotations

from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.quotas.connection_quotas import ConnectionLimits, ListenerLimits
from ottla.broker.server.quota_limits import build_quotas


def test_rates_of_connections_are_measured_over_the_windows_of_quotas() -> None:
    config = BrokerConfig(
        {
            "quota.window.num": "2",
            "quota.window.size.seconds": "1",
            "max.connection.creation.rate": "10",
            "listener.name.plaintext.max.connection.creation.rate": "10",
        }
    )
    parts = build_quotas(config)
    (listener,) = parts.listeners.values()
    for limits, alone in ((parts.connections, ListenerLimits()), (ConnectionLimits(), listener)):
        for _ in range(11):
            limits.admit(alone, "10.0.0.1", 0)
        # Over one second, not over ten.
        assert limits.accept_delay_ms(alone, 0) > 0
