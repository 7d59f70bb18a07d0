"""Event files by a reader of their own, bit by bit; the CRC by its published values; CSV by the standard reader."""

import csv
import io
import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.runs.events import crc32c, csv_text, event_file, keep_events, masked


@pytest.mark.parametrize(
    ("data", "crc"),
    [  # RFC 3720, B.4, and the check value of the polynomial
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (b"123456789", 0xE3069283),
        (b"", 0),
    ],
)
def test_the_crc_is_castagnolis(data, crc):
    assert crc32c(data) == crc


def plain_crc(data):
    """Polynomial division, a bit at a time, most significant first."""
    reg = 0xFFFFFFFF
    for byte in data:
        for bit in range(8):
            top = (reg >> 31) ^ (byte >> bit & 1)
            reg = (reg << 1 & 0xFFFFFFFF) ^ (0x1EDC6F41 if top else 0)
    return int(f"{reg ^ 0xFFFFFFFF:032b}"[::-1], 2)


@given(st.binary(max_size=60))
def test_the_crc_by_long_division(data):
    assert crc32c(data) == plain_crc(data)


def records_of(data):
    """The messages of a file, each length and each message checked by its CRC."""
    at = 0
    while at < len(data):
        length, check = struct.unpack_from("<QI", data, at)
        body = data[at + 12 : at + 12 + length]
        (last,) = struct.unpack_from("<I", data, at + 12 + length)
        for part, said in ((data[at : at + 8], check), (body, last)):
            crc = plain_crc(part)
            assert said == (((crc >> 15) | (crc << 17 & 0xFFFFFFFF)) + 0xA282EAD8) % 2**32
        yield body
        at += 16 + length
    assert at == len(data)


def fields_of(message):
    """(number, value) of a protobuf message."""
    at, out = 0, []

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        elif kind == 1:
            (value,) = struct.unpack_from("<d", message, at)
            at += 8
        elif kind == 5:
            (value,) = struct.unpack_from("<f", message, at)
            at += 4
        else:
            assert kind == 2
            length = varint()
            value = message[at : at + length]
            at += length
        out.append((key >> 3, value))
    return out


def scalars_of(data):
    """{(step, tag): value} and the times."""
    first, *rest = records_of(data)
    assert dict(fields_of(first))[3] == b"brain.Event:2"
    found, times = {}, []
    for body in rest:
        event = dict(fields_of(body))
        times.append(event[1])
        for number, value in fields_of(event[5]):
            assert number == 1
            one = dict(fields_of(value))
            found[event[2], one[1].decode()] = one[2]
    return found, times


RECORDS = [
    {"round": 5, "loss": 1.5, "p@1": 0.25, "eer": None, "refused": 0, "seconds": 0.5},
    {"round": 300, "loss": math.nan, "p@1": 0.75, "eer": 0.125, "refused": 2, "seconds": 2.25},
]


def test_an_event_file_holds_every_figure():
    found, times = scalars_of(event_file(RECORDS))
    assert times == [0.5, 2.25]
    assert found == {
        (5, "train/loss"): 1.5, (5, "figures/p@1"): 0.25, (5, "figures/refused"): 0.0, (5, "train/seconds"): 0.5,
        (300, "figures/p@1"): 0.75, (300, "figures/eer"): 0.125, (300, "figures/refused"): 2.0,
        (300, "train/seconds"): 2.25,
    }  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2**40), st.floats(width=32, allow_nan=False, allow_infinity=False)), max_size=6)
)
def test_any_numbers(pairs):
    records = [{"round": step, "loss": value} for step, value in dict(pairs).items()]
    found, _ = scalars_of(event_file(records))
    assert found == {(step, "train/loss"): value for step, value in dict(pairs).items() if abs(value) < 3e38}


def test_masks():
    assert masked(0) == 0xA282EAD8 and masked(1) == (2**17 + 0xA282EAD8)


def test_csv_is_read_by_the_standard_reader():
    rows = list(csv.DictReader(io.StringIO(csv_text(RECORDS))))
    assert [row["p@1"] for row in rows] == ["0.25", "0.75"] and rows[0]["eer"] == "" and rows[1]["round"] == "300"


def test_tensorboard_reads_it(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    keep_events(RECORDS, tmp_path)
    found = reader.EventAccumulator(str(tmp_path))
    found.Reload()
    assert [(one.step, one.value) for one in found.Scalars("figures/p@1")] == [(5, 0.25), (300, 0.75)]
