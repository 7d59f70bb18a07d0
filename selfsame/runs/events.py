"""A run's records in the forms that other tools read: a CSV table, and TensorBoard's event files.

An event file is a row of TFRecords: the length of a message, its masked CRC-32C, the message and its masked CRC-32C.
A message is a protobuf `Event`; a scalar is a `Summary.Value` in it.
"""

from __future__ import annotations

import csv
import io
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfsame.files import Record, write

CSV, EVENTS = "metrics.csv", "events.out.tfevents.selfsame"
_POLYNOMIAL = 0x82F63B78  # Castagnoli's, reflected
_MASK = 0xA282EAD8
_NAMES = {"loss": "train/loss", "seconds": "train/seconds"}  # other figures stand under "figures/"


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """A CRC that may stand beside what it covers."""
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def tf_record(data: bytes) -> bytes:
    """A message in its frame."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked(crc32c(length))) + data + struct.pack("<I", masked(crc32c(data)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: float | int | bytes) -> bytes:
    """A field of a protobuf message: bytes, a whole number, or, for Event.wall_time (1), a double."""
    if isinstance(value, bytes):
        return _varint(number << 3 | 2) + _varint(len(value)) + value
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    return _varint(number << 3 | 1) + struct.pack("<d", value)


def event(wall: float, step: int, scalars: Mapping[str, float]) -> bytes:
    """Event {1: wall_time, 2: step, 5: Summary {1: Value {1: tag, 2: simple_value}}}."""
    values = b""
    for tag, value in scalars.items():
        simple = _varint(2 << 3 | 5) + struct.pack("<f", value)
        values += _field(1, _field(1, tag.encode()) + simple)
    return _field(1, wall) + _field(2, step) + _field(5, values)


def event_file(records: Sequence[Record]) -> bytes:
    """The whole event file of some records; the time of each is what training had taken."""
    parts = [tf_record(_field(1, 0.0) + _field(3, b"brain.Event:2"))]  # 3: file_version
    for record in records:
        scalars = {
            _NAMES.get(key, f"figures/{key}"): number
            for key, value in record.items()
            if key != "round" and (number := _number(value)) is not None
        }
        parts.append(tf_record(event(float(record.get("seconds") or 0.0), int(record["round"]), scalars)))
    return b"".join(parts)


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value) if abs(value) < 3e38 else None


def csv_text(records: Sequence[Record]) -> str:
    """The records as a table, one column a figure that any of them has."""
    columns = list(dict.fromkeys(key for record in records for key in record))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(["" if record.get(key) is None else record[key] for key in columns] for record in records)
    return out.getvalue()


def keep_events(records: Sequence[Record], folder: Path) -> None:
    """Both files, beside metrics.jsonl, from all records of a run."""
    write(folder / CSV, csv_text(records))
    write(folder / EVENTS, event_file(records))
