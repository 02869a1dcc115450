"""Every option: what is accepted, and the whole text of what is refused."""

import pickle

import pytest

from ottla.protocol.topics import TopicPartition
from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.options import (
    Position,
    SourceOptions,
    Subscription,
    check_for_batch,
    check_for_stream,
    parse_source_options,
)

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "words"}


def parse(**options: str) -> SourceOptions:
    """BASE with the given options; `_` in a name stands for `.`."""
    changed = {name.replace("_", "."): value for name, value in options.items()}
    return parse_source_options(BASE | changed)


def text_of(options: dict[str, str]) -> str:
    with pytest.raises(ConnectorError) as raised:
        parse_source_options(options)
    return str(raised.value)


def test_defaults() -> None:
    options = parse()
    assert options.subscription == Subscription(topics=frozenset({"words"}))
    assert options.starting is None
    assert options.ending is None
    assert options.on_data_loss == "fail"
    assert options.trigger_delay_max_ms == 15 * 60_000
    assert options.poll_timeout_ms == 120_000
    assert (options.lookup_retries, options.lookup_retry_interval_ms) == (3, 10)
    assert not options.include_headers
    assert not options.client.read_committed


def test_names_are_taken_in_any_case() -> None:
    options = parse(STARTINGOFFSETS="Earliest", FailOnDataLoss="FALSE")
    assert options.starting == Position("earliest", "startingOffsets")
    assert options.on_data_loss == "warn"


def test_options_travel_by_pickle_and_show_no_secret() -> None:
    options = parse(
        kafka_security_protocol="SASL_SSL",
        kafka_sasl_mechanism="PLAIN",
        kafka_sasl_username="anna",
        kafka_sasl_password="s3cret",
    )
    assert pickle.loads(pickle.dumps(options)) == options
    assert "s3cret" not in repr(options)
    assert "anna" not in repr(options)


@pytest.mark.parametrize(
    ("option", "value", "subscription"),
    [
        ("subscribe", " a, b.c ,a", Subscription(topics=frozenset({"a", "b.c"}))),
        ("subscribePattern", "logs-.*", Subscription(pattern="logs-.*")),
        ("subscribePattern", "(?<day>\\d+)-x", Subscription(pattern="(?P<day>\\d+)-x")),
        (
            "assign",
            '{"a":[0,2],"b":[1]}',
            Subscription(
                partitions=frozenset(
                    {TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)}
                )
            ),
        ),
    ],
)
def test_subscriptions(option: str, value: str, subscription: Subscription) -> None:
    options = {"kafka.bootstrap.servers": "localhost:9092", option: value}
    assert parse_source_options(options).subscription == subscription


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ({"startingOffsets": "latest"}, Position("latest", "startingOffsets")),
        (
            {"startingOffsets": '{"words":{"0":5,"1":-2}}'},
            Position(
                "offsets",
                "startingOffsets",
                {TopicPartition("words", 0): 5, TopicPartition("words", 1): -2},
            ),
        ),
        (
            {"startingOffsetsByTimestamp": '{"words":{"0":99}}', "startingOffsets": "latest"},
            Position("timestamps", "startingOffsetsByTimestamp", {TopicPartition("words", 0): 99}),
        ),
        (
            {
                "startingTimestamp": "1000",
                "startingOffsetsByTimestamp": '{"words":{"0":99}}',
                "startingOffsetsByTimestampStrategy": "latest",
            },
            Position("timestamp", "startingTimestamp", timestamp=1000, if_missing="latest"),
        ),
        (
            {"startingOffsets": "committed", "kafka.group.id": "g"},
            Position("committed", "startingOffsets"),
        ),
        (
            {"startingOffsets": "committed:earliest", "kafka.group.id": "g"},
            Position("committed", "startingOffsets", if_missing="earliest"),
        ),
    ],
)
def test_where_reading_starts(given: dict[str, str], start: Position) -> None:
    assert parse_source_options(BASE | given).starting == start


@pytest.mark.parametrize(
    ("given", "end"),
    [
        ({"endingOffsets": "latest"}, Position("latest", "endingOffsets")),
        (
            {"endingOffsets": '{"words":{"0":-1}}'},
            Position("offsets", "endingOffsets", {TopicPartition("words", 0): -1}),
        ),
        (
            {"endingTimestamp": "7", "endingOffsets": "latest"},
            Position("timestamp", "endingTimestamp", timestamp=7, if_missing="latest"),
        ),
        (
            {"endingOffsetsByTimestamp": '{"words":{"3":8}}'},
            Position(
                "timestamps",
                "endingOffsetsByTimestamp",
                {TopicPartition("words", 3): 8},
                if_missing="latest",
            ),
        ),
    ],
)
def test_where_reading_ends(given: dict[str, str], end: Position) -> None:
    assert parse_source_options(BASE | given).ending == end


