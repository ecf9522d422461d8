"""Reads event files of TensorBoard as its own reader does: records with masked CRC-32C, messages parsed by Google's protobuf.

TensorBoard itself is not packaged; the fields are those of its event.proto and summary.proto.
"""

import struct


def crc32c(data):
    value = 0xFFFFFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ (0x82F63B78 if value & 1 else 0)
    return value ^ 0xFFFFFFFF


def masked(data):
    value = crc32c(data)
    return ((value >> 15 | value << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """What each record holds; a wrong checksum or a cut file is an error."""
    with open(path, "rb") as file:
        while head := file.read(12):
            length, check = struct.unpack("<QI", head)
            if masked(head[:8]) != check:
                raise ValueError(f"{path}: checksum of a length")
            data = file.read(length)
            if len(data) != length or struct.unpack("<I", file.read(4))[0] != masked(data):
                raise ValueError(f"{path}: checksum of a record")
            yield data


def event_type():
    from google.protobuf import descriptor_pb2, descriptor_pool
    try:
        from google.protobuf.message_factory import GetMessageClass as make
    except ImportError:
        from google.protobuf.message_factory import MessageFactory
        make = MessageFactory().GetPrototype
    file = descriptor_pb2.FileDescriptorProto(name="event.proto", package="tb", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def message(name, *fields):
        made = file.message_type.add(name=name)
        for number, label, kind, repeated in fields:
            field = made.field.add(name=label, number=number,
                                   label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL)
            if isinstance(kind, str):
                field.type, field.type_name = kinds.TYPE_MESSAGE, kind
            else:
                field.type = kind

    message("Value", (1, "tag", kinds.TYPE_STRING, False), (2, "simple_value", kinds.TYPE_FLOAT, False))
    message("Summary", (1, "value", ".tb.Value", True))
    message("Event", (1, "wall_time", kinds.TYPE_DOUBLE, False), (2, "step", kinds.TYPE_INT64, False),
            (3, "file_version", kinds.TYPE_STRING, False), (5, "summary", ".tb.Summary", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return make(pool.FindMessageTypeByName("tb.Event"))


def read_events(path):
    """The version of the file, and (step, {tag: value}) of each event after it."""
    make = event_type()
    events = [make.FromString(data) for data in records(path)]
    return events[0].file_version, [(event.step, {value.tag: value.simple_value for value in event.summary.value})
                                    for event in events[1:]]
