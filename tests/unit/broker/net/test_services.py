from ottla.broker.net.connection import READ_BYTES
from ottla.broker.net.services import ListenerFacts
from tests.doubles.network import running_network


def test_the_first_frames_may_not_be_longer_than_any() -> None:
    assert ListenerFacts("A").first_frame_max_bytes == 524_288
    assert ListenerFacts("A", request_max_bytes=1_000).first_frame_max_bytes == 1_000


async def test_all_connections_read_into_one_buffer() -> None:
    async with running_network() as network:
        await network.connect()
        await network.connect()
        await network.until(lambda: len(network.server.connections) == 2)
        first, second = network.server.connections
        assert first._services is second._services
        assert len(first._services.receive_buffer) == READ_BYTES
