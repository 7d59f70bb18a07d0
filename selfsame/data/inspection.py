"""What a data set on disk holds and what is wrong with it, file by file and person by person."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.data import DATASETS, find, load
from selfsame.data.federation import Federation
from selfsame.errors import SelfsameError

_BLOCK = 1024  # samples that are read at a time
_PARTS = ("training", "validation", "test", "unseen")


@dataclass(frozen=True)
class Report:
    """The findings on one data set."""

    name: str
    found: tuple[tuple[str, str], ...]  # what, and how much of it
    notes: tuple[str, ...]  # what the loader says
    wrong: tuple[str, ...]  # one line each: unreadable, empty, mislabelled, too few, ...
    usable: bool  # whether it can be trained on nevertheless


def check(name: str, path: str | Path | None = None, **options: Any) -> Report:
    """Load a data set and look at every file and sample; only a wrong name, option or path is an error here."""
    folder, checked = find(name, path, options)
    probe = DATASETS[name].faults
    wrong = list(probe(folder)) if probe is not None and folder is not None else []
    try:
        federation = load(name, path, **checked)
    except SelfsameError as error:
        told = str(error)
        return Report(name, (), (), tuple(wrong if told in wrong else [*wrong, told]), False)
    wrong += [line for line in federation.left_out if line not in set(wrong)]
    wrong += _odd_samples(federation)
    return Report(name, counts(federation), federation.notes, tuple(wrong), True)


def counts(federation: Federation) -> tuple[tuple[str, str], ...]:
    """What is in a data set: a name and a value each."""
    count = federation.count_N.numpy()
    unseen = federation.unseen.y
    return (
        ("clients", f"{federation.clients:,}"),
        ("classes", f"{federation.classes:,}"),
        ("sample shape", "x".join(map(str, federation.shape))),
        ("training samples", f"{int(count.sum()):,}"),
        ("of a client", f"{count.min():,} at least, {np.median(count):,.0f} in the middle, {count.max():,} at most"),
        ("validation samples", f"{len(federation.validation.y):,}"),
        ("test samples", f"{len(federation.test.y):,}"),
        ("unseen samples", f"{len(unseen):,} of {len(unseen.unique()):,} people"),
        ("trials", f"{len(federation.trials):,}, {int(federation.trials.same.sum()):,} of them of one person"),
        ("read", "from disk as they are used" if federation.source.on_host else "into memory"),
    )


def _blocks(federation: Federation) -> Iterator[tuple[int, Tensor, Tensor]]:
    """All samples, block by block: which part they are of, whose they are, and what they are."""
    for client, (count, label) in enumerate(zip(federation.count_N.tolist(), federation.class_of_N.tolist())):
        for begin in range(0, count, _BLOCK):
            index = torch.arange(begin, min(begin + _BLOCK, count))
            rows = federation.source.rows(torch.tensor([client]), index[None])[0]
            yield 0, torch.full((len(rows),), label), rows
    for part, samples in enumerate((federation.validation, federation.test, federation.unseen), 1):
        for y, x in zip(samples.y.split(_BLOCK), samples.x.split(_BLOCK)):
            if len(y):
                yield part, y, x


def _odd_samples(federation: Federation) -> list[str]:
    """Lines on samples that are not finite, that say nothing, and that stand under two people or in two parts."""
    names = federation.class_names
    first: dict[bytes, tuple[int, int]] = {}  # whose a sample is, and in which part, where it stands first
    broken, blank = Counter[int](), Counter[int]()
    people, places = Counter[tuple[int, int]](), Counter[tuple[int, int, int]]()
    for part, y, x in _blocks(federation):
        flat = x.flatten(1).contiguous()
        if flat.is_floating_point():
            broken.update(y[~flat.isfinite().all(1)].tolist())
        blank.update(y[(flat == flat[:, :1]).all(1)].tolist())
        for label, row in zip(y.tolist(), flat.numpy()):
            owner, place = first.setdefault(hashlib.blake2b(row.data, digest_size=8).digest(), (label, part))
            if owner != label:
                people[owner, label] += 1
            elif place != part:
                places[owner, place, part] += 1

    def who(label: int) -> str:
        return names[label] if label < len(names) else f"class {label}"

    return [
        *(f"{who(label)}: {n} samples are not finite" for label, n in sorted(broken.items())),
        *(f"{who(label)}: {n} samples are blank, all their values equal" for label, n in sorted(blank.items())),
        *(f"{n} samples of {who(b)} are the same as samples of {who(a)}" for (a, b), n in sorted(people.items())),
        *(
            f"{who(c)}: {n} {_PARTS[b]} samples are {_PARTS[a]} samples as well"
            for (c, a, b), n in sorted(places.items())
        ),
    ]
