"""A trained network measured: from a run's folder to plain figures, protocol after protocol.

Protocols: FedUV's three populations (training samples, test samples of seen people, unseen people as impostors), unseen
people enrolled and in pairs, the data set's trial list; FedMetric's one-class AUROC and FDML's accuracy beside them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.data.federation import Samples
from selfsame.data.sets.xc import MultiLabelled, Ragged
from selfsame.engine.state import smaller_world
from selfsame.errors import SelfsameError
from selfsame.methods.base import World
from selfsame.report.evaluation import FORMAT
from selfsame.runs.run import Run
from selfsame.streams import host_generator
from selfsame.measure.bootstrap import LEAST_PEOPLE, interval, mean_replicates, replicates
from selfsame.measure.looks import class_templates
from selfsame.measure.protocols import (
    Fetch,
    Matched,
    Scored,
    Split,
    against_templates,
    chunks,
    embedded,
    fold_accuracy,
    pair_scores,
    split_accuracy,
    spread,
    template_blocks,
    with_impostors,
)
from selfsame.measure.ranking import precision_at_k
from selfsame.measure.rates import (
    FALSE_ACCEPTS,
    Floats,
    Ints,
    area,
    equal_error,
    histogram,
    min_dcf,
    outline,
    supported,
    tpr_at_fpr,
)
from selfsame.measure.scores import eer, roc, trials
from selfsame.device.thresholds import balanced
from selfsame.measure.users import per_user

FPRS = (1e-1, 1e-2, 1e-3, 1e-4)
P_TARGETS = (0.01, 0.05)  # VoxCeleb's, with both costs 1
KS = (1, 3, 5)

_MOST_TRIALS = 1_000_000  # impostor trials of a protocol
_MOST_SAMPLES = 20_000  # of a population
_MOST_SCORES = 2**31  # computed in a protocol: with a million classes, fewer samples
_MOST_USERS = 10_000  # listed one by one
_ALONE = "every client has a network of its own, people it has never seen have none"

Plain = dict[str, Any]
Tick = Callable[[str], None]  # told what is measured next


@dataclass(frozen=True)
class Population:
    """Some samples: where they are, whose, and how to get them."""

    place_S: Ints
    person_S: Ints
    fetch: Fetch
    shape: tuple[int, ...]
    note: str = ""  # where not all samples are used


@dataclass(frozen=True)
class Measured:
    """The trials of a protocol, and what goes with them."""

    name: str
    what: str
    scored: Scored
    rank: tuple[Ints, Ints] | None = None  # of each sample's own template, and whose sample
    pairs: bool = False
    fold_T: Ints | None = None
    notes: tuple[str, ...] = ()
    extra: Plain | None = None


class Bench:
    """A run on the bench: its people, its templates, its embeddings, each computed once."""

    def __init__(self, run: Run, seed: int) -> None:
        self.run, self.seed = run, seed
        self.method, self.federation = run.problem.method, run.problem.federation
        self.world: World = smaller_world(run.problem.world, run.state.present)
        self.alone = run.state.alone_NP is not None
        self.truth_RD = run.truth().detach()
        self.unseen_label, self._unseen_person = np.unique(self.federation.unseen.y.cpu().numpy(), return_inverse=True)

    def rng(self, purpose: str) -> np.random.Generator:
        return host_generator(self.seed, f"evaluate/{purpose}")

    def name_of(self, person: int) -> str:
        """A person in words: people are numbered, seen ones by class, then the unseen."""
        label = person if person < self.world.classes else int(self.unseen_label[person - self.world.classes])
        names = self.federation.class_names
        return names[label] if 0 <= label < len(names) else f"person {label}"

    @cached_property
    def template_CD(self) -> Tensor:
        return class_templates(self.method, self.truth_RD, self.world)

    @cached_property
    def train(self) -> Population:
        """The clients' own samples."""
        count_N = self.federation.count_N[: self.world.clients].cpu().numpy()
        end_N = np.cumsum(count_N)
        place, note = self._some("train", int(end_N[-1]))
        client = np.searchsorted(end_N, place, "right")

        def fetch(part: Ints) -> Tensor:
            who = np.searchsorted(end_N, part, "right")
            index = part - (end_N - count_N)[who]
            device = self.run.problem.model.device
            client_M, index_M = (torch.from_numpy(x).to(device) for x in (who, index))
            return self.federation.source.rows(client_M, index_M[:, None])[:, 0]

        person = self.world.class_of_N.cpu().numpy()[client]
        return Population(place, person, fetch, self.federation.shape, note)

    @cached_property
    def test(self) -> Population:
        """Test samples of seen people."""
        samples = self.federation.test
        label = samples.y.cpu().numpy()
        order = np.argsort(label, kind="stable")
        order = order[label[order] < self.world.classes]
        kept, note = self._some("test", len(order))
        return self._population(samples, order[kept], label, note)

    @cached_property
    def unseen(self) -> Population:
        """Samples of people that no client holds."""
        person = self._unseen_person + self.world.classes
        order = np.argsort(person, kind="stable")
        kept, note = self._some("unseen", len(order))
        return self._population(self.federation.unseen, order[kept], person, note)

    def _some(self, name: str, total: int) -> tuple[Ints, str]:
        most = max(1, min(_MOST_SAMPLES, _MOST_SCORES // max(1, self.world.classes)))
        kept = spread(total, most, self.rng(f"samples/{name}"))
        note = f"{len(kept):,} of {total:,} samples, drawn evenly with seed {self.seed}" if len(kept) < total else ""
        return kept, note

    @staticmethod
    def _population(samples: Samples, place: Ints, person: Ints, note: str) -> Population:
        def fetch(part: Ints) -> Tensor:
            return samples.x[torch.from_numpy(part).to(samples.y.device)]

        return Population(place, person[place], fetch, tuple(samples.x.shape[1:]), note)

    @cached_property
    def test_emb(self) -> Tensor:
        return self.embed(self.test, self.test.place_S)

    @cached_property
    def fdml_places(self) -> Ints:
        """Unseen samples for FDML's accuracy: as many as it takes of each person who has them."""
        split, person = Split(), self._unseen_person
        count = np.bincount(person) if len(person) else np.empty(0, np.int64)
        rng = self.rng("fdml/samples")
        rich = np.flatnonzero(count >= split.samples)[: _MOST_SAMPLES // split.samples]
        drawn = [rng.choice(np.flatnonzero(person == one), split.samples, replace=False) for one in rich]
        return np.concatenate([np.empty(0, np.int64), *drawn])

    @cached_property
    def _unseen_emb(self) -> tuple[Ints, Tensor]:
        listed = self.federation.trials
        asked = [self.unseen.place_S, self.fdml_places, *(i.cpu().numpy() for i in (listed.index_a, listed.index_b))]
        place = np.unique(np.concatenate(asked))
        return place, self.embed(self.unseen, place)

    def unseen_emb(self, place: Ints) -> Tensor:
        """The embeddings of unseen samples, computed once for all protocols."""
        known, emb = self._unseen_emb
        return emb[torch.from_numpy(np.searchsorted(known, place)).to(emb.device)]

    def unseen_person(self, place: Ints) -> Ints:
        return self._unseen_person[place] + self.world.classes

    def embed(self, some: Population, place: Ints) -> Tensor:
        return embedded(self.run.embed, some.fetch, place, some.shape)

    def blocks(self, some: Population, emb: Tensor | None = None) -> Iterator[Tensor]:
        """The scores of a population against everybody's template, in blocks of rows."""
        if not self.alone:
            emb = self.embed(some, some.place_S) if emb is None else emb
            yield from template_blocks(self.method, emb, self.template_CD)
            return
        class_N = self.world.class_of_N[: len(self.truth_RD)].tolist()
        for part in chunks(some.place_S, some.shape):
            raw = some.fetch(part)
            score_RC = torch.full((len(part), self.world.classes), -torch.inf, dtype=self.run.problem.model.dtype)
            for client, label in enumerate(class_N):
                score = self.method.score(self.run.embed(raw, client), self.truth_RD[client : client + 1])[:, 0].cpu()
                score_RC[:, label] = torch.maximum(score_RC[:, label], score)
            yield score_RC

    def seen(self, name: str, some: Population, emb: Tensor | None = None) -> Matched:
        """The trials of a population against everybody's template."""
        rng = self.rng(f"trials/{name}")
        people = np.arange(self.world.classes)
        return against_templates(self.blocks(some, emb), some.person_S, people, _MOST_TRIALS, rng)


def assess(run: Run, trials: int = 200_000, bootstrap: int = 1000, seed: int = 0, tick: Tick | None = None) -> Plain:
    """Every figure of a run that its data allow, as plain numbers and words, ready for JSON."""
    for option, value, least in (("--trials", trials, 2), ("--bootstrap", bootstrap, 0)):
        if value < least:
            raise SelfsameError(f"{option}: must be at least {least}, got {value}")
    if run.problem.federation.empty:
        raise SelfsameError(f"{run.folder}: the server has no samples to measure with; name the data set with --path")
    tell = tick or (lambda _: None)
    bench = Bench(run, seed)
    found: list[Plain] = []
    skipped: list[Plain] = []
    seen: dict[str, Matched] = {}
    one_class = None
    for name, measure in (
        ("training samples", lambda: _train(bench)),
        ("test samples", lambda: _test(bench, seen)),
        ("unseen impostors", lambda: _strangers(bench, seen)),
        ("unseen, enrolled", lambda: _enrolled(bench)),
        ("unseen pairs", lambda: _pairs(bench, trials)),
        ("trial list", lambda: _listed(bench)),
    ):
        tell(name)
        try:
            measured = measure()
            summary = _summary(bench, measured, bootstrap)
        except _Cannot as reason:
            skipped.append({"name": name, "why": str(reason)})
            continue
        found.append(summary)
        if name == "test samples":
            one_class = summary["users"]["one_class_auroc"]
    tell("FDML accuracy")
    ended = run.state.round >= run.recipe.run.rounds
    notes = [] if ended else [f"the run is at round {run.state.round:,} of {run.recipe.run.rounds:,}"]
    if run.enrolled is not None:
        notes.append("a run on devices: templates of the data's own clients stand in for the vectors that stayed there")
    if isinstance(run.problem.federation.test, MultiLabelled):
        notes.append("samples have several labels: as verification trials, all but one of them count as other people")
    return {
        "format": FORMAT,
        "title": run.title,
        "method": run.recipe.method.name,
        "facts": run.facts,
        "round": run.state.round,
        "seed": seed,
        "bootstrap": bootstrap,
        "protocols": found,
        "skipped": skipped,
        "one_class_auroc": one_class,
        "fdml": _fdml(bench),
        "notes": [*notes, *run.problem.federation.notes],
    }


class _Cannot(Exception):
    """Why a protocol does not apply to these data."""


def _train(bench: Bench) -> Measured:
    some = bench.train
    matched = _need_others(bench).seen("train", some)
    what = "the clients' own samples against everybody's template"
    return _matched(bench, "training samples", what, some, matched)


def _test(bench: Bench, seen: dict[str, Matched]) -> Measured:
    some = bench.test
    if not len(some.place_S):
        raise _Cannot("the data hold no test samples of seen people")
    emb = None if bench.alone else bench.test_emb
    matched = seen["test"] = _need_others(bench).seen("test", some, emb)
    what = "new samples of seen people against everybody's template"
    measured = _matched(bench, "test samples", what, some, matched)
    samples = bench.federation.test
    if isinstance(samples, MultiLabelled) and bench.world.classes == bench.run.problem.world.classes:
        measured = replace(measured, rank=None, extra=_precision(bench, samples))
    return measured


def _precision(bench: Bench, samples: MultiLabelled) -> Plain:
    """P@k against all true labels."""
    place_S = bench.test.place_S

    def blocks() -> Iterator[tuple[int, int, Tensor]]:
        row = 0
        for block in bench.blocks(bench.test, bench.test_emb):
            yield row, 0, block.cpu()
            row += len(block)

    offset = samples.labels.offset.cpu()
    place = torch.from_numpy(place_S)
    count = offset.diff()[place]
    end = torch.cumsum(count, 0)
    within = torch.arange(int(end[-1])) - (end - count).repeat_interleave(count)
    value = samples.labels.value.cpu()[offset[place].repeat_interleave(count) + within]
    labels = Ragged(torch.cat([torch.zeros(1, dtype=torch.int64), end]), value)
    missed = round(samples.missed * len(place_S) / len(samples.x))
    ks = [k for k in KS if k <= bench.world.classes]
    right = precision_at_k(blocks(), labels, ks, missed)
    return {"rank_1": {"value": right[1]}, **{f"p@{k}": value for k, value in right.items()}}


def _strangers(bench: Bench, seen: dict[str, Matched]) -> Measured:
    some = bench.unseen
    if not len(some.place_S):
        raise _Cannot("the data hold no unseen people")
    if "test" not in seen:
        raise _Cannot("the data hold no test samples of seen people")
    strangers = bench.seen("unseen", some, None if bench.alone else bench.unseen_emb(some.place_S))
    notes = _notes(bench, some, strangers)
    what = "new samples of seen people, and unseen people who claim to be them"
    return Measured("unseen impostors", what, with_impostors(seen["test"].scored, strangers.scored), notes=notes)


def _enrolled(bench: Bench) -> Measured:
    if bench.alone:
        raise _Cannot(_ALONE)
    some = bench.unseen
    person, first, count = np.unique(some.person_S, return_index=True, return_counts=True)
    enough = count >= 2
    if enough.sum() < 2:
        raise _Cannot("two unseen people with two samples are needed")
    rng = bench.rng("enrol")
    kept, probes = [], []
    for begin_at, size in zip(first[enough].tolist(), count[enough].tolist()):
        order = begin_at + rng.permutation(size)
        kept.append(order[: size // 2])
        probes.append(np.sort(order[size // 2 :]))
    template_CD = torch.stack([bench.method.template(bench.unseen_emb(some.place_S[own])) for own in kept])
    probe = np.concatenate(probes)
    blocks = template_blocks(bench.method, bench.unseen_emb(some.place_S[probe]), template_CD)
    probed = replace(some, place_S=some.place_S[probe], person_S=some.person_S[probe])
    matched = against_templates(blocks, probed.person_S, person[enough], _MOST_TRIALS, bench.rng("trials/enrolled"))
    what = "unseen people, enrolled with half of their samples, verified with the others"
    return _matched(bench, "unseen, enrolled", what, probed, matched)


def _pairs(bench: Bench, count: int) -> Measured:
    if bench.alone:
        raise _Cannot(_ALONE)
    some = bench.unseen
    try:
        left, right, same = trials(some.person_S, count, bench.seed)
    except SelfsameError as error:
        raise _Cannot(str(error)) from None
    score = pair_scores(bench.method, bench.unseen_emb(some.place_S), left, right)
    scored = Scored(score, same, some.person_S[left], some.person_S[right])
    size = np.unique(some.person_S, return_counts=True)[1]
    genuine = int((size * (size - 1) // 2).sum())
    total = len(some.person_S) * (len(some.person_S) - 1) // 2
    drawn = f"{len(scored):,} of {total:,} pairs ({genuine:,} of one person), drawn evenly with seed {bench.seed}"
    notes = (*([some.note] if some.note else []), *([drawn] if len(scored) < total else []))
    return Measured("unseen pairs", "samples of unseen people, two by two", scored, pairs=True, notes=notes)


def _listed(bench: Bench) -> Measured:
    listed = bench.federation.trials
    if bench.alone:
        raise _Cannot(_ALONE)
    if not len(listed):
        raise _Cannot("the data come without one")
    a, b, same, fold = (x.cpu().numpy() for x in (listed.index_a, listed.index_b, listed.same, listed.fold))
    place, index = np.unique(np.concatenate([a, b]), return_inverse=True)
    score = pair_scores(bench.method, bench.unseen_emb(place), index[: len(a)], index[len(a) :])
    scored = Scored(score, same, bench.unseen_person(a), bench.unseen_person(b))
    if same.all() or not same.any():
        raise _Cannot("the list has trials of one kind only")
    folds = fold if len(np.unique(fold)) > 1 else None
    return Measured("trial list", "the data set's own list of pairs of unseen samples", scored, None, True, folds)


def _need_others(bench: Bench) -> Bench:
    if bench.world.classes < 2:
        raise _Cannot("two seen people are needed")
    return bench


def _matched(bench: Bench, name: str, what: str, some: Population, matched: Matched) -> Measured:
    notes = _notes(bench, some, matched)
    return Measured(name, what, matched.scored, (matched.rank_S, some.person_S), notes=notes)


def _notes(bench: Bench, some: Population, matched: Matched) -> tuple[str, ...]:
    """What was drawn in place of everything."""
    kept = len(matched.scored.impostor)
    drawn = f"{kept:,} of {kept + matched.left_out:,} impostor trials, drawn evenly with seed {bench.seed}"
    return (*([some.note] if some.note else []), *([drawn] if matched.left_out else []))


def _fdml(bench: Bench) -> Plain:
    """FDML's accuracy (section VII-C), or why there is none."""
    split = Split()
    what = f"{split.template} samples a template, {split.threshold} for the threshold, {split.test} for the test"
    if bench.alone:
        return {"what": what, "refused": _ALONE}
    place = bench.fdml_places
    person = bench.unseen_person(place)
    enough, people = len(np.unique(person)), len(bench.unseen_label)
    if enough < split.users:
        asked = f"{split.users} unseen people with {split.samples} samples are needed"
        return {"what": what, "refused": f"{asked}, there are {enough:,} among {people:,}"}

    def threshold(genuine: Floats, impostor: Floats) -> float:
        return float(balanced(genuine, impostor))

    right = split_accuracy(bench.method, bench.unseen_emb(place), person, threshold, bench.rng("fdml"), split)
    worst = np.sort(right)[: -(-len(right) // 10)]
    return {"what": what, "value": float(right.mean()), "users": len(right), "worst_tenth": float(worst.mean())}


def _measure(fpr: Floats, tpr: Floats) -> Floats:
    """The figures of a curve: EER, AUROC, TPRs, detection costs."""
    return np.array(
        [
            equal_error(fpr, tpr),
            area(fpr, tpr),
            *(tpr_at_fpr(fpr, tpr, at) for at in FPRS),
            *(min_dcf(fpr, tpr, p_target) for p_target in P_TARGETS),
        ]
    )


def _summary(bench: Bench, measured: Measured, bootstrap: int) -> Plain:
    """All figures of a protocol."""
    scored = measured.scored
    curve = roc(scored.genuine, scored.impostor)
    value = _measure(curve.fpr, curve.tpr)
    limit = eer(scored.genuine, scored.impostor)[1]
    owners = len(np.unique(scored.person_a[scored.same]))
    notes = list(measured.notes)
    drawn: Floats | None = None
    if bootstrap and owners >= LEAST_PEOPLE:
        drawn = replicates(scored, _measure, bootstrap, bench.rng(f"bootstrap/{measured.name}"))
    elif bootstrap:
        notes.append(f"no intervals: {owners} people have genuine trials, {LEAST_PEOPLE} are needed")

    def figure(number: int) -> Plain:
        low, high = (None, None) if drawn is None else interval(drawn[:, number])
        return {"value": float(value[number]), "low": low, "high": high}

    tprs: Plain = {}
    impostors = len(scored.impostor)
    for number, at in enumerate(FPRS):
        needed = math.ceil(FALSE_ACCEPTS / at)
        refused = {"refused": f"needs {needed:,} impostor trials, there are {impostors:,}"}
        tprs[f"{at:g}"] = figure(2 + number) if supported(at, impostors) else refused
    costs = {f"{p:g}": figure(2 + len(FPRS) + number) for number, p in enumerate(P_TARGETS)}
    kept = outline(curve.fpr, curve.tpr)
    edges, genuine, impostor = histogram(scored.score, scored.same)
    return {
        "name": measured.name,
        "what": measured.what,
        "genuine": len(scored.genuine),
        "impostor": impostors,
        "people": scored.people,
        "eer": {**figure(0), "threshold": limit},
        "auroc": figure(1),
        "tpr_at_fpr": tprs,
        "min_dcf": costs,
        "identification": measured.extra or _identification(bench, measured, bootstrap if drawn is not None else 0),
        "folds": _folds(measured),
        "users": _users(bench, measured, limit),
        "curve": {"fpr": _few(curve.fpr[kept]), "tpr": _few(curve.tpr[kept])},
        "histogram": {"edges": _few(edges), "genuine": genuine.tolist(), "impostor": impostor.tolist()},
        "notes": notes,
    }


def _identification(bench: Bench, measured: Measured, bootstrap: int) -> Plain | None:
    """Rank-1 and P@k of each sample among all templates; the templates stay in every replicate."""
    if measured.rank is None:
        return None
    rank_S, person_S = measured.rank
    first = (rank_S == 0).astype(np.float64)
    low = high = None
    if bootstrap:
        low, high = interval(mean_replicates(first, person_S, bootstrap, bench.rng(f"rank/{measured.name}")))
    templates = len(np.unique(measured.scored.person_a))
    precision = {f"p@{k}": float((rank_S < k).mean()) / k for k in KS if k <= templates}
    return {"rank_1": {"value": float(first.mean()), "low": low, "high": high}, **precision}


def _folds(measured: Measured) -> Plain | None:
    if measured.fold_T is None:
        return None
    mean, error, each = fold_accuracy(measured.scored, measured.fold_T)
    return {"accuracy": mean, "standard_error": error, "each": each}


def _users(bench: Bench, measured: Measured, limit: float) -> Plain:
    """What the figures mean for each user, the worst first."""
    users = per_user(measured.scored, limit, measured.pairs)
    order = np.lexsort((users.auroc_P, users.tpr_P))[:_MOST_USERS]
    return {
        "number": len(users.person_P),
        "threshold": limit,
        "mean": float(users.tpr_P.mean()),
        "median": float(np.median(users.tpr_P)),
        "worst_tenth": float(users.tpr_P[users.worst].mean()),
        "worst_tenth_users": len(users.worst),
        "locked_out": users.locked_out,
        "never_accepted": users.never_accepted,
        "one_class_auroc": _number(users.one_class_auroc),
        "each": [
            {
                "name": bench.name_of(int(users.person_P[place])),
                "genuine": int(users.genuine_P[place]),
                "impostor": int(users.impostor_P[place]),
                "tpr": float(users.tpr_P[place]),
                "fpr": _number(users.fpr_P[place]),
                "auroc": _number(users.auroc_P[place]),
            }
            for place in order
        ],
    }


def _number(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _few(values: Floats | Sequence[float]) -> list[float]:
    """Numbers to be drawn need few digits."""
    return [float(f"{value:.7g}") for value in values]
