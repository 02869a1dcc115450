"""Blocks of producer ids, from `/latest_producer_id_block` (KIP-185, KIP-730).

The controller allocates them for AllocateProducerIds; a broker with an older inter-broker protocol
version allocates them itself. Both are a compare-and-set on the znode, so no producer id is
allocated twice. Mirrors Kafka's `ZkProducerIdManager`.
"""

import logging
from contextlib import suppress
from typing import NamedTuple

from ottla.controller.tree import znodes
from ottla.controller.tree.store import BadVersion, NodeExists, NoNode, ZnodeStore
from ottla.controller.tree.znodes_admin import (
    MAX_PRODUCER_ID,
    decode_producer_id_block,
    encode_producer_id_block,
)
from ottla.protocol.errors import ErrorCode, KafkaError

logger = logging.getLogger("ottla.controller")

BLOCK_SIZE = 1000
"""The producer ids in a block, as in Kafka."""
SKIPPED_IDS = 2**40
"""More than any cluster allocates, and 8 million times fewer than there are."""


class ProducerIdBlock(NamedTuple):
    """`size` producer ids from `first` on."""

    first: int
    size: int


async def allocate_block(store: ZnodeStore, broker_id: int, *, skipped: int = 0) -> ProducerIdBlock:
    """Allocate a block; it is durable when this returns.

    `skipped`: ids that are left out before it, `SKIPPED_IDS` if the tree is an older copy. Blocks
    that it does not know were allocated since: a second producer with an id would have its records
    acknowledged as duplicates of those of the first one, and not stored.

    Raises KafkaError when all ids are exhausted. After a lost connection a block may stay unused.
    """
    while True:
        try:
            data, stat = await store.get(znodes.PRODUCER_ID_BLOCK)
        except NoNode:
            with suppress(NodeExists):  # another broker creates it
                await store.create(znodes.PRODUCER_ID_BLOCK)
            continue
        first = skipped
        if data or stat.version:  # a new one is empty, and one that was emptied is damaged
            _, _, last = decode_producer_id_block(data)
            if last > MAX_PRODUCER_ID - BLOCK_SIZE - skipped:
                raise KafkaError(
                    ErrorCode.UNKNOWN_SERVER_ERROR,
                    "Have exhausted all producerIds as the next "
                    f"producerId block's end producerId would exceed {MAX_PRODUCER_ID}",
                )
            first = last + 1 + skipped
        payload = encode_producer_id_block(broker_id, first, first + BLOCK_SIZE - 1)
        try:
            await store.set(znodes.PRODUCER_ID_BLOCK, payload, stat.version)
        except BadVersion:  # another broker allocated this block; retry
            continue
        logger.info(
            "Allocated producer id block %d to %d to broker %d",
            first,
            first + BLOCK_SIZE - 1,
            broker_id,
        )
        return ProducerIdBlock(first, BLOCK_SIZE)
