"""A federation for choosing settings: some of its people are set apart, and nothing of the test is there to look at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from selfsame.data.federation import Federation, Samples, Trials
from selfsame.errors import SelfsameError
from selfsame.streams import host_generator


def samples_for_choosing(federation: Federation, share: float = 0.1) -> Federation:
    """The federation without its test, whose place the last samples of each client take: a share of them, one at least.

    For sets that have no unseen people and no validation samples of their own.
    """
    if not 0 < share < 1 or int(federation.count_N.min()) < 2:
        raise SelfsameError(f"{federation.name}: {share:g} of its samples leaves a client nothing to train or test on")
    kept_N = (federation.count_N * (1 - share)).long().clamp(min=1)
    parts, labels = [], []
    for client, (kept, count) in enumerate(zip(kept_N.tolist(), federation.count_N.tolist(), strict=True)):
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
        notes=(*federation.notes, f"for choosing settings: {share:g} of each client's samples set apart"),
    )


def for_choosing(federation: Federation, share: float = 0.2, seed: int = 0) -> Federation:
    """The federation without its test: a share of the people whom it trains on take the place of unseen ones.

    Test samples are the validation samples of those who are left, if there are any. Who is set apart follows from the
    seed alone. What is chosen here is then measured on the whole federation, whose test nobody has seen.
    """
    people = federation.class_of_N.unique()
    count = round(share * len(people))
    if not (0 < share < 1 and 2 <= count <= len(people) - 2):
        raise SelfsameError(
            f"{federation.name}: {share:g} of {len(people)} people leaves too few to train on or to choose by"
        )
    drawn = host_generator(seed, "set apart").choice(len(people), count, replace=False)
    apart_C = torch.zeros(int(people.max()) + 1, dtype=torch.bool)
    apart_C[people[torch.from_numpy(drawn)]] = True
    away_N = apart_C[federation.class_of_N]
    number_C = (~apart_C).long().cumsum(0) - 1  # of the classes that stay, from 0 on
    source: Any = federation.source  # every kind has the first sample of each client in `start_N`
    samples = [
        source.rows(client_1, torch.arange(int(federation.count_N[client_1]))[None])[0]
        for client_1 in away_N.nonzero().flatten().split(1)
    ]
    label = [torch.full((len(part),), number) for number, part in enumerate(samples)]
    kept = federation.validation
    test = Samples(federation.test.x[:0], kept.y[:0])
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
        notes=(*federation.notes, f"for choosing settings: {count} of {len(people)} people set apart"),
    )
