"""The options of the sink, batch and streaming; checked before anything is written."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.client_options import ClientOptions, parse_client_options
from pyspark_ottla.options.options import SPARK_OPTIONS, TOPIC_NAME
from pyspark_ottla.options.values import OptionReader, invalid, plain_names

SINK_OPTIONS = ("topic", "delivery", "transactionalIdPrefix", "includeHeaders")
AT_LEAST_ONCE = "at-least-once"
EXACTLY_ONCE = "exactly-once"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """All options of a write, checked; `topic` wins over a topic column, as in the JVM sink."""

    client: ClientOptions
    topic: str | None
    exactly_once: bool
    transactional_id_prefix: str


def parse_sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Raises ConnectorError for what is unknown, ill-typed or contradictory."""
    options = plain_names(options)
    reader = OptionReader(options)
    # includeHeaders is the JVM sink's; headers are written whenever there is such a column.
    reader.refuse_unknown(SINK_OPTIONS, (*SPARK_OPTIONS, "truncate"), "the ottla sink")
    client = parse_client_options(options, writes=True)
    topic = reader.text("topic")
    if topic is not None and (TOPIC_NAME.fullmatch(topic) is None or topic in (".", "..")):
        raise invalid("topic", topic, "a topic name of letters, digits and . _ -")
    delivery = reader.choice("delivery", AT_LEAST_ONCE, (AT_LEAST_ONCE, EXACTLY_ONCE))
    prefix = reader.text("transactionalIdPrefix") or "pyspark-ottla"
    if re.fullmatch(r"[\w.-]{1,100}", prefix, re.ASCII) is None:
        raise invalid("transactionalIdPrefix", prefix, "at most 100 letters, digits and . _ -")
    if delivery == EXACTLY_ONCE and not client.idempotent:
        raise ConnectorError(
            errors.CONFLICTING_OPTIONS,
            "delivery is exactly-once, but the producer is not to be idempotent",
            "Leave out kafka.enable.idempotence and kafka.acks",
        )
    return SinkOptions(client, topic, delivery == EXACTLY_ONCE, prefix)
