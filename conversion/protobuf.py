"""Creates classes for protocol buffer messages, with only the fields that mtf needs.

The modules that TensorFlow and SentencePiece provide for their messages are not used, because they
require TensorFlow and the latest protobuf, respectively.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto


def message_class(package: str, messages: Mapping[str, Mapping[int, str]]) -> Any:
    """Creates message types, and returns the class of the last one.

    Args:
      package: name of the protobuf package.
      messages: dict mapping the name of each message to a dict that maps field numbers to
        `[repeated] TYPE NAME [= DEFAULT]`, where TYPE is a scalar type or an earlier message.
    """
    file = descriptor_pb2.FileDescriptorProto(name=package, package=package, syntax="proto2")
    for message, fields in messages.items():
        described = file.message_type.add(name=message)
        for number, text in fields.items():
            declared, _, default = text.partition(" = ")
            *repeated, kind, name = declared.split()
            field = described.field.add(name=name, number=number, label=_Field.LABEL_OPTIONAL)
            if kind in messages:
                field.type, field.type_name = _Field.TYPE_MESSAGE, f".{package}.{kind}"
            else:
                field.type = _Field.Type.Value(f"TYPE_{kind.upper()}")
            if repeated:
                field.label = _Field.LABEL_REPEATED
                field.options.packed = kind in ("int64", "float")
            if default:
                field.default_value = default
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{message}"))
