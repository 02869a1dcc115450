"""The one exception of the connector, and the conditions it is raised under.

The text is always `[CONDITION] what happened. What to do about it.`, and the conditions that
Spark's JVM connector has too carry the same names, so that a search for them finds
existing explanations. Spark shows only the text of a Python exception, so it holds everything that
a reader needs (option, topic, partition, offsets, broker), and never a password.
"""

from __future__ import annotations

INVALID_OPTION = "INVALID_OPTION"
UNKNOWN_OPTION = "UNKNOWN_OPTION"
MISSING_OPTION = "MISSING_OPTION"
CONFLICTING_OPTIONS = "CONFLICTING_OPTIONS"
UNSUPPORTED_OPTION = "UNSUPPORTED_OPTION"
INVALID_SCHEMA = "INVALID_SCHEMA"
INVALID_OFFSETS = "INVALID_OFFSETS"
MISSING_DEPENDENCY = "MISSING_DEPENDENCY"
UNSUPPORTED_SPARK_VERSION = "UNSUPPORTED_SPARK_VERSION"
BROKER_UNAVAILABLE = "BROKER_UNAVAILABLE"
BROKER_INCOMPATIBLE = "BROKER_INCOMPATIBLE"
AUTHENTICATION_FAILED = "AUTHENTICATION_FAILED"
NOT_AUTHORIZED = "NOT_AUTHORIZED"
UNKNOWN_TOPIC = "UNKNOWN_TOPIC"
FETCH_FAILED = "FETCH_FAILED"
FETCH_TIMEOUT = "FETCH_TIMEOUT"
CORRUPT_DATA = "CORRUPT_DATA"
REMOTE_READ_FAILED = "REMOTE_READ_FAILED"
DECODE_FAILED = "DECODE_FAILED"
UNKNOWN_SCHEMA_ID = "UNKNOWN_SCHEMA_ID"
UNKNOWN_SUBJECT = "UNKNOWN_SUBJECT"
UNSUPPORTED_SCHEMA = "UNSUPPORTED_SCHEMA"
REGISTRY_UNAVAILABLE = "REGISTRY_UNAVAILABLE"
TIMESTAMP_OFFSET_NOT_FOUND = "TIMESTAMP_OFFSET_NOT_FOUND"
NO_COMMITTED_OFFSET = "NO_COMMITTED_OFFSET"
WRITE_FAILED = "WRITE_FAILED"
INVALID_TOPIC = "INVALID_TOPIC"
RECORD_TOO_LARGE = "RECORD_TOO_LARGE"
TIMESTAMP_REFUSED = "TIMESTAMP_REFUSED"
UNSUPPORTED_SAVE_MODE = "UNSUPPORTED_SAVE_MODE"
EXACTLY_ONCE_UNAVAILABLE = "EXACTLY_ONCE_UNAVAILABLE"
WRITE_ID_NEEDED = "WRITE_ID_NEEDED"
WRITE_ID_REUSED = "WRITE_ID_REUSED"
BATCH_NUMBERS_RESTARTED = "BATCH_NUMBERS_RESTARTED"
TRANSACTION_TIMED_OUT = "TRANSACTION_TIMED_OUT"
DECIDED_TRANSACTION_LOST = "DECIDED_TRANSACTION_LOST"

# Named as in the JVM connector.
START_OFFSET_DOES_NOT_MATCH_ASSIGNED = "KAFKA_START_OFFSET_DOES_NOT_MATCH_ASSIGNED"
TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED = "KAFKA_TIMESTAMP_OFFSET_DOES_NOT_MATCH_ASSIGNED"
NULL_TOPIC_IN_DATA = "KAFKA_NULL_TOPIC_IN_DATA"
START_GREATER_THAN_END = "UNRESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
RESOLVED_START_GREATER_THAN_END = "RESOLVED_START_OFFSET_GREATER_THAN_END_OFFSET"
DATA_LOSS_RANGE = "KAFKA_DATA_LOSS.COULD_NOT_READ_OFFSET_RANGE"
DATA_LOSS_START_RESET = "KAFKA_DATA_LOSS.START_OFFSET_RESET"
DATA_LOSS_NO_INITIAL_OFFSET = "KAFKA_DATA_LOSS.INITIAL_OFFSET_NOT_FOUND_FOR_PARTITIONS"
DATA_LOSS_ADDED_PARTITION = "KAFKA_DATA_LOSS.ADDED_PARTITION_DOES_NOT_START_FROM_OFFSET_ZERO"
DATA_LOSS_PARTITIONS_DELETED = "KAFKA_DATA_LOSS.PARTITIONS_DELETED"
DATA_LOSS_OFFSET_CHANGED = "KAFKA_DATA_LOSS.PARTITION_OFFSET_CHANGED"
DATA_LOSS_TOPIC_RECREATED = "KAFKA_DATA_LOSS.TOPIC_RECREATED"

# The tail of every data-loss text: what it means and the way on.
DATA_LOSS_HINT = (
    "Records may have been deleted by retention, or the topic deleted, before the query read them. "
    "If that is acceptable, set the option failOnDataLoss to false: the query then logs each loss "
    "as a warning and continues"
)
# The same where failOnDataLoss is false.
DATA_LOSS_WARNING = (
    "Records may have been deleted by retention, or the topic deleted, before the query read them. "
    "To fail the query in such a case, set the option failOnDataLoss to true"
)


class ConnectorError(Exception):
    """A failure a user can act on.

    `condition` is one of the names above, `sentence` is what happened, `hint` what to do; both
    come without the full stop at their end.
    """

    def __init__(self, condition: str, sentence: str, hint: str = "") -> None:
        super().__init__(condition, sentence, hint)
        self.condition = condition
        self.sentence = sentence
        self.hint = hint

    def __str__(self) -> str:
        hint = f" {self.hint}." if self.hint else ""
        return f"[{self.condition}] {self.sentence}.{hint}"


def data_loss(condition: str, sentence: str) -> ConnectorError:
    return ConnectorError(condition, sentence, DATA_LOSS_HINT)
