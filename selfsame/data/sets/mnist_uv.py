"""MNIST-UV (FedUV, section 6.1): the digits 2, 3, 4 and 5 of one writer, stacked to 4 channels; a writer is a client.

FedUV builds it from EMNIST-byclass, whose writers only the Matlab file names. MNIST with QMNIST's labels (Yadav and
Bottou, 2019) names 836 writers and serves as well.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from selfsame.data.dataset import DataSet, bounded
from selfsame.data.federation import Federation, Held
from selfsame.data.formats.idx import IdxFolder, idx_faults, read_idx, read_images
from selfsame.data.formats.mat import read_matlab
from selfsame.data.images import moments
from selfsame.data.people import Division, Ints, SplitOptions, by_people, drawn_people, part_of
from selfsame.data.trial_lists import draw_trials
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

_DIGITS = (2, 3, 4, 5)
_MOST = 100_000_000  # people, or examples of each
_MATLAB = ("emnist-byclass.mat", "emnist-digits.mat")
_FOLDERS = (".", "raw", "MNIST/raw", "QMNIST/raw", "matlab")
_FILES = (
    "qmnist-train-labels-idx2-int",
    "qmnist-test-labels-idx2-int",
    "train-images-idx3-ubyte",
    "t10k-images-idx3-ubyte",
)
WANTS = (
    "emnist-byclass.mat in PATH or PATH/matlab (unpack matlab.zip from "
    "https://www.nist.gov/itl/products-and-services/emnist-dataset), or MNIST's image files with "
    "qmnist-train-labels-idx2-int and qmnist-test-labels-idx2-int, plain or .gz, in PATH, PATH/raw or PATH/MNIST/raw "
    "(from https://github.com/facebookresearch/qmnist)"
)


@dataclass(frozen=True)
class WriterOptions(SplitOptions):
    """The sizes of FedUV, which any number of writers may have."""

    people: int = bounded(1000, 2, _MOST)
    held_out: int = bounded(1000, 0, _MOST)
    train: int = bounded(50, 1, _MOST)
    validation: int = bounded(15, 0, _MOST)
    test: int = bounded(15, 1, _MOST)
    unseen_samples: int = bounded(15, 2, _MOST)


@dataclass(frozen=True)
class Digits:
    """Handwritten digits and who wrote them."""

    image: NDArray[np.uint8]  # (n, 28, 28)
    digit: Ints
    writer: Ints
    source: str


def load_mnist_uv(path: Path, options: WriterOptions) -> Federation:
    """At most `people` writers with 50, 15 and 15 examples each, and at most `held_out`, or half of all, unseen ones.

    A writer's images of each digit are divided first and then combined, so no image is in two parts; the examples of a
    part differ, but may share images. Those of an unseen writer share none, so that no trial is easy for that reason.
    """
    train, validation, test, seed = options.train, options.validation, options.test, options.seed
    digits = read_digits(path)
    writers, writer = np.unique(digits.writer, return_inverse=True)
    count_WD = np.stack([np.bincount(writer[digits.digit == d], minlength=len(writers)) for d in _DIGITS], 1)
    need = sum(_root(part) for part in (train, validation, test))
    fewest_W = count_WD.min(1)
    able = np.nonzero(fewest_W >= 2)[0]
    unseen = drawn_people(seed, "mnist_uv/unseen", able, min(options.held_out, len(able) // 2))
    others = np.setdiff1d(np.arange(len(writers)), unseen)
    enough = others[fewest_W[others] >= need]
    if len(enough) < 2:
        raise SelfsameError(
            f"{path}: {len(enough)} writers have {need} of each of the digits 2 to 5, at least 2 writers are needed"
        )
    seen = drawn_people(seed, "mnist_uv/seen", enough, options.people)

    order = np.lexsort((digits.digit, writer))
    key = writer[order] * 10 + digits.digit[order]

    def own(person: int, purpose: str) -> list[Ints]:
        """A writer's images of each of the four digits, shuffled."""
        ends = [np.searchsorted(key, [person * 10 + d, person * 10 + d + 1]) for d in _DIGITS]
        draw = host_generator(seed, purpose, int(writers[person]))
        return [draw.permutation(order[begin:end]) for begin, end in ends]

    parts: tuple[list[Ints], list[Ints], list[Ints]] = ([], [], [])
    for person in seen.tolist():
        images = own(person, "mnist_uv/split")
        draw = host_generator(seed, "mnist_uv/examples", int(writers[person]))
        cuts = [_root(test), _root(test) + _root(validation)]
        pools = zip(*(np.split(of_digit, cuts) for of_digit in images))
        for part, pool, number in zip(parts, pools, (test, validation, train)):
            part.append(_combine(pool, number, draw))
    away = [_apart(own(person, "mnist_uv/split"), options.unseen_samples) for person in unseen.tolist()]

    tested, validated, trained = (part_of(blocks, 0, (4,)) for blocks in parts)
    beyond = part_of(away, len(seen), (4,))
    x = torch.from_numpy(digits.image[trained.row])
    mean, std = moments("mnist_uv", x)
    few = others[fewest_W[others] < need]
    sizes = [len(block) for block in away]
    spread = f" with {min(sizes)} to {max(sizes)} examples each" if sizes else ""
    notes = [
        f"from {digits.source}, {len(writers):,} writers: {len(seen):,} clients with {train} training, {validation} "
        f"validation and {test} test examples each; {len(away):,} unseen writers{spread}"
    ]
    if len(few):
        notes.append(f"{len(few):,} writers are no clients, with fewer than {need} of one of the digits 2 to 5")
    return by_people(
        "mnist_uv",
        tuple(x.shape[1:]),
        Division(seen, unseen, trained, validated, tested, beyond),
        [f"writer {number}" for number in writers.tolist()],
        lambda row: torch.from_numpy(digits.image[row]),
        source=lambda start_N: Held(x, start_N),
        mean=mean,
        std=std,
        trials=draw_trials(beyond.label, options.trials, seed),
        notes=tuple(notes),
        left_out=tuple(
            f"writer {writers[person]}: {fewest_W[person]} of the rarest of the digits 2 to 5, a client needs {need}"
            for person in few.tolist()
        ),
    )