NUMBER_TEXTS = [
    (
        {"maxOffsetsPerTrigger": "0"},
        "[INVALID_OPTION] The option maxOffsetsPerTrigger has the value '0'. "
        "Expected a whole number of at least 1.",
    ),
    (
        {"minPartitions": "many"},
        "[INVALID_OPTION] The option minPartitions has the value 'many'. "
        "Expected a whole number of at least 1.",
    ),
    (
        {"batchRows": "99999999"},
        "[INVALID_OPTION] The option batchRows has the value '99999999'. "
        "Expected a whole number of at most 1048576.",
    ),
    (
        {"maxTriggerDelay": "soon"},
        "[INVALID_OPTION] The option maxTriggerDelay has the value 'soon'. "
        "Expected a time such as 500ms, 30s, 15m or 2h.",
    ),
    (
        {"includeHeaders": "yes"},
        "[INVALID_OPTION] The option includeHeaders has the value 'yes'. Expected true or false.",
    ),
    (
        {"failOnDataLoss": "maybe"},
        "[INVALID_OPTION] The option failOnDataLoss has the value 'maybe'. "
        "Expected one of true, false, warn.",
    ),
    (
        {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "5"},
        "[CONFLICTING_OPTIONS] minOffsetsPerTrigger (9) is more than maxOffsetsPerTrigger (5). "
        "A trigger could never take enough; lower the one or raise the other.",
    ),
    (
        {"minPartitions": "auto"},
        "[MISSING_OPTION] minPartitions is auto, but numCores is not set. Set numCores to "
        "spark.sparkContext.defaultParallelism; a plan must not depend on the cluster of the "
        "moment, or a repeated batch would get other tasks.",
    ),
    (
        {"commitOffsets": "true"},
        "[MISSING_OPTION] The option commitOffsets is true, but kafka.group.id is not set. "
        "Set kafka.group.id to the group that the position is to be shown under.",
    ),
]

POSITION_TEXTS = [
    (
        {"startingOffsets": "first"},
        "[INVALID_OPTION] The option startingOffsets has the value 'first'. Expected earliest, "
        'latest, committed or JSON such as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}.',
    ),
    (
        {"startingOffsets": '{"words":{"0":-3}}'},
        "[INVALID_OPTION] The option startingOffsets has -3, which is out of range: "
        '{"words":{"0":-3}}. Expected {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}.',
    ),
    (
        {"startingOffsets": '{"words":{"zero":1}}'},
        "[INVALID_OPTION] The option startingOffsets has 'zero', which is no partition: "
        '{"words":{"zero":1}}. Expected {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}.',
    ),
    (
        {"startingOffsets": '{"words":{"0":1,"0":2}}'},
        "[INVALID_OPTION] The option startingOffsets names '0' twice: "
        '{"words":{"0":1,"0":2}}. Expected {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}.',
    ),
    (
        {"startingOffsets": '{"words":[0]}'},
        "[INVALID_OPTION] The option startingOffsets has no partitions under topic 'words': "
        '{"words":[0]}. Expected {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}}.',
    ),
    (  # letters without b in Java, nothing of the sort in Python
        {"subscribe": "", "subscribePattern": "[a-z&&[^b]]+"},
        "[INVALID_OPTION] The option subscribePattern is no regular expression: '[a-z&&[^b]]+' "
        "(Possible set intersection at position 4). It must match whole topic names; use what "
        "Java's and Python's syntax share.",
    ),
    (
        {"startingOffsetsByTimestamp": "5"},
        "[INVALID_OPTION] The option startingOffsetsByTimestamp is not a JSON object: 5. "
        'Expected {"topicA":{"0":1700000000000}}.',
    ),
    (
        {"startingOffsets": "committed"},
        "[MISSING_OPTION] startingOffsets is committed, but kafka.group.id is not set. "
        "Set kafka.group.id to the group whose committed offsets to start from.",
    ),
    (
        {"startingOffsets": "committed:never", "kafka.group.id": "g"},
        "[INVALID_OPTION] The option startingOffsets has the value 'committed:never'. "
        "Expected committed, committed:earliest, :latest or committed:error.",
    ),
    (
        {"endingOffsets": "earliest"},
        "[INVALID_OPTION] The option endingOffsets has the value 'earliest'. Expected latest or "
        'JSON such as {"topicA":{"0":23,"1":-1},"topicB":{"0":-2}} without -2.',
    ),
    (
        {"endingOffsets": '{"words":{"0":-2}}'},
        '[INVALID_OPTION] The option endingOffsets has the value \'{"words":{"0":-2}}\'. '
        "Expected no -2 (earliest): a range cannot end there.",
    ),
]

