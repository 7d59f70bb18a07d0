"""MNIST and what is published in its form, such as Fashion-MNIST: four idx files (LeCun et al., 1998)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from selfsame.data.federation import Federation, Samples
from selfsame.data.idx import read_idx
from selfsame.data.images import federate
from selfsame.errors import SelfsameError

_CLASSES = 10
WANTS = (
    "train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and t10k-labels-idx1-ubyte, "
    "plain or .gz, in PATH, PATH/raw or PATH/MNIST/raw; "
    "from https://ossci-datasets.s3.amazonaws.com/mnist/ or https://github.com/zalandoresearch/fashion-mnist"
)


def load_mnist(path: Path, *, held_out: int = 0, clients_per_class: int = 1) -> Federation:
    """One class a digit (or garment); the last `held_out` classes are unseen."""
    train, test = _read_part(path, "train"), _read_part(path, "t10k")
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("x".join(map(str, part.x.shape[2:])) for part in (train, test))
        raise SelfsameError(f"{path}: training and test images differ in size ({sizes})")
    return federate("mnist", train, test, classes=_CLASSES, held_out=held_out, clients_per_class=clients_per_class)


def _read_part(path: Path, stem: str) -> Samples:
    images_file = _find(path, f"{stem}-images-idx3-ubyte")
    labels_file = _find(path, f"{stem}-labels-idx1-ubyte")
    images, labels = read_idx(images_file), read_idx(labels_file)
    if images.ndim != 3 or images.dtype != np.uint8:
        raise SelfsameError(f"{images_file}: expected bytes in 3 dimensions, got {images.dtype} in {images.ndim}")
    if labels.ndim != 1 or labels.dtype != np.uint8:
        raise SelfsameError(f"{labels_file}: expected bytes in 1 dimension, got {labels.dtype} in {labels.ndim}")
    if images.size == 0:
        raise SelfsameError(f"{images_file}: holds no images")
    if len(images) != len(labels):
        raise SelfsameError(f"{labels_file}: {len(labels)} labels for the {len(images)} images of {images_file.name}")
    if int(labels.max()) >= _CLASSES:
        at = int((labels >= _CLASSES).argmax())
        raise SelfsameError(f"{labels_file}: label {int(labels[at])} of image {at} is not 0 to {_CLASSES - 1}")
    return Samples(torch.from_numpy(images)[:, None], torch.from_numpy(labels).long())


def _find(path: Path, name: str) -> Path:
    for folder in (path, path / "raw", path / "MNIST" / "raw"):
        for file in (folder / name, folder / f"{name}.gz"):
            if file.is_file():
                return file
    raise SelfsameError(f"{path}: {name} not found; wanted: {WANTS}")
