"""Which mode a write to `ottla` gets, and that other writes are left alone."""

from __future__ import annotations

from typing import Any

import pytest

from pyspark_ottla import writer_modes


class JavaWriter:
    """As much of Spark's Java writer as is looked at."""

    def __init__(self, source: str, mode: str, options: dict[str, str] | None = None) -> None:
        self.source = lambda: source
        self.curmode = self.outputMode = lambda: mode
        self._options = options or {}
        self.extraOptions = lambda: self

    def iterator(self) -> Any:
        return Entries(self._options)


class Entries:
    def __init__(self, options: dict[str, str]) -> None:
        self._left = list(options.items())

    def hasNext(self) -> bool:  # noqa: N802 - the names of Scala
        return bool(self._left)

    def next(self) -> Any:
        name, value = self._left.pop(0)
        return type("Entry", (), {"_1": lambda _: name, "_2": lambda _: value})()


class Writer:
    """A writer of pyspark, before it is changed."""

    def __init__(self, java: Any) -> None:
        self._jwrite = java
        self.called: list[tuple[Any, ...]] = []

    def save(
        self, path: str | None = None, format: str | None = None, mode: str | None = None
    ) -> None:
        self.called.append((format, mode))

    def start(
        self,
        path: str | None = None,
        format: str | None = None,
        outputMode: str | None = None,  # noqa: N803
        partitionBy: str | None = None,  # noqa: N803
        queryName: str | None = None,  # noqa: N803
    ) -> None:
        self.called.append((format, outputMode, queryName))

    def options(self, **given: str) -> None:
        assert not given

    def foreachBatch(self, function: Any) -> None:  # noqa: N802
        self.called.append(("foreachBatch", function))


@pytest.fixture(autouse=True)
def changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Writer, "save", Writer.save)
    monkeypatch.setattr(Writer, "start", Writer.start)
    for _ in range(2):  # the second time changes nothing
        writer_modes._replace(Writer, "save", writer_modes._save)
        writer_modes._replace(Writer, "start", writer_modes._start)


@pytest.mark.parametrize(
    ("source", "current", "given", "used"),
    [
        ("ottla", "ErrorIfExists", None, "append"),
        ("OTTLA", "ErrorIfExists", "error", "append"),
        ("ottla", "Overwrite", None, None),
        ("ottla", "ErrorIfExists", "overwrite", "overwrite"),
        ("parquet", "ErrorIfExists", None, None),
    ],
)
def test_the_save_mode(source: str, current: str, given: str | None, used: str | None) -> None:
    writer = Writer(JavaWriter(source, current))
    writer.save(mode=given)
    assert writer.called == [(None, used)]


def test_a_writer_without_java_is_left_alone() -> None:
    writer = Writer(None)
    writer.save()
    writer.start(outputMode="update")
    assert writer.called == [(None, None), (None, "update", None)]


def test_update_mode_writes_each_batch_with_the_options_of_the_stream() -> None:
    given = {"topic": "t", "checkpointLocation": "c", "queryName": "q"}
    writer = Writer(JavaWriter("ottla", "Update", given))
    writer.start(queryName="q")
    assert writer.called[1] == (None, "update", "q")
    asked: list[Any] = []

    class Batch:
        """Notes what is called on the writer of a batch."""

        def __getattr__(self, name: str) -> Any:
            def call(*given: Any, **named: Any) -> Batch:
                asked.append((name, *given, *named.items()))
                return self

            return self if name == "write" else call

    writer.called[0][1](Batch(), 0)
    assert asked == [
        ("format", "ottla"),
        ("options", ("topic", "t"), ("checkpointLocation", "c")),
        ("mode", "append"),
        ("save",),
    ]
    other = Writer(JavaWriter("ottla", "Append"))
    other.start(outputMode="append")
    assert other.called == [(None, "append", None)]
