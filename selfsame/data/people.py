"""Splits by person: training, validation and test samples of seen people, and people nobody trains on, with trials."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.federation import Federation, Held, Mapped, Rows, Samples, Trials
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Ints = NDArray[np.int64]

_NAMED = 5  # people whose names a note gives, before it counts the rest
_MOST_LIST = 1 << 28  # bytes of a trial list that are read


@dataclass(frozen=True)
class Choice:
    """Who takes part: the clients (class c is person seen[c]) and the people nobody trains on, by number."""

    seen: Ints
    unseen: Ints
    few: tuple[tuple[int, int], ...] = ()  # (person, samples) of those with too few to be a client
    least: int = 1  # what too few means


@dataclass(frozen=True)
class Part:
    """Some samples, by row, and their labels."""

    row: Ints
    label: Ints


@dataclass(frozen=True)
class Split:
    """Whose samples do what; seen people are labelled 0 .. C-1, unseen ones from C on."""

    seen: Ints  # the person behind each class
    unseen_people: Ints  # the person behind label C, C+1, ...
    train: Part  # class after class
    validation: Part
    test: Part
    unseen: Part
    notes: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()  # people with too few samples, one line each


def choose_people(
    name: str,
    count_P: Ints,
    *,
    seed: int,
    people: int = 0,
    held_out: int = 0,
    least: int = 1,
    least_unseen: int = 2,
    unseen: Ints | None = None,
    barred: Ints | None = None,
) -> Choice:
    """Choose clients among those with `least` samples, and `held_out` others (or exactly `unseen`) as unseen people.

    `people` is the number of clients, 0 for everybody left who has enough; the `barred` take no part.
    """
    everybody = np.arange(len(count_P)) if barred is None else np.setdiff1d(np.arange(len(count_P)), barred)
    if unseen is None:
        pool = everybody[count_P[everybody] >= least_unseen]
        if not 0 <= held_out <= len(pool):
            raise SelfsameError(
                f"{name}: held_out must be 0 to {len(pool)}, the people with {least_unseen} samples, got {held_out}"
            )
        unseen = np.sort(host_generator(seed, "people/unseen").permutation(pool)[:held_out])
    others = np.setdiff1d(everybody, unseen)
    enough = others[count_P[others] >= least]
    few = others[count_P[others] < least]
    if not 0 <= people <= len(enough):
        raise SelfsameError(
            f"{name}: people must be 0 (all) to {len(enough)}, those left with {least} samples, got {people}"
        )
    seen = np.sort(host_generator(seed, "people/seen").permutation(enough)[:people]) if people else enough
    if len(seen) < 2:
        raise SelfsameError(
            f"{name}: {len(seen)} of {len(count_P)} people can be clients, at least 2 are needed; "
            f"a client must have {least} samples"
        )
    return Choice(seen, unseen, tuple((int(p), int(count_P[p])) for p in few), least)


def least_samples(name: str, train: int, validation: int, test: int, least: int = 0) -> int:
    """The samples a client must have for the parts that are asked for; a larger `least` prevails."""
    for option, value in (("train", train), ("validation", validation), ("test", test), ("least", least)):
        if not 0 <= value <= 1_000_000:
            raise SelfsameError(f"{name}: {option} must be 0 to 1000000 samples, got {value}")
    return max(least, (train or 1) + validation + test)


def divide(
    person_S: Ints,
    names: Sequence[str],
    choice: Choice,
    *,
    seed: int,
    train: int = 0,
    validation: int = 0,
    test: int = 1,
    unseen_samples: int = 0,
) -> Split:
    """Divide each client's samples at random into test, validation and training (at most `train`, 0: all the rest).

    Of each unseen person at most `unseen_samples` are kept (0: all). A person's draw depends on the seed and on the
    number of the person alone.
    """
    order = np.argsort(person_S, kind="stable")
    begin_P = np.searchsorted(person_S[order], np.arange(len(names) + 1))

    def shuffled(purpose: str, person: int) -> Ints:
        own = order[begin_P[person] : begin_P[person + 1]]
        return host_generator(seed, purpose, person).permutation(own)

    parts: dict[str, list[Ints]] = {"test": [], "validation": [], "train": []}
    spare = 0
    for person in choice.seen.tolist():
        own = shuffled("people/split", person)
        cuts = [test, test + validation, min(test + validation + train, len(own)) if train else len(own)]
        spare += len(own) - cuts[-1]
        for part, rows in zip(parts, np.split(own, cuts)):
            parts[part].append(np.sort(rows))
    away = [shuffled("people/unseen samples", person) for person in choice.unseen.tolist()]
    away = [np.sort(rows[:unseen_samples] if unseen_samples else rows) for rows in away]
    notes, few = too_few(names, choice)
    if spare:
        notes += (f"{spare:,} samples of the clients are not used, train is at most {train} a person",)
    return Split(
        choice.seen,
        choice.unseen,
        _part(parts["train"]),
        _part(parts["validation"]),
        _part(parts["test"]),
        _part(away, len(choice.seen)),
        notes,
        few,
    )


def split_people(
    name: str,
    person_S: Ints,
    names: Sequence[str],
    *,
    seed: int,
    people: int = 0,
    held_out: int = 0,
    unseen: Ints | None = None,
    barred: Ints | None = None,
    train: int = 0,
    validation: int = 0,
    test: int = 1,
    least: int = 0,
    unseen_samples: int = 0,
    unseen_least: int = 0,
) -> Split:
    """Choose clients and unseen people by their samples, then divide the samples: see the two functions above."""
    count_P = np.bincount(person_S, minlength=len(names))
    choice = choose_people(
        name,
        count_P,
        seed=seed,
        people=people,
        held_out=held_out,
        least=least_samples(name, train, validation, test, least),
        least_unseen=max(unseen_least, 2 if unseen_samples != 1 else 1),
        unseen=unseen,
        barred=barred,
    )
    return divide(
        person_S,
        names,
        choice,
        seed=seed,
        train=train,
        validation=validation,
        test=test,
        unseen_samples=unseen_samples,
    )


def _part(rows: list[Ints], first: int = 0) -> Part:
    label = np.repeat(np.arange(first, first + len(rows)), [len(r) for r in rows])
    return Part(np.concatenate([*rows, np.empty(0, np.int64)]).astype(np.int64), label.astype(np.int64))


def too_few(names: Sequence[str], choice: Choice) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A note about the people who have too few samples to be a client, and a line for each of them."""
    if not choice.few:
        return (), ()
    told = ", ".join(f"{names[person]} ({count})" for person, count in choice.few[:_NAMED])
    more = f" and {len(choice.few) - _NAMED:,} more" if len(choice.few) > _NAMED else ""
    note = f"{len(choice.few):,} people are no clients, with fewer than {choice.least} samples: {told}{more}"
    return (note,), tuple(
        f"{names[person]}: {count} samples, a client needs {choice.least}" for person, count in choice.few
    )


