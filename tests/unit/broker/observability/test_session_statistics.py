from collections.abc import Callable

from ottla.broker.metrics.statistics import MetricsRegistry
from ottla.broker.observability.metrics_sources import SessionStatistics, add_session


class Store:
    def on_session(self, callback: Callable[[str], None]) -> None:
        self.notify = callback


def test_states_and_how_often_they_began() -> None:
    store, registry = Store(), MetricsRegistry()
    session = SessionStatistics(store)
    add_session(registry, session)
    for event in ("suspended", "connected", "suspended", "expired", "strange"):
        store.notify(event)
    found = {metric.exposed_name: metric.read() for metric in registry.metrics}
    assert found == {
        "ottla_zookeeper_session_state": {
            ("connected",): 0,
            ("suspended",): 0,
            ("expired",): 1,
        },
        "ottla_zookeeper_disconnects_total": 2,
        "ottla_zookeeper_session_expirations_total": 1,
    }
