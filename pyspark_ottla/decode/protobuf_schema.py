"""Protobuf schemas as descriptors and as Spark types.

A schema is a set of file descriptors. It comes as such (`protoc --descriptor_set_out
--include_imports`, in base64; from a registry one file at a time) or as the text of a `.proto`
file, which protoc compiles: the package grpcio-tools brings one in.
"""

from __future__ import annotations

import base64
import binascii
import importlib
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_ottla import errors
from pyspark_ottla.errors import ConnectorError

# protobuf has no type annotations of its own; the aliases name its classes.
FileDescriptorProto = Any
Descriptor = Any
FieldDescriptor = Any

MAIN_FILE = "value.proto"
COMPILE_SECONDS = 60
# Descriptors that come with the library, by their import.
WELL_KNOWN = (
    "any",
    "api",
    "descriptor",
    "duration",
    "empty",
    "field_mask",
    "source_context",
    "struct",
    "timestamp",
    "type",
    "wrappers",
)
# Only options of fields refer to it; they say nothing about bytes.
OPTIONS_ONLY = ("confluent/meta.proto",)

TIMESTAMP = "google.protobuf.Timestamp"
# Of any shape: their JSON is the value of the column.
AS_JSON = ("google.protobuf.Struct", "google.protobuf.Value", "google.protobuf.ListValue")
_WRAPPED = ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
WRAPPERS = tuple(f"google.protobuf.{name}Value" for name in _WRAPPED)
# uint64 in Spark: the largest has twenty digits.
UNSIGNED_LONG = DecimalType(20, 0)


def unsupported(what: str, hint: str = "") -> ConnectorError:
    return ConnectorError(errors.UNSUPPORTED_SCHEMA, f"The Protobuf schema {what}", hint)


def parse_inline(text: str) -> list[bytes]:
    """File descriptors, what others import first; the last one is the schema's own."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet
    from google.protobuf.message import DecodeError

    content = _from_base64(text)
    if content is None:
        return compile_text(text, ())
    found = FileDescriptorSet()
    try:
        found.ParseFromString(content)
    except DecodeError:
        raise unsupported("is base64, but no set of file descriptors") from None
    return [file.SerializeToString() for file in found.file]


def parse_registered(text: str, references: Sequence[tuple[str, str]]) -> list[bytes]:
    """The same of what a registry returns: each file as a descriptor in base64, or as text."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    files: list[bytes] = []
    for name, content in (*references, (MAIN_FILE, text)):
        serialized = _from_base64(content)
        if serialized is None:
            return compile_text(text, references)
        file = FileDescriptorProto()
        try:
            file.ParseFromString(serialized)
        except DecodeError:
            raise unsupported(f"has in {name} neither text nor a file descriptor") from None
        file.name = name
        files.append(file.SerializeToString())
    return files


def _from_base64(text: str) -> bytes | None:
    """None for the text of a `.proto` file: it has spaces and semicolons."""
    try:
        return base64.b64decode("".join(text.split("\n")), validate=True)
    except (binascii.Error, ValueError):
        return None


def compile_text(text: str, references: Iterable[tuple[str, str]]) -> list[bytes]:
    """What protoc makes of the text; raises ConnectorError."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for name, content in (*references, (MAIN_FILE, text)):
            path = (root / name).resolve()
            if root.resolve() not in path.parents:
                raise unsupported(f"imports {name}, which is outside of it")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
        # As a process of its own: protoc writes its errors to the standard error.
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                _PROTOC,
                f"-I{root}",
                "--include_imports",
                f"--descriptor_set_out={root / 'set'}",
                MAIN_FILE,
            ],
            capture_output=True,
            text=True,
            timeout=COMPILE_SECONDS,
        )
        if done.returncode == NO_COMPILER:
            raise ConnectorError(
                errors.MISSING_DEPENDENCY,
                f"The Protobuf schema is the text of a .proto file, and {sys.executable} has no "
                "compiler for it",
                "Install the package grpcio-tools there, or give the schema as a descriptor set "
                "(protoc --descriptor_set_out --include_imports) in base64",
            )
        if done.returncode != 0:
            raise unsupported(f"cannot be compiled: {' '.join(done.stderr.split())[:500]}")
        compiled = FileDescriptorSet.FromString((root / "set").read_bytes())
    return [file.SerializeToString() for file in compiled.file]


NO_COMPILER = 86
_PROTOC = f"""
import os, sys
try:
    import grpc_tools
    from grpc_tools import protoc
except ImportError:
    sys.exit({NO_COMPILER})
