"""The cohort of a run's card: what people score against templates that are not theirs, without a vector of anybody."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Samples
from selfsame.device.card import Card, Floats, score, template
from selfsame.device.strangers import LEAST_OWNERS, Strangers, enrolled_cohort, trained_cohort
from selfsame.measure.looks import class_templates
from selfsame.measure.trials import embedded
from selfsame.runs.course import Run
from selfsame.streams import host_generator

_MOST_PEOPLE, _MOST_EACH, _MOST_SAMPLES = 200, 100, 4000
_LEAST_EACH = 4  # samples of somebody who can be an owner
_UNSEEN, _SEEN = "people the network has never seen", "people the network was trained with"
_TRAINED = f"{_SEEN}, by the very samples"


def cohort_of(run: Run, card: Card, client: int | None = None) -> tuple[Strangers, ...]:
    """The populations that the run's data give: people it has never seen, or its own where those are too few.

    Its own are judged by test samples, or where these are too few by those that they were trained on, which tells them
    apart better than anybody else.

    Networks of one client know no other people, and a server without data knows nobody.
    """
    federation = run.problem.federation
    if client is not None or run.state.alone_NP is not None or federation.empty:
        return ()
    unseen, tested = _people(run, federation.unseen), _people(run, federation.test)
    own, told = (tested, _SEEN) if tested else (_people(run, _trained_on(run)), _TRAINED)
    people, who = (unseen, _UNSEEN) if unseen else (own, told)
    measure = partial(_score, card)
    found = enrolled_cohort(measure, partial(template, card), list(people.values()), who)
    if run.enrolled is None:
        template_CD = class_templates(run.problem.method, run.truth().detach(), run.world).cpu().double().numpy()
        owners = {label: emb for label, emb in own.items() if label < len(template_CD)}
        vectors = [template_CD[label] for label in owners]
        strangers = list(unseen.values()) or None
        found += trained_cohort(measure, vectors, list(owners.values()), strangers, who)
    return tuple(found)


def _trained_on(run: Run) -> Samples:
    """Some training samples of some clients."""
    federation = run.problem.federation
    parts, labels = [], []
    for client in range(min(run.state.present, _MOST_PEOPLE)):
        index_1B = torch.arange(min(int(federation.count_N[client]), _MOST_EACH), device=federation.count_N.device)[
            None
        ]
        who_1 = torch.tensor([client], device=federation.count_N.device)
        parts.append(federation.source.rows(who_1, index_1B)[0])
        labels.append(torch.full((index_1B.shape[1],), int(federation.class_of_N[client])))
    return Samples(torch.cat(parts), torch.cat(labels))


def _score(card: Card, emb_SD: Floats, template_D: Floats) -> np.ndarray:
    return np.asarray(score(card, emb_SD, template_D), np.float64)


def _people(run: Run, samples: Samples) -> dict[int, np.ndarray]:
    """The embeddings (n, D) of some samples of everybody who has enough, in an order drawn once for all."""
    label, count = np.unique(samples.y.cpu().numpy(), return_counts=True)
    rich = label[count >= _LEAST_EACH]
    if len(rich) < LEAST_OWNERS:
        return {}
    rng = host_generator(0, "export/cohort")
    rich = np.sort(rng.permutation(rich)[:_MOST_PEOPLE])
    most = max(_LEAST_EACH, min(_MOST_EACH, _MOST_SAMPLES // len(rich)))
    where = samples.y.cpu().numpy()
    place = [rng.permutation(np.flatnonzero(where == one))[:most] for one in rich]
    emb: Tensor = embedded(run.embed, samples.x, torch.from_numpy(np.concatenate(place)))
    parts = emb.cpu().double().numpy()
    ends = np.cumsum([len(own) for own in place])[:-1]
    return dict(zip(rich.tolist(), np.split(parts, ends)))
