"""How long the frames of a re-authentication may be."""

from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from tests.doubles.network import metadata_request
from tests.unit.broker.security.sasl.test_session import handshake, log_in, scene


async def test_a_renewal_takes_frames_as_short_as_the_first_authentication() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 3_600_000
        client = await network.connect()
        await log_in(client)
        assert (await handshake(client)).error_code == ErrorCode.NONE
        client.send(SaslAuthenticateRequest(auth_bytes=bytes(20_000)), 1)
        assert await client.is_closed()
        await network.until(lambda: network.channel.in_progress_bytes == 0)
        assert made.statistics.failed_authentications == 0  # no token was read


async def test_after_a_renewal_frames_of_full_size_are_taken() -> None:
    async with scene() as (made, network):
        made.lifetime_ms = 3_600_000
        client = await network.connect()
        await log_in(client)
        await log_in(client)
        response = await client.ask(metadata_request("t" * 20_000), 1)
        assert response.topics[0].name == "User:anna"