include = os.path.join(os.path.dirname(grpc_tools.__file__), "_proto")
sys.exit(protoc.main(["protoc", *sys.argv[1:], "-I" + include]))
"""


def message_of(files: Sequence[bytes], name: str) -> Descriptor:
    """The message of that full name; without a name the first one of the last file."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    try:
        main = _add_files(pool, files)
        if not name:
            if not main.message_type:
                raise unsupported("has no message")
            name = full_name(main, (0,))
        return pool.FindMessageTypeByName(name)
    except KeyError:
        names = ", ".join(full_name(main, (at,)) for at in range(len(main.message_type)))
        raise unsupported(f"has no message {name}", f"Its messages are: {names}") from None
    except TypeError as error:  # descriptors that do not fit together
        raise unsupported(f"cannot be used: {error}") from None


def _add_files(pool: Any, files: Sequence[bytes]) -> FileDescriptorProto:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    added: set[str] = set()
    file = FileDescriptorProto()
    for content in files:
        file = FileDescriptorProto.FromString(content)
        for imported in list(file.dependency):
            if imported not in added:
                _add_import(pool, file, imported, added)
        if file.name not in added:
            pool.AddSerializedFile(file.SerializeToString())
        added.add(file.name)
    return file


def _add_import(pool: Any, file: FileDescriptorProto, imported: str, added: set[str]) -> None:
    name = imported.removeprefix("google/protobuf/").removesuffix(".proto")
    if imported in OPTIONS_ONLY:
        position = list(file.dependency).index(imported)
        del file.dependency[position]
        del file.public_dependency[:]
        return
    if name not in WELL_KNOWN:
        raise unsupported(
            f"imports {imported}, which did not come with it",
            "Register it with its references, or make the descriptor set with --include_imports",
        )
    module = importlib.import_module(f"google.protobuf.{name}_pb2")
    for nested in module.DESCRIPTOR.dependencies:
        if nested.name not in added:
            pool.AddSerializedFile(nested.serialized_pb)
            added.add(nested.name)
    pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    added.add(imported)


def full_name(file: FileDescriptorProto, indexes: Sequence[int]) -> str:
    """The message that Confluent's indexes name: of the file, of that message, and so on.

    Raises IndexError for one that is not there.
    """
    names = [file.package] if file.package else []
    messages = file.message_type
    for index in indexes:
        if index < 0:
            raise IndexError(index)
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def name_of(files: Sequence[bytes], indexes: Sequence[int]) -> str:
    """The full name of the message that the indexes name in the last file."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    return full_name(FileDescriptorProto.FromString(files[-1]), indexes)


def is_repeated(field: FieldDescriptor) -> bool:
    """Newer versions of the library have a property for it and deprecate the label."""
    found = getattr(field, "is_repeated", None)
    return bool(field.label == field.LABEL_REPEATED if found is None else found)


def is_map(field: FieldDescriptor) -> bool:
    message = field.message_type
    return is_repeated(field) and message is not None and message.GetOptions().map_entry


def spark_type(message: Descriptor, path: tuple[str, ...] = ()) -> DataType:
    """The type of a column of such messages."""
    if message.full_name in path:
        raise unsupported(
            f"has the message {message.full_name} within itself, which no column can hold",
            "Read the bytes (value.format raw) and decode them with a function",
        )
    if message.full_name == TIMESTAMP:
        return TimestampType()
    if message.full_name in AS_JSON:
        return StringType()
    if message.full_name in WRAPPERS:
        return _scalar_type(message.fields[0])
    inner = (*path, message.full_name)
    fields = message.fields
    return StructType([StructField(field.name, _field_type(field, inner)) for field in fields])


def _field_type(field: FieldDescriptor, path: tuple[str, ...]) -> DataType:
    if is_map(field):
        key, value = field.message_type.fields
        return MapType(_field_type(key, path), _field_type(value, path))
    if field.message_type is not None:
        single = spark_type(field.message_type, path)
    else:
        single = _scalar_type(field)
    return ArrayType(single) if is_repeated(field) else single


def _scalar_type(field: FieldDescriptor) -> DataType:
    types: dict[int, DataType] = {
        field.CPPTYPE_DOUBLE: DoubleType(),
        field.CPPTYPE_FLOAT: FloatType(),
        field.CPPTYPE_INT32: IntegerType(),
        field.CPPTYPE_INT64: LongType(),
        field.CPPTYPE_UINT32: LongType(),
        field.CPPTYPE_UINT64: UNSIGNED_LONG,
        field.CPPTYPE_BOOL: BooleanType(),
        field.CPPTYPE_ENUM: StringType(),
        field.CPPTYPE_STRING: StringType(),
    }
    if field.type == field.TYPE_BYTES:
        return BinaryType()
    return types[field.cpp_type]
