"""CIFAR's binary files: the right images from good ones, one line from any others."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
FOLDER = {"cifar10": "cifar-10-batches-bin", "cifar100": "cifar-100-binary"}


def _records(name, number, seed=0):
    """Records with every class equally often, in a scrambled order; the coarse label is the class over five."""
    rng = np.random.default_rng(seed)
    classes = 10 if name == "cifar10" else 100
    fine = rng.permutation(np.arange(number) % classes).astype(np.uint8)
    x = rng.integers(0, 256, (number, 3072)).astype(np.uint8)
    labels = [fine[:, None]] if name == "cifar10" else [fine[:, None] // 5, fine[:, None]]
    return np.concatenate([*labels, x], 1)


def _write(folder, name, batches=(1, 2, 3, 4, 5), number=200):
    folder.mkdir(parents=True, exist_ok=True)
    if name == "cifar100":
        (folder / "train.bin").write_bytes(_records(name, number).tobytes())
        (folder / "test.bin").write_bytes(_records(name, 100, 9).tobytes())
        return
    for batch in batches:
        (folder / f"data_batch_{batch}.bin").write_bytes(_records(name, 20, batch).tobytes())
    (folder / "test_batch.bin").write_bytes(_records(name, 20, 9).tobytes())


@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_clients_hold_the_files_images(tmp_path, name, nested):
    _write(tmp_path / FOLDER[name] if nested else tmp_path, name)
    fed = load(name, tmp_path, held_out=2)
    width, classes = (1, 10) if name == "cifar10" else (2, 100)
    parts = [_records(name, 20, b) for b in range(1, 6)] if name == "cifar10" else [_records(name, 200)]
    train, test = np.concatenate(parts), _records(name, 20 if name == "cifar10" else 100, 9)
    assert fed.clients == fed.classes == classes - 2 and fed.shape == (3, 32, 32) and fed.notes == ()
    for label in (0, classes - 3):
        expected = train[train[:, width - 1] == label, width:].reshape(-1, 3, 32, 32)
        assert int(fed.count_N[label]) == len(expected)
        rows = fed.source.rows(torch.tensor([label]), torch.arange(len(expected))[None])[0]
        assert np.array_equal(rows.numpy(), expected)
    unseen = test[test[:, width - 1] >= classes - 2]
    assert np.array_equal(fed.unseen.x.flatten(1).numpy(), unseen[:, width:])
    assert np.array_equal(fed.unseen.y.numpy(), unseen[:, width - 1])
    assert len(fed.test.y) + len(fed.unseen.y) == len(test)


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_pixels_stay_as_they_are_unless_standardised(tmp_path, name):
    _write(tmp_path, name)
    fed = load(name, tmp_path, standardise=False)
    torch.testing.assert_close(fed.scale(fed.test.x), fed.test.x.float() / 255)
    assert not torch.allclose(load(name, tmp_path).scale(fed.test.x), fed.test.x.float() / 255)


def test_absent_batches_are_left_out_and_said(tmp_path):
    _write(tmp_path, "cifar10", batches=(2, 4))
    fed = load("cifar10", tmp_path)
    assert int(fed.count_N.sum()) == 40
    assert fed.notes == ("trained without the absent data_batch_1.bin, data_batch_3.bin, data_batch_5.bin",)
    assert len(fed.unseen.y) == 0 and fed.unseen.x.shape == (0, 3, 32, 32)


def test_class_names_are_read_where_they_are_sound(tmp_path):
    _write(tmp_path, "cifar10")
    names = [f"name {number}" for number in range(10)]
    (tmp_path / "batches.meta.txt").write_text("\n".join(names) + "\n\n")
    assert load("cifar10", tmp_path).class_names == tuple(names)
    (tmp_path / "batches.meta.txt").write_bytes(b"\xff\xfe\0")
    assert load("cifar10", tmp_path).class_names == ()


@pytest.mark.parametrize("absent", ["data_batch_1.bin", "test_batch.bin"])
def test_no_train_or_no_test_file_is_an_error(tmp_path, absent):
    _write(tmp_path, "cifar10", batches=(1,))
    (tmp_path / absent).unlink()
    with pytest.raises(SelfsameError, match=f"{absent} not found; wanted: "):
        load("cifar10", tmp_path)


@pytest.mark.parametrize(
    "name, file, change, line",
    [
        ("cifar10", "data_batch_3.bin", lambda raw: b"", "empty"),
        ("cifar10", "data_batch_3.bin", lambda raw: raw[:-1], "not whole records of 3073"),
        ("cifar10", "data_batch_3.bin", lambda raw: raw[:3073] + b"\x0a" + raw[3074:], "label 10 of record 1"),
        ("cifar100", "train.bin", lambda raw: raw[:100], "not whole records of 3074"),
        ("cifar100", "train.bin", lambda raw: b"\x14" + raw[1:], "label 20 of record 0 is not 0 to 19"),
        ("cifar100", "test.bin", lambda raw: raw[:1] + b"\x64" + raw[2:], "label 100 of record 0 is not 0 to 99"),
    ],
)
def test_broken_files_get_one_line_with_their_name(tmp_path, name, file, change, line):
    _write(tmp_path, name)
    (tmp_path / file).write_bytes(change((tmp_path / file).read_bytes()))
    with pytest.raises(SelfsameError, match=line) as caught:
        load(name, tmp_path)
    assert str(tmp_path / file) in str(caught.value)


def test_a_class_without_samples_is_an_error(tmp_path):
    _write(tmp_path, "cifar100", number=90)
    with pytest.raises(SelfsameError, match="no training samples of class 9"):
        load("cifar100", tmp_path)


def _loads(tmp_path):
    try:
        fed = load("cifar10", tmp_path)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return False
    assert fed.clients == 10 and int(fed.test.y.max()) < 10
    return True


@FUZZ
@given(raw=st.one_of(st.binary(max_size=64), st.binary(min_size=12, max_size=12).map(lambda part: part * 3073)))
def test_random_bytes_load_or_get_one_line(tmp_path, raw):
    _write(tmp_path, "cifar10", batches=(1,))
    (tmp_path / "data_batch_1.bin").write_bytes(raw)
    _loads(tmp_path)


@FUZZ
@given(data=st.data(), file=st.sampled_from(["data_batch_1.bin", "test_batch.bin"]))
def test_truncations_and_flipped_bits_load_or_get_one_line(tmp_path, data, file):
    _write(tmp_path, "cifar10", batches=(1,))
    raw = bytearray((tmp_path / file).read_bytes())
    cut = data.draw(st.integers(0, len(raw)))
    (tmp_path / file).write_bytes(raw[:cut])
    assert not _loads(tmp_path) or cut % 3073 == 0
    record, bit = data.draw(st.integers(0, 19)), data.draw(st.integers(0, 7))
    raw[record * 3073] ^= 1 << bit
    (tmp_path / file).write_bytes(raw)
    _loads(tmp_path)
