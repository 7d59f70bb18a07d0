"""Every variant of a recipe tuned over the same settings, each in a folder of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from selfsame.config.writing import Written
from selfsame.errors import SelfsameError
from selfsame.fields import short_name
from selfsame.files import write
from selfsame.report.alike import alike_markdown, alike_page, chosen_alike
from selfsame.report.contenders import Contest
from selfsame.runs.tuning import Task, Tuning, apart_of, checked, plan


@dataclass
class Alike:
    """The tunings of all variants, in a folder."""

    folder: Path
    tunings: list[Tuning]

    def finish(self) -> list[Contest]:
        """What each writes, and tune.md, tune.html and chosen.toml of all of them."""
        contests = [tuning.finish() for tuning in self.tunings]
        write(self.folder / "tune.md", alike_markdown(contests, [tuning.folder.name for tuning in self.tunings]))
        write(self.folder / "tune.html", alike_page(contests))
        seeds, variants = set[tuple[int, ...]](), []
        for tuning, contest in zip(self.tunings, contests, strict=True):
            if contest.best is not None:
                mine, paper = tuning.measured(contest.best)
                seeds.add(mine)
                variant = tuning.task.variant
                control = variant.control if variant is not None else ""
                variants.append(Written(contest.variant, tuning.chosen_recipe(contest.best), paper, control))
        if variants:  # seeds stand at the top of the file, so they are the same for all
            text = chosen_alike(contests, variants, next(iter(seeds)), self.tunings[0].task.file)
            write(self.folder / "chosen.toml", text)
        return contests


def plan_alike(tasks: Sequence[Task], folder: Path) -> Alike:
    """The tunings of these variants, all judged by the same figure; what is wrong is said before the first run."""
    every = []
    for task in tasks:
        try:
            every += checked(task)
        except SelfsameError as error:
            raise SelfsameError(f"{task.title}: {error}") from None
    by = tasks[0].by
    if not by:
        on = {repr(task.recipe.data): task for task in tasks}.values()
        by = "eer" if all(apart_of(task, every) == "people" for task in on) else "p@1"
    return Alike(folder, [plan(replace(task, by=by), folder / _name(task)) for task in tasks])


def _name(task: Task) -> str:
    """The folder of a variant, as where it is measured."""
    assert task.variant is not None
    return task.variant.name or f"{task.variant.number:02d}-{short_name(task.recipe.method.name)}"
