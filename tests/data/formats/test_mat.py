"""Matlab files: what SciPy writes comes back, and damaged files get one line."""

import io
import struct
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import savemat

from selfsame.data.formats.mat import read_matlab
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
RNG = np.random.default_rng(0)
VALUE = {
    "images": RNG.integers(0, 256, (3, 4)).astype(np.uint8),
    "writers": np.array([[5], [70000], [9]]),
    "deep": {"x": np.array([[1.5, np.inf]]), "n": np.arange(6, dtype=np.int16).reshape(2, 3)},
}


def saved(value, compress=False):
    out = io.BytesIO()
    savemat(out, {"first": np.zeros((2, 2)), "dataset": value}, do_compression=compress)
    return out.getvalue()


@pytest.mark.parametrize("compress", [False, True])
def test_numbers_and_structures_come_back(tmp_path, compress):
    (tmp_path / "a.mat").write_bytes(saved(VALUE, compress))
    found = read_matlab(tmp_path / "a.mat", "dataset")
    assert set(found) == set(VALUE) and set(found["deep"]) == {"x", "n"}
    for key in ("images", "writers"):
        assert np.array_equal(found[key], VALUE[key])
    assert np.array_equal(found["deep"]["x"], VALUE["deep"]["x"])
    assert np.array_equal(found["deep"]["n"], VALUE["deep"]["n"])
    assert found["images"].dtype == np.uint8
    assert read_matlab(tmp_path / "a.mat", "first").tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("dtype", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"])
def test_every_type_of_number(tmp_path, dtype):
    array = np.array([[1, 2, 3], [4, 5, 100]], dtype)
    (tmp_path / "a.mat").write_bytes(saved(array))
    assert read_matlab(tmp_path / "a.mat", "dataset").tolist() == array.tolist()


def big_endian():
    """A 1x2 array of doubles written by hand, most significant byte first."""

    def element(kind, body):
        return struct.pack(">II", kind, len(body)) + body + bytes(-len(body) % 8)

    flags, dims = element(6, struct.pack(">II", 6, 0)), element(5, struct.pack(">ii", 1, 2))
    body = flags + dims + element(1, b"dataset") + element(9, struct.pack(">dd", 1.0, -2.0))
    return bytes(124) + struct.pack(">H", 0x0100) + b"MI" + element(14, body)


def test_most_significant_byte_first(tmp_path):
    (tmp_path / "a.mat").write_bytes(big_endian())
    assert read_matlab(tmp_path / "a.mat", "dataset").tolist() == [[1.0, -2.0]]


@pytest.mark.parametrize(
    "raw, line",
    [
        (b"", "not a Matlab file of version 5"),
        (b"\x89HDF\r\n\x1a\n" + bytes(200), "not a Matlab file of version 5"),
        (saved({"x": np.zeros((3, 3))})[:-20], "truncated"),
        (saved(np.array([["text"]])), "dataset is neither numbers nor one structure"),
        (saved(np.array([[1 + 2j]])), "dataset is neither numbers nor one structure"),
        (saved(VALUE)[:128], "it has no variable dataset"),
        (saved(VALUE, True)[:-30], "truncated"),
        (saved(np.zeros((2, 3)))[:128] + big_endian()[128:], "element|truncated"),
    ],
)
def test_what_is_wrong_gets_one_line(tmp_path, raw, line):
    (tmp_path / "a.mat").write_bytes(raw)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_matlab(tmp_path / "a.mat", "dataset")
    assert str(tmp_path / "a.mat") in str(caught.value) and "\n" not in str(caught.value)


def test_a_compressed_variable_is_not_read_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("selfsame.data.formats.mat._MOST_BYTES", 1000)
    body = zlib.compress(bytes(5000))
    (tmp_path / "a.mat").write_bytes(bytes(124) + b"\0\1IM" + struct.pack("<II", 15, len(body)) + body)
    with pytest.raises(SelfsameError, match="a variable is truncated or too large"):
        read_matlab(tmp_path / "a.mat", "dataset")


WHOLE = [saved(VALUE), saved(VALUE, True), big_endian()]


@FUZZ
@given(
    whole=st.sampled_from(WHOLE),
    changes=st.lists(st.tuples(st.integers(100, 2000), st.integers(0, 255)), max_size=5),
    cut=st.one_of(st.none(), st.integers(0, 2000)),
)
def test_damaged_files_are_read_or_get_one_line(tmp_path, whole, changes, cut):
    raw = bytearray(whole[:cut])
    for at, byte in changes:
        if raw:
            raw[at % len(raw)] = byte
    (tmp_path / "a.mat").write_bytes(raw)
    try:
        read_matlab(tmp_path / "a.mat", "dataset")
    except SelfsameError as error:
        assert "\n" not in str(error)


@FUZZ
@given(st.binary(max_size=100))
def test_random_bytes_after_a_good_header(tmp_path, body):
    (tmp_path / "a.mat").write_bytes(WHOLE[0][:128] + body)
    with pytest.raises(SelfsameError):
        read_matlab(tmp_path / "a.mat", "dataset")
