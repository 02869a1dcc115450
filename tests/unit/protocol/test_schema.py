import pytest

from ottla.protocol.schema import (
    LAST_VERSION,
    NO_VERSIONS,
    DefinitionError,
    Versions,
    format_field,
    format_versions,
    parse_definition,
    parse_field,
    parse_versions,
)

EXAMPLE = """\
api 99 Example

request versions 0-4 flexible 3+
  topics      [Topic]  0+  null 1+
    name      string   0+
    indexes   [int32]  2+
  deadline    Deadline 1+  tag 0 3+
    at_ms     int64    1+  default -1

struct Shared
  id          uuid     0+

response versions 0-4 flexible none
  error_code  int16    0+  ignorable
"""


@pytest.mark.parametrize(
    ("text", "versions"),
    [("3", (3, 3)), ("3-5", (3, 5)), ("3+", (3, LAST_VERSION)), ("none", NO_VERSIONS)],
)
def test_versions(text: str, versions: tuple[int, int]) -> None:
    parsed = parse_versions(text)
    assert parsed == versions
    assert format_versions(parsed) == text


def test_membership() -> None:
    assert 3 in Versions(3, 5)
    assert 5 in Versions(3, 5)
    assert 6 not in Versions(3, 5)
    assert 1 not in NO_VERSIONS
    assert "3" not in Versions(3, 5)


@pytest.mark.parametrize(
    "line",
    [
        "acks int16 0+",
        "transactional_id string 3+ null 3+ default null",
        "max_bytes int32 3+ default 2147483647 ignorable",
        "cluster_id string 12+ null 12+ default null tag 0 12+ ignorable",
        "allow bool 4+ default true",
        'host string 1+ default "somewhere"',
        "topics [TopicData] 0-12",
        "client_id string 1+ null 1+ ignorable not-compact",
    ],
)
def test_fields_come_back_as_they_were(line: str) -> None:
    field = parse_field(line)
    assert format_field(field, field.type) == line


def test_kinds_of_fields() -> None:
    array = parse_field("topics [TopicData] 0+")
    assert array.is_array
    assert not array.is_struct
    assert array.element_type == "TopicData"
    nested = parse_field("leader Leader 0+ tag 1 0+")
    assert nested.is_struct
    assert nested.none_when_absent
    assert not parse_field("leader Leader 0+ null 0+ tag 1 0+").none_when_absent
    assert not parse_field("leader Leader 0+").none_when_absent
    assert not parse_field("id int32 0+ tag 1 0+").is_struct


def test_definition() -> None:
    request, response = parse_definition(EXAMPLE)
    assert (request.kind, request.name, request.api_key) == ("request", "ExampleRequest", 99)
    assert request.versions == (0, 4)
    assert 3 in request.flexible_versions
    assert [field.name for field in request.fields] == ["topics", "deadline"]
    assert list(request.structs) == ["Topic", "Deadline", "Shared"]
    assert [field.name for field in request.structs["Topic"].fields] == ["name", "indexes"]
    assert response.name == "ExampleResponse"
    assert response.flexible_versions == NO_VERSIONS
    assert response.fields[0].ignorable


def test_stored_messages_have_no_key() -> None:
    (message,) = parse_definition("message OffsetKey versions 1 flexible none\n  group string 1\n")
    assert (message.kind, message.name, message.api_key) == ("message", "OffsetKey", -1)


@pytest.mark.parametrize(
    "text",
    [
        "request version 0\n",
        "request versions 0 flexible none\n  name\n",
        "request versions 0 flexible none\n  name string 0 sometimes\n",
        "request versions 0 flexible none\n  name string 0 tag x 0\n",
        "request versions 0 flexible none\n  name string 0 default\n",
        "request versions 0 flexible none\n  a [T] 0\n    b int8 0\n  c [T] 0\n    d int8 0\n",
        "something else\n",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(DefinitionError):
        parse_definition(text)
