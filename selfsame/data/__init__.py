"""Data sets by name, each loaded into a Federation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfsame.data.cache import watching
from selfsame.data.choosing import OPTIONS, own_share, set_apart
from selfsame.data.dataset import DataSet
from selfsame.data.federation import Federation, Held, Samples, Source, Trials, from_classes, without_samples
from selfsame.data.sets.audiofolder import AUDIOFOLDER
from selfsame.data.sets.audiomnist import AUDIOMNIST
from selfsame.data.sets.celeba import CELEBA
from selfsame.data.sets.cifar import CIFAR10, CIFAR100
from selfsame.data.sets.digits import DIGITS
from selfsame.data.sets.emnist import EMNIST
from selfsame.data.sets.hold_and_tap import HOLD_AND_TAP
from selfsame.data.sets.imagefolder import IMAGEFOLDER
from selfsame.data.sets.lfw import LFW
from selfsame.data.sets.mnist import FASHION_MNIST, MNIST
from selfsame.data.sets.mnist_uv import MNIST_UV
from selfsame.data.sets.omniglot import OMNIGLOT
from selfsame.data.sets.synthetic import SYNTHETIC
from selfsame.data.sets.table import TABLE
from selfsame.data.sets.touch import TOUCH
from selfsame.data.sets.touchalytics import TOUCHALYTICS, TOUCHALYTICS_STROKES
from selfsame.data.sets.vggface2 import VGGFACE2
from selfsame.data.sets.voxceleb import VOXCELEB, VOXCELEB_UV
from selfsame.data.sets.xc import XC, WholeRows
from selfsame.errors import SelfsameError
from selfsame.fields import check_options

__all__ = [
    "DATASETS",
    "DataSet",
    "Federation",
    "Held",
    "Samples",
    "Source",
    "Trials",
    "WholeRows",
    "checked_options",
    "find",
    "from_classes",
    "load",
    "load_whole",
    "register",
    "watching",
    "without_samples",
]


DATASETS: dict[str, DataSet] = {}


def register(*data_sets: DataSet) -> None:
    """Make data sets known by their names."""
    DATASETS.update({data_set.name: data_set for data_set in data_sets})


register(DIGITS, SYNTHETIC, MNIST, FASHION_MNIST, EMNIST, MNIST_UV, CIFAR10, CIFAR100, OMNIGLOT)
register(LFW, CELEBA, VGGFACE2, IMAGEFOLDER)
register(VOXCELEB, VOXCELEB_UV, AUDIOMNIST, AUDIOFOLDER)
register(TOUCH, TOUCHALYTICS, TOUCHALYTICS_STROKES, HOLD_AND_TAP, TABLE, XC)


def _known(name: str) -> DataSet:
    if name not in DATASETS:
        raise SelfsameError(f"unknown data set {name!r}; the data sets are: {', '.join(DATASETS)}")
    return DATASETS[name]


def checked_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options to load a data set with; what is wrong with one, or with the name, is said before files are read."""
    data_set = _known(name)
    choosing = check_options(name, {key: value for key, value in options.items() if key in OPTIONS}, OPTIONS)
    own = {key: value for key, value in options.items() if key not in OPTIONS}
    return choosing | data_set.checked(own)


def find(
    name: str, path: str | Path | None = None, options: Mapping[str, Any] | None = None
) -> tuple[Path | None, dict[str, Any]]:
    """The folder and the options to load a data set with; what is wrong with them is said in one line."""
    data_set = _known(name)
    checked = data_set.checked(options or {})
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
    """Load a data set by name; what is wrong with a name, an option or a file is said in one line.

    Every data set takes `apart` ("people", "samples" or "auto") and `apart_share`: then it is one for choosing
    settings, and nothing of its test is there (`selfsame.data.choosing`).
    """
    folder, checked, apart, share = _asked(name, path, options)
    found = DATASETS[name].open(folder, checked)
    return set_apart(found, apart, share) if apart else found


def load_whole(name: str, path: str | Path | None = None, **options: Any) -> tuple[WholeRows, WholeRows]:
    """The training and the test rows of a data set with all their labels, of the same options: for an oracle."""
    if (whole := _known(name).whole) is None:
        able = ", ".join(one.name for one in DATASETS.values() if one.whole is not None)
        raise SelfsameError(f"{name}: has no rows with several labels, which an oracle is fitted to; there is: {able}")
    folder, checked, _, _ = _asked(name, path, options)
    found: tuple[WholeRows, WholeRows] = whole(folder, checked)  # type: ignore[arg-type]  # it needs a path
    return found


def _asked(
    name: str, path: str | Path | None, options: Mapping[str, Any]
) -> tuple[Path | None, dict[str, Any], str, float]:
    """The folder, the options of the data set, and what is set apart where it has no option of its own for that."""
    choosing = check_options(name, {key: value for key, value in options.items() if key in OPTIONS}, OPTIONS)
    own = {key: value for key, value in options.items() if key not in OPTIONS}
    folder, checked = find(name, path, own)
    data_set, apart, share = DATASETS[name], choosing.get("apart", ""), choosing.get("apart_share", 0.0)
    if apart and data_set.apart:
        return folder, {**checked, data_set.apart: own_share(name, apart, share)}, "", 0.0
    return folder, checked, apart, share
