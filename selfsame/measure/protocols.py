"""The protocols by which a trained network is measured, one after another.

FedUV's three populations (training samples, test samples of seen people, unseen people as impostors), unseen people
enrolled and in pairs, the data set's trial list, and FDML's accuracy. Shapes: S samples, C classes, D embedding width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Federation, Samples
from selfsame.data.sets.xc import MultiLabelled, Ragged
from selfsame.device.thresholds import balanced
from selfsame.errors import SelfsameError
from selfsame.measure.curves import Bools, Floats, Ints
from selfsame.measure.looks import class_templates
from selfsame.measure.outcome import Measured, Plain
from selfsame.measure.ranking import label_precision
from selfsame.measure.trials import (
    Embed,
    Matched,
    Raw,
    Scored,
    against_templates,
    alone_blocks,
    draw_pairs,
    embedded,
    most_pairs,
    pair_scores,
    pieces,
    spread,
    template_blocks,
    with_impostors,
)
from selfsame.methods.base import LocalLoss, World
from selfsame.streams import host_generator

_MOST_TRIALS = 1_000_000  # impostor trials of a protocol
_MOST_SAMPLES = 20_000  # of a population
_MOST_SCORES = 2**31  # computed in a protocol: with a million classes, fewer samples


class Inapplicable(Exception):
    """Why a protocol does not apply to these data."""


@dataclass(frozen=True)
class Population:
    """Some samples: where they are, and whose."""

    x: Raw
    place_S: Ints
    person_S: Ints
    note: str = ""  # where not all samples are used


@dataclass(frozen=True)
class Clients:
    """The clients' own samples, numbered client after client."""

    federation: Federation
    end_N: Ints
    device: torch.device

    @property
    def shape(self) -> Sequence[int]:
        return (int(self.end_N[-1]), *self.federation.shape)

    def __getitem__(self, which: Tensor) -> Tensor:
        place = which.numpy()
        client = np.searchsorted(self.end_N, place, "right")
        index = place - np.append(0, self.end_N)[client]
        client_M, index_M = (torch.from_numpy(x).to(self.device) for x in (client, index))
        return self.federation.source.rows(client_M, index_M[:, None])[:, 0]


def clients_of(federation: Federation, world: World, device: torch.device) -> Clients:
    """The samples of the clients that have registered."""
    return Clients(federation, np.cumsum(federation.count_N[: world.clients].cpu().numpy()), device)


