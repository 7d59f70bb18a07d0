"""Settings chosen on people or samples set apart: every one is trained, none has anything of the test at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.experiment import Experiment, Job, Paper, Variant, paper_table
from selfsame.config.ladders import Ladder, Point, laid, point_name, point_words, points, rungs
from selfsame.config.recipe import Recipe
from selfsame.data import Federation
from selfsame.data.choosing import OPTIONS
from selfsame.engine.setup import resolve
from selfsame.errors import SelfsameError
from selfsame.fields import one_of
from selfsame.files import Record, write, write_records
from selfsame.methods import make
from selfsame.report.contenders import (
    JUDGES,
    Contender,
    Contest,
    Judge,
    chosen_text,
    contest_markdown,
    contest_page,
)  # fmt: skip
from selfsame.report.view import RunView
from selfsame.report.words import finite
from selfsame.runs.experiments import Campaign, load_data
from selfsame.runs.loop import Trainer
from selfsame.runs.run import start
from selfsame.runs.same_test import check_same_test
from selfsame.runs.summary import read_view

_TIMED = 1.0  # seconds of rounds by which the rest is estimated
_FIGURES = [*JUDGES, "loss"]  # of a line


@dataclass(frozen=True)
class Task:
    """What is chosen, and how: a recipe, its ladders, the figure that decides, the seeds."""

    file: Path
    recipe: Recipe
    ladders: Sequence[Ladder]
    seeds: tuple[int, ...] = (0,)
    halving: bool = False
    by: str = ""  # empty: the EER of people, or P@1 where nobody can be set apart
    share: float = 0.0
    changed: Sequence[str] = ()  # what the command line set, for the reader of the results
    placed: bool = True  # whether the recipe itself says where its data lies
    variant: Variant | None = None  # what it was in its file, with its seeds and the paper's figures
    alone: bool = True  # whether the file has no variant but this one

    @property
    def title(self) -> str:
        """The variant's, of a file with several."""
        return "" if self.alone or self.variant is None else self.variant.title


def checked(task: Task) -> list[Recipe]:
    """The recipe of every setting, each checked as far as it can be without the data."""
    if task.by:
        one_of("--by", task.by, JUDGES)
    if task.halving and any(ladder.key == "run.rounds" for ladder in task.ladders):
        raise SelfsameError("--over run.rounds: with --halving the rounds are its own; leave one of the two out")
    found: list[Recipe] = []
    for point in points(task.ladders):
        recipe = laid(task.recipe, point)
        if recipe in found:
            again = point_words(points(task.ladders)[found.index(recipe)])
            raise SelfsameError(f"--over {point_words(point)}: is the same setting as {again}; name it once")
        try:
            resolve(recipe)
            method = make(recipe.method.name, recipe.method.options)
        except SelfsameError as error:
            raise SelfsameError(f"--over {point_words(point)}: {error}") from None
        if not method.federated and task.by and JUDGES[task.by].apart == "people":
            raise SelfsameError(
                f"--by {task.by}: {recipe.method.name} has no network for people it has never seen; judge by p@1"
            )
        found.append(recipe)
    return found


def apart_of(task: Task, recipes: Sequence[Recipe]) -> str:
    """Who or what is set apart: what the figure asks for, or what the data can spare."""
    if task.by:
        return JUDGES[task.by].apart
    if not all(make(one.method.name, one.method.options).federated for one in recipes):
        return "samples"
    return "people" if len(load_data(_without_test(task.recipe, "auto", task.share).data).unseen.y) else "samples"


def _without_test(recipe: Recipe, apart: str, share: float) -> Recipe:
    """The recipe of a run for choosing: it has all its rounds, since no samples are left that could end it early."""
    options = {**recipe.data.options, "apart": apart} | ({"apart_share": share} if share else {})
    return replace(recipe, data=replace(recipe.data, options=options), run=replace(recipe.run, patience=0))


def plan(task: Task, folder: Path) -> Tuning:
    """The runs that choose, in their folder; what is wrong with a setting is said before the first is trained."""
    recipes = checked(task)
    apart = apart_of(task, recipes)
    check_same_test(task.recipe, points(task.ladders), lambda recipe: _without_test(recipe, apart, task.share))
    by = task.by or ("eer" if apart == "people" else "p@1")
    variants: list[Variant] = []
    for point, recipe in zip(points(task.ladders), recipes, strict=True):
        own = replace(_without_test(recipe, apart, task.share), title=point_words(point))
        number, title = len(variants) + 1, ", ".join(part for part in (task.title, own.title) if part)
        variants.append(Variant(number, title, own, task.seeds, Paper(), own.run.rounds, point_name(point)))
    experiment = Experiment(task.file, tuple(variants), task.seeds[0], False)
    return Tuning(experiment, folder, task.changed, task=replace(task, by=by), apart=apart)


