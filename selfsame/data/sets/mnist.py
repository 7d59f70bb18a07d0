"""MNIST and Fashion-MNIST: four idx files each (LeCun et al., 1998; Xiao et al., 2017)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfsame.data.federation import Federation, Samples
from selfsame.data.formats import idx
from selfsame.data.formats.idx import find_idx, read_labelled
from selfsame.data.images import federate
from selfsame.errors import SelfsameError

_CLASSES = 10
_FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")
_FILES = tuple(f"{part}-{kind}-ubyte" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1"))
_GARMENTS = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot")
_WANTS = "{} and {}, plain or .gz, in PATH, PATH/raw or PATH/{}/raw; from {}"
WANTS = _WANTS.format(", ".join(_FILES[:3]), _FILES[3], "MNIST", "https://ossci-datasets.s3.amazonaws.com/mnist/")
FASHION_WANTS = _WANTS.format(
    ", ".join(_FILES[:3]), _FILES[3], "FashionMNIST", "https://github.com/zalandoresearch/fashion-mnist"
)


def load_mnist(path: Path, *, held_out: int = 0, clients_per_class: int = 1, standardise: bool = True) -> Federation:
    """One class a digit; the last `held_out` classes are unseen."""
    return _load("mnist", path, WANTS, held_out, clients_per_class, standardise)


def load_fashion_mnist(
    path: Path, *, held_out: int = 0, clients_per_class: int = 1, standardise: bool = True
) -> Federation:
    """One class a kind of garment; the last `held_out` classes are unseen."""
    return _load("fashion_mnist", path, FASHION_WANTS, held_out, clients_per_class, standardise, _GARMENTS)


def faults(path: Path) -> Iterator[str]:
    """A line for each file that cannot be read."""
    return idx.faults(find_idx((path / folder for folder in _FOLDERS), name) for name in _FILES)


def _load(
    name: str,
    path: Path,
    wants: str,
    held_out: int,
    clients_per_class: int,
    standardise: bool,
    class_names: tuple[str, ...] = (),
) -> Federation:
    train, test = _read_part(path, "train", wants), _read_part(path, "t10k", wants)
    if train.x.shape[1:] != test.x.shape[1:]:
        sizes = " and ".join("x".join(map(str, part.x.shape[2:])) for part in (train, test))
        raise SelfsameError(f"{path}: training and test images differ in size ({sizes})")
    return federate(
        name,
        train,
        test,
        classes=_CLASSES,
        held_out=held_out,
        clients_per_class=clients_per_class,
        standardise=standardise,
        class_names=class_names,
    )


def _read_part(path: Path, stem: str, wants: str) -> Samples:
    found = []
    for name in (f"{stem}-images-idx3-ubyte", f"{stem}-labels-idx1-ubyte"):
        file = find_idx((path / folder for folder in _FOLDERS), name)
        if file is None:
            raise SelfsameError(f"{path}: {name} not found; wanted: {wants}")
        found.append(file)
    return read_labelled(found[0], found[1], _CLASSES)
