"""Data sets by name, each loaded into a Federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from selfsame.data.cifar import CIFAR10, CIFAR100, load_cifar10, load_cifar100
from selfsame.data.digits import load_digits
from selfsame.data.federation import Federation, Held, Samples, Source, from_classes
from selfsame.data.mnist import WANTS, load_mnist
from selfsame.data.synthetic import load_synthetic
from selfsame.errors import SelfsameError
from selfsame.options import check_options, options_of

__all__ = ["DATASETS", "DataSet", "Federation", "Held", "Samples", "Source", "from_classes", "load"]


@dataclass(frozen=True)
class DataSet:
    """A data set: how to load it, what it needs, and the network that suits it."""

    name: str
    load: Callable[..., Federation]
    needs_path: bool
    wants: str  # which files, and where a user gets them
    net: str
    width: int  # of the embedding
    net_options: dict[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The options of the loader and their defaults."""
        return options_of(self.load)


_WIDE = {"channels": (16, 32)}  # 8x8 images are small enough to afford more channels than LeNet's 8 and 4
_SETS = (
    DataSet("digits", load_digits, False, "nothing: it comes with scikit-learn", "lenet", 32, _WIDE),
    DataSet("synthetic", load_synthetic, False, "nothing: it is computed", "lenet", 32, _WIDE),
    DataSet("mnist", load_mnist, True, WANTS, "lenet", 32),
    DataSet("cifar10", load_cifar10, True, CIFAR10.wants, "resnet32", 64),
    DataSet("cifar100", load_cifar100, True, CIFAR100.wants, "resnet18", 512),
)
DATASETS: dict[str, DataSet] = {data_set.name: data_set for data_set in _SETS}


def load(name: str, path: str | Path | None = None, **options: Any) -> Federation:
    """Load a data set by name; what is wrong with a name, an option or a file is said in one line."""
    if name not in DATASETS:
        raise SelfsameError(f"unknown data set {name!r}; the data sets are: {', '.join(DATASETS)}")
    data_set = DATASETS[name]
    checked = check_options(name, options, data_set.options)
    if not data_set.needs_path:
        if path is not None:
            raise SelfsameError(f"{name}: takes no path, it needs {data_set.wants}")
        return data_set.load(**checked)
    if path is None:
        raise SelfsameError(f"{name}: a path is needed; wanted: {data_set.wants}")
    folder = Path(path)
    if not folder.is_dir():
        raise SelfsameError(f"{folder}: no such folder; wanted: {data_set.wants}")
    return data_set.load(folder, **checked)