@dataclass
class Tuning(Campaign):
    """The runs of all settings, rung by rung."""

    task: Task = field(kw_only=True)
    apart: str = field(kw_only=True)
    reached: dict[Path, dict[int, Record]] = field(init=False, default_factory=dict)  # figures by round

    def __post_init__(self) -> None:
        super().__post_init__()
        self.rungs = rungs(len(self.experiment.variants), self.task.recipe.run.rounds, self.task.halving)
        for job in self.jobs:
            now = self.there[job.folder]
            if now.there and not now.differs and (job.folder / "result.json").is_file():
                self.reach(job, read_view(job.folder))

    @property
    def judge(self) -> Judge:
        return JUDGES[self.task.by]

    def until(self, rung: int) -> int:
        """The round after which the runs of a rung pause; 0: none, they have all their rounds."""
        return 0 if rung == len(self.rungs) - 1 else self.rungs[rung][1]

    def reach(self, job: Job, shown: RunView) -> None:
        """What a run has come to: its figures after each round at which it was looked at."""
        self.views[job.folder] = shown
        self.reached[job.folder] = {int(record["round"]): record for record in shown.history}

    def keep(self, folder: Path, shown: RunView) -> None:
        """A run has ended, or has come to the end of its rung."""
        self.reach(next(job for job in self.jobs if job.folder == folder), shown)
        self.keep_results()

    def keep_results(self) -> None:
        """A line for each run and rung."""
        write_records(self.folder / "runs.jsonl", self.lines())

    def lines(self) -> list[Record]:
        """Every run that has ended, or has come to the end of a rung."""
        out = []
        for rung in range(len(self.rungs)):
            for job in self.jobs:
                record = self.record(job, rung)
                if record is not None:
                    out.append(self._line(job, rung, record))
        return out

    def _line(self, job: Job, rung: int, record: Record) -> Record:
        return {
            "setting": self.point(job.variant),
            "seed": job.recipe.run.seed,
            "round": record.get("round"),
            "figures": {key: record[key] for key in _FIGURES if record.get(key) is not None},
            "diverged": self._lost(job, rung),
            "seconds": record.get("seconds"),
            "run": job.folder.name,
        }

    def point(self, variant: Variant) -> Point:
        return points(self.task.ladders)[variant.number - 1]

    def record(self, job: Job, rung: int) -> Record | None:
        """The figures of a run at the end of a rung; None: there are none. One that diverged before has its round."""
        view = self.views.get(job.folder)
        if view is None:
            return None
        found = self.reached[job.folder].get(self.end(job, rung))
        if view.diverged and (found is None or finite(found.get("loss")) is None):
            return {"round": view.history[-1]["round"] if view.history else 0}
        return found

    def end(self, job: Job, rung: int) -> int:
        """The round at which a run is judged in a rung."""
        return self.until(rung) or job.recipe.run.rounds

    def arrived(self, job: Job, rung: int) -> bool:
        """Whether a run is at the end of a rung or past it; one that diverged goes no further."""
        view = self.views.get(job.folder)
        return view is not None and (view.diverged or max(self.reached[job.folder], default=0) >= self.end(job, rung))

    def check(self, rung: int) -> None:
        """Refuse to compare the settings of a rung where one lacks its figure for another reason than divergence."""
        for job in self.jobs:
            if job.variant not in self.alive(rung) or self._lost(job, rung):
                continue
            record, end = self.record(job, rung), self.end(job, rung)
            if record is None:
                raise SelfsameError(
                    f"{job.folder}: was not looked at after round {end:,}, so settings cannot be compared there; name "
                    "another folder with --out"
                )
            if finite(record.get(self.task.by)) is None:
                raise SelfsameError(
                    f"--by {self.task.by}: {job.folder} has no such figure after round {end:,}; judge by another one"
                )

    def _lost(self, job: Job, rung: int) -> bool:
        """Whether a run diverged before the end of a rung."""
        record = self.record(job, rung)
        return record is not None and self.views[job.folder].diverged and finite(record.get("loss")) is None

    def tried(self, rung: int, variants: Sequence[Variant]) -> list[Contender]:
        """The settings of a rung, the best first; those with a run that diverged last."""
        found = []
        for variant in variants:
            records = [self.record(job, rung) for job in self.jobs if job.variant is variant]
            values = tuple(None if record is None else record.get(self.task.by) for record in records)
            last = max((int(record["round"]) for record in records if record is not None), default=0)
            there = [job.folder for job in self.jobs if job.variant is variant and job.folder in self.views]
            history = [self.views[folder].history for folder in there]
            found.append(Contender(self.point(variant), values, last, variant.number, history))
        return sorted(found, key=lambda one: one.rank(self.judge))

    def alive(self, rung: int) -> list[Variant]:
        """The settings that take part in a rung: those that were best in the one before."""
        variants = list(self.experiment.variants)
        for before in range(rung):
            good = [one for one in self.tried(before, variants) if one.mean is not None]
            kept = {one.number for one in good[: self.rungs[before + 1][0]]}
            variants = [variant for variant in variants if variant.number in kept]
        return variants

    def missing(self, rung: int) -> list[Job]:
        """The runs of a rung that have not come to its end."""
        alive = self.alive(rung)
        return [job for job in self.jobs if job.variant in alive and not self.arrived(job, rung)]

    def work(self) -> int:
        """Rounds of all runs together."""
        if not self.task.halving:
            return sum(job.recipe.run.rounds for job in self.jobs)
        before, total = 0, 0
        for count, until in self.rungs:
            total += count * (until - before)
            before = until
        return total * len(self.task.seeds)

    def results(self) -> Contest:
        """What came of it, for tables, the page and the chosen recipe."""
        order: list[Contender] = []
        for rung in reversed(range(len(self.rungs))):
            known = {one.number for one in order}
            order += [one for one in self.tried(rung, self.alive(rung)) if one.number not in known]
        return Contest(
            title=self.task.file.name,
            ladders=tuple(self.task.ladders),
            by=self.task.by,
            apart=self._apart_words(),
            seeds=self.task.seeds,
            rungs=tuple(self.rungs) if self.task.halving else (),
            contenders=tuple(order),
            changed=tuple(self.task.changed),
            patience=self.task.recipe.run.patience,
            own_rounds=0 if self.task.variant is None else self.task.variant.own_rounds,
            variant=self.task.title,
        )

    def _apart_words(self) -> str:
        """Who or what was set apart, as the data said it."""
        said = [view.facts.get("data notes", "") for view in self.views.values()]
        notes = [note for text in said for note in text.split("; ") if note.startswith("for choosing settings: ")]
        said_so = notes[0].removeprefix("for choosing settings: ") if notes else self.apart
        return said_so.removesuffix(" set apart")

    def finish(self) -> Contest:
        """tune.md, tune.html, and chosen.toml where a setting has a figure."""
        found = self.results()
        self.keep_results()
        write(self.folder / "tune.md", contest_markdown(found))
        write(self.folder / "tune.html", contest_page(found))
        best = found.best
        if best is not None:
            write(self.folder / "chosen.toml", chosen_text(found, self.chosen_recipe(best), *self.measured(best)))
        return found

    def chosen_recipe(self, best: Contender) -> Recipe:
        """The recipe with the chosen setting, on the whole of the data."""
        recipe = laid(self.task.recipe, best.point)
        options = {key: value for key, value in recipe.data.options.items() if key not in OPTIONS}
        place = recipe.data.path if self.task.placed else ""
        return replace(recipe, data=replace(recipe.data, options=options, path=place))

    def measured(self, best: Contender) -> tuple[tuple[int, ...], dict[str, Any]]:
        """The seeds by which the recipe is measured, where it names several, and what the paper says of its method."""
        variant = self.task.variant
        if variant is None:
            return (), {}
        recipe = laid(self.task.recipe, best.point)
        seeds = () if variant.seeds == (recipe.run.seed,) else variant.seeds
        same = recipe.method.name == self.task.recipe.method.name
        told = paper_table(variant.paper, variant.own_rounds) if same else {}
        return seeds, {**told, "chosen": self._chosen_words()} if told else {}

    def _chosen_words(self) -> str:
        """How the setting was chosen, for the page of a paper."""
        keys = ", ".join(ladder.key for ladder in self.task.ladders)
        seeds = f"{len(self.task.seeds)} seed{'s' if len(self.task.seeds) > 1 else ''} each"
        count = len(points(self.task.ladders))
        tried = f"{count} setting{'s' if count > 1 else ''} of {keys}, {seeds}"
        return f"{tried}, on {self._apart_words()} that were set apart of the training data (selfsame tune)"


def seconds_a_round(recipe: Recipe, federation: Federation) -> float:
    """How long a round takes, by some rounds after the first, of which nothing is kept."""
    short = replace(recipe, run=replace(recipe.run, compile="off"))
    run = start(short, None, federation)
    trainer, last = Trainer(run, None), recipe.run.rounds
    trainer.until(1)
    begun, first = run.seconds, run.state.round
    while run.seconds - begun < _TIMED and run.state.round < last:
        trainer.until(min(last, run.state.round + max(1, run.state.round)))
    rounds = run.state.round - first
    return (run.seconds - begun) / rounds if rounds else run.seconds
