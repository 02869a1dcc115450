"""Lag from progress reports, as Spark writes them and as it might."""

import json
from typing import Any

import pytest

from pyspark_ottla.lag import Lag, NamedLag, lag_of_progress, open_metrics


def source(end: Any, latest: Any) -> dict[str, Any]:
    return {"description": "x", "endOffset": end, "latestOffset": latest}


def test_lag_is_the_way_to_the_end() -> None:
    end = {"b": {"0": 5, "10": 7}, "a": {"1": 3}, '@start {"a":{"1":0}}': {}}
    latest = {"a": {"1": 3}, "b": {"0": 9, "10": 8}}
    found = lag_of_progress({"sources": [source(end, latest)]})
    assert found == Lag({"a": {1: 0}, "b": {0: 4, 10: 1}})
    assert found.total == 5


def test_offsets_may_be_text_and_partitions_new() -> None:
    sources = [source(json.dumps({"a": {"0": 1}}), json.dumps({"a": {"0": 1, "1": 4}}))]
    assert lag_of_progress({"sources": sources}) == Lag({"a": {0: 0, 1: 4}})


def test_several_sources_are_added() -> None:
    one = source({"a": {"0": 1}}, {"a": {"0": 3}})
    other = source({"a": {"0": 0}}, {"a": {"0": 3}})
    assert lag_of_progress({"sources": [one, other]}).total == 5


@pytest.mark.parametrize(
    "progress",
    [
        None,
        {},
        {"sources": [source(None, None)]},
        {"sources": [source(5, 9)]},
        {"sources": [source("not json", "{")]},
        {"sources": [source({"logOffset": 1}, {"logOffset": 5})]},
    ],
)
def test_other_sources_are_skipped(progress: dict[str, Any] | None) -> None:
    assert lag_of_progress(progress) == Lag({})


def test_the_metrics_of_the_jvm_connector() -> None:
    found = Lag({"a": {0: 4, 1: 0}, "b": {0: 5}})
    assert (found.max, found.min, found.average) == (5, 0, 3.0)
    assert found.metrics() == {
        "avgOffsetsBehindLatest": "3.0",
        "maxOffsetsBehindLatest": "5",
        "minOffsetsBehindLatest": "0",
    }
    assert Lag({}).metrics()["maxOffsetsBehindLatest"] == "0"


def test_open_metrics() -> None:
    measured = NamedLag("id", 'my "query"', Lag({"a": {0: 3, 1: 0}}))
    assert open_metrics(measured) == (
        "# TYPE ottla_spark_lag gauge\n"
        'ottla_spark_lag{query="my \\"query\\"",topic="a",partition="0"} 3\n'
        'ottla_spark_lag{query="my \\"query\\"",topic="a",partition="1"} 0\n'
        "# EOF\n"
    )
