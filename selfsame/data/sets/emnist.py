"""EMNIST (Cohen et al., 2017): handwritten digits and letters in MNIST's format, in six divisions."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from selfsame.data.dataset import WIDE, DataSet
from selfsame.data.federation import Federation, Samples
from selfsame.data.formats.idx import IdxFolder, idx_faults, part_files
from selfsame.data.formats.lists import read_lines
from selfsame.data.images import ClassOptions, federate
from selfsame.errors import SelfsameError
from selfsame.fields import one_of

# The number of classes, and the label of the first.
SPLITS = {
    "balanced": (47, 0),
    "byclass": (62, 0),
    "bymerge": (47, 0),
    "digits": (10, 0),
    "letters": (26, 1),
    "mnist": (10, 0),
}
_FOLDERS = (".", "gzip", "raw", "EMNIST/raw")
_STEMS = [f"emnist-{split}-{part}" for split in SPLITS for part in ("train", "test")]
WANTS = (
    "emnist-SPLIT-train-images-idx3-ubyte, -train-labels-idx1-ubyte, -test-images-idx3-ubyte and "
    "-test-labels-idx1-ubyte, plain or .gz, in PATH, PATH/gzip or PATH/EMNIST/raw, where SPLIT is "
    f"{', '.join(SPLITS)}; "
    "unpack gzip.zip from https://www.nist.gov/itl/products-and-services/emnist-dataset"
)


def load_emnist(path: Path, options: ClassOptions, *, split: str = "balanced") -> Federation:
    """One class per character of the chosen `split`; the last `held_out` classes are unseen."""
    one_of("emnist: split", split, SPLITS)
    classes, first = SPLITS[split]
    folder = IdxFolder(path, _FOLDERS)
    train, test = (folder.read_part(f"emnist-{split}-{part}", WANTS, classes, first) for part in ("train", "test"))
    class_names = _class_names(folder.find(f"emnist-{split}-mapping.txt"), classes, first)
    return federate("emnist", _upright(train), _upright(test), options, classes=classes, class_names=class_names)


_PROBE = partial(idx_faults, _FOLDERS, [name for stem in _STEMS for name in part_files(stem)])
EMNIST = DataSet("emnist", load_emnist, True, WANTS, "lenet", 64, WIDE, faults=_PROBE, shared=ClassOptions())


def _upright(part: Samples) -> Samples:
    """The files hold column after column."""
    return Samples(part.x[:].transpose(2, 3).contiguous(), part.y)


def _class_names(file: Path | None, classes: int, first: int) -> tuple[str, ...]:
    """The characters of each class, or none where the mapping is absent or odd: nothing depends on them."""
    try:
        rows = [[int(field) for field in line.split()] for line in read_lines(file)] if file else []
        table = {row[0] - first: "".join(map(chr, row[1:])) for row in rows if row}
    except (SelfsameError, ValueError, OverflowError):
        return ()
    names = tuple(table.get(label, "") for label in range(classes))
    return names if all(name and name.isprintable() for name in names) else ()
