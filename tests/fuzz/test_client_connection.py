"""Fuzz of what a client reads from the other side. The invariant: any bytes at any time give
responses or a ClientError, never anything else, and memory grows with the bytes and not with what
they claim.
"""

import random
import tracemalloc

import pytest

from ottla.protocol.client.connection import ClientConnection
from ottla.protocol.client.errors import ClientError
from ottla.protocol.client.sasl import ScramMechanism
from ottla.protocol.framing import FrameSplitter
from ottla.protocol.messages.list_groups import ListedGroup, ListGroupsRequest, ListGroupsResponse
from ottla.protocol.messages.sasl_authenticate import SaslAuthenticateResponse
from ottla.protocol.messages.sasl_handshake import SaslHandshakeResponse
from ottla.protocol.registry import ApiKey
from tests.doubles.scripted_broker import ScriptedBroker

SIZES = (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\0\0\0\0", b"\0\0\0\x04")


def damage(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        position = rng.randrange(len(out) + 1)
        kind = rng.randrange(4)
        if kind == 0:
            out[position : position + 1] = rng.randbytes(1)
        elif kind == 1:
            del out[position : position + rng.choice((1, 4, 50))]
        elif kind == 2:
            out[position:position] = rng.randbytes(rng.choice((1, 5)))
        else:
            out[position : position + 4] = rng.choice(SIZES)
    return bytes(out)


def responses(broker: ScriptedBroker, output: bytes) -> list[bytes]:
    splitter = FrameSplitter(1 << 20)
    splitter.feed(output)
    found: list[bytes] = []
    while (frame := splitter.next_frame()) is not None:
        response = broker.response(frame)
        assert isinstance(response, bytes)
        found.append(response)
    return found


def converse(rng: random.Random, *, sasl: bool, damaged_turn: int) -> None:
    """A conversation in which one response is damaged."""
    broker = ScriptedBroker()
    broker.responses[ApiKey.SASL_HANDSHAKE] = SaslHandshakeResponse(mechanisms=["SCRAM-SHA-256"])
    broker.responses[ApiKey.SASL_AUTHENTICATE] = SaslAuthenticateResponse(
        auth_bytes=b"r=nonce-server,s=c2FsdA==,i=4096"
    )
    groups = [ListedGroup(f"group-{index}", "consumer") for index in range(5)]
    broker.responses[ApiKey.LIST_GROUPS] = ListGroupsResponse(groups=groups)
    mechanism = ScramMechanism("SCRAM-SHA-256", "u", "p", nonce="nonce-") if sasl else None
    connection = ClientConnection("broker:1", client_id="fuzz", mechanism=mechanism)
    connection.start(1000)
    for turn in range(6):
        if connection.is_ready:
            connection.send(ListGroupsRequest(), deadline_ms=1000)
        for response in responses(broker, connection.take_output()):
            data = damage(response, rng) if turn == damaged_turn else response
            middle = rng.randrange(len(data) + 1)
            connection.feed(data[:middle])
            connection.feed(data[middle:])
    connection.check_deadline(999)


@pytest.mark.parametrize("sasl", [False, True])
def test_damaged_responses_give_responses_or_a_client_error(sasl: bool) -> None:
    refused = 0
    for seed in range(400):
        rng = random.Random(seed)
        try:
            converse(rng, sasl=sasl, damaged_turn=seed % 4)
        except ClientError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r}") from error
    assert refused > 50


def test_noise_is_refused_within_memory_bounds() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        noise = rng.choice((*SIZES, b"")) + rng.randbytes(rng.randrange(400))
        connection = ClientConnection("broker:1", client_id=None)
        connection.start(10)
        connection.take_output()
        tracemalloc.start()
        try:
            connection.feed(noise)
        except ClientError:
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error!r} for {noise.hex()}") from error
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 500_000 + 300 * len(noise), f"seed {seed}: {peak} bytes"
