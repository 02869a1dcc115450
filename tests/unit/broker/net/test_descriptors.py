import resource

from ottla.broker.net.descriptors import LEAST_RESERVED, MOST_RESERVED, DescriptorReserve


def test_clients_leave_the_reserve_and_brokers_half_of_it() -> None:
    reserve = DescriptorReserve(1024)
    assert reserve.reserved == 128
    assert reserve.has_room(895, protected=False)
    assert not reserve.has_room(896, protected=False)
    assert reserve.has_room(896, protected=True)
    assert not reserve.has_room(960, protected=True)


def test_the_reserve_has_bounds() -> None:
    assert DescriptorReserve(100).reserved == LEAST_RESERVED
    assert DescriptorReserve(10**9).reserved == MOST_RESERVED
    assert DescriptorReserve(resource.RLIM_INFINITY).has_room(10**6, protected=False)
    assert DescriptorReserve().limit > 0


def test_whether_others_have_used_the_reserve() -> None:
    assert not DescriptorReserve(10**6).is_used()
    assert DescriptorReserve(LEAST_RESERVED).is_used()  # more than that are open in any process
