"""Trials, pairs of unseen samples to verify: those that a publisher lists, or drawn ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from selfsame.data.cache import Packed
from selfsame.data.federation import Trials
from selfsame.data.formats.lists import read_list
from selfsame.data.listing import Listing, shown
from selfsame.data.people import Division, Ints, Part, SplitOptions
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator


@dataclass(frozen=True)
class Pair:
    """A trial that a publisher gives: two files, named as in `Listing.files`."""

    same: bool
    fold: int
    first: str
    second: str

    @property
    def files(self) -> tuple[str, str]:
        return self.first, self.second


def read_trials(path: Path) -> list[Pair]:
    """A trial list, VoxCeleb's form: lines of 1 (same) or 0, a file and another file, whose first folder is a person.

    What it says of two files must be what their folders say.
    """
    pairs = []
    listed = read_list(path, "0 or 1 and two files", lambda words: len(words) == 3 and words[0] in ("0", "1"))
    for number, (_, (says, first, second)) in enumerate(listed, 1):
        same = says == "1"
        if same != (first.partition("/")[0] == second.partition("/")[0]):
            raise SelfsameError(
                f"{path}: trial {number} says {says}, but {shown(first)} and {shown(second)} are of "
                f"{'two people' if same else 'one person'}"
            )
        pairs.append(Pair(same, 0, first, second))
    return pairs


def check_there(listed: Path, pairs: Sequence[Pair], found: Listing) -> None:
    """Refuse a list of trials none of which can be made, before anything is decoded."""
    files = set(found.files)
    if not any(files.issuperset(pair.files) for pair in pairs):
        absent = next((file for pair in pairs for file in pair.files if file not in files), "")
        raise SelfsameError(f"{listed}: none of its trials has both its files in {found.root}, e.g. no {shown(absent)}")


def people_of(found: Listing, pairs: Iterable[Pair]) -> Ints:
    """Everybody whom the pairs name, by number."""
    number = dict(zip(found.files, found.person.tolist()))
    return np.array(sorted({number[file] for pair in pairs for file in pair.files if file in number}), np.int64)


def choose_trials(
    found: Listing, packed: Packed, split: Division, options: SplitOptions, pairs: Sequence[Pair] | None
) -> tuple[Division, Trials, tuple[str, ...]]:
    """The pairs as trials, with the files they name as the unseen samples, and a line for each lost pair.

    Where there are no `pairs`, trials of the unseen samples are drawn.
    """
    if pairs is None:
        return split, draw_trials(split.unseen.label, options.trials, options.seed), ()
    row_of = {found.files[number]: row for row, number in enumerate(packed.kept.tolist())}
    there = [pair for pair in pairs if pair.first in row_of and pair.second in row_of]
    lost = tuple(
        f"trial {shown(pair.first)} {shown(pair.second)}: absent or unreadable"
        for pair in pairs
        if pair.first not in row_of or pair.second not in row_of
    )
    first, second = (np.array([row_of[pair.files[at]] for pair in there], np.int64) for at in (0, 1))
    row = np.unique(np.concatenate([first, second]))
    label = len(split.seen) + np.searchsorted(split.unseen_people, found.person[packed.kept][row])
    trials = Trials(
        torch.from_numpy(np.searchsorted(row, first)),
        torch.from_numpy(np.searchsorted(row, second)),
        torch.tensor([pair.same for pair in there], dtype=torch.bool),
        torch.tensor([pair.fold for pair in there], dtype=torch.int64),
    )
    return replace(split, unseen=Part(row, label)), trials, lost


def draw_trials(label_U: Ints, number: int, seed: int) -> Trials:
    """About `number` distinct pairs of samples, half of one person and half of two, spread evenly over the people.

    Fewer where there are no more pairs.
    """
    label, count = np.unique(label_U, return_counts=True)
    order = np.argsort(label_U, kind="stable")
    begin = np.cumsum(count) - count
    rng = host_generator(seed, "people/trials")
    pairs: list[tuple[Ints, Ints]] = []
    # Of one person: as many of each, as far as their pairs go.
    quota = _even(count * (count - 1) // 2, number - number // 2, rng)
    for person in np.nonzero(quota)[0].tolist():
        first, second = np.triu_indices(int(count[person]), 1)
        drawn = rng.choice(len(first), int(quota[person]), replace=False)
        pairs.append((order[begin[person] + first[drawn]], order[begin[person] + second[drawn]]))
    genuine = int(quota.sum())
    # Of two people: as many for each two, as far as theirs go; where there are more twos than pairs, some twos.
    twos = len(label) * (len(label) - 1) // 2
    chosen = np.sort(rng.choice(twos, min(number // 2, twos), replace=False)) if twos else np.empty(0, np.int64)
    one, two = _unrank(chosen, len(label))
    quota = _even(count[one] * count[two], number // 2, rng)
    for place in np.nonzero(quota)[0].tolist():
        a, b = int(one[place]), int(two[place])
        drawn = rng.choice(int(count[a] * count[b]), int(quota[place]), replace=False)
        pairs.append((order[begin[a] + drawn // count[b]], order[begin[b] + drawn % count[b]]))
    first = np.concatenate([np.empty(0, np.int64), *(a for a, _ in pairs)])
    second = np.concatenate([np.empty(0, np.int64), *(b for _, b in pairs)])
    same = torch.arange(len(first)) < genuine
    return Trials(torch.from_numpy(first), torch.from_numpy(second), same, torch.zeros(len(first), dtype=torch.int64))


def _unrank(number: Ints, people: int) -> tuple[Ints, Ints]:
    """The number-th of the pairs (0,1), (0,2), ..., (1,2), ... of different people."""
    begin = np.cumsum(np.arange(people, 0, -1) - 1) - (np.arange(people, 0, -1) - 1)
    one = np.searchsorted(begin, number, side="right") - 1
    one = np.where(one >= people - 1, max(people - 2, 0), one)
    return one, number - begin[one] + one + 1


def _even(room: Ints, wanted: int, rng: np.random.Generator) -> Ints:
    """`wanted` things into places of limited room, as evenly as the room allows; all that fits where it is more."""
    if wanted >= int(room.sum()):
        return room.astype(np.int64)
    low, high = 0, int(room.max(initial=0))
    while low < high:  # the highest level that does not use up more than is wanted
        level = (low + high + 1) // 2
        low, high = (level, high) if int(np.minimum(room, level).sum()) <= wanted else (low, level - 1)
    share = np.minimum(room, low).astype(np.int64)
    open_places = np.nonzero(room > low)[0]
    share[rng.permutation(open_places)[: wanted - int(share.sum())]] += 1
    return share