def training_samples(federation: Federation, world: World, device: torch.device, most: int) -> Samples:
    """The clients' own samples with their classes; of more than `most`, an even selection."""
    x = clients_of(federation, world, device)
    total = int(x.end_N[-1])
    place = np.arange(0, total, max(1, -(-total // most)))
    client = torch.from_numpy(np.searchsorted(x.end_N, place, "right")).to(world.class_of_N.device)
    return Samples(x[torch.from_numpy(place)], world.class_of_N[client].to(device))


@dataclass(frozen=True)
class Bench:
    """A network on the bench with its people: what several protocols need is computed once."""

    method: LocalLoss
    federation: Federation
    world: World
    truth_RD: Tensor
    embed: Embed
    alone: bool  # every client has a network of its own
    seed: int
    pairs: int  # of unseen samples that are drawn

    def rng(self, purpose: str) -> np.random.Generator:
        return host_generator(self.seed, f"evaluate/{purpose}")

    def name_of(self, person: int) -> str:
        """A person in words: people are numbered, seen ones by class, then the unseen."""
        label = person if person < self.world.classes else int(self.unseen_label[person - self.world.classes])
        return self.federation.name_of(label)

    @cached_property
    def _unseen_people(self) -> tuple[Ints, Ints]:
        label, person = np.unique(self.federation.unseen.y.cpu().numpy(), return_inverse=True)
        return label, person + self.world.classes

    @property
    def unseen_label(self) -> Ints:
        return self._unseen_people[0]

    def unseen_person(self, place: Ints) -> Ints:
        return self._unseen_people[1][place]

    @cached_property
    def train(self) -> Population:
        """The clients' own samples."""
        x = clients_of(self.federation, self.world, self.truth_RD.device)
        place, note = self._some("train", int(x.end_N[-1]))
        class_N = self.world.class_of_N.cpu().numpy()
        return Population(x, place, class_N[np.searchsorted(x.end_N, place, "right")], note)

    @cached_property
    def test(self) -> Population:
        """Test samples of seen people."""
        label = self.federation.test.y.cpu().numpy()
        return self._population("test", self.federation.test, label, label < self.world.classes)

    @cached_property
    def unseen(self) -> Population:
        """Samples of people that no client holds."""
        person = self._unseen_people[1]
        return self._population("unseen", self.federation.unseen, person, person >= 0)

    def _population(self, name: str, samples: Samples, person: Ints, known: Bools) -> Population:
        """Of these samples those of known people, person after person."""
        order = np.argsort(person, kind="stable")
        order = order[known[order]]
        kept, note = self._some(name, len(order))
        return Population(samples.x, order[kept], person[order[kept]], note)

    def _some(self, name: str, total: int) -> tuple[Ints, str]:
        most = max(1, min(_MOST_SAMPLES, _MOST_SCORES // max(1, self.world.classes)))
        kept = spread(total, most, self.rng(f"samples/{name}"))
        note = f"{len(kept):,} of {total:,} samples, drawn evenly with seed {self.seed}" if len(kept) < total else ""
        return kept, note

    @cached_property
    def template_CD(self) -> Tensor:
        return class_templates(self.method, self.truth_RD, self.world)

    @cached_property
    def test_emb(self) -> Tensor:
        return embedded(self.embed, self.test.x, torch.from_numpy(self.test.place_S))

    @cached_property
    def fdml_places(self) -> Ints:
        """Unseen samples for FDML's accuracy: as many as it takes of each person who has them."""
        need, person = Portions().samples, self._unseen_people[1] - self.world.classes
        count = np.bincount(person) if len(person) else np.empty(0, np.int64)
        rng = self.rng("fdml/samples")
        rich = np.flatnonzero(count >= need)[: _MOST_SAMPLES // need]
        drawn = [rng.choice(np.flatnonzero(person == one), need, replace=False) for one in rich]
        return np.concatenate([np.empty(0, np.int64), *drawn])

    @cached_property
    def _unseen_emb(self) -> tuple[Ints, Tensor]:
        listed = self.federation.trials
        asked = [self.unseen.place_S, self.fdml_places, *(i.cpu().numpy() for i in (listed.index_a, listed.index_b))]
        place = np.unique(np.concatenate(asked))
        return place, embedded(self.embed, self.unseen.x, torch.from_numpy(place))

    def unseen_emb(self, place: Ints) -> Tensor:
        """The embeddings of unseen samples, computed once for all protocols."""
        known, emb = self._unseen_emb
        return emb[torch.from_numpy(np.searchsorted(known, place)).to(emb.device)]

    @cached_property
    def matched_test(self) -> Matched:
        """The trials of the test samples, which serve two protocols."""
        if not len(self.test.place_S):
            raise Inapplicable("the data hold no test samples of seen people")
        self.need_two()
        return self.against_everybody("test", self.test, None if self.alone else self.test_emb)

    def against_everybody(self, name: str, some: Population, emb_SD: Tensor | None = None) -> Matched:
        """The trials of a population against the templates of all seen people."""
        place = torch.from_numpy(some.place_S)
        if self.alone:
            blocks = alone_blocks(self.method, self.embed, self.truth_RD, self.world, pieces(some.x, place))
        else:
            emb_SD = embedded(self.embed, some.x, place) if emb_SD is None else emb_SD
            blocks = template_blocks(self.method, emb_SD, self.template_CD)
        people = np.arange(self.world.classes)
        return against_templates(blocks, some.person_S, people, _MOST_TRIALS, self.rng(f"trials/{name}"))

    def need_one_network(self) -> None:
        if self.alone:
            raise Inapplicable("every client has a network of its own, people it has never seen have none")

    def need_two(self) -> None:
        if self.world.classes < 2:
            raise Inapplicable("two seen people are needed")

    def notes(self, some: Population, matched: Matched) -> tuple[str, ...]:
        """What was drawn in place of everything."""
        kept = len(matched.scored.impostor)
        drawn = f"{kept:,} of {kept + matched.left_out:,} impostor trials, drawn evenly with seed {self.seed}"
        return (*([some.note] if some.note else []), *([drawn] if matched.left_out else []))


def _training_samples(bench: Bench) -> Measured:
    bench.need_two()
    matched = bench.against_everybody("train", bench.train)
    what = "the clients' own samples against everybody's template"
    return _matched(bench, "training samples", what, bench.train, matched)


def _test_samples(bench: Bench) -> Measured:
    matched = bench.matched_test
    what = "new samples of seen people against everybody's template"
    several = None
    samples = bench.federation.test
    if isinstance(samples, MultiLabelled) and bench.world.classes == bench.federation.classes:
        several = label_precision(bench.method, bench.test_emb, bench.template_CD, _part(samples, bench.test.place_S))
    return _matched(bench, "test samples", what, bench.test, matched, several)


def _part(samples: MultiLabelled, place_S: Ints) -> MultiLabelled:
    """Some of the samples, and as large a share of those that were missed."""
    place, labels = torch.from_numpy(place_S), samples.labels.to("cpu")
    count = labels.offset.diff()[place]
    end = torch.cumsum(count, 0)
    within = torch.arange(int(end[-1])) - (end - count).repeat_interleave(count)
    value = labels.value[labels.offset[place].repeat_interleave(count) + within]
    own = Ragged(torch.cat([torch.zeros(1, dtype=torch.int64), end]), value)
    missed = round(samples.missed * len(place_S) / len(samples.x))
    return MultiLabelled(samples.x, samples.y.cpu()[place], labels=own, missed=missed)


def _unseen_impostors(bench: Bench) -> Measured:
    some = bench.unseen
    if not len(some.place_S):
        raise Inapplicable("the data hold no unseen people")
    owners = bench.matched_test.scored
    strangers = bench.against_everybody("unseen", some, None if bench.alone else bench.unseen_emb(some.place_S))
    what = "new samples of seen people, and unseen people who claim to be them"
    both = with_impostors(owners, strangers.scored)
    return Measured("unseen impostors", what, both, notes=bench.notes(some, strangers))


def _unseen_enrolled(bench: Bench) -> Measured:
    bench.need_one_network()
    some = bench.unseen
    person, first, count = np.unique(some.person_S, return_index=True, return_counts=True)
    enough = count >= 2
    if enough.sum() < 2:
        raise Inapplicable("two unseen people with two samples are needed")
    rng = bench.rng("enrol")
    kept, probes = [], []
    for begin_at, size in zip(first[enough].tolist(), count[enough].tolist()):
        order = begin_at + rng.permutation(size)
        kept.append(order[: size // 2])
        probes.append(np.sort(order[size // 2 :]))
    template_CD = torch.stack([bench.method.template(bench.unseen_emb(some.place_S[own])) for own in kept])
    probe = np.concatenate(probes)
    probed = Population(some.x, some.place_S[probe], some.person_S[probe], some.note)
    blocks = template_blocks(bench.method, bench.unseen_emb(probed.place_S), template_CD)
    matched = against_templates(blocks, probed.person_S, person[enough], _MOST_TRIALS, bench.rng("trials/enrolled"))
    what = "unseen people, enrolled with half of their samples, verified with the others"
    return _matched(bench, "unseen, enrolled", what, probed, matched)


def _unseen_pairs(bench: Bench) -> Measured:
    bench.need_one_network()
    some = bench.unseen
    try:
        left, right, same = draw_pairs(some.person_S, bench.pairs, bench.seed)
    except SelfsameError as error:
        raise Inapplicable(str(error)) from None
    score = pair_scores(bench.method, bench.unseen_emb(some.place_S), left, right)
    scored = Scored(score, same, some.person_S[left], some.person_S[right])
    most, part, genuine = most_pairs(some.person_S)
    total = len(some.person_S) * (len(some.person_S) - 1) // 2
    drawn = f"{len(scored):,} of {total:,} pairs ({genuine:,} of one person), drawn evenly with seed {bench.seed}"
    alone = f"{100 * part:.0f} % of the pairs of one person are {bench.name_of(most)}'s alone"
    said = (some.note, drawn if len(scored) < total else "", alone if part > 0.5 else "")
    notes = tuple(note for note in said if note)
    return Measured("unseen pairs", "samples of unseen people, two by two", scored, pairs=True, notes=notes)


def _trial_list(bench: Bench) -> Measured:
    bench.need_one_network()
    listed = bench.federation.trials
    if not len(listed):
        raise Inapplicable("the data come without one")
    a, b, same, fold = (x.cpu().numpy() for x in (listed.index_a, listed.index_b, listed.same, listed.fold))
    if same.all() or not same.any():
        raise Inapplicable("the list has trials of one kind only")
    place, index = np.unique(np.concatenate([a, b]), return_inverse=True)
    score = pair_scores(bench.method, bench.unseen_emb(place), index[: len(a)], index[len(a) :])
    scored = Scored(score, same, bench.unseen_person(a), bench.unseen_person(b))
    folds = fold if len(np.unique(fold)) > 1 else None
    what = "the data set's own list of pairs of unseen samples"
    return Measured("trial list", what, scored, pairs=True, fold_T=folds)


PROTOCOLS: dict[str, Callable[[Bench], Measured]] = {
    "training samples": _training_samples,
    "test samples": _test_samples,
    "unseen impostors": _unseen_impostors,
    "unseen, enrolled": _unseen_enrolled,
    "unseen pairs": _unseen_pairs,
    "trial list": _trial_list,
}


def _matched(
    bench: Bench, name: str, what: str, some: Population, matched: Matched, several: dict[int, float] | None = None
) -> Measured:
    place = (matched.place_S, some.person_S)
    return Measured(name, what, matched.scored, place, notes=bench.notes(some, matched), precision=several)


@dataclass(frozen=True)
class Portions:
    """How many samples do what where FDML measures accuracy (section VII-C)."""

    template: int = 20
    threshold: int = 10
    test: int = 10
    others: int = 10  # users each for the threshold and for the test

    @property
    def samples(self) -> int:
        return self.template + self.threshold + self.test

    @property
    def users(self) -> int:
        """The least number of users."""
        return 2 * self.others + 1


def fdml_accuracy(bench: Bench) -> Plain:
    """FDML's accuracy (section VII-C), or why there is none."""
    need = Portions()
    what = f"{need.template} samples a template, {need.threshold} for the threshold, {need.test} for the test"
    try:
        bench.need_one_network()
    except Inapplicable as reason:
        return {"what": what, "refused": str(reason)}
    place = bench.fdml_places
    person = bench.unseen_person(place)
    enough, people = len(np.unique(person)), len(bench.unseen_label)
    if enough < need.users:
        asked = f"{need.users} unseen people with {need.samples} samples are needed"
        return {"what": what, "refused": f"{asked}, there are {enough:,} among {people:,}"}
    right = portioned_accuracy(bench.method, bench.unseen_emb(place), person, bench.rng("fdml"))
    worst = np.sort(right)[: -(-len(right) // 10)]
    return {"what": what, "value": float(right.mean()), "users": len(right), "worst_tenth": float(worst.mean())}


def portioned_accuracy(
    method: LocalLoss, emb_SD: Tensor, person_S: Ints, rng: np.random.Generator, need: Portions | None = None
) -> Floats:
    """Each user's share of right verdicts (FDML, section VII-C), for users with enough samples.

    A user's template is the mean of some of their samples; the threshold comes from more of their samples and those of
    ten users, by Algorithm 4; the verdicts are on the rest and on samples of ten further users.
    """
    need = need or Portions()
    people, count = np.unique(person_S, return_counts=True)
    people = people[count >= need.samples]
    if len(people) < need.users:
        raise SelfsameError(
            f"{need.users} people with {need.samples} samples are needed, there are {len(people)} of {len(count)}"
        )
    order = [rng.permutation(np.flatnonzero(person_S == person))[: need.samples] for person in people]
    cut = [need.template, need.template + need.threshold]
    part_a, part_b, part_c = (np.stack(part) for part in zip(*(np.split(own, cut) for own in order)))
    right = np.empty(len(people))
    for user in range(len(people)):
        others = rng.permutation(np.delete(np.arange(len(people)), user))[: 2 * need.others]
        template_D = method.template(emb_SD[torch.from_numpy(part_a[user])])

        def scores(place: Ints, template_D: Tensor = template_D) -> Floats:
            emb = emb_SD[torch.from_numpy(place.ravel())]
            return method.score(emb, template_D[None])[:, 0].double().cpu().numpy()

        limit = balanced(scores(part_b[user]), scores(part_b[others[: need.others]])).value
        own, other = scores(part_c[user]), scores(part_c[others[need.others :]])
        right[user] = ((own >= limit).sum() + (other < limit).sum()) / (len(own) + len(other))
    return right
