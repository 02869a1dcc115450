"""InitProducerId in every version."""

import pytest

from ottla.broker.transactions.state import Producer
from ottla.protocol.errors import ErrorCode
from tests.unit.broker.handlers.transactions.broker import Broker


@pytest.mark.parametrize("version", range(6))
def test_a_producer_starts(version: int) -> None:
    broker = Broker()
    response = broker.init(version, None)
    assert (response.error_code, response.producer_id, response.producer_epoch) == (0, 100, 0)
    assert broker.init(version).producer_epoch == 0
    assert broker.init(version).producer_epoch == 1


@pytest.mark.parametrize("version", range(3, 6))
def test_a_producer_continues(version: int) -> None:
    broker = Broker()
    response = broker.init(version)
    producer = Producer(response.producer_id, response.producer_epoch)
    assert broker.init(version, producer=producer).producer_epoch == 1
    fenced = broker.init(version, producer=Producer(producer.producer_id, 9))
    known = ErrorCode.PRODUCER_FENCED if version >= 4 else ErrorCode.INVALID_PRODUCER_EPOCH
    assert (fenced.error_code, fenced.producer_id, fenced.producer_epoch) == (known, -1, -1)
    for half in (Producer(7, -1), Producer(-1, 7)):
        assert broker.init(version, producer=half).error_code == ErrorCode.INVALID_REQUEST
