"""The default save mode and the update mode of Spark's own Kafka sink, for `format("ottla")`.

Spark refuses both for every Python sink in its Java code, before the sink is asked. `register`
therefore changes the two writers of this Python process: a batch write to `ottla` without a mode
appends, and a streaming write in update mode becomes a `foreachBatch` with the same options. Writes
to other sinks are left alone, and so are writers of a Spark that does not show their state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

# The modes that stand for "there was none": a topic that exists is no error in Spark's own sink.
DEFAULT_MODES = ("errorifexists", "error", "default")
# Belong to the query, not to the write of one of its batches.
OF_QUERY = ("queryname", "path")


def adopt_modes() -> None:
    """Changes the writers of pyspark, once in a process."""
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    _replace(DataFrameWriter, "save", _save)
    _replace(DataStreamWriter, "start", _start)


def adopt_connect_modes() -> None:
    """The same for Spark Connect, where a stream in update mode needs `foreachBatch`."""
    from pyspark.sql.connect.readwriter import DataFrameWriter

    _replace(DataFrameWriter, "save", _save_by_connect)


def _replace(owner: Any, name: str, changed: Callable[..., Any]) -> None:
    original = getattr(owner, name)
    if hasattr(original, "_without_ottla"):
        return

    @functools.wraps(original)
    def method(writer: Any, *given: Any, **named: Any) -> Any:
        return changed(original, writer, *given, **named)

    method._without_ottla = original  # type: ignore[attr-defined]
    setattr(owner, name, method)


def _is_ottla(name: Any) -> bool:
    return isinstance(name, str) and name.lower() == "ottla"


def _state(writer: Any, name: str) -> Any:
    """What the Java writer holds under this name; None where it does not show it."""
    from py4j.protocol import Py4JError  # type: ignore[import-untyped]

    try:
        return getattr(writer._jwrite, name)()
    except (AttributeError, TypeError, Py4JError):
        return None


def _save(
    original: Callable[..., None],
    writer: Any,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    *given: Any,
    **options: Any,
) -> None:
    if _is_ottla(format or _state(writer, "source")):
        chosen = str(_state(writer, "curmode")) if mode is None else mode
        if chosen.lower() in DEFAULT_MODES:
            mode = "append"
    original(writer, path, format, mode, *given, **options)


def _save_by_connect(
    original: Callable[..., None],
    writer: Any,
    path: str | None = None,
    format: str | None = None,
    mode: str | None = None,
    *given: Any,
    **options: Any,
) -> None:
    state = getattr(writer, "_write", None)
    if _is_ottla(format or getattr(state, "source", None)):
        chosen = getattr(state, "mode", None) if mode is None else mode
        if chosen is None or chosen.lower() in DEFAULT_MODES:
            mode = "append"
    original(writer, path, format, mode, *given, **options)


def _start(
    original: Callable[..., Any],
    writer: Any,
    path: str | None = None,
    format: str | None = None,
    outputMode: str | None = None,  # noqa: N803 - the name in pyspark
    *given: Any,
    **options: Any,
) -> Any:
    if _is_ottla(format or _state(writer, "source")):
        chosen = outputMode or _state(writer, "outputMode")
        if str(chosen).lower() == "update":
            of_query = {"partitionBy": None, "queryName": None}
            named = {name: options.pop(name, None) for name in of_query}
            writer.options(**options)
            writer.foreachBatch(_append_each(_options_of(writer)))
            return original(writer, path, None, "update", *given, **_present(named))
    return original(writer, path, format, outputMode, *given, **options)


def _present(named: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _options_of(writer: Any) -> dict[str, str]:
    """The options of a streaming write, out of its Scala map."""
    found: dict[str, str] = {}
    entries = _state(writer, "extraOptions")
    iterator = None if entries is None else entries.iterator()
    while iterator is not None and iterator.hasNext():
        entry = iterator.next()
        if entry._1().lower() not in OF_QUERY:
            found[entry._1()] = entry._2()
    return found


def _append_each(options: dict[str, str]) -> Callable[[Any, int], None]:
    def append(batch: Any, _: int) -> None:
        batch.write.format("ottla").options(**options).mode("append").save()

    return append
