"""idx files: the right arrays from good ones, one line from any others."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import Federation, load
from selfsame.data.formats.idx import read_idx
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
TRAIN_X, TRAIN_Y = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
TEST_X, TEST_Y = "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"


def _idx(array, code=8):
    return struct.pack(f">4B{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def _parts(train=40, test=20):
    rng = np.random.default_rng(0)
    parts = {}
    for names, number in (((TRAIN_X, TRAIN_Y), train), ((TEST_X, TEST_Y), test)):
        parts[names[0]] = rng.integers(0, 256, (number, 4, 5)).astype(np.uint8)
        parts[names[1]] = (np.arange(number) * 7 % 10).astype(np.uint8)
    return parts


def _write(folder, parts, zipped=False):
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in parts.items():
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(_idx(array)))
        else:
            (folder / name).write_bytes(_idx(array))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("inner", [".", "raw", "MNIST/raw"])
def test_clients_hold_the_files_images(tmp_path, inner, zipped):
    parts = _parts()
    _write(tmp_path / inner, parts, zipped)
    fed = load("mnist", tmp_path, held_out=3)
    assert fed.clients == 7 and fed.shape == (1, 4, 5)
    for label in range(7):
        expected = parts[TRAIN_X][parts[TRAIN_Y] == label]
        rows = fed.source.rows(torch.tensor([label]), torch.arange(4)[None])[0, :, 0]
        assert int(fed.count_N[label]) == 4 and np.array_equal(rows.numpy(), expected)
    assert np.array_equal(fed.test.x[:, 0].numpy(), parts[TEST_X][parts[TEST_Y] < 7])
    assert np.array_equal(fed.unseen.x[:, 0].numpy(), parts[TEST_X][parts[TEST_Y] >= 7])
    seen = parts[TRAIN_X][parts[TRAIN_Y] < 7] / 255
    assert fed.mean == pytest.approx((seen.mean(),)) and fed.std == pytest.approx((seen.std(),))


def test_nothing_held_out_leaves_no_unseen_rows(tmp_path):
    _write(tmp_path, _parts())
    fed = load("mnist", tmp_path, clients_per_class=2)
    assert fed.clients == 20 and len(fed.unseen.x) == len(fed.unseen.y) == 0


def test_pixels_stay_as_they_are_unless_standardised(tmp_path):
    _write(tmp_path, _parts())
    plain, usual = (load("mnist", tmp_path, standardise=on) for on in (False, True))
    pixels = plain.test.x.double() / 255
    torch.testing.assert_close(plain.scale(plain.test.x).double(), pixels)
    want = (pixels - usual.mean[0]) / usual.std[0]
    torch.testing.assert_close(usual.scale(usual.test.x).double(), want, atol=1e-5, rtol=1e-5)


def _broken(name, change):
    parts = _parts()
    parts[name] = change(parts[name])
    return parts


@pytest.mark.parametrize(
    "parts, line",
    [
        (_broken(TRAIN_Y, lambda y: np.where(np.arange(40) == 3, 10, y).astype(np.uint8)), "label 10 of image 3"),
        (_broken(TRAIN_Y, lambda y: y[:-1]), "39 labels for the 40 images"),
        (_broken(TRAIN_Y, lambda y: y % 9), "no training samples of class 9"),
        (_broken(TRAIN_X, lambda x: x[:0]), f"{TRAIN_X}: empty"),
        (_broken(TRAIN_X, lambda x: x[:, 0]), "expected bytes in 3 dimensions"),
        (_broken(TEST_Y, lambda y: y[:, None]), "expected bytes in 1 dimension"),
        (_broken(TEST_X, lambda x: x[:, :3]), "differ in size"),
        (_broken(TRAIN_X, lambda x: x * 0), "all pixels"),
    ],
)
def test_wrong_contents_get_one_line(tmp_path, parts, line):
    _write(tmp_path, parts)
    with pytest.raises(SelfsameError, match=line):
        load("mnist", tmp_path)


@pytest.mark.parametrize(
    "raw, line",
    [
        (b"", "not an idx file, it begins with nothing"),
        (b"\x89PNG....", "not an idx file"),
        (b"\0\0\x08\x03\0\0", "truncated within the header"),
        (b"\0\0\x08\x01\0\0\0\x04abc", "more than the file can hold|truncated"),
        (b"\0\0\x08\x01\0\0\0\x02abc", "longer than its header says"),
        (b"\0\0\x08\x03" + b"\xff" * 12, "more than the file can hold"),
        (_idx(np.array([1.0, np.nan], ">f4"), 0x0D), "not finite"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_broken_idx_files_get_one_line(tmp_path, raw, line, zipped):
    file = tmp_path / ("x.gz" if zipped else "x")
    file.write_bytes(gzip.compress(raw) if zipped else raw)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_idx(file)
    assert str(file) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("code, kind", [(8, "u1"), (9, "i1"), (11, ">i2"), (12, ">i4"), (13, ">f4"), (14, ">f8")])
def test_every_idx_type_is_read(tmp_path, code, kind):
    array = np.arange(6).reshape(2, 3).astype(kind)
    (tmp_path / "x").write_bytes(_idx(array, code))
    assert np.array_equal(read_idx(tmp_path / "x"), array)


def test_a_gzip_bomb_is_not_unpacked(tmp_path, monkeypatch):
    bomb = tmp_path / "x.gz"
    bomb.write_bytes(gzip.compress(_idx(np.zeros(10, np.uint8)) + bytes(20_000_000)))
    read = []
    plain = gzip.GzipFile.read

    def counted(self, size=-1):
        data = plain(self, size)
        read.append(len(data))
        return data

    monkeypatch.setattr(gzip.GzipFile, "read", counted)
    with pytest.raises(SelfsameError, match="longer than its header says"):
        read_idx(bomb)
    assert 0 < sum(read) < 100


def test_a_header_that_promises_more_than_gzip_can_hold_is_not_believed(tmp_path):
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"\0\0\x08\x01" + struct.pack(">I", 10**9)))
    with pytest.raises(SelfsameError, match="more than the file can hold"):
        read_idx(tmp_path / "x.gz")


def _one_of(action):
    """The result, or None after a one-line SelfsameError; any other exception fails the test."""
    try:
        return action()
    except SelfsameError as error:
        assert "\n" not in str(error)
        return None


IDX = _idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@FUZZ
@given(raw=st.one_of(st.binary(max_size=64), st.binary(max_size=40).map(lambda tail: b"\0\0\x08" + tail)))
def test_random_bytes_never_crash_the_parser(tmp_path, raw):
    for name, content in (("x", raw), ("y.gz", raw), ("z.gz", gzip.compress(raw))):
        (tmp_path / name).write_bytes(content)
        _one_of(lambda name=name: read_idx(tmp_path / name))


@FUZZ
@given(cut=st.integers(0, len(IDX) - 1))
def test_every_truncation_is_noticed(tmp_path, cut):
    packed = gzip.compress(IDX)
    for name, content in (("x", IDX[:cut]), ("y.gz", packed[: min(cut, len(packed) - 1)])):
        (tmp_path / name).write_bytes(content)
        assert _one_of(lambda name=name: read_idx(tmp_path / name)) is None


@FUZZ
@given(bit=st.integers(0, 8 * 600), name=st.sampled_from([TRAIN_X, TRAIN_Y, TEST_X, TEST_Y]), zipped=st.booleans())
def test_a_flipped_bit_loads_or_gets_one_line(tmp_path, bit, name, zipped):
    _write(tmp_path, _parts())
    raw = bytearray(_idx(_parts()[name]))
    raw = bytearray(gzip.compress(raw)) if zipped else raw
    bit %= 8 * len(raw)
    raw[bit // 8] ^= 1 << bit % 8
    (tmp_path / name).unlink()
    (tmp_path / f"{name}.gz").unlink(missing_ok=True)
    (tmp_path / (f"{name}.gz" if zipped else name)).write_bytes(raw)
    fed = _one_of(lambda: load("mnist", tmp_path))
    assert fed is None or (isinstance(fed, Federation) and fed.clients == 10 and int(fed.test.y.max()) < 10)