_PROBE = partial(idx_faults, _FOLDERS, _FILES)
MNIST_UV = DataSet(
    "mnist_uv", load_mnist_uv, True, WANTS, "feduv-mnist", 128, faults=_PROBE, shared=WriterOptions(), fixed=("least",)
)


def _root(number: int) -> int:
    """The fewest images of each of four digits that make `number` different examples."""
    return next(k for k in range(number + 1) if k**4 >= number)


def _combine(pool: tuple[Ints, ...], number: int, draw: np.random.Generator) -> Ints:
    """`number` different choices (number, 4) of one image of each digit."""
    sizes = [len(images) for images in pool]
    picked = np.sort(draw.choice(int(np.prod(sizes)), number, replace=False)) if number else np.empty(0, np.int64)
    places = np.unravel_index(picked, sizes) if number else (picked,) * 4
    return np.stack([images[place] for images, place in zip(pool, places)], 1)


def _apart(images: list[Ints], most: int) -> Ints:
    """Examples (n, 4) that share no image."""
    number = min(most, *(len(of_digit) for of_digit in images))
    return np.stack([of_digit[:number] for of_digit in images], 1)


def read_digits(path: Path) -> Digits:
    """The digits and writers of whichever of the two sets is there."""
    for folder in _FOLDERS:
        for name in _MATLAB:
            if (path / folder / name).is_file():
                return read_emnist(path / folder / name)
    parts = []
    find = IdxFolder(path, _FOLDERS).find
    for part, stem in (("train", "train"), ("test", "t10k")):
        labels = find(f"qmnist-{part}-labels-idx2-int")
        images = find(f"qmnist-{part}-images-idx3-ubyte") or find(f"{stem}-images-idx3-ubyte")
        if labels is not None and images is not None:
            parts.append(_read_traced(images, labels))
    if not parts:
        raise SelfsameError(f"{path}: no digits with writers found; wanted: {WANTS}")
    return Digits(
        np.concatenate([image for image, _ in parts]),
        np.concatenate([label[:, 0] for _, label in parts]),
        np.concatenate([label[:, 2] for _, label in parts]),
        "MNIST with QMNIST's writers",
    )


def _read_traced(images_file: Path, labels_file: Path) -> tuple[NDArray[np.uint8], Ints]:
    """Images and QMNIST's labels (class, series, writer, ...); the label file may go on beyond the images."""
    images, labels = read_images(images_file), read_idx(labels_file)
    if images.shape[1:] != (28, 28):
        raise SelfsameError(f"{images_file}: expected images of 28x28, got {images.shape[1]}x{images.shape[2]}")
    if labels.ndim != 2 or labels.shape[1] < 3 or labels.dtype.kind != "i":
        raise SelfsameError(f"{labels_file}: expected rows of 8 whole numbers, got {labels.dtype} {labels.shape}")
    if len(labels) < len(images):
        raise SelfsameError(f"{labels_file}: {len(labels)} labels for the {len(images)} images of {images_file.name}")
    kept = labels[: len(images)].astype(np.int64)
    odd = (kept[:, 0] < 0) | (kept[:, 0] > 9) | (kept[:, 2] < 0)
    if odd.any():
        at = int(odd.argmax())
        raise SelfsameError(f"{labels_file}: row {at} says digit {kept[at, 0]} of writer {kept[at, 2]}")
    return images, kept


def read_emnist(file: Path) -> Digits:
    """EMNIST's Matlab file: both its parts, digits only; an image is stored column after column."""
    found = read_matlab(file, "dataset")
    try:
        parts = [found[part] for part in ("train", "test")]
        image = np.concatenate([part["images"] for part in parts])
        digit, writer = (np.concatenate([part[key].reshape(-1) for part in parts]) for key in ("labels", "writers"))
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        raise SelfsameError(
            f"{file}: not EMNIST: expected dataset.train and .test of images, labels, writers"
        ) from None
    if image.ndim != 2 or image.shape[1] != 784 or image.dtype != np.uint8 or not len(image):
        raise SelfsameError(f"{file}: expected images of 784 bytes, got {image.dtype} {image.shape}")
    digit, writer = _whole(file, "labels", digit, len(image)), _whole(file, "writers", writer, len(image))
    keep = digit <= 9
    return Digits(image[keep].reshape(-1, 28, 28).transpose(0, 2, 1), digit[keep], writer[keep], file.name)


def _whole(file: Path, what: str, values: NDArray[Any], images: int) -> Ints:
    if values.dtype.kind not in "iuf" or len(values) != images:
        raise SelfsameError(f"{file}: expected {images} {what}, got {len(values)} of {values.dtype}")
    if not np.isfinite(values).all() or (values < 0).any() or (values > 2**31).any() or (values % 1).any():
        raise SelfsameError(f"{file}: the {what} are not whole numbers")
    return values.astype(np.int64)
