from ottla.protocol.layout import Layout, default_expression, fields_of
from ottla.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, PartitionData
from ottla.protocol.messages.produce import ProduceRequest
from ottla.protocol.schema import parse_field


def layout(version: int, cls: type = FetchRequest, *, flexible: bool = False) -> Layout:
    return Layout(cls, version, flexible=flexible)


def test_fields_are_parsed_once() -> None:
    assert fields_of(FetchRequest) is fields_of(FetchRequest)
    assert [field.name for field in fields_of(FetchRequest)] == list(FetchRequest.__slots__[:-1])


def test_fields_by_version() -> None:
    old, new = layout(3), layout(15, flexible=True)
    assert [field.name for field in old.plain] == [
        "replica_id",
        "max_wait_ms",
        "min_bytes",
        "max_bytes",
        "topics",
    ]
    assert "session_id" in [field.name for field in old.absent]
    assert [field.name for field in new.tagged] == ["cluster_id", "replica_state"]
    assert "replica_id" in [field.name for field in new.absent]


def test_minimum_sizes() -> None:
    # partition, offset and size of a fetched partition in version 0
    assert layout(0, FetchPartition).minimum_size() == 4 + 8 + 4
    # and in version 12: leader epoch, last epoch, log start offset and an empty tagged section too
    assert layout(12, FetchPartition, flexible=True).minimum_size() == 16 + 4 + 4 + 8 + 1
    # no name and no partitions, but the tagged section
    topics = layout(9, ProduceRequest, flexible=True).plain[-1]
    assert layout(9, ProduceRequest, flexible=True).element_minimum(topics) == 1 + 1 + 1
    assert layout(8, ProduceRequest).element_minimum(topics) == 2 + 4


def test_nested_layouts_keep_the_version() -> None:
    responses = layout(12, FetchResponse, flexible=True)
    topics = next(field for field in responses.plain if field.name == "responses")
    partitions = next(f for f in responses.nested(topics).plain if f.name == "partitions")
    inner = responses.nested(topics).nested(partitions)
    assert inner.cls is PartitionData
    assert [field.tag for field in inner.tagged] == [0, 1, 2]


def test_defaults_as_source() -> None:
    def source(line: str) -> str:
        return default_expression(parse_field(line), "C1")

    assert source("a int32 0+") == "0"
    assert source("a int32 0+ default -1") == "-1"
    assert source("a string 0+ null 0+") == "''"
    assert source("a string 0+ null 0+ default null") == "None"
    assert source('a string 0+ default "x"') == "'x'"
    assert source("a bool 0+ default true") == "True"
    assert source("a [int32] 0+ null 0+") == "[]"
    assert source("a records 0+") == "None"
    assert source("a uuid 0+") == "ZERO_UUID"
    assert source("a Leader 0+") == "C1()"
    assert source("a Leader 0+ tag 0 0+") == "None"
