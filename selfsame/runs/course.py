"""A run in its course: the network as it stands, its figures, its records so far and what they warn of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from selfsame.audit.recovery import Leakage, audit
from selfsame.audit.updates import trains_alone, watch
from selfsame.config.recipe import NetPart, Recipe, name_of
from selfsame.data import Samples, Trials
from selfsame.engine import checkpoint
from selfsame.engine.machine import facts
from selfsame.engine.problem import Problem
from selfsame.engine.setup import set_options
from selfsame.engine.state import State, smaller_world
from selfsame.files import Record, append_record
from selfsame.measure.looks import Evaluation, class_templates, evaluate, evaluate_alone, pair_curve
from selfsame.measure.protocols import training_samples
from selfsame.methods.base import Fields, World

_FITTED = 2_000  # of the clients' own samples by which P@1 in training is told
_FEW = 8  # samples by which a network is known to be sound
_APART = 0.7  # AUROC on people unseen in training from which a network tells people apart
_FEW_TURNS = 50  # of a client: a run so short is called that before anything else
_ONLY_PULL = ("positive-only", "fedmetric-pos")  # methods without a term that pushes classes apart
COLLAPSED = 0.95  # mean cosine between samples of different classes from which a network tells nobody apart


@dataclass
class Run:
    """A run in progress or done."""

    problem: Problem
    state: State
    folder: Path | None = None
    history: list[Record] = field(default_factory=list)
    warnings: list[Record] = field(default_factory=list)  # a kind and numbers; `report.words` has the words
    seconds: float = 0.0  # spent in training rounds
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    leakage: Leakage | None = None
    diverged: bool = False
    enrolled: Tensor | None = None  # in place of the owners' vectors, where these are on devices, or nobody trained
    untrained: bool = False  # the network is as it was given, and stays so

    def __repr__(self) -> str:
        at = f"round {self.state.round:,} of {self.recipe.run.rounds:,}"
        figures = {name: self.final.get(key) for key, name in (("p@1", "P@1"), ("eer", "EER"))}
        said = [f"{name} {100 * value:.1f} %" for name, value in figures.items() if value is not None]
        place = [] if self.folder is None else [str(self.folder)]
        return f"Run({', '.join([f'{self.title} on {self.problem.federation.name}', at, *said, *place])})"

    @property
    def recipe(self) -> Recipe:
        return self.problem.recipe

    @property
    def title(self) -> str:
        """The run's name for people: the recipe's title, or the method and the options that somebody set."""
        asked = set_options(self.recipe, self.problem.world)
        return name_of(replace(self.recipe, method=replace(self.recipe.method, options=asked)))

    @property
    def final(self) -> Record:
        """The last record."""
        return self.history[-1] if self.history else {}

    @property
    def done(self) -> bool:
        ended = self.state.round >= self.recipe.run.rounds or ended_early(self.history, self.recipe.run.patience)
        return ended and not self.diverged

    def paused(self, until: int) -> bool:
        """Whether it has come to the round at which it was to pause; 0: none."""
        return 0 < until <= self.state.round and not self.diverged

    def embed(self, raw: Tensor, client: int | None = None) -> Tensor:
        """Embeddings (S, D) of raw samples; `client` names whose network, for methods that are not federated."""
        if raw.dim() - len(self.problem.federation.shape) == 1:
            return self.embed_each(raw, client)
        # A recording comes as several crops (S, K, ...). The mean score of all pairs of crops of two recordings is
        # the inner product of the means of their places; a cosine also divides by the lengths of these means.
        emb_SKD = self.embed_each(raw.flatten(0, 1), client).unflatten(0, raw.shape[:2])
        return self.problem.method.place(emb_SKD).mean(1)

    @torch.no_grad()
    def embed_each(self, raw: Tensor, client: int | None) -> Tensor:
        """Embeddings (S, D) of single crops."""
        model, state = self.problem.model, self.state
        theta = state.theta_P if client is None or state.alone_NP is None else state.alone_NP[client]
        return model.embed_eager(theta, self.problem.federation.scale(raw.to(model.device)).to(model.dtype))

    @property
    def world(self) -> World:
        """The clients that have registered, and their classes."""
        return smaller_world(self.problem.world, self.state.present)

    def truth(self) -> Tensor:
        """The vectors that stand for the clients or classes, (R, D)."""
        if self.enrolled is not None:
            return self.enrolled
        return self.problem.method.truth(self.state.own, self.state.server, self._head())

    def evaluate(self, curves: bool = False) -> Evaluation:
        """The figures of this moment."""
        federation = self.problem.federation
        return self._evaluate(federation.test, federation.unseen, federation.trials, curves)

    def _before(self) -> Record:
        """EER on unseen people by the network that was given, where one was: what training has to beat."""
        problem, state = self.problem, self.state
        if not self.done or not self.recipe.net.started or not len(problem.federation.unseen.y):
            return {}
        if state.alone_NP is not None or self.recipe.net.whitened:
            return {}
        given = replace(self, state=replace(state, theta_P=problem.model.first_here))
        curve = pair_curve(problem.method, given.embed, problem.federation.unseen, problem.federation.trials)
        return {"first_eer": curve.eer, "first_auroc": curve.area}

    def _validated(self) -> Record:
        """What decides which checkpoint is best: the figures of validation samples, where there are any."""
        federation = self.problem.federation
        if not len(federation.validation.y):
            return {}
        none = Samples(federation.validation.x[:0], federation.validation.y[:0])
        figures = self._evaluate(federation.validation, none, Trials.none(), False).figures
        return {"valid_p@1": figures.get("p@1"), "valid_eer": figures.get("eer_seen")}

    def _on_training(self) -> Record:
        """P@1 of the clients' own samples, an even selection, where the recipe asks for it."""
        if not self.recipe.run.training_figures:
            return {}
        own = training_samples(self.problem.federation, self.world, self.problem.model.device, _FITTED)
        none = Samples(own.x[:0], own.y[:0])
        return {"train_p@1": self._evaluate(own, none, Trials.none(), False).figures.get("p@1")}

    def _evaluate(self, seen: Samples, unseen: Samples, trials: Trials, curves: bool) -> Evaluation:
        problem, state = self.problem, self.state
        method = problem.method
        truth, world = self.truth(), self.world
        if world.classes < problem.world.classes:
            keep = seen.y < world.classes
            seen = Samples(seen.x[keep], seen.y[keep])
        if state.alone_NP is not None:
            return evaluate_alone(method, self.embed, truth, world, seen, curves)
        templates = class_templates(method, truth, world)
        exposed = None if self.enrolled is not None else method.exposed(state.server, self._head())
        shared = None
        if exposed is not None:
            shared = templates if torch.equal(exposed, truth) else class_templates(method, exposed, world)
        return evaluate(method, self.embed, templates, seen, unseen, curves, trials, shared)

    def _head(self) -> Fields:
        return self.problem.model.head_views(self.state.theta_P)

    def sound(self) -> bool:
        """Whether the state is finite and the network still gives finite scores, by a few samples."""
        problem, state = self.problem, self.state
        if not all(bool(torch.isfinite(value).all()) for value in state.tensors().values()):
            return False
        truth = self.truth()[:_FEW]
        few = torch.cat([problem.federation.test.x[:_FEW], problem.federation.unseen.x[:_FEW]])
        for client in (None,) if state.alone_NP is None else range(state.present):
            emb = self.embed(few, client)
            if not bool(torch.isfinite(problem.method.score(emb, torch.cat([emb, truth]))).all()):
                return False
        return True

    def audit(self) -> Leakage:
        """What an observer learns of the vectors that stand for the owners."""
        state, problem = self.state, self.problem
        stream = problem.server_stream("audit", state.round)
        watching = partial(watch, problem, state) if trains_alone(problem) else None
        part = self.recipe
        group = (part.cohort.size or self.world.clients) if part.sums.summed else 1
        return audit(
            problem.method, state.own, state.server, self._head(), self.world, stream, watch=watching, group=group
        )

    def record(self, loss: float) -> Record:
        """Evaluate and audit now; the new record is also appended to the folder's metrics."""
        found = self.evaluate(curves=self.done)
        self.leakage = leak = self.audit()
        record: Record = {
            "round": self.state.round,
            "loss": loss,
            **found.figures,
            **self._validated(),
            **self._on_training(),
            **self._before(),
        }
        record |= {
            "leak": leak.paper,
            "recovered": leak.recovered,
            "recovered_cos": leak.recovered_cosine,
            "updates": leak.updates,
            "updates_cos": leak.updates_cosine,
            "cos_mean": leak.cosine_mean,
            "cos_std": leak.cosine_std,
            "refused": int(self.state.refused),
            "seconds": round(self.seconds, 3),
        }
        self.draw(found)
        self.history.append(record)
        if self.folder is not None:
            append_record(self.folder / "metrics.jsonl", record)
        self._judge(record)
        return record

    def draw(self, found: Evaluation) -> None:
        """Keep the curves of an evaluation."""
        self.curves = {name: (r.fpr.tolist(), r.tpr.tolist()) for name, r in found.curves.items()}

    def look_again(self) -> None:
        """What a finished run has beside its records (curves, the attacker, warnings), from its last state."""
        self.draw(self.evaluate(curves=True))
        self.leakage = self.audit()
        self._judge(self.final)

    def _judge(self, record: Record) -> None:
        before, after = record.get("first_eer"), record.get("eer")
        if self.done and before is not None and after is not None and after > before:
            told = {"before": before, "after": after, "local_lr": self.recipe.local.lr, "keep": self.recipe.net.keep}
            self.warnings.append({"kind": "worse", **told})
        if self.done and self._tells_nobody_apart(record):
            figures = {"alike": record.get("alike"), "p@1": record.get("p@1"), "classes": self.problem.world.classes}
            self.warnings.append({"kind": "collapsed", **figures, **self._cause()})
        if self.done and record["refused"]:
            self.warnings.append({"kind": "refused", "count": record["refused"]})

    def _tells_nobody_apart(self, record: Record) -> bool:
        """By what it gets right, and not by embeddings that lie close together and are told apart all the same."""
        alike, right, area = (record.get(name) for name in ("alike", "p@1", "auroc"))
        classes = self.problem.world.classes
        close = alike is not None and alike > COLLAPSED
        apart = area is not None and area > _APART
        if right is None:
            return close and not apart
        return right <= (2.0 if classes >= 5 else 1.25) / classes and (close or (classes >= 5 and not apart))

    def _cause(self) -> Record:
        """Why classes may have ended at one place: the method, a loss that rose, or one that still falls."""
        method, losses = self.problem.method, [one["loss"] for one in self.history if one.get("loss") is not None]
        weights = [name for name in ("spread_weight", "negative_weight") if hasattr(method, name)]
        found: Record = {"method": self.recipe.method.name, "rounds": self.recipe.run.rounds}
        if method.name in _ONLY_PULL:
            return {**found, "cause": "method"}
        if self.recipe.net.started or (len(losses) > 1 and losses[-1] > 1.1 * min(losses)):
            return {
                **found,
                "cause": "rate",
                "local_lr": self.recipe.local.lr,
                "least": min(losses, default=None),
                "loss": losses[-1] if losses else None,
            }
        clients = self.problem.world.clients
        turns = self.recipe.run.rounds * (self.recipe.cohort.size or clients) / clients
        if turns < _FEW_TURNS or (len(losses) > 1 and losses[-1] < 0.9 * losses[-2]):
            return {**found, "cause": "rounds"}
        if weights:
            return {**found, "cause": "weight", "weight": weights[0], "value": float(getattr(method, weights[0]))}
        return {**found, "cause": "rounds"}

    def write_model(self) -> None:
        """The network alone, by name, with the recipe beside it: what a device is given."""
        if self.folder is None or not self.problem.method.federated:
            return
        checkpoint.save_model(self.problem, self.state.theta_P, self.folder / "model.safetensors")

    def _whitening(self) -> dict[str, str]:
        """What stands behind the network, and where it comes from."""
        share, noise = self.recipe.net.whitened, self.recipe.net.whitened_noise
        if not share:
            return {}
        heard = f", of samples as they are and in noise of {noise:g} dB" if noise else ""
        return {"whitening": f"share {share:g}, from one sum over {self.state.present:,} devices{heard}"}

    def _sizes(self) -> str:
        """The network's parameters, what of them learns, and what learns beside it."""
        model = self.problem.model
        partly = model.constants or model.adapted
        learn = f" and {model.size:,} that learn" if partly else ""
        head = model.parameters - model.size
        return f"{model.whole:,} parameters{learn}" + (f", {head:,} in class vectors" if head else "")

    @property
    def facts(self) -> dict[str, str]:
        """What the run was and where it ran."""
        problem, ranks = self.problem, self.problem.ranks
        several = {"processes": ranks.words, "between processes": ranks.crossing_words()} if ranks.active else {}
        return {
            **facts(problem.model.device),
            **several,
            "data": f"{problem.federation.name}: {problem.world.clients} clients, {problem.world.classes} classes",
            "network": f"{self.recipe.net.name}, {self._sizes()}, {problem.world.dim}-d",
            **({} if problem.model.passes is None else {"passes": problem.model.passes.kind}),
            **_start_words(self.recipe.net),
            **self._whitening(),
            "seed": str(self.recipe.run.seed),
            "rounds": str(self.state.round),
        }


def _start_words(part: NetPart) -> dict[str, str]:
    """Which weights the network began with."""
    if not part.started:
        return {}
    return {"start": f"{Path(part.start).name}, SHA-256 {part.digest}"}


def best_record(history: Sequence[Record]) -> Record | None:
    """The first record with the smallest EER on validation samples; none where nothing was validated."""
    known = [record for record in history if record.get("valid_eer") is not None]
    return min(known, key=lambda record: record["valid_eer"]) if known else None


def ended_early(history: Sequence[Record], patience: int) -> bool:
    """Whether the last so many evaluations were no better than one before."""
    best = best_record(history)
    return bool(patience) and best is not None and len(history) - 1 - list(history).index(best) >= patience
