"""The errors between a client and a broker, apart from error codes in responses (KafkaError).

Every message names the broker, the API of the request, and what to do about it.
"""


class ClientError(Exception):
    """Base class. `broker` is "host:port" as connected to, "" where none is to blame.

    `sent` is whether the request may have reached the broker: if not, sending it again, also
    elsewhere, cannot do anything twice.
    """

    retriable = False

    def __init__(self, message: str, *, broker: str = "", sent: bool = False) -> None:
        super().__init__(message)
        self.broker = broker
        self.sent = sent


class BrokerConnectionError(ClientError):
    """The broker cannot be reached, or the connection to it broke."""

    retriable = True


class RequestTimedOutError(ClientError):
    """No response, or no connection, before the deadline."""

    retriable = True


class BadResponseError(ClientError):
    """The other side sent something that no Kafka broker sends."""


class UnsupportedApiError(ClientError):
    """The broker does not have the API, or no version of it that we have."""


class AuthenticationError(ClientError):
    """TLS or SASL failed; not retriable with the same settings."""


class NoBrokersAvailableError(ClientError):
    """No known broker could be reached."""

    retriable = True


class UnknownBrokerError(NoBrokersAvailableError):
    """The cluster has no broker with this id, or it is down."""
