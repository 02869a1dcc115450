"""The option `transform`: a user's function over Arrow batches, in the source's own process.

An option is text, so a function is either the name of one that every process can import, or, for
one of a notebook or of the job's own file, its code (`pickled`), as Spark sends functions.

With `mapInArrow` every row goes from the source's Python process to the JVM, is converted from
Arrow to rows and back, and goes to a second Python process. A function that needs only the records
can run before that, on the batches that the source decodes.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import platform
import re
import sys
import zlib
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


PICKLED = "pickled:"
# Plans and tasks carry it. More than this is data, which a function should read itself.
PICKLED_CHARACTERS_MAX = 4 << 20


def pickled(function: Function) -> str:
    """A value for the option transform: the function itself, of a notebook or of the job's file.

    What it refers to in `__main__` goes with it; modules that it imports must be on every executor.
    Raises ConnectorError for what cannot be pickled.
    """
    from pyspark import cloudpickle

    dumps: Callable[[Any], bytes] = cloudpickle.dumps
    if not callable(function):
        raise ConnectorError(errors.INVALID_OPTION, f"{function!r} is not a function")
    try:
        content = dumps(function)
    except Exception as error:  # whatever the parts of a closure raise
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The function {name_of(function)} cannot be pickled: {error}",
            "It must not refer to the Spark session, to connections or to open files",
        ) from None
    text = base64.urlsafe_b64encode(zlib.compress(content)).decode()
    if len(text) > PICKLED_CHARACTERS_MAX:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The function {name_of(function)} takes {len(text) >> 20} MiB with what it refers to",
            "Read large data in the function, from files that every executor has",
        )
    return f"{PICKLED}{_python_version()}:{name_of(function)}:{text}"


def name_of(function: Any) -> str:
    found = getattr(function, "__name__", type(function).__name__)
    return re.sub(r"\W", "_", found)


def _python_version() -> str:
    return ".".join(map(str, sys.version_info[:2]))


def shown(path: str) -> str:
    """The function as an error text names it, without its code."""
    return path.split(":")[2] if path.startswith(PICKLED) else path


def is_function(path: str) -> bool:
    """Whether the value of the option has the form of one."""
    if path.startswith(PICKLED):
        return len(path.split(":")) == 4
    return PATH.fullmatch(path) is not None


def _unpickled(path: str) -> Function:
    from pyspark import cloudpickle

    _, version, name, text = path.split(":")
    if version != _python_version():
        raise ConnectorError(
            errors.MISSING_DEPENDENCY,
            f"The function {name} was pickled by Python {version}, and {platform.node()} has "
            f"Python {_python_version()} ({sys.executable})",
            "Use the same minor version of Python everywhere, or put the function into a module "
            "and name it as package.module:function",
        )
    try:
        found: Function = cloudpickle.loads(zlib.decompress(base64.urlsafe_b64decode(text)))
    except ImportError as error:
        raise ConnectorError(
            errors.MISSING_DEPENDENCY,
            f"The function {name} needs what the Python of {platform.node()} ({sys.executable}) "
            f"does not have: {error}",
            "Install it on every executor, or send it with the job (--py-files)",
        ) from None
    except (ValueError, binascii.Error, zlib.error, EOFError) as error:
        raise ConnectorError(
            errors.INVALID_OPTION,
            f"The value of the option transform is damaged: {error}",
            "Set it to what pyspark_ottla.pickled(function) returns",
        ) from None
    return found


def load_function(path: str, option: str = "transform") -> Function:
    """The function that `package.module:function` names, or that was pickled.

    Raises ConnectorError.
    """
    if path.startswith(PICKLED):
        return _unpickled(path)
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
            f"What {shown(path)} (the option transform) returns does not fit the columns of the "
            f"query: {error}",
            f"It must yield pyarrow record batches with {kinds}; set the columns with .schema(...)",
        ) from None
