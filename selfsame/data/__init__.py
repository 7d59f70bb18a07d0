"""Data sets by name, each loaded into a Federation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from selfsame.data.cache import watching
from selfsame.data.federation import (
    RAW,
    Federation,
    Held,
    Mapped,
    Rows,
    Samples,
    Source,
    Trials,
    from_classes,
    without_samples,
)
from selfsame.data.sets import (
    audiofolder,
    audiomnist,
    celeba,
    cifar,
    emnist,
    imagefolder,
    lfw,
    mnist,
    mnist_uv,
    omniglot,
    table,
    touch,
    vggface2,
    voxceleb,
    xc,
)
from selfsame.data.sets.digits import load_digits
from selfsame.data.sets.synthetic import load_synthetic
from selfsame.errors import SelfsameError
from selfsame.fields import check_options, options_of

__all__ = [
    "DATASETS",
    "RAW",
    "DataSet",
    "Federation",
    "Held",
    "Mapped",
    "Rows",
    "Samples",
    "Source",
    "Trials",
    "find",
    "from_classes",
    "load",
    "register",
    "watching",
    "without_samples",
]


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
    file: bool = False  # the path may name a file
    faults: Callable[[Path], Iterable[str]] | None = None  # a line for each unreadable file, where loading stops at one

    @property
    def options(self) -> dict[str, Any]:
        """The options of the loader and their defaults."""
        return options_of(self.load)


DATASETS: dict[str, DataSet] = {}


def register(*data_sets: DataSet) -> None:
    """Make data sets known by their names."""
    DATASETS.update({data_set.name: data_set for data_set in data_sets})


_NOTHING = "nothing: it {}"
_WIDE = {"channels": (16, 32)}  # 8x8 images are small enough to afford more channels than LeNet's 8 and 4
register(
    DataSet("digits", load_digits, False, _NOTHING.format("comes with scikit-learn"), "lenet", 32, _WIDE),
    DataSet("synthetic", load_synthetic, False, _NOTHING.format("is computed"), "lenet", 32, _WIDE),
    DataSet("mnist", mnist.load_mnist, True, mnist.WANTS, "lenet", 32, faults=mnist.faults),
    DataSet("fashion_mnist", mnist.load_fashion_mnist, True, mnist.FASHION_WANTS, "lenet", 32, faults=mnist.faults),
    DataSet("emnist", emnist.load_emnist, True, emnist.WANTS, "lenet", 64, _WIDE, faults=emnist.faults),
    DataSet("mnist_uv", mnist_uv.load_mnist_uv, True, mnist_uv.WANTS, "feduv-mnist", 128, faults=mnist_uv.faults),
    DataSet(
        "cifar10",
        cifar.load_cifar10,
        True,
        cifar.CIFAR10.wants,
        "resnet32",
        64,
        faults=partial(cifar.faults, cifar.CIFAR10),
    ),
    DataSet(
        "cifar100",
        cifar.load_cifar100,
        True,
        cifar.CIFAR100.wants,
        "resnet18",
        512,
        faults=partial(cifar.faults, cifar.CIFAR100),
    ),
    DataSet("omniglot", omniglot.load_omniglot, True, omniglot.WANTS, "lenet", 64, _WIDE),
    DataSet("lfw", lfw.load_lfw, True, lfw.WANTS, "mobilefacenet", 128),
    DataSet("celeba", celeba.load_celeba, True, celeba.WANTS, "feduv-celeba", 512),
    DataSet("vggface2", vggface2.load_vggface2, True, vggface2.WANTS, "mobilefacenet", 512),
    DataSet("imagefolder", imagefolder.load_imagefolder, True, imagefolder.WANTS, "mobilefacenet", 128),
    DataSet("voxceleb", voxceleb.load_voxceleb, True, voxceleb.WANTS, "fast-resnet34-mel", 512),
    DataSet("voxceleb_uv", voxceleb.load_voxceleb_uv, True, voxceleb.WANTS, "feduv-voxceleb", 511),
    DataSet("audiomnist", audiomnist.load_audiomnist, True, audiomnist.WANTS, "fast-resnet34-mel", 256, {"rate": 8000}),
    DataSet("audiofolder", audiofolder.load_audiofolder, True, audiofolder.WANTS, "fast-resnet34-mel", 512),
    DataSet("touch", touch.load_touch, True, touch.WANTS, "touchauth", 64, file=True),
    DataSet("touchalytics", touch.load_touchalytics, True, touch.TOUCHALYTICS_WANTS, "touchauth", 64),
    DataSet("touchalytics_strokes", touch.load_touchalytics_strokes, True, touch.TOUCHALYTICS_WANTS, "mlp", 64),
    DataSet("hold_and_tap", touch.load_hold_and_tap, True, touch.HOLD_AND_TAP_WANTS, "mlp", 64),
    DataSet("table", table.load_table, True, table.WANTS, "mlp", 64, file=True),
    DataSet("xc", xc.load_xc, True, xc.WANTS, "embedding-bag", 512),
)


def find(
    name: str, path: str | Path | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Path | None, dict[str, Any]]:
    """The folder and the options to load a data set with; what is wrong with them is said in one line."""
    if name not in DATASETS:
        raise SelfsameError(f"unknown data set {name!r}; the data sets are: {', '.join(DATASETS)}")
    data_set = DATASETS[name]
    checked = check_options(name, options or {}, data_set.options)
    if not data_set.needs_path:
        if path is not None:
            raise SelfsameError(f"{name}: takes no path, it needs {data_set.wants}")
        return None, checked
    if path is None:
        raise SelfsameError(f"{name}: a path is needed; wanted: {data_set.wants}")
    folder = Path(path)
    if not folder.is_dir() and not (data_set.file and folder.is_file()):
        raise SelfsameError(f"{folder}: no such folder; wanted: {data_set.wants}")
    return folder, checked


def load(name: str, path: str | Path | None = None, **options: Any) -> Federation:
    """Load a data set by name; what is wrong with a name, an option or a file is said in one line."""
    folder, checked = find(name, path, options)
    return DATASETS[name].load(*([] if folder is None else [folder]), **checked)