def by_people(
    name: str,
    x: Tensor | Rows,
    split: Split,
    names: Sequence[str],
    *,
    hold: bool = False,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    trials: Trials | None = None,
    notes: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> Federation:
    """The federation of a split: in memory where x is a tensor or `hold` is set, else read from the map when used."""

    def rows(part: Part) -> Tensor | Rows:
        if isinstance(x, Tensor):
            return x[torch.from_numpy(part.row)]
        return x.pick(part.row)[:] if hold else x.pick(part.row)

    def samples(part: Part) -> Samples:
        return Samples(rows(part), torch.from_numpy(part.label))

    count = np.bincount(split.train.label, minlength=len(split.seen))
    start_N = torch.from_numpy(np.cumsum(count) - count)
    train = rows(split.train)
    return Federation(
        name=name,
        shape=tuple(x.shape[1:]),
        class_of_N=torch.arange(len(split.seen)),
        count_N=torch.from_numpy(count),
        source=Mapped(train, start_N) if isinstance(train, Rows) else Held(train, start_N),
        test=samples(split.test),
        unseen=samples(split.unseen),
        mean=mean,
        std=std,
        notes=(*notes, *split.notes),
        class_names=tuple(names[person] for person in (*split.seen.tolist(), *split.unseen_people.tolist())),
        validation=samples(split.validation),
        trials=Trials.none() if trials is None else trials,
        left_out=(*left_out, *split.left_out),
    )


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


def read_trials(path: Path) -> tuple[tuple[bool, str, str], ...]:
    """A trial list, VoxCeleb's form: lines of 1 (same) or 0, a file and another file."""
    out = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 3 or parts[0] not in ("0", "1"):
            raise SelfsameError(f"{path}: line {number}: expected 0 or 1 and two files, got {line.strip()[:80]!r}")
        out.append((parts[0] == "1", parts[1], parts[2]))
    if not out:
        raise SelfsameError(f"{path}: empty, expected lines of 0 or 1 and two files")
    return tuple(out)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that came with a data set."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(_MOST_LIST + 1)
    except OSError as error:
        raise SelfsameError(f"{path}: cannot be read ({error.strerror or type(error).__name__})") from error
    if len(raw) > _MOST_LIST:
        raise SelfsameError(f"{path}: longer than {_MOST_LIST} bytes, not a list of names")
    try:
        return raw.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise SelfsameError(f"{path}: byte {error.start} is not UTF-8 text") from error
