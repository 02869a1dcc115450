from ottla.broker.cluster.broker_epoch import UNKNOWN_BROKER_EPOCH, BrokerEpoch


def test_it_is_unknown_until_the_broker_is_registered() -> None:
    epoch = BrokerEpoch()
    assert epoch.value == UNKNOWN_BROKER_EPOCH
    epoch.registered(7)
    assert epoch.value == 7
    epoch.registered(9)
    assert epoch.value == 9
