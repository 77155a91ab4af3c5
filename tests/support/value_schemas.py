"""Schemas of orders in each format, and orders: nested, with every kind of type that is read."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import Message

from table.values.protobuf import compiled

START = datetime(2026, 1, 1, tzinfo=UTC)

_ADDRESS = {"type": "record", "name": "Address", "fields": [{"name": "street", "type": "string"}]}
_FIELDS: list[dict[str, Any]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "count", "type": "int"},
    {"name": "price", "type": "double"},
    {"name": "rate", "type": "float"},
    {"name": "paid", "type": "boolean"},
    {"name": "data", "type": "bytes"},
    {"name": "address", "type": ["null", _ADDRESS]},
    {"name": "tags", "type": {"type": "array", "items": "string"}},
    {"name": "stock", "type": {"type": "map", "values": "int"}},
    {"name": "state", "type": {"type": "enum", "name": "State", "symbols": ["NEW", "DONE"]}},
    {"name": "either", "type": ["null", "long", "string", "shop.Address"]},
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "finely", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 3}},
]
ORDER: Mapping[str, Any] = {"type": "record", "name": "Order", "namespace": "shop", "fields": _FIELDS}
ORDER_V2: Mapping[str, Any] = {**ORDER, "fields": [*_FIELDS, {"name": "channel", "type": "string", "default": "shop"}]}

ORDER_JSON: Mapping[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "Order",
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "customer": {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}},
        "tags": {"type": "array", "items": {"type": "string"}},
        "scores": {"type": "object", "additionalProperties": {"type": "number"}},
    },
}
ORDER_JSON_DDL = "id bigint, customer struct<name:string, age:bigint>, tags array<string>, scores map<string, double>"

ORDER_PROTO = """
syntax = "proto3";
package shop;
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";
message Other { map<string, int32> hidden = 1; message Inner { int32 number = 1; } }
message Order {
  enum State { NEW = 0; DONE = 1; }
  message Line { string item = 1; int32 count = 2; }
  int64 id = 1;
  string name = 2;
  uint64 large = 3;
  optional string note = 4;
  google.protobuf.Timestamp at = 5;
  repeated Line lines = 6;
  map<string, Line> by_name = 7;
  State state = 8;
  oneof paid { int32 cents = 9; string voucher = 10; }
  google.protobuf.DoubleValue weight = 11;
  bytes data = 12;
}
"""


def order(number: int) -> dict[str, Any]:
    """An order as fastavro takes it."""
    eithers = (None, number, f"text {number}", ("shop.Address", {"street": f"street {number}"}))
    return {
        "id": number,
        "name": f"name {number}",
        "count": -number,
        "price": number / 8,
        "rate": 0.5,
        "paid": number % 2 == 0,
        "data": bytes([number % 256]),
        "address": None if number % 3 == 0 else {"street": f"street {number}"},
        "tags": [f"tag {each}" for each in range(number % 4)],
        "stock": {"a": number, "b": -1},
        "state": "DONE" if number % 5 == 0 else "NEW",
        "either": eithers[number % 4],
        "at": START + timedelta(milliseconds=number),
        "finely": START + timedelta(microseconds=number),
        "day": (START + timedelta(days=number)).date(),
        "sum": Decimal(number).scaleb(-3),
    }


@dataclass(frozen=True, slots=True)
class OrderMessages:
    """The message's class of ORDER_PROTO."""

    order: type[Message]

    def make(self, number: int) -> Message:
        line = {"item": f"item {number}", "count": number}
        found: Any = self.order(
            id=number,
            name=f"name {number}",
            large=2**64 - 1 - number,
            lines=[line] * (number % 3),
            state=number % 2,
            data=bytes([number % 256]),
        )
        found.at.seconds, found.at.nanos = number, number * 1000
        found.by_name["first"].item, found.by_name["first"].count = f"item {number}", number
        if number % 2:
            found.note = "note"
            found.cents = number
            found.weight.value = 0.25
        else:
            found.voucher = f"voucher {number}"
        message: Message = found
        return message

    def row(self, number: int) -> dict[str, Any]:
        """Return what Spark is to make of it, with its offset."""
        line = {"item": f"item {number}", "count": number}
        is_odd = number % 2 == 1
        return {
            "offset": number,
            "id": number,
            "name": f"name {number}",
            "large": Decimal(2**64 - 1 - number),
            "note": "note" if is_odd else None,
            "at": datetime(1970, 1, 1) + timedelta(seconds=number, microseconds=number),
            "lines": [line] * (number % 3),
            "by_name": {"first": line},
            "state": "DONE" if is_odd else "NEW",
            "cents": number if is_odd else None,
            "voucher": None if is_odd else f"voucher {number}",
            "weight": 0.25 if is_odd else None,
            "data": bytearray([number % 256]),
        }


@functools.cache
def order_messages() -> OrderMessages:
    pool = DescriptorPool()
    for file in descriptor_pb2.FileDescriptorSet.FromString(compiled({"order.proto": ORDER_PROTO}, "order.proto")).file:
        pool.Add(file)
    return OrderMessages(message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order")))
