"""Our bytes in Flower's messages: one array of bytes in one record, and nothing beside it."""

from __future__ import annotations

from flwr.app import Array, ArrayRecord, Message, MessageType, RecordDict

RECORD, ARRAY, FORM = "selfsame", "message", "selfsame.safetensors"
KIND = MessageType.TRAIN  # Flower's kinds are not ours: what a message asks for stands inside it, where it is checked


def wrap(payload: bytes) -> RecordDict:
    """As an array, which Flower sends in pieces and stores once where several nodes get the same."""
    array = Array(dtype="uint8", shape=(len(payload),), stype=FORM, data=payload)
    return RecordDict({RECORD: ArrayRecord({ARRAY: array})})


def unwrap(message: Message) -> bytes | None:
    """The bytes, or nothing where the message holds anything else."""
    content = message.content
    if set(content) != {RECORD} or not isinstance(content[RECORD], ArrayRecord):
        return None
    record = content.array_records[RECORD]
    if set(record) != {ARRAY} or record[ARRAY].stype != FORM:
        return None
    return record[ARRAY].data
