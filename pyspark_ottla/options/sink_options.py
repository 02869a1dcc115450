"""The options of the sink, batch and streaming; checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.options.options import SOURCE_OPTIONS, SPARK_OPTIONS, TOPIC_NAME
from pyspark_ottla.options.values import OptionReader, invalid, plain_names

SINK_OPTIONS = (
    "topic",
    "delivery",
    "writeId",
    "batchId",
    "failOnDataLoss",
    "transactionalIdPrefix",
    "includeHeaders",
    "writeTimestamp",
)
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write, checked; `topic` wins over a topic column, as in the JVM sink.

    `writes_timestamp` makes a column `timestamp` the time of the record. `checkpoint` is that of a
    streaming query, where it is an option of the write.
    """

    client: ClientOptions
    topic: str | None
    exactly_once: bool
    transactional_id_prefix: str
    write_id: str | None
    batch_id: int | None
    fail_on_data_loss: bool
    checkpoint: str | None = None
    writes_timestamp: bool = False


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises ConnectorError for what is unknown, ill-typed or contradictory."""
    options = plain_names(options)
    reader = OptionReader(options)
    # includeHeaders is the JVM sink's; headers are written whenever there is such a column. Jobs
    # with one set of options for both directions give the source's, too.
    tolerated = (*SPARK_OPTIONS, "truncate", *SOURCE_OPTIONS)
    reader.refuse_unknown(SINK_OPTIONS, tolerated, "the ottla sink")
    client = parse_client_options(options, writes=True)
    topic = reader.text("topic")
    if topic is not None and (TOPIC_NAME.fullmatch(topic) is None or topic in (".", "..")):
        raise invalid("topic", topic, "a topic name of letters, digits and . _ -")
    delivery = reader.choice("delivery", AT_LEAST_ONCE, (AT_LEAST_ONCE, EXACTLY_ONCE))
    prefix = _name(reader, "transactionalIdPrefix") or "pyspark-ottla"
    write_id = _name(reader, "writeId")
    batch_id = reader.integer("batchId", minimum=0)
    if batch_id is not None and write_id is None:
        raise ConnectorError(
            errors.MISSING_OPTION,
            "The option batchId is set, but writeId is not",
            "Set writeId to a name for this write, the same in every batch",
        )
    if delivery == EXACTLY_ONCE and not client.idempotent:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            "delivery is exactly-once, but the producer is not to be idempotent",
            "Leave out kafka.enable.idempotence and kafka.acks",
        )
    return SinkOptions(
        client,
        topic,
        delivery == EXACTLY_ONCE,
        prefix,
        write_id,
        batch_id,
        reader.boolean("failOnDataLoss", True),
        reader.text("checkpointLocation"),
        reader.boolean("writeTimestamp", False),
    )


def _name(reader: OptionReader, option: str) -> str | None:
    """A part of transactional ids and group names."""
    text = reader.text(option)
    if text is not None and re.fullmatch(r"[\w.-]{1,100}", text, re.ASCII) is None:
        raise invalid(option, text, "at most 100 letters, digits and . _ -")
    return text
