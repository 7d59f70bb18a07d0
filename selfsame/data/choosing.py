"""A federation for choosing settings: some of its people are set apart, and nothing of the test is there to look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from selfsame.data.federation import Federation, Samples, Trials
from selfsame.errors import SelfsameError
from selfsame.fields import one_of
from selfsame.streams import host_generator

APART = ("auto", "people", "samples")
OPTIONS = {"apart": "", "apart_share": 0.0}  # that every data set takes
_SHARE = {"people": 0.2, "samples": 0.1}
_MOST_TIMES = 3  # the samples of the median person that one who is set apart gives


def set_apart(federation: Federation, apart: str, share: float = 0.0) -> Federation:
    """The federation for choosing settings, by people or by samples; nothing of its test is left.

    Samples are the data set's own for validation, where it has any, and otherwise the last of each client. `auto`:
    people where the test has unseen ones and there are enough to set some apart. A share of 0 is the usual one.
    """
    _check(federation.name, apart, share)
    if apart == "auto":
        few = _people_apart(federation, share or _SHARE["people"]) is None
        apart = "samples" if few or not len(federation.unseen.y) else "people"
    if apart == "people":
        return for_choosing(federation, share or _SHARE["people"])
    if len(federation.validation.y):
        return _by_validation(federation)
    return samples_for_choosing(federation, share or _SHARE["samples"])


def own_share(name: str, apart: str, share: float = 0.0) -> float:
    """The share of samples for a data set that sets them apart by itself; it has no people to set apart."""
    _check(name, apart, share)
    if apart == "people":
        raise SelfsameError(f"{name}: has samples to set apart, no people; judge by samples (--by p@1)")
    return share or _SHARE["samples"]


def _check(name: str, apart: str, share: float) -> None:
    one_of(f"{name}: apart", apart, APART)
    if share and not 0 < share < 1:
        raise SelfsameError(f"{name}: apart_share must lie between 0 and 1, got {share}")


def _by_validation(federation: Federation) -> Federation:
    """The validation samples in place of the test; every client trains on all that it has."""
    return replace(
        federation,
        test=federation.validation,
        unseen=Samples.none(),
        validation=Samples.none(),
        trials=Trials.none(),
        class_names=federation.class_names[: federation.classes],
        notes=(*federation.notes, f"for choosing settings: {len(federation.validation.y):,} validation samples"),
    )


def samples_for_choosing(federation: Federation, share: float = 0.1) -> Federation:
    """The federation without its test, whose place the last samples of each client take: a share of them, one at least.

    For sets that have no unseen people and no validation samples of their own. Who has a single sample keeps it.
    """
    kept_N = (federation.count_N * (1 - share)).long().clamp(min=1)
    if not 0 < share < 1 or bool((kept_N == federation.count_N).all()):
        raise SelfsameError(
            f"{federation.name}: {share:g} of its samples leaves a client nothing to train or test on: "
            "there is nothing to judge settings by; name a larger share, or judge by people (--by eer)"
        )
    parts, labels = [], []
    for client, (kept, count) in enumerate(zip(kept_N.tolist(), federation.count_N.tolist(), strict=True)):
        if kept == count:
            continue
        index_1B = torch.arange(kept, count)[None]
        parts.append(federation.source.rows(torch.tensor([client]), index_1B)[0])
        labels.append(federation.class_of_N[client].expand(count - kept))
    return replace(
        federation,
        count_N=kept_N,
        test=Samples(torch.cat(parts), torch.cat(labels)),
        unseen=Samples.none(),
        validation=Samples.none(),
        trials=Trials.none(),
        class_names=federation.class_names[: federation.classes],
        notes=(*federation.notes, f"for choosing settings: {share:g} of each client's samples set apart"),
    )


def _people_apart(federation: Federation, share: float) -> int | None:
    """How many people a share of them are; None where that leaves too few on either side."""
    people = len(federation.class_of_N.unique())
    count = round(share * people)
    return count if 0 < share < 1 and 2 <= count <= people - 2 else None


def for_choosing(federation: Federation, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation without its test: a share of the people whom it trains on take the place of unseen ones.

    Pairs of a person grow with the square of its samples, and one with hundreds would be judged almost alone: nobody
    who is set apart gives more than three times as many as the median person. Test samples are the validation samples
    of those who are left, if there are any. Who is set apart follows from the seed alone. What is chosen here is then
    measured on the whole federation, whose test nobody has seen.
    """
    people = federation.class_of_N.unique()
    count = _people_apart(federation, share)
    if count is None:
        raise SelfsameError(
            f"{federation.name}: {share:g} of {len(people)} people leaves too few to train on or to choose by; name "
            "another share (apart_share, or --share), or judge by samples of those who train (--by p@1)"
        )
    drawn = host_generator(seed, "set apart").choice(len(people), count, replace=False)
    apart_C = torch.zeros(int(people.max()) + 1, dtype=torch.bool)
    apart_C[people[torch.from_numpy(drawn)]] = True
    away_N = apart_C[federation.class_of_N]
    number_C = (~apart_C).long().cumsum(0) - 1  # of the classes that stay, from 0 on
    source: Any = federation.source  # every kind has the first sample of each client in `start_N`
    most = _most_samples(federation.count_N[away_N])
    samples = [
        source.rows(client_1, _evenly(int(federation.count_N[client_1]), most)[None])[0]
        for client_1 in away_N.nonzero().flatten().split(1)
    ]
    fewer = int((federation.count_N[away_N] > most).sum())
    limit = (f"of {fewer} of them {most} samples, so that nobody is judged almost alone",) if fewer else ()
    label = [torch.full((len(part),), number) for number, part in enumerate(samples)]
    kept = federation.validation
    test = Samples(federation.test.x[:0].clone(), kept.y[:0].clone())  # a view would hold the whole test
    if len(kept.y):
        stay_V = ~apart_C[kept.y]
        test = Samples(kept.x[stay_V], number_C[kept.y[stay_V]])
    return replace(
        federation,
        class_of_N=number_C[federation.class_of_N[~away_N]],
        count_N=federation.count_N[~away_N],
        source=replace(source, start_N=source.start_N[~away_N]),
        test=test,
        unseen=Samples(torch.cat(samples), torch.cat(label)),
        validation=Samples.none(),
        trials=Trials.none(),
        class_names=(),
        notes=(*federation.notes, f"for choosing settings: {count} of {len(people)} people set apart", *limit),
    )


def _most_samples(count_A: Tensor) -> int:
    """How many samples one of these people gives at most, by how many they have; who has one sample has no pair."""
    some = count_A[count_A > 1].double()
    return max(2, round(_MOST_TIMES * some.quantile(0.5).item())) if len(some) else 2


def _evenly(count: int, most: int) -> Tensor:
    """The places of at most `most` of `count` samples, as far apart as can be."""
    kept = min(count, most)
    return torch.arange(kept) * count // kept
