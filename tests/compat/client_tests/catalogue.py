"""The suites, in the order of the page."""

from __future__ import annotations

from tests.compat.client_tests import aiokafka, kafka_go, kafka_python, sarama
from tests.compat.client_tests.model import Suite

SUITES: tuple[Suite, ...] = (
    kafka_python.SUITE,
    aiokafka.SUITE,
    kafka_go.SUITE,
    sarama.SUITE,
)
