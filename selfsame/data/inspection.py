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
    """Lines on samples that are not finite, that say nothing, and that stand in two places."""
    names = federation.class_names
    digests, labels, parts = [], [], []
    broken: Counter[int] = Counter()
    blank: Counter[int] = Counter()
    for part, y, x in _blocks(federation):
        flat = x.flatten(1)
        if flat.is_floating_point():
            broken.update(y[~flat.isfinite().all(1)].tolist())
        blank.update(y[(flat == flat[:, :1]).all(1)].tolist())
        raw = flat.contiguous().numpy()
        digests.append([int.from_bytes(hashlib.blake2b(row.data, digest_size=8).digest(), "little") for row in raw])
        labels.append(y.numpy())
        parts.append(np.full(len(y), part))

    def who(label: int) -> str:
        return names[label] if label < len(names) else f"class {label}"

    lines = [f"{who(label)}: {count} samples are not finite" for label, count in sorted(broken.items())]
    lines += [
        f"{who(label)}: {count} samples are blank, all their values equal" for label, count in sorted(blank.items())
    ]
    digest = np.concatenate([np.array(block, np.uint64) for block in digests])
    return lines + _repeats(digest, np.concatenate(labels), np.concatenate(parts), who)


def _repeats(digest: Any, label: Any, part: Any, who: Any) -> list[str]:
    """Samples that stand under two people, or in two parts of one person."""
    order = np.argsort(digest, kind="stable")
    first = np.concatenate([[True], digest[order][1:] != digest[order][:-1]])
    origin = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]  # the first with this digest
    again, source = order[~first], origin[~first]
    people: Counter[tuple[int, int]] = Counter()
    places: Counter[tuple[int, int, int]] = Counter()
    for here, there in zip(again.tolist(), source.tolist()):
        if label[here] != label[there]:
            people[int(label[there]), int(label[here])] += 1
        elif part[here] != part[there]:
            places[int(label[there]), int(part[there]), int(part[here])] += 1
    lines = [
        f"{count} samples of {who(b)} are the same as samples of {who(a)}" for (a, b), count in sorted(people.items())
    ]
    return lines + [
        f"{who(person)}: {count} {_PARTS[b]} samples are {_PARTS[a]} samples as well"
        for (person, a, b), count in sorted(places.items())
    ]
