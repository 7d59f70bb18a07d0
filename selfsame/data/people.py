"""Splits by person: training, validation and test samples of seen people, and people nobody trains on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from selfsame.data.dataset import bounded
from selfsame.data.federation import Federation, Held, Mapped, Rows, Samples, Source, Trials
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator

Ints = NDArray[np.int64]

_NAMED = 5  # lines that a note gives, before it counts the rest


@dataclass(frozen=True)
class SplitOptions:
    """The options of all data sets that are divided by person."""

    people: int = 0  # clients, 0 for everybody left who has enough samples
    held_out: int = 0  # unseen people
    train: int = bounded(0, 0)  # samples of each client, 0 for all that the other parts leave
    validation: int = bounded(0, 0)  # samples of each client for validation
    test: int = bounded(1, 0)  # samples of each client for testing
    least: int = bounded(0, 0)  # samples that a client must have
    unseen_samples: int = bounded(0, 0)  # of each unseen person, 0 for all
    trials: int = bounded(20_000, 0, 100_000_000)  # pairs of unseen samples that are drawn where no list is given
    seed: int = 0  # of the split: the same on any machine

    @property
    def needed(self) -> int:
        """The samples a client must have for the parts that are asked for; a larger `least` prevails."""
        return max(self.least, (self.train or 1) + self.validation + self.test)


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
class Division:
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
    options: SplitOptions,
    *,
    least: int,
    least_unseen: int = 2,
    unseen: Ints | None = None,
    barred: Ints | None = None,
) -> Choice:
    """Choose clients among those with `least` samples, and `held_out` others (or exactly `unseen`) as unseen people.

    The `barred` take no part.
    """
    everybody = np.arange(len(count_P)) if barred is None else np.setdiff1d(np.arange(len(count_P)), barred)
    if unseen is None:
        pool = everybody[count_P[everybody] >= least_unseen]
        unseen = draw_unseen(name, "people/unseen", pool, options, f", the people with {least_unseen} samples")
    others = np.setdiff1d(everybody, unseen)
    enough = others[count_P[others] >= least]
    few = others[count_P[others] < least]
    if not 0 <= options.people <= len(enough):
        raise SelfsameError(
            f"{name}: people must be 0 (all) to {len(enough)}, those left with {least} samples, got {options.people}"
        )
    seen = drawn_people(options.seed, "people/seen", enough, options.people) if options.people else enough
    if len(seen) < 2:
        raise SelfsameError(
            f"{name}: {len(seen)} of {len(count_P)} people can be clients, at least 2 are needed; "
            f"a client must have {least} samples"
        )
    return Choice(seen, unseen, tuple((int(p), int(count_P[p])) for p in few), least)


def drawn_people(seed: int, purpose: str, pool: Ints, number: int) -> Ints:
    """Some of the people, drawn at random, in the order of their numbers."""
    return np.sort(host_generator(seed, purpose).permutation(pool)[:number])


def draw_unseen(name: str, purpose: str, pool: Ints, options: SplitOptions, who: str) -> Ints:
    """`held_out` people of the pool; `who` says in an error's line whom it holds."""
    if not 0 <= options.held_out <= len(pool):
        raise SelfsameError(f"{name}: held_out must be 0 to {len(pool)}{who}, got {options.held_out}")
    return drawn_people(options.seed, purpose, pool, options.held_out)


def divide(person_S: Ints, names: Sequence[str], choice: Choice, options: SplitOptions) -> Division:
    """Divide each client's samples at random into test, validation and training (at most `train`, 0: all the rest).

    Of each unseen person at most `unseen_samples` are kept (0: all). A person's draw depends on the seed and on the
    number of the person alone.
    """
    order = np.argsort(person_S, kind="stable")
    begin_P = np.searchsorted(person_S[order], np.arange(len(names) + 1))

    def shuffled(purpose: str, person: int) -> Ints:
        own = order[begin_P[person] : begin_P[person + 1]]
        return host_generator(options.seed, purpose, person).permutation(own)

    test, validation, train = options.test, options.validation, options.train
    parts: tuple[list[Ints], ...] = ([], [], [])
    spare = 0
    for person in choice.seen.tolist():
        own = shuffled("people/split", person)
        cuts = [test, test + validation, min(test + validation + train, len(own)) if train else len(own)]
        spare += len(own) - cuts[-1]
        for part, rows in zip(parts, np.split(own, cuts)):
            part.append(np.sort(rows))
    away = [shuffled("people/unseen samples", person) for person in choice.unseen.tolist()]
    away = [np.sort(rows[: options.unseen_samples or None]) for rows in away]
    notes, few = too_few(names, choice)
    if spare:
        notes += (f"{spare:,} samples of the clients are not used, train is at most {train} a person",)
    tested, validated, trained = map(part_of, parts)
    unseen = part_of(away, len(choice.seen))
    return Division(choice.seen, choice.unseen, trained, validated, tested, unseen, notes, few)


