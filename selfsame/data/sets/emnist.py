"""EMNIST (Cohen et al., 2017): handwritten digits and letters in MNIST's format, in six divisions."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from selfsame.data.federation import Federation, Samples
from selfsame.data.formats import idx
from selfsame.data.formats.idx import find_idx, read_labelled
from selfsame.data.images import federate
from selfsame.data.people import read_lines
from selfsame.errors import SelfsameError

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
WANTS = (
    "emnist-SPLIT-train-images-idx3-ubyte, -train-labels-idx1-ubyte, -test-images-idx3-ubyte and "
    "-test-labels-idx1-ubyte, plain or .gz, in PATH, PATH/gzip or PATH/EMNIST/raw, where SPLIT is "
    f"{', '.join(SPLITS)}; "
    "unpack gzip.zip from https://www.nist.gov/itl/products-and-services/emnist-dataset"
)


def load_emnist(
    path: Path, *, split: str = "balanced", held_out: int = 0, clients_per_class: int = 1, standardise: bool = True
) -> Federation:
    """One class a character of the chosen split; the last `held_out` classes are unseen."""
    if split not in SPLITS:
        raise SelfsameError(f"emnist: split must be one of {', '.join(SPLITS)}, got {split[:40]!r}")
    classes, first = SPLITS[split]
    return federate(
        "emnist",
        _read_part(path, split, "train"),
        _read_part(path, split, "test"),
        classes=classes,
        held_out=held_out,
        clients_per_class=clients_per_class,
        standardise=standardise,
        class_names=_class_names(path, split, classes, first),
    )


def faults(path: Path) -> Iterator[str]:
    """A line for each file that cannot be read."""
    names = [
        f"emnist-{split}-{part}-{kind}-ubyte"
        for split in SPLITS
        for part in ("train", "test")
        for kind in ("images-idx3", "labels-idx1")
    ]
    return idx.faults(_find(path, name) for name in names)


def _find(path: Path, name: str) -> Path | None:
    return find_idx((path / folder for folder in _FOLDERS), name)


def _read_part(path: Path, split: str, part: str) -> Samples:
    files = []
    for kind in ("images-idx3", "labels-idx1"):
        name = f"emnist-{split}-{part}-{kind}-ubyte"
        file = _find(path, name)
        if file is None:
            raise SelfsameError(f"{path}: {name} not found; wanted: {WANTS}")
        files.append(file)
    classes, first = SPLITS[split]
    found = read_labelled(files[0], files[1], classes, first)
    return Samples(found.x[:].transpose(2, 3).contiguous(), found.y)  # the files hold column after column


def _class_names(path: Path, split: str, classes: int, first: int) -> tuple[str, ...]:
    """The characters of each class, or none where the mapping is absent or odd: nothing depends on them."""
    file = _find(path, f"emnist-{split}-mapping.txt")
    try:
        rows = [[int(field) for field in line.split()] for line in read_lines(file)] if file else []
        table = {row[0] - first: "".join(map(chr, row[1:])) for row in rows if row}
    except (SelfsameError, ValueError, OverflowError):
        return ()
    names = tuple(table.get(label, "") for label in range(classes))
    return names if all(name and name.isprintable() for name in names) else ()
