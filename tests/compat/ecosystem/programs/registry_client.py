"""Confluent's serializers with a registry and a broker: `registry_client.py BOOTSTRAP URL FORMAT`.

Runs in an environment of its own (apicurio.py); writes five records of a format and reads them.
With `evolve` as the format, registers a second schema and asks whether a third one is compatible.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [{"name": "id", "type": "long"}, {"name": "item", "type": "string"}],
}
_JSON = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {"id": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["id", "item"],
}
_ROWS = [{"id": number, "item": f"item {number}"} for number in range(5)]


def _message_class() -> Any:
    """The class of `message Order { int64 id = 1; string item = 2; }`."""
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    kinds = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        (("id", kinds.TYPE_INT64), ("item", kinds.TYPE_STRING)), start=1
    ):
        message.field.add(name=name, number=number, type=kind, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))


def _codecs(registry: SchemaRegistryClient, form: str) -> tuple[Any, Any]:
    """A function from a row to bytes and one back, each with a context."""
    if form == "avro":
        return AvroSerializer(registry, json.dumps(_AVRO)), AvroDeserializer(registry)
    if form == "json":
        text = json.dumps(_JSON)
        return JSONSerializer(text, registry), JSONDeserializer(
            text, schema_registry_client=registry
        )
    order = _message_class()
    settings = {"use.deprecated.format": False}
    serializer = ProtobufSerializer(order, registry, settings)
    deserializer = ProtobufDeserializer(order, settings, registry)

    def encode(row: dict[str, Any], context: SerializationContext) -> Any:
        return serializer(order(**row), context)

    def decode(data: bytes, context: SerializationContext) -> dict[str, Any]:
        message = deserializer(data, context)
        return {"id": message.id, "item": message.item}

    return encode, decode


def _round_trip(bootstrap: str, registry: SchemaRegistryClient, form: str) -> None:
    topic = f"orders-{form}"
    encode, decode = _codecs(registry, form)
    context = SerializationContext(topic, MessageField.VALUE)
    producer = Producer({"bootstrap.servers": bootstrap})
    for row in _ROWS:
        producer.produce(topic, encode(row, context))
    assert producer.flush(60) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"readers-{form}-{registry.get_subjects()}"[:100],
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    found: list[Any] = []
    while len(found) < len(_ROWS):
        message = consumer.poll(60)
        assert message is not None, f"{len(found)} records"
        assert message.error() is None, message.error()
        found.append(decode(message.value(), context))
    consumer.close()
    assert found[: len(_ROWS)] == _ROWS, found


def _evolve(registry: SchemaRegistryClient) -> None:
    subject = "orders-avro-value"
    more = {"name": "note", "type": ["null", "string"], "default": None}
    second = Schema(json.dumps({**_AVRO, "fields": [*_AVRO["fields"], more]}), "AVRO")
    registry.set_compatibility(subject, "BACKWARD")
    assert registry.test_compatibility(subject, second)
    registry.register_schema(subject, second)
    wrong = {"name": "needed", "type": "long"}
    third = Schema(json.dumps({**_AVRO, "fields": [*_AVRO["fields"], wrong]}), "AVRO")
    assert not registry.test_compatibility(subject, third)


def main() -> None:
    bootstrap, url, form = sys.argv[1:]
    registry = SchemaRegistryClient({"url": url})
    if form == "evolve":
        _evolve(registry)
    elif form == "subjects":
        print(json.dumps(sorted(registry.get_subjects())))
    else:
        _round_trip(bootstrap, registry, form)


if __name__ == "__main__":
    main()
