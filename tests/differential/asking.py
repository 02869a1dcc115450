"""Send the same request to Apache Kafka and to Ottla and compare the responses field by field."""

from collections.abc import Callable, Iterable

from ottla.protocol.message import Message, Struct
from ottla.protocol.registry import ApiKey
from tests.doubles.wire import ConnectionClosed, Wire

# What two brokers rightly differ in: ids they chose, where they live, what time it was.
DIFFERENT = frozenset(
    {
        "throttle_time_ms",
        "topic_id",
        "cluster_id",
        "host",
        "port",
        "rack",
        "log_append_time_ms",
        "producer_id",
        "session_id",
        "unknown_tagged_fields",
    }
)
# The versions that follow are of Kafka 4.
NEWEST_OF_KAFKA_3 = {
    ApiKey.DESCRIBE_GROUPS: 5,
    ApiKey.DESCRIBE_LOG_DIRS: 4,
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
    ApiKey.UPDATE_FEATURES: 1,
    ApiKey.DESCRIBE_CLUSTER: 1,
    ApiKey.PRODUCE: 11,
    ApiKey.END_TXN: 4,
    ApiKey.WRITE_TXN_MARKERS: 1,
    ApiKey.TXN_OFFSET_COMMIT: 4,
}
SORT_KEYS = (
    *("name", "topic", "topic_name", "partition", "partition_index", "partition_id", "index"),
    *("group_id", "key"),
    *("transactional_id", "resource_type", "resource_name", "pattern_type", "principal"),
    "user",
)


def plain(value: object, ignore: frozenset[str]) -> object:
    """A message as dicts and lists, without what is ignored, lists of structs in one order."""
    if isinstance(value, Struct):
        return {
            name: plain(getattr(value, name), ignore)
            for name in value.__slots__
            if name not in ignore
        }
    if isinstance(value, list | tuple):
        items = [plain(item, ignore) for item in value]
        return sorted(items, key=sort_key)
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    return value


def sort_key(item: object) -> tuple[str, ...]:
    if isinstance(item, dict):
        return tuple(str(item.get(name, "")) for name in SORT_KEYS)
    return (str(item),)


def differences(kafka: object, ottla: object, path: str = "") -> list[str]:
    """Every place in which the two differ, as text; empty where they agree."""
    if isinstance(kafka, dict) and isinstance(ottla, dict):
        return [
            line
            for name in kafka
            for line in differences(kafka[name], ottla.get(name), f"{path}.{name}")
        ]
    if isinstance(kafka, list) and isinstance(ottla, list) and len(kafka) == len(ottla):
        return [
            line
            for number, (left, right) in enumerate(zip(kafka, ottla, strict=True))
            for line in differences(left, right, f"{path}[{number}]")
        ]
    return [] if kafka == ottla else [f"{path}: Kafka {kafka!r}, Ottla {ottla!r}"]


class Closed:
    """Stands for a response where the broker closed the connection."""


class Pair:
    """The two brokers. Each question goes over a connection of its own unless one is kept."""

    def __init__(self, kafka: str, ottla: str, source_host: str = "") -> None:
        self.kafka = kafka
        self.ottla = ottla
        self.source_host = source_host

    def responses(
        self, request: Message, version: int
    ) -> tuple[Message | Closed, Message | Closed]:
        return self._response(self.kafka, request, version), self._response(
            self.ottla, request, version
        )

    def _response(self, bootstrap: str, request: Message, version: int) -> Message | Closed:
        with Wire(bootstrap, source_host=self.source_host) as wire:
            try:
                return wire.ask(request, version)
            except (ConnectionClosed, ConnectionResetError):
                return Closed()

    def compare(
        self,
        request: Message | Callable[[int], Message],
        versions: Iterable[int],
        ignore: Iterable[str] = (),
    ) -> list[tuple[Message, Message]]:
        """Ask in every version; fails with every difference; gives the (Kafka, Ottla) responses.

        A request that looks different in some versions is given as a function of the version.
        """
        ignored = DIFFERENT | frozenset(ignore)
        found: list[str] = []
        responses: list[tuple[Message, Message]] = []
        for version in versions:
            asked = request if isinstance(request, Message) else request(version)
            kafka, ottla = self.responses(asked, version)
            label = f"{asked.NAME} v{version}"
            if isinstance(kafka, Closed) or isinstance(ottla, Closed):
                if type(kafka) is not type(ottla):
                    found.append(f"{label}: Kafka {kafka!r}, Ottla {ottla!r}")
                continue
            responses.append((kafka, ottla))
            lines = differences(plain(kafka, ignored), plain(ottla, ignored))
            found.extend(f"{label}{line}" for line in lines)
        assert not found, "\n".join(found)
        return responses