SUBSCRIPTION_TEXTS = [
    (
        {"assign": '{"a":[0]}'},
        "[CONFLICTING_OPTIONS] subscribe and assign are both set. Set exactly one of subscribe "
        "(topic names with commas between), subscribePattern and assign.",
    ),
    (
        {"subscribe": " "},
        "[MISSING_OPTION] No option sets what to read. Set exactly one of subscribe (topic names "
        "with commas between), subscribePattern and assign.",
    ),
    (
        {"subscribe": "a b"},
        "[INVALID_OPTION] The option subscribe has the value 'a b'. Expected topic names of "
        "letters, digits and . _ -, with commas between.",
    ),
    (
        {"subscribe": "", "subscribePattern": "a("},
        "[INVALID_OPTION] The option subscribePattern is no regular expression: 'a(' (missing ), "
        "unterminated subpattern at position 1). It must match whole topic names; use what "
        "Java's and Python's syntax share.",
    ),
    (
        {"subscribe": "", "assign": '{"a":["0"]}'},
        '[INVALID_OPTION] The option assign has \'0\', which is no partition: {"a":["0"]}. '
        'Expected {"topicA":[0,1],"topicB":[2,4]}.',
    ),
    (
        {"subscribe": "", "assign": '{"a":[]}'},
        "[INVALID_OPTION] The option assign has no list of partitions under topic 'a': {\"a\":[]}. "
        'Expected {"topicA":[0,1],"topicB":[2,4]}.',
    ),
]


@pytest.mark.parametrize(("given", "text"), NUMBER_TEXTS + POSITION_TEXTS + SUBSCRIPTION_TEXTS)
def test_refused_values(given: dict[str, str], text: str) -> None:
    assert text_of(BASE | given) == text


def test_a_mistyped_name_gets_a_suggestion() -> None:
    text = text_of(BASE | {"startingOffset": "earliest"})
    assert text.startswith(
        "[UNKNOWN_OPTION] There is no option 'startingoffset' for the ottla source. "
        "Did you mean startingOffsets"
    )


def test_invalid_json_is_shown_with_the_place() -> None:
    text = text_of(BASE | {"startingOffsets": '{"words":'})
    assert text.startswith("[INVALID_OPTION] The option startingOffsets is not valid JSON (")
    assert "line 1 column 10" in text


def test_options_that_spark_adds_are_let_through() -> None:
    assert parse(path="/somewhere", checkpointLocation="/c").subscription.topics == {"words"}


@pytest.mark.parametrize("value", ["latest", '{"words":{"0":-1}}'])
def test_a_batch_cannot_start_at_the_end(value: str) -> None:
    with pytest.raises(ConnectorError, match="nothing would be read"):
        check_for_batch(parse(startingOffsets=value))


def test_commits_are_for_streams() -> None:
    with pytest.raises(ConnectorError, match="commitOffsets is for streaming queries"):
        check_for_batch(parse(commitOffsets="true", kafka_group_id="g"))


@pytest.mark.parametrize(
    "given",
    [
        {"endingOffsets": "latest"},
        {"endingTimestamp": "1"},
        {"endingOffsetsByTimestamp": '{"words":{"0":1}}'},
    ],
)
def test_a_stream_has_no_end(given: dict[str, str]) -> None:
    [name] = given
    with pytest.raises(ConnectorError, match=f"option {name} is for batch reads"):
        check_for_stream(parse_source_options(BASE | given))


def test_a_duration_without_a_unit_is_milliseconds() -> None:
    assert parse(kafkaConsumer_pollTimeoutMs="512").poll_timeout_ms == 512
    assert parse(maxTriggerDelay="2h").trigger_delay_max_ms == 7_200_000


def test_fetch_size_by_either_name() -> None:
    assert parse(kafka_fetch_max_bytes="1000").fetch_bytes == 1000
    assert parse(kafka_fetch_max_bytes="1000", fetchMaxBytes="5000").fetch_bytes == 5000
