"""What goes wrong between a client and a broker, apart from error codes in answers (KafkaError).

Every message says which broker, which API where one was asked, and what to do about it.
"""


class ClientError(Exception):
    """Base class. ``broker`` is "host:port" as connected to, "" where none is to blame.

    ``sent`` tells whether the request may have reached the broker: if not, sending it again, also
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
    """No answer, or no connection, before the deadline."""

    retriable = True


class BadResponseError(ClientError):
    """The other side sent something that no Kafka broker sends."""


class UnsupportedApiError(ClientError):
    """The broker does not have the API, or no version of it that we have."""


class AuthenticationError(ClientError):
    """TLS or SASL said no; trying again with the same settings will not help."""


class NoBrokersAvailableError(ClientError):
    """None of the brokers we know of could be asked."""

    retriable = True
