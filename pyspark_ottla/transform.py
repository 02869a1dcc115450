"""The option `transform`: a user's function over Arrow batches, in the source's own process.

With `mapInArrow` every row goes from the source's Python process to the JVM, is converted from
Arrow to rows and back, and goes to a second Python process. A function that needs only the records
can run before that, on the batches that the source decodes.
"""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

if TYPE_CHECKING:
    # pyarrow has no type annotations; the aliases name its classes.
    RecordBatch = Any
    Schema = Any
    Function = Callable[[Iterator[RecordBatch]], Iterable[RecordBatch]]

PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_function(path: str, option: str = "transform") -> Function:
    """The function that `package.module:function` names; raises ConnectorError."""
    module, _, name = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConnectorError(
            errors.MISSING_DEPENDENCY,
            f"The option {option} names {path}, which the Python of {platform.node()} "
            f"({sys.executable}) does not have: {error}",
            "Its module must be installed on the driver and on every executor, or go with the job "
            "(--py-files)",
        ) from None
    if not callable(found):
        raise ConnectorError(
            errors.INVALID_OPTION, f"The option {option} names {path}, which is not a function"
        )
    function: Function = found
    return function


def transformed(path: str, batches: Iterator[RecordBatch], schema: Schema) -> Iterator[RecordBatch]:
    """The batches that the function yields, each cast to exactly the schema of the query.

    Spark checks the first batch only; another one fails in the JVM without the name of a column.
    """
    for batch in load_function(path)(batches):
        yield batch if batch.schema.equals(schema) else _fitted(batch, path, schema)


def _fitted(batch: RecordBatch, path: str, schema: Schema) -> RecordBatch:
    try:
        return batch.select(schema.names).cast(schema)
    except Exception as error:  # KeyError, ArrowInvalid, AttributeError if it is no batch
        kinds = ", ".join(f"{field.name} {field.type}" for field in schema)
        raise ConnectorError(
            errors.INVALID_SCHEMA,
            f"What {path} (the option transform) returns does not fit the columns of the query: "
            f"{error}",
            f"It must yield pyarrow record batches with {kinds}; set the columns with .schema(...)",
        ) from None
