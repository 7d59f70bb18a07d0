"""CIFAR's pickles: the same images as from the binary files, and nothing that a hostile pickle asks for."""

import io
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.data.formats.pickles import read_pickle
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def python2(value):
    """A protocol 2 pickle as Python 2 and its NumPy wrote it: byte strings, and an array from numpy.core."""
    if isinstance(value, dict):
        return b"}(" + b"".join(python2(k) + python2(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(python2, value)) + b"e"
    if isinstance(value, bytes):
        return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    made = b"cnumpy.core.multiarray\n_reconstruct\nq\x01(cnumpy\nndarray\nK\x00\x85U\x01btR(K\x01"
    made += b"".join(python2(n) for n in value.shape) + b"\x86"
    made += b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    return (
        made
        + (b"\x88" if value.flags.f_contiguous and not value.flags.c_contiguous else b"\x89")
        + python2(value.tobytes("A"))
        + b"tb"
    )


def old(value):
    return b"\x80\x02" + python2(value) + b"."


def batch(number, classes=10, seed=0, keys=(b"labels",)):
    rng = np.random.default_rng(seed)
    fine = rng.permutation(np.arange(number) % classes)
    labels = {key: (fine // (5 if key == b"coarse_labels" else 1)).tolist() for key in keys}
    return {b"data": rng.integers(0, 256, (number, 3072)).astype(np.uint8), **labels, b"batch_label": b"a batch"}


def modern(protocol):
    def write(value):
        return pickle.dumps({(k.decode() if isinstance(k, bytes) else k): v for k, v in value.items()}, protocol)

    return write


@pytest.mark.parametrize("write", [old, modern(2), modern(4)], ids=["py2", "2", "4"])
def test_cifar10_pickles_hold_the_images(tmp_path, write):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    train, test = batch(40), batch(20, seed=1)
    (folder / "data_batch_1").write_bytes(write(train))
    (folder / "test_batch").write_bytes(write(test))
    names = [f"n{i}".encode() for i in range(10)]
    (folder / "batches.meta").write_bytes(write({b"label_names": names, b"num_vis": 3072}))
    fed = load("cifar10", tmp_path)
    assert fed.clients == 10 and fed.class_names == tuple(f"n{i}" for i in range(10))
    for label in range(10):
        expected = train[b"data"][np.array(train[b"labels"]) == label].reshape(-1, 3, 32, 32)
        rows = fed.source.rows(torch.tensor([label]), torch.arange(4)[None])[0]
        assert np.array_equal(rows.numpy(), expected)
    assert np.array_equal(fed.test.x.numpy(), test[b"data"].reshape(-1, 3, 32, 32))
    assert fed.test.y.tolist() == test[b"labels"]
    assert "data_batch_2, " in fed.notes[0]


def test_cifar100_pickles_equal_the_binary_files(tmp_path):
    keys = (b"coarse_labels", b"fine_labels")
    for name, number in (("train", 200), ("test", 100)):
        found = batch(number, 100, number, keys)
        (tmp_path / "p").mkdir(exist_ok=True)
        (tmp_path / "b").mkdir(exist_ok=True)
        (tmp_path / "p" / name).write_bytes(old(found))
        columns = [np.array(found[key], np.uint8)[:, None] for key in keys]
        (tmp_path / "b" / f"{name}.bin").write_bytes(np.concatenate([*columns, found[b"data"]], 1).tobytes())
    one, two = load("cifar100", tmp_path / "p"), load("cifar100", tmp_path / "b")
    assert torch.equal(one.source.x, two.source.x) and torch.equal(one.test.x, two.test.x)
    assert torch.equal(one.test.y, two.test.y) and torch.equal(one.count_N, two.count_N)


def test_column_order_is_kept(tmp_path):
    array = np.asfortranarray(np.arange(12, dtype=np.uint8).reshape(3, 4))
    (tmp_path / "f").write_bytes(old({b"data": array}))
    assert read_pickle(tmp_path / "f")["data"].tolist() == array.tolist()


class Runs:
    def __reduce__(self):
        return os.mkdir, ("ran",)


def edited(**changes):
    value = batch(20)
    value.update({key.encode(): change for key, change in changes.items()})
    return old(value)


@pytest.mark.parametrize(
    "raw, line",
    [
        (b"", "empty, expected a pickle"),
        (pickle.dumps({"data": Runs()}), "it asks for (posix|nt).mkdir"),
        (pickle.dumps({"data": io.BytesIO(b"")}), "it asks for _io.BytesIO|it uses NEWOBJ"),
        (b"\x80\x02cbuiltins\neval\n(U\x041+1tR.", "it asks for builtins.eval"),
        (b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n}U\x01aK\x01sb.", "a state for a function"),
        (b"\x80\x02Uxo.", "not a pickled batch"),
        (b"\x80\x02K\x01r\xff\xff\xff\x7f.", "its memo is larger"),
        (b"\x80\x02Pouter\n.", "it uses PERSID"),
        (b"\x80\x02K\x05.", "it holds a int, not a dict"),
        (old(batch(20))[:-900], "not a pickled batch"),
        (edited(data=np.zeros((20, 30), np.uint8)), "expected 'data', images of 3072 bytes"),
        (edited(data=b"none"), "expected 'data'"),
        (edited(labels=[0] * 19), "expected 'labels', a list of 20 labels"),
        (edited(labels=[0] * 19 + [10]), "label 10 of record 19 is not 0 to 9"),
        (edited(labels=[0] * 19 + [300]), "not small whole numbers"),
        (edited(labels=[0] * 19 + [b"x"]), "not small whole numbers"),
        (old(batch(20)).replace(b"U\x02u1", b"U\x02O8"), "an array that is not of bytes"),
        (old(batch(20)).replace(struct.pack("<i", 3072), struct.pack("<i", 3071)), "not as long as its shape"),
    ],
)
def test_a_bad_pickle_gets_one_line_and_nothing_runs(tmp_path, monkeypatch, raw, line):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(raw)
    (tmp_path / "test_batch").write_bytes(old(batch(20)))
    with pytest.raises(SelfsameError, match=line) as caught:
        load("cifar10", tmp_path)
    assert str(tmp_path / "data_batch_1") in str(caught.value) and "\n" not in str(caught.value)
    assert not (tmp_path / "ran").exists()


def reads(path):
    try:
        found = read_pickle(path)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return
    assert isinstance(found, dict) and all(isinstance(key, str) for key in found)


@FUZZ
@given(st.binary(max_size=60))
def test_random_bytes_are_read_or_get_one_line(tmp_path, raw):
    (tmp_path / "f").write_bytes(raw)
    reads(tmp_path / "f")


SMALL = old({b"data": np.arange(24, dtype=np.uint8).reshape(2, 12), b"labels": [1, 2], b"more": {b"a": [b"b"]}})


@FUZZ
@given(cut=st.integers(0, len(SMALL)), at=st.integers(0, len(SMALL) - 1), byte=st.integers(0, 255), cuts=st.booleans())
def test_damaged_pickles_are_read_or_get_one_line(tmp_path, cut, at, byte, cuts):
    raw = bytearray(SMALL)
    raw[at] = byte
    (tmp_path / "f").write_bytes(raw[:cut] if cuts else raw)
    reads(tmp_path / "f")