def split_people(
    name: str,
    person_S: Ints,
    names: Sequence[str],
    options: SplitOptions,
    *,
    unseen: Ints | None = None,
    barred: Ints | None = None,
    unseen_least: int = 0,
) -> Division:
    """Choose clients and unseen people by their samples, then divide the samples: see the two functions above."""
    choice = choose_people(
        name,
        np.bincount(person_S, minlength=len(names)),
        options,
        least=options.needed,
        least_unseen=max(unseen_least, 2 if options.unseen_samples != 1 else 1),
        unseen=unseen,
        barred=barred,
    )
    return divide(person_S, names, choice, options)


def part_of(blocks: Sequence[Ints], first: int = 0, inner: tuple[int, ...] = ()) -> Part:
    """The rows of one person after another, labelled from `first` on; `inner` is the shape of a row's number."""
    label = np.repeat(np.arange(first, first + len(blocks)), [len(block) for block in blocks])
    return Part(np.concatenate([np.empty((0, *inner), np.int64), *blocks]), label.astype(np.int64))


def too_few(names: Sequence[str], choice: Choice) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """A note about the people who have too few samples to be a client, and a line for each of them."""
    what = f"people are no clients, with fewer than {choice.least} samples"
    few = [(names[person], count) for person, count in choice.few]
    lines = tuple(f"{name}: {count} samples, a client needs {choice.least}" for name, count in few)
    return counted(what, [f"{name} ({count})" for name, count in few], ", "), lines


def counted(what: str, lines: Sequence[str], between: str = "; ") -> tuple[str, ...]:
    """A note that counts some lines and gives the first of them; no note where there are none."""
    if not lines:
        return ()
    more = f" and {len(lines) - _NAMED:,} more" if len(lines) > _NAMED else ""
    return (f"{len(lines):,} {what}: {between.join(lines[:_NAMED])}{more}",)


def by_people(
    name: str,
    shape: tuple[int, ...],
    split: Division,
    names: Sequence[str],
    rows: Callable[[Ints], Tensor | Rows],
    *,
    source: Callable[[Tensor], Source] | None = None,
    mean: tuple[float, ...] = (0.0,),
    std: tuple[float, ...] = (1.0,),
    trials: Trials,
    notes: tuple[str, ...] = (),
    left_out: tuple[str, ...] = (),
) -> Federation:
    """The federation of a split; `rows` gives samples by their numbers, in memory or to be read when they are used.

    `source` makes another source of the training samples from the place where each client's begin.
    """

    def samples(part: Part) -> Samples:
        return Samples(rows(part.row), torch.from_numpy(part.label))

    def plain(start_N: Tensor) -> Source:
        train = rows(split.train.row)
        return Mapped(train, start_N) if isinstance(train, Rows) else Held(train, start_N)

    count = np.bincount(split.train.label, minlength=len(split.seen))
    return Federation(
        name=name,
        shape=shape,
        class_of_N=torch.arange(len(split.seen)),
        count_N=torch.from_numpy(count),
        source=(source or plain)(torch.from_numpy(np.cumsum(count) - count)),
        test=samples(split.test),
        unseen=samples(split.unseen),
        mean=mean,
        std=std,
        notes=(*notes, *split.notes),
        class_names=tuple(names[person] for person in (*split.seen.tolist(), *split.unseen_people.tolist())),
        validation=samples(split.validation),
        trials=trials,
        left_out=(*left_out, *split.left_out),
    )
