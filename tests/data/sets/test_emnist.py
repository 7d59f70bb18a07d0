"""EMNIST and Fashion-MNIST: MNIST's format with other classes, and EMNIST's images turned upright."""

import gzip
import struct

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.errors import SelfsameError


def idx(array):
    return struct.pack(f">4B{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


def write(folder, split, classes, first, each=2):
    folder.mkdir(parents=True, exist_ok=True)
    out = {}
    for seed, part in enumerate(("train", "test")):
        rng = np.random.default_rng(seed)
        x = rng.integers(0, 256, (classes * each, 5, 4)).astype(np.uint8)
        y = rng.permutation(np.repeat(np.arange(first, first + classes), each)).astype(np.uint8)
        (folder / f"emnist-{split}-{part}-images-idx3-ubyte.gz").write_bytes(gzip.compress(idx(x)))
        (folder / f"emnist-{split}-{part}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y)))
        out[part] = (x, y)
    return out


@pytest.mark.parametrize("split, classes, first", [("balanced", 47, 0), ("letters", 26, 1), ("byclass", 62, 0)])
def test_clients_hold_upright_images(tmp_path, split, classes, first):
    parts = write(tmp_path / "gzip", split, classes, first)
    mapping = "\n".join(f"{label} {97 + label % 26}" for label in range(first, first + classes))
    (tmp_path / "gzip" / f"emnist-{split}-mapping.txt").write_text(mapping + "\n")
    fed = load("emnist", tmp_path, split=split, held_out=2)
    assert fed.clients == classes - 2 and fed.shape == (1, 4, 5)
    x, y = parts["train"]
    for label in (0, classes - 3):
        rows = fed.source.rows(torch.tensor([label]), torch.arange(2)[None])[0, :, 0].numpy()
        assert np.array_equal(rows, np.stack([image.T for image in x[y == label + first]]))
    x, y = parts["test"]
    unseen = y - first >= classes - 2
    assert np.array_equal(fed.unseen.x[:, 0].numpy(), x[unseen].transpose(0, 2, 1))
    assert fed.class_names[1] == chr(97 + (1 + first) % 26) and len(fed.class_names) == classes


def test_another_split_is_asked_for_by_name(tmp_path):
    write(tmp_path, "digits", 10, 0)
    assert load("emnist", tmp_path, split="digits").class_names == ()
    assert load("emnist", tmp_path, split="digits", standardise=False).std == (1.0,)
    with pytest.raises(SelfsameError, match="emnist-balanced-train-images-idx3-ubyte not found; wanted: "):
        load("emnist", tmp_path)
    with pytest.raises(SelfsameError, match="split: 'all' is not one of balanced, byclass, "):
        load("emnist", tmp_path, split="all")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=60), st.text("0123456789 -\n", max_size=60).map(str.encode)))
def test_an_odd_mapping_gives_no_names(tmp_path, body):
    if not (tmp_path / "emnist-digits-mapping.txt").exists():
        write(tmp_path, "digits", 10, 0)
    (tmp_path / "emnist-digits-mapping.txt").write_bytes(body)
    assert len(load("emnist", tmp_path, split="digits").class_names) in (0, 10)


def test_a_label_out_of_range(tmp_path):
    write(tmp_path, "letters", 26, 0)
    with pytest.raises(SelfsameError, match=r"label 0 of image [0-9]+ is not 1 to 26"):
        load("emnist", tmp_path, split="letters")


def test_fashion_has_names(tmp_path):
    folder = tmp_path / "FashionMNIST" / "raw"
    folder.mkdir(parents=True)
    y = (np.arange(40) % 10).astype(np.uint8)
    x = np.random.default_rng(0).integers(0, 256, (40, 4, 4)).astype(np.uint8)
    for stem in ("train", "t10k"):
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx(x))
        (folder / f"{stem}-labels-idx1-ubyte").write_bytes(idx(y))
    fed = load("fashion_mnist", tmp_path)
    assert fed.name == "fashion_mnist" and fed.clients == 10 and fed.class_names[9] == "ankle boot"
    assert fed.mean == pytest.approx((x.mean() / 255,))
    assert load("fashion_mnist", tmp_path, standardise=False).mean == (0.0,)
