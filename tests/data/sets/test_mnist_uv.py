"""MNIST-UV: four digits of one writer, no image in two parts, and files that are not what they should be."""

import struct
from collections import Counter

import numpy as np
import pytest
from scipy.io import savemat
from trees import rows_of

from selfsame.data import load
from selfsame.data.sets.mnist_uv import read_digits
from selfsame.errors import SelfsameError


def idx(array, code):
    return struct.pack(f">4B{array.ndim}I", 0, 0, code, array.ndim, *array.shape) + array.tobytes()


def collection(counts, seed=0):
    """Images, each of its own, of digits 0 to 9: writer w has counts[w] of each of 2 to 5 and one of each other."""
    rng = np.random.default_rng(seed)
    rows = [(d, w) for w, n in counts.items() for d in range(10) for _ in range(n if 2 <= d <= 5 else 1)]
    digit, writer = (np.array(column) for column in zip(*(rows[n] for n in rng.permutation(len(rows)))))
    image = rng.integers(0, 256, (len(rows), 28, 28)).astype(np.uint8)
    return image, digit, writer


def write_qmnist(folder, counts, more=0):
    folder.mkdir(parents=True, exist_ok=True)
    parts = []
    for seed, (part, stem) in enumerate((("train", "train"), ("test", "t10k"))):
        image, digit, writer = collection(counts[part], seed)
        label = np.zeros((len(digit) + more, 8), ">i4")
        label[: len(digit), 0], label[: len(digit), 2] = digit, writer
        (folder / f"{stem}-images-idx3-ubyte").write_bytes(idx(image, 8))
        (folder / f"qmnist-{part}-labels-idx2-int").write_bytes(idx(label, 12))
        parts.append((image, digit, writer))
    return tuple(np.concatenate(columns) for columns in zip(*parts))


COUNTS = {"train": dict.fromkeys(range(100, 108), 8), "test": {200: 8, 201: 7, 202: 6, 203: 2, 204: 1}}


def origin(image, digit, writer):
    return {pixels.tobytes(): (int(d), int(w), n) for n, (pixels, d, w) in enumerate(zip(image, digit, writer))}


def test_examples_are_four_digits_of_one_writer_and_no_image_is_in_two_parts(tmp_path):
    of = origin(*write_qmnist(tmp_path / "MNIST" / "raw", COUNTS, more=3))
    fed = load("mnist_uv", tmp_path, held_out=4)
    assert fed.shape == (4, 28, 28) and len(fed.unseen.y.unique()) == 4
    assert fed.count_N.tolist() == [50] * fed.clients
    used = {"train": set(), "validation": set(), "test": set()}
    examples = {client: rows_of(fed, client) for client in range(fed.clients)}
    for samples in (fed.validation, fed.test):
        assert Counter(samples.y.tolist()) == dict.fromkeys(range(fed.clients), 15)
    for client in range(fed.clients):
        blocks = {
            "train": examples[client],
            "validation": fed.validation.x[fed.validation.y == client],
            "test": fed.test.x[fed.test.y == client],
        }
        for part, block in blocks.items():
            assert len({row.numpy().tobytes() for row in block}) == len(block)  # the examples of a part differ
            for row in block:
                found = [of[channel.numpy().tobytes()] for channel in row]
                assert [d for d, _, _ in found] == [2, 3, 4, 5]
                assert {f"writer {w}" for _, w, _ in found} == {fed.class_names[client]}
                used[part] |= {n for _, _, n in found}
    assert not used["train"] & used["validation"] and not used["train"] & used["test"]
    assert not used["validation"] & used["test"]
    for label in fed.unseen.y.unique().tolist():
        images = [of[channel.numpy().tobytes()] for row in fed.unseen.x[fed.unseen.y == label] for channel in row]
        assert len(set(images)) == len(images)  # those of an unseen writer share none
        assert {f"writer {w}" for _, w, _ in images} == {fed.class_names[label]}
        assert fed.class_names[label] not in fed.class_names[: fed.clients]
    assert (fed.trials.same == (fed.unseen.y[fed.trials.index_a] == fed.unseen.y[fed.trials.index_b])).all()
    assert f"13 writers: {fed.clients} clients with 50 training, 15 validation and 15 test" in fed.notes[0]
    few = {line.split(":")[0] for line in fed.left_out}
    assert few <= {"writer 202", "writer 203", "writer 204"} and "writer 204" in few
    assert fed.clients + 4 + len(few) == 13


