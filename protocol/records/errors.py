"""The only exceptions that leave `ottla.protocol.records` for bad bytes.

Each class stands for one error code; the broker maps them to Kafka's error codes, and storage does
not catch them. Messages are plain sentences that can go into a log line or an error response as
they are.
"""


class RecordsError(Exception):
    """Base of everything this package raises about the content of a buffer."""


class CorruptRecordError(RecordsError):
    """The bytes are damaged: wrong CRC, impossible sizes, cut short (CORRUPT_MESSAGE)."""


class InvalidRecordError(RecordsError):
    """The bytes are whole but break a rule of the format (INVALID_RECORD).

    `record_errors` holds (index of the record in its batch, reason) for rules that are checked
    record by record, and is empty otherwise.
    """

    def __init__(self, message: str, record_errors: "list[tuple[int, str]] | None" = None) -> None:
        super().__init__(message)
        self.record_errors = record_errors or []


class InvalidTimestampError(InvalidRecordError):
    """A record's timestamp is outside of what the topic accepts (INVALID_TIMESTAMP)."""


class UnsupportedCompressionError(RecordsError):
    """The codec is unknown, or not allowed where it was used (UNSUPPORTED_COMPRESSION_TYPE)."""


class CodecUnavailableError(UnsupportedCompressionError):
    """No library for a codec of Kafka's is installed. `package` is what to install for it."""

    def __init__(self, codec: str, package: str) -> None:
        super().__init__(
            f"no library for the compression codec {codec} is installed: install the package "
            f"{package}, or a pyarrow that was built with {codec}"
        )
        self.codec = codec
        self.package = package


class UnsupportedFormatError(RecordsError):
    """The message format cannot carry this feature (UNSUPPORTED_FOR_MESSAGE_FORMAT)."""


class RecordTooLargeError(RecordsError):
    """A batch or message is larger than the caller allows (MESSAGE_TOO_LARGE)."""


class DecompressedTooLargeError(RecordTooLargeError):
    """Records decompress to more bytes than the caller allows; what is beyond was not kept."""
