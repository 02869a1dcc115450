"""The suites, in the order of the page, and those that cannot be obtained."""

from __future__ import annotations

from tests.compat.client_tests import kafka_go, kafka_python, sarama
from tests.compat.client_tests.model import Suite

SUITES: tuple[Suite, ...] = (kafka_python.SUITE, kafka_go.SUITE, sarama.SUITE)

#: Suites without a row of results, and why.
NOT_RUN: tuple[tuple[str, str], ...] = (
    ("aiokafka", "its source distribution on PyPI is without the tests"),
)