def test_the_numbers_follow_the_options_and_the_seed(tmp_path):
    write_qmnist(tmp_path, COUNTS)
    small = {"people": 3, "held_out": 2, "train": 5, "validation": 0, "test": 2, "unseen_samples": 3, "trials": 6}
    one, same, other = (load("mnist_uv", tmp_path, seed=seed, **small) for seed in (1, 1, 2))
    assert one.clients == 3 and one.count_N.tolist() == [5] * 3 and len(one.test.y) == 6 and len(one.validation.y) == 0
    assert len(one.unseen.y) <= 6 and len(one.trials) == 6
    assert one.class_names == same.class_names and (one.source.x == same.source.x).all()
    assert one.class_names != other.class_names
    half = load("mnist_uv", tmp_path, held_out=10**6)
    assert len(half.unseen.y.unique()) == 6  # of the twelve who can be unseen
    with pytest.raises(SelfsameError, match="writers have 104 of each of the digits 2 to 5, at least 2"):
        load("mnist_uv", tmp_path, train=10**8 - 1)


def matlab(path, counts=None, **changes):
    image, digit, writer = collection(counts or dict.fromkeys(range(6), 8))
    half = len(digit) // 2
    letters = np.where(np.arange(len(digit)) % 17 == 0, 40, digit)  # some are letters, of the same writers
    stored = image.transpose(0, 2, 1).reshape(-1, 784)

    def part(rows):
        fields = {"images": stored[rows], "labels": letters[rows, None].astype(np.uint8), "writers": writer[rows, None]}
        return fields | {key: change(fields[key]) for key, change in changes.items()}

    savemat(
        path, {"dataset": {"train": part(slice(half)), "test": part(slice(half, None)), "mapping": np.zeros((2, 2))}}
    )
    return image, letters, writer


def test_emnist_names_writers_in_its_matlab_file(tmp_path):
    (tmp_path / "matlab").mkdir()
    image, letters, writer = matlab(tmp_path / "matlab" / "emnist-byclass.mat")
    found = read_digits(tmp_path)
    keep = letters <= 9
    assert np.array_equal(found.image, image[keep]) and np.array_equal(found.digit, letters[keep])
    assert np.array_equal(found.writer, writer[keep]) and found.source == "emnist-byclass.mat"
    fed = load("mnist_uv", tmp_path, held_out=2, train=5, validation=1, test=1)
    assert fed.clients >= 2 and fed.shape == (4, 28, 28)


@pytest.mark.parametrize(
    "changes, line",
    [
        ({"images": lambda x: x[:, :-1]}, "expected images of 784 bytes"),
        ({"images": lambda x: x.astype(float)}, "expected images of 784 bytes"),
        ({"writers": lambda x: x[:-1]}, "writers, got"),
        ({"writers": lambda x: x + np.nan}, "the writers are not whole numbers"),
        ({"labels": lambda x: x.astype(float) + 0.5}, "the labels are not whole numbers"),
        ({"labels": lambda x: {"a": 1}}, "not EMNIST: expected dataset.train and .test of images, labels, writers"),
    ],
)
def test_a_bad_matlab_file_gets_one_line(tmp_path, changes, line):
    matlab(tmp_path / "emnist-digits.mat", {1: 2, 2: 2}, **changes)
    with pytest.raises(SelfsameError, match=line) as caught:
        load("mnist_uv", tmp_path)
    assert str(tmp_path / "emnist-digits.mat") in str(caught.value)


@pytest.mark.parametrize(
    "part, change, line",
    [
        ("labels", lambda y: y[:-1], "labels for the"),
        ("labels", lambda y: y[:, :2], "expected rows of 8 whole numbers"),
        ("labels", lambda y: np.where(np.arange(len(y))[:, None] == 4, 11, y).astype(">i4"), "row 4 says digit 11"),
        ("images", lambda x: x[:, :27], "expected images of 28x28, got 27x28"),
    ],
)
def test_bad_idx_files_get_one_line(tmp_path, part, change, line):
    write_qmnist(tmp_path, COUNTS)
    image, digit, writer = collection(COUNTS["train"])
    label = np.zeros((len(digit), 8), ">i4")
    label[:, 0], label[:, 2] = digit, writer
    if part == "labels":
        (tmp_path / "qmnist-train-labels-idx2-int").write_bytes(idx(change(label), 12))
    else:
        (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(np.ascontiguousarray(change(image)), 8))
    with pytest.raises(SelfsameError, match=line) as caught:
        load("mnist_uv", tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_no_writers_no_set(tmp_path):
    with pytest.raises(SelfsameError, match=r"no digits with writers found; wanted: emnist-byclass.mat"):
        load("mnist_uv", tmp_path)
    with pytest.raises(SelfsameError, match="unseen_samples must be 2 to"):
        load("mnist_uv", tmp_path, unseen_samples=1)
