"""Idempotent producers that a process keeps from task to task.

Brokers keep the state of a producer id for a day and longer, so tasks must not take new ones at
each trigger. A task takes a producer out of the cache and puts it back only if everything was
acknowledged: after a failure it is not known which sequence numbers the brokers have seen.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from operator import attrgetter

from ottla.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.topics import TopicPartition
from pyspark_ottla.cluster.calls import call_until_accepted
from pyspark_ottla.cluster.cluster import KafkaCluster
from pyspark_ottla.options.client_options import ClientOptions
from pyspark_ottla.write.producing import ProducerIdentity
from pyspark_ottla.write.transactions import INIT_PRODUCER_ID_VERSIONS

# Idle producers in one process, which writes to few clusters in turn.
IDLE_PRODUCERS_MAX = 6
# Sequence numbers of one producer; beyond this many partitions it is given up.
PARTITIONS_MAX = 100_000

# The next sequence number of each partition.
Sequences = dict[TopicPartition, int]

# Oldest first. The process id is there because Spark forks its workers: parent and child must not
# use the same sequence numbers.
_idle: deque[tuple[int, ClientOptions, ProducerIdentity, Sequences]] = deque(
    maxlen=IDLE_PRODUCERS_MAX
)


def init_idempotent(cluster: KafkaCluster) -> ProducerIdentity:
    """A new producer id."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    response = call_until_accepted(
        cluster,
        "Requesting a producer id",
        lambda timeout_ms: cluster.client.call(
            request, timeout_ms=timeout_ms, versions=INIT_PRODUCER_ID_VERSIONS
        ),
        attrgetter("error_code"),
    )
    assert isinstance(response, InitProducerIdResponse)
    return ProducerIdentity(response.producer_id, response.producer_epoch)


@contextmanager
def kept_producer(
    cluster: KafkaCluster, options: ClientOptions
) -> Iterator[tuple[ProducerIdentity, Sequences]]:
    """A producer id and its sequence numbers, which no other task uses during the block."""
    for entry in reversed(_idle):
        if entry[:2] == (os.getpid(), options):
            _idle.remove(entry)
            _, _, identity, sequences = entry
            break
    else:
        identity, sequences = init_idempotent(cluster), {}
    yield identity, sequences
    if len(sequences) <= PARTITIONS_MAX:
        _idle.append((os.getpid(), options, identity, sequences))
