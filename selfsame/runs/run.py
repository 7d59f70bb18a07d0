"""A run: from a recipe to a trained network, its figures and its folder; interrupted runs go on where they stopped."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from selfsame.config.recipe import from_mapping, merged, name_of, read_toml, to_toml
from selfsame.audit.recovery import Leakage, audit
from selfsame.audit.updates import audit_updates, bias_updates
from selfsame.data import Federation, Samples
from selfsame.data.federation import SAMPLES, read_samples
from selfsame.data.sets.xc import MultiLabelled
from selfsame.engine import checkpoint
from selfsame.engine.ranks import shards
from selfsame.engine.batches import steps_a_round
from selfsame.engine.machine import choose_machine, facts
from selfsame.engine.plan import cohort_size, make_plan
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.problem import Problem
from selfsame.engine.state import State, begin, join, smaller_world
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods.base import Fields, World
from selfsame.config.presets import preset
from selfsame.config.recipe import Recipe
from selfsame.measure.looks import MOST_PAIRS, Evaluation, class_templates, evaluate, seen_figures
from selfsame.measure.ranking import precision_at_k, score_blocks
from selfsame.measure.scores import roc

_PLAN = 2048  # rounds planned at a time
_LOOKS = 10  # evaluations of a run, and checkpoints
_EVALUATION = 0.05  # of the work that evaluations may take
_ENROLLED = 64  # samples of a client that make a template, at most
_FEW = 8  # samples by which a network is known to be sound
COLLAPSED = 0.95  # mean cosine between samples of different classes from which a network tells nobody apart

Record = dict[str, Any]
Tick = Callable[[int, Record | None], None]  # rounds done since the last call, and a new record if there is one


@dataclass
class Run:
    """A run in progress or done."""

    problem: Problem
    state: State
    folder: Path | None = None
    history: list[Record] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    seconds: float = 0.0  # spent in training rounds
    curves: dict[str, tuple[list[float], list[float]]] = field(default_factory=dict)
    leakage: Leakage | None = None
    diverged: bool = False
    enrolled: Tensor | None = None  # in place of the owners' vectors, where these are on devices

    @property
    def recipe(self) -> Recipe:
        return self.problem.recipe

    @property
    def title(self) -> str:
        """The run's name for people: the recipe's title, or the method and the options that were set."""
        return name_of(self.recipe)

    @property
    def final(self) -> Record:
        """The last record."""
        return self.history[-1] if self.history else {}

    @property
    def done(self) -> bool:
        return self.state.round >= self.recipe.run.rounds and not self.diverged

    def embed(self, raw: Tensor, client: int | None = None) -> Tensor:
        """Embeddings (S, D) of raw samples; `client` names whose network, for methods that are not federated."""
        model, state = self.problem.model, self.state
        theta = state.theta_P if client is None or state.alone_NP is None else state.alone_NP[client]
        with torch.no_grad():
            x = self.problem.federation.scale(raw.to(model.device)).to(model.dtype)
            if raw.dim() - len(self.problem.federation.shape) == 1:
                return model.embed_eager(theta, x)
            # A recording comes as several crops (S, K, ...). The mean score of all pairs of crops of two recordings is
            # the inner product of the means of their places; a cosine also divides by the lengths of these means.
            emb_SKD = model.embed_eager(theta, x.flatten(0, 1)).unflatten(0, x.shape[:2])
            return self.problem.method.place(emb_SKD).mean(1)

    def truth(self) -> Tensor:
        """The vectors that stand for the clients or classes, (R, D)."""
        if self.enrolled is not None:
            return self.enrolled
        return self.problem.method.truth(self.state.own, self.state.server, self._head())

    def evaluate(self, curves: bool = False) -> Evaluation:
        """The figures of this moment."""
        problem, state = self.problem, self.state
        federation, method = problem.federation, problem.method
        truth = self.truth()
        world = smaller_world(problem.world, state.present)
        seen = federation.test
        if world.classes < problem.world.classes:
            keep = seen.y < world.classes
            seen = replace(seen, x=seen.x[keep], y=seen.y[keep])
        if state.alone_NP is not None:
            return self._evaluate_alone(truth, seen, world.classes, curves)
        templates = class_templates(method, truth, world)
        exposed = None if self.enrolled is not None else method.exposed(state.server, self._head())
        same = exposed is not None and torch.equal(exposed, truth)
        shared = None if exposed is None or same else class_templates(method, exposed, world)
        found = evaluate(method, self.embed, templates, seen, federation.unseen, curves, federation.trials, shared)
        self._rank(found, templates, shared, seen, world)
        if same and "p@1" in found.figures:
            found.figures["p@1_shared"] = found.figures["p@1"]
        return found

    def _head(self) -> Fields:
        return self.problem.model.head_views(self.state.theta_P)

    def _rank(
        self, found: Evaluation, template_CD: Tensor, shared_CD: Tensor | None, seen: Samples, world: World
    ) -> None:
        """P@1, 3 and 5 against all true labels, where samples have several."""
        if not isinstance(seen, MultiLabelled) or world.classes < self.problem.world.classes:
            return
        emb = torch.cat([self.embed(part) for part in seen.x.split(256)])

        def ranked(vector_CD: Tensor, ks: list[int]) -> dict[int, float]:
            return precision_at_k(score_blocks(self.problem.method.score, emb, vector_CD), seen.labels, ks, seen.missed)

        ks = [k for k in (1, 3, 5) if k <= world.classes]
        found.figures.update({f"p@{k}": value for k, value in ranked(template_CD, ks).items()})
        if shared_CD is not None:
            found.figures["p@1_shared"] = ranked(shared_CD, [1])[1]

    def _evaluate_alone(self, truth_ND: Tensor, test: Samples, classes: int, curves: bool) -> Evaluation:
        """Every client judges by its own network; people it has never seen have no network, so no figure."""
        problem = self.problem
        class_N = problem.world.class_of_N[: len(truth_ND)].tolist()
        score_SC = torch.full((len(test.x), classes), -torch.inf, dtype=problem.model.dtype)
        for client, label in enumerate(class_N):
            emb = torch.cat([self.embed(part, client) for part in test.x.split(1024)])
            score = problem.method.score(emb, truth_ND[client : client + 1])[:, 0].cpu()
            score_SC[:, label] = torch.maximum(score_SC[:, label], score)
        figures, own, other = seen_figures([score_SC], test.y.cpu(), classes)
        drawn = {"seen": roc(own, other)} if curves else {}
        return Evaluation({**figures, "auroc": None, "eer": None}, drawn)

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
        world = smaller_world(problem.world, state.present)
        stream = problem.server_stream("audit", state.round)
        found = audit(problem.method, state.own, state.server, self._head(), world, stream)
        if found.paper is None and "codeword" in state.own:
            client_M = torch.arange(min(state.present, 200), device=problem.model.device)
            update_MD = bias_updates(problem, state, client_M)
            return audit_updates(update_MD, client_M, state.own["codeword"])
        return found

    def record(self, loss: float) -> Record:
        """Evaluate and audit now; the new record is also appended to the folder's metrics."""
        found = self.evaluate(curves=self.done)
        self.leakage = leak = self.audit()
        record: Record = {"round": self.state.round, "loss": loss, **found.figures}
        record |= {
            "leak": leak.paper,
            "recovered": leak.recovered,
            "recovered_cos": leak.recovered_cosine,
            "cos_mean": leak.cosine_mean,
            "cos_std": leak.cosine_std,
            "refused": int(self.state.refused),
            "seconds": round(self.seconds, 3),
        }
        self._draw(found)
        self.history.append(record)
        if self.folder is not None:
            with open(self.folder / "metrics.jsonl", "a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self._judge(record)
        return record

    def _draw(self, found: Evaluation) -> None:
        self.curves = {name: (r.fpr.tolist(), r.tpr.tolist()) for name, r in found.curves.items()}

    def look_again(self) -> None:
        """What a finished run has beside its records (curves, the attacker, warnings), from its last state."""
        self._draw(self.evaluate(curves=True))
        self.leakage = self.audit()
        self._judge(self.final)

    def _judge(self, record: Record) -> None:
        alike, right, classes = record.get("alike"), record.get("p@1"), self.problem.world.classes
        blind = classes >= 5 and right is not None and right <= 2 / classes
        if self.done and (blind or (alike is not None and alike > COLLAPSED)):
            near = "" if alike is None else f"samples of different classes have a mean cosine of {alike:.3f}, "
            self.warnings.append(
                f"collapsed: {near}P@1 is {100 * (right or 0):.1f} % and chance {100 / classes:.1f} %. Use a method "
                "that pushes classes apart (fedaws, fedhide, feduv), or raise its weight (fedaws: spread_weight, "
                "fedhide and fedmetric: negative_weight)"
            )
        if self.done and record["refused"]:
            self.warnings.append(f"{record['refused']} client updates were refused because they were not finite")

    def write_model(self) -> None:
        """The network alone, by name, with the recipe beside it: what a device is given."""
        if self.folder is None or not self.problem.method.federated:
            return
        checkpoint.save_model(self.problem, self.state.theta_P, self.folder / "model.safetensors")

    @property
    def facts(self) -> dict[str, str]:
        """What the run was and where it ran."""
        problem, ranks = self.problem, self.problem.ranks
        several = {"processes": ranks.words, "between processes": ranks.crossing_words()} if ranks.active else {}
        return {
            **facts(problem.model.device),
            **several,
            "data": f"{problem.federation.name}: {problem.world.clients} clients, {problem.world.classes} classes",
            "network": f"{self.recipe.net.name}, {problem.model.parameters:,} parameters, {problem.world.dim}-d",
            "seed": str(self.recipe.run.seed),
            "rounds": str(self.state.round),
        }


def _marks(problem: Problem) -> tuple[int, int]:
    """Rounds between evaluations and between checkpoints.

    Unless the recipe says otherwise there are ten of each; fewer evaluations, but two, where embedding the test samples
    would cost more than a twentieth of the training, of whose samples each counts as three passes.
    """
    recipe, federation = problem.recipe, problem.federation
    tenth = max(1, recipe.run.rounds // _LOOKS)
    local = recipe.local
    steps = steps_a_round(local, problem.longest)
    trained = 3 * recipe.run.rounds * cohort_size(recipe, federation.clients) * steps * local.batch
    tested = len(federation.test.x) + min(len(federation.unseen.x), MOST_PAIRS)
    looks = max(2, min(_LOOKS, int(_EVALUATION * trained / max(1, tested))))
    every = recipe.run.eval_every or max(1, -(-recipe.run.rounds // looks))
    return every, recipe.run.checkpoint_every or recipe.run.eval_every or tenth


def _initially_present(recipe: Recipe, clients: int) -> int:
    if not (recipe.cohort.late and recipe.cohort.join_round):
        return clients
    return max(1, clients - round(recipe.cohort.late * clients))


def vacant(folder: Path) -> None:
    """Raise unless a run can be put there: nothing in it, and no file in the way."""
    if folder.is_dir() and any(folder.iterdir()):
        raise SelfsameError(f"{folder}: is there already; resume it, or name another folder with --out")
    for place in (folder, *folder.parents):
        if place.exists() and not place.is_dir():
            raise SelfsameError(f"{folder}: cannot be made, {place} is a file; name another folder with --out")


def start(
    recipe: Recipe, folder: Path | None = None, federation: Federation | None = None, ranks: Ranks = ALONE
) -> Run:
    """A run before its first round; a folder is created for it, and must not hold another run.

    With several ranks, each calls this, and rank 0 alone has a folder.
    """
    folder = folder if ranks.first else None
    if folder is not None:
        vacant(folder)
    problem = prepare(recipe, federation, ranks)
    state = begin(problem, _initially_present(recipe, problem.world.clients))
    _as_first(problem, state)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "recipe.toml", to_toml(problem.recipe).encode())
        (folder / "metrics.jsonl").touch()
    return Run(problem, state, folder)


def _as_first(problem: Problem, state: State) -> None:
    """Every rank's state becomes that of rank 0, whose secrets and checkpoint count; then tables are cut."""
    ranks = problem.ranks
    if not ranks.active:
        return
    told = json.loads(ranks.hear(json.dumps([state.round, state.present, state.losses])))
    if told[1] != state.present:
        join(problem, state)
    state.round, state.losses = told[0], told[2]
    _level(problem, state)
    shards.cut(problem, state)


def _level(problem: Problem, state: State) -> None:
    """What every rank computed by itself is made equal to the last bit, which another machine may round differently."""
    problem.ranks.broadcast(shards.common(problem, state))


def load_run(folder: Path, federation: Federation | None = None, ranks: Ranks = ALONE) -> Run:
    """A run as its folder has it: from the last checkpoint, or from the beginning if there is none yet.

    With several ranks, each calls this; rank 0 reads the folder and tells the others.
    """
    if ranks.first and not (folder / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: not a run (no recipe.toml in it)")
    tables = read_toml(folder / "recipe.toml") if ranks.first else {}
    if ranks.active:
        tables = tomllib.loads(ranks.hear(to_toml(from_mapping(tables))))
    if (folder / SAMPLES).is_file():
        raise SelfsameError(f"{folder}: a run on devices; `selfsame cluster resume` or `flwr run` goes on with it")
    recipe = from_mapping(tables)
    problem = prepare(recipe, federation, ranks)
    saved = folder / "checkpoint" / "state.safetensors"
    state = begin(problem, _initially_present(recipe, problem.world.clients))
    if ranks.first and saved.is_file():
        if checkpoint.peek(saved)["present"] == problem.world.clients:
            join(problem, state)
        checkpoint.load_state(state, saved)
    _as_first(problem, state)
    if not ranks.first:
        return Run(problem, state)
    run = Run(problem, state, folder)
    for line in _lines(folder / "metrics.jsonl"):
        if line["round"] <= state.round:
            run.history.append(line)
    run.seconds = float(run.history[-1]["seconds"]) if run.history else 0.0
    text = "".join(json.dumps(record) + "\n" for record in run.history)
    write(folder / "metrics.jsonl", text.encode())
    return run


def open_run(folder: Path, path: Path | None = None, device: str | None = None, precision: str | None = None) -> Run:
    """The run as its last checkpoint has it, to be looked at: nothing in the folder is changed or compiled."""
    if not (folder / "recipe.toml").is_file():
        raise SelfsameError(f"{folder}: not a run (no recipe.toml in it)")
    recipe = from_mapping(read_toml(folder / "recipe.toml"))
    saved = folder / "checkpoint" / "state.safetensors"
    served = (folder / SAMPLES).is_file()
    if not served and not saved.is_file():
        raise SelfsameError(f"{folder}: has no checkpoint yet; train it with `selfsame resume {folder}`")
    part = replace(
        recipe.run,
        compile="off",
        device=device or recipe.run.device,
        precision=precision or recipe.run.precision,
    )
    data = recipe.data if path is None else replace(recipe.data, path=str(path))
    if served:
        return _open_served(replace(recipe, run=part, data=data), folder)
    problem = prepare(replace(recipe, run=part, data=data))
    present = checkpoint.peek(saved)["present"]
    if not 1 <= present <= problem.world.clients:
        raise SelfsameError(f"{saved}: {present} clients had registered, the data has {problem.world.clients}")
    state = begin(problem, present)
    checkpoint.load_state(state, saved)
    return Run(problem, state, folder)


def _open_served(recipe: Recipe, folder: Path) -> Run:
    """The network of a run on devices, where the owners' vectors have stayed.

    In their place stand templates that the data's own clients would enrol. Without the data set there is the network.
    """
    try:
        problem = prepare(recipe)
    except SelfsameError:
        if recipe.data.path:
            raise
        problem = prepare(recipe, read_samples(folder / SAMPLES))
    file = folder / "model.safetensors"
    if not file.is_file():
        raise SelfsameError(f"{folder}: the run on devices has not ended; its network is written at the end")
    saved = folder / "checkpoint" / "state.safetensors"
    state = begin(problem, checkpoint.peek(saved)["present"] if saved.is_file() else None)
    tensors, _ = checkpoint.read_tensors(file)
    views = problem.model.layout.views(state.theta_P)
    if {name: value.shape for name, value in tensors.items()} != {name: value.shape for name, value in views.items()}:
        raise SelfsameError(f"{file}: does not fit the recipe beside it")
    for name, value in views.items():
        value.copy_(tensors[name])
    state.round = recipe.run.rounds
    run = Run(problem, state, folder)
    run.enrolled = _enrolled(run)
    return run


def _enrolled(run: Run) -> Tensor:
    """What clients, or the clients of a class, would enrol with some of their own samples; zeros without samples."""
    problem, federation = run.problem, run.problem.federation
    clients = run.state.present
    row_N = torch.arange(clients) if problem.method.row == "client" else problem.world.class_of_N[:clients].cpu()
    parts: dict[int, list[Tensor]] = {}
    out_RD = run.state.theta_P.new_zeros(int(row_N.max()) + 1, problem.world.dim)
    if federation.empty:
        return out_RD
    for client, row in enumerate(row_N.tolist()):
        index_1B = torch.arange(min(_ENROLLED, int(federation.count_N[client])), device=federation.count_N.device)[None]
        raw = federation.source.rows(torch.tensor([client], device=index_1B.device), index_1B)[0]
        parts.setdefault(row, []).append(run.embed(raw))
    for row, found in parts.items():
        out_RD[row] = problem.method.template(torch.cat(found))
    return out_RD


def _lines(path: Path) -> list[Record]:
    """The records of a metrics file; a last line cut off by a crash does not count."""
    out = []
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    for line in text.splitlines():
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("round"), int) and "seconds" in record:
            out.append(record)
    return out


def carry_on(run: Run, tick: Tick | None = None) -> Run:
    """Train until the recipe's last round, evaluating and checkpointing on the way."""
    recipe, problem, state = run.recipe, run.problem, run.state
    machine = choose_machine(recipe.run)
    name = "cohort" if recipe.run.engine == "auto" else recipe.run.engine
    engine = Engine(problem, name, graphs=machine.graphs)
    ranks = problem.ranks
    look, keep = _marks(problem)
    # It may have been stopped between its last checkpoint and its report.
    if ranks.agree(run.done and bool(run.history) and not run.curves):
        with shards.whole(problem, state):
            if ranks.first:
                run.look_again()
    join_at = recipe.cohort.join_round if state.present < problem.world.clients else -1
    while not run.done:
        if state.round == join_at:
            shards.collect(problem, state, everywhere=True)
            join(problem, state)
            _as_first(problem, state)
            engine = Engine(problem, name, graphs=machine.graphs)
        stops = [(state.round // every + 1) * every for every in (look, keep)] + [recipe.run.rounds]
        stops += [join_at] if join_at > state.round else []
        count = min(*stops, state.round + _PLAN) - state.round
        plan = make_plan(recipe, state.round, count, state.present, problem.method.rounds_used(state.server))
        refused = int(state.refused)
        begun = time.perf_counter()
        losses = engine.run(state, plan, None if tick is None else lambda n: tick(n, None))
        run.seconds += time.perf_counter() - begun
        state.losses += losses.tolist()
        with shards.whole(problem, state):
            wrong = _diverged(losses, int(state.refused) - refused, plan.alive_TM)
            if ranks.agree(wrong or (ranks.first and not run.sound())):
                run.diverged = True
                run.warnings.append(
                    f"diverged: loss or network stopped being finite between rounds {plan.first} and {state.round}. "
                    f"Lower local.lr (now {recipe.local.lr}) or server.lr (now {recipe.server.lr}), or the method's "
                    "weights; the last checkpoint is from before"
                )
                break
            if state.round % look == 0 or run.done:
                loss = sum(state.losses) / len(state.losses)
                state.losses = []
                if ranks.first:
                    record = run.record(loss)
                    if tick is not None:
                        tick(0, record)
            if run.folder is not None and (state.round % keep == 0 or run.done):
                checkpoint.save_state(state, run.folder / "checkpoint" / "state.safetensors")
        ranks.wait()
        _level(problem, state)
    shards.collect(problem, state)
    if run.done:
        run.write_model()
    return run


def _diverged(losses: Tensor, refused: int, alive_TM: Tensor) -> bool:
    """Whether the block went wrong as a whole: a loss that is not finite, or most clients refused."""
    return not bool(torch.isfinite(losses).all()) or 2 * refused > int(alive_TM.sum())


def train(
    method: str = "fedhide",
    data: str = "digits",
    *,
    out: str | Path | None = None,
    tick: Tick | None = None,
    settings: Mapping[str, Any] | None = None,
    federation: Federation | None = None,
    **options: Any,
) -> Run:
    """Train a method on a data set and return the run.

    ``options`` are the method's hyper-parameters; ``settings`` are nested tables as in a recipe, e.g.
    ``{"run": {"rounds": 200}, "local": {"lr": 0.05}}``.
    """
    tables = merged(
        preset(method, data), settings or {}, {"method": {"name": method, **options}, "data": {"name": data}}
    )
    run = start(from_mapping(tables), None if out is None else Path(out), federation)
    return carry_on(run, tick)
