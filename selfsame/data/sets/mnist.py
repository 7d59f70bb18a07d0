"""MNIST and Fashion-MNIST: four idx files each (LeCun et al., 1998; Xiao et al., 2017)."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation
from selfsame.data.formats.idx import IdxFolder, idx_faults, part_files
from selfsame.data.images import ClassOptions, federate
from selfsame.errors import SelfsameError

_CLASSES = 10
_FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")
_FILES = (*part_files("train"), *part_files("t10k"))
_GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_WANTS = ", ".join(_FILES[:3]) + f" and {_FILES[3]}, plain or .gz, in PATH, PATH/raw or PATH/"


def load_mnist(name: str, wants: str, class_names: tuple[str, ...], path: Path, options: ClassOptions) -> Federation:
    """One class per digit, or per kind of garment; the last `held_out` classes are unseen."""
    folder = IdxFolder(path, _FOLDERS)
    train, test = (folder.read_part(stem, wants, _CLASSES) for stem in ("train", "t10k"))
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("x".join(map(str, part.x.shape[2:])) for part in (train, test))
        raise SelfsameError(f"{path}: training and test images differ in size ({sizes})")
    return federate(name, train, test, options, classes=_CLASSES, class_names=class_names)


def _dataset(name: str, wants: str, class_names: tuple[str, ...] = ()) -> DataSet:
    loader, probe = partial(load_mnist, name, wants, class_names), partial(idx_faults, _FOLDERS, _FILES)
    return DataSet(name, loader, True, wants, "lenet", 32, faults=probe, shared=ClassOptions())


MNIST = _dataset("mnist", _WANTS + "MNIST/raw; from https://ossci-datasets.s3.amazonaws.com/mnist/")
FASHION_MNIST = _dataset(
    "fashion_mnist", _WANTS + "FashionMNIST/raw; from https://github.com/zalandoresearch/fashion-mnist", _GARMENTS
)
