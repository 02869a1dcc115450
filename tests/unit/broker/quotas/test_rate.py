import pytest

from ottla.broker.quotas.rate import Rate, TokenBucket

# (moment, value recorded, rate measured right afterwards), taken from Apache Kafka 3.9.1's `Rate`
# with 4 samples of 3 seconds.
AS_KAFKA = [
    (10109, 341, 37.888888888888886),
    (10485, 36, 40.209044368600686),
    (11207, 177, 54.862348979996035),
    (13993, 27, 58.781869688385264),
    (14539, 620, 115.14860977948227),
    (19470, 714, 204.5721610939002),
    (19828, 808, 280.17285728984467),
    (19971, 457, 322.4498073413101),
    (20147, 162, 332.934847579199),
    (20881, 797, 384.23691050872634),
    (21283, 263, 393.95024163236087),
    (31441, 648, 321.52702364046445),
    (31677, 926, 391.16900139264357),
    (31895, 61, 389.215291750503),
    (32246, 707, 433.8603631809643),
    (42336, 383, 250.11473152822396),
]


class TestRate:
    def test_it_measures_what_kafka_measures(self) -> None:
        rate = Rate(window_count=4, window_ms=3000)
        for now_ms, value, measured in AS_KAFKA:
            rate.record(value, now_ms)
            assert rate.per_second(now_ms) == pytest.approx(measured, rel=1e-12)

    def test_at_first_it_divides_by_all_windows_but_the_one_being_filled(self) -> None:
        rate = Rate()
        rate.record(1000, 0)
        assert rate.per_second(0) == 100
        assert rate.per_second(9_999) == pytest.approx(1000 / 10.999)

    def test_it_looks_back_over_all_windows(self) -> None:
        rate = Rate()
        for second in range(20):
            rate.record(100, second * 1000)
        # Eleven samples of 100; the oldest began 10.5 seconds ago.
        assert rate.per_second(19_500) == pytest.approx(1100 / 10.5)

    def test_what_is_old_does_not_count(self) -> None:
        rate = Rate()
        rate.record(500, 0)
        assert not rate.is_idle(10_999)
        assert rate.per_second(11_000) == 0
        assert rate.is_idle(11_000)

    def test_taking_back(self) -> None:
        rate = Rate()
        rate.record(500, 0)
        rate.record(-500, 10)
        assert rate.per_second(20) == 0

    def test_the_throttle_time_brings_the_rate_down_to_the_limit(self) -> None:
        rate = Rate()
        rate.record(3000, 0)
        assert rate.throttle_ms(300, 0) == 0
        wait_ms = rate.throttle_ms(290, 0)
        assert wait_ms == round(10 / 290 * 10_000)
        assert rate.per_second(10_000 + wait_ms) == pytest.approx(290, abs=0.5)

    def test_a_limit_of_nothing_throttles_for_all_windows(self) -> None:
        rate = Rate(window_count=3, window_ms=500)
        assert rate.throttle_ms(0, 0) == 0
        rate.record(1, 0)
        assert rate.throttle_ms(0, 0) == 1500

    @pytest.mark.parametrize("wrong", [{"window_count": 0}, {"window_ms": 0}])
    def test_nonsense_is_refused(self, wrong: dict[str, int]) -> None:
        with pytest.raises(ValueError, match="at least one window"):
            Rate(**wrong)


class TestTokenBucket:
    def test_it_starts_full_and_refills_steadily(self) -> None:
        bucket = TokenBucket()
        bucket.take(110, 10, 110, now_ms=0)
        assert bucket.wait_ms(10, 110, now_ms=0) == 0
        bucket.take(50, 10, 110, now_ms=0)
        assert bucket.wait_ms(10, 110, now_ms=0) == 5_000
        assert bucket.wait_ms(10, 110, now_ms=4_000) == 1_000
        assert bucket.wait_ms(10, 110, now_ms=5_000) == 0

    def test_it_never_holds_more_than_a_burst(self) -> None:
        bucket = TokenBucket()
        bucket.take(0, 10, 110, now_ms=0)
        bucket.take(111, 10, 110, now_ms=3_600_000)
        assert bucket.wait_ms(10, 110, now_ms=3_600_000) == 100

    def test_without_a_rate_a_debt_is_never_paid(self) -> None:
        bucket = TokenBucket()
        bucket.take(1, 0, 0, now_ms=0)
        assert bucket.wait_ms(0, 0, now_ms=10_000) == 2**31 - 1
