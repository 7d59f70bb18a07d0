"""What the pages of a paper tell of ended runs beyond their records: accuracies, curves, intervals by person."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from selfsame.config.exhibits import Exhibit
from selfsame.config.experiment import FIGURES, Job
from selfsame.data import Federation
from selfsame.data.fingerprint import Fingerprint
from selfsame.report.beside import Row, figures_of
from selfsame.runs.beyond import beyond
from selfsame.runs.course import Run
from selfsame.runs.experiments import Campaign, load_data
from selfsame.runs.paper_recipes import PaperRecipes, shown, unplaced
from selfsame.runs.redrawn import KIND, REPLICATES, seeds_interval
from selfsame.runs.run import load_run, open_run
from selfsame.runs.untrained import as_untrained

Plain = dict[str, Any]


@dataclass
class PaperMeasures:
    """Measured once and kept beside each run; data are read once for all runs of a network."""

    recipes: PaperRecipes
    bootstrap: int = REPLICATES  # of each interval; 0: none
    refused: dict[str, dict[str, None]] = field(
        init=False, default_factory=dict
    )  # what a recipe's data are too few for
    _drawn: dict[Path, Plain] = field(init=False, default_factory=dict)  # replicates of each run by kind
    _unmeasured: set[tuple[str, Path]] = field(init=False, default_factory=set)  # exhibits and ended runs
    _loaded: tuple[str, Federation] | None = field(init=False, default=None)
    _prints: dict[str, tuple[ref[Federation], Fingerprint]] = field(init=False, default_factory=dict)

    def hold(self, job: Job, federation: Federation) -> None:
        """Data that are at hand for the run that is measured next."""
        self._loaded = repr(job.recipe.data), federation

    def release(self) -> None:
        """Data of the next recipe may need the room."""
        self._loaded = None

    def complete(
        self, tick: Callable[[str], None] = lambda _: None, measured: Callable[[Job], bool] = lambda _: True
    ) -> None:
        """Measure what the pages tell of ended runs beyond their records; `tick` is told of each run.

        `measured`: whether a run is. Otherwise what is kept of it is read, and the rest is left for another time.
        """
        for exhibit in self.recipes.exhibits:
            for name in exhibit.recipes:
                if (campaign := self.recipes.campaigns.get(name)) is None:
                    continue
                variants = shown(exhibit, campaign.experiment)
                rows = [row for row in campaign.rows() if row.variant in variants]
                kinds = list(dict.fromkeys(KIND[key] for key in _figures(exhibit, rows) if key in KIND))
                for job in campaign.jobs:
                    if job.variant in variants and not job.variant.oracle:
                        tick(job.title)
                        self._complete(exhibit, name, job, kinds, measured(job))

    def _complete(self, exhibit: Exhibit, name: str, job: Job, kinds: Sequence[str], measure: bool) -> None:
        campaign = self.recipes.campaigns[name]
        view = campaign.views.get(job.folder)
        portions = job.variant.paper.portions if "vii_c" in exhibit.figures else ()
        kinds = kinds if self.bootstrap else ()
        if view is None or view.diverged or not (portions or exhibit.curves or kinds):
            return
        ended = int(view.history[-1]["round"]) if view.history else 0
        opened = partial(self._opened, job) if measure else None
        found = beyond(job.folder, ended, opened, portions, exhibit.curves, kinds, self.bootstrap)
        (self._unmeasured.add if found["left"] else self._unmeasured.discard)((exhibit.option, job.folder))
        final, curves = dict(view.final), dict(view.roc)
        if portions:
            final["vii_c"] = found.get("vii_c", {}).get("value")
        for protocol, curve in found["curves"].items():
            if "fpr" in curve:
                curves[protocol] = (curve["fpr"], curve["tpr"])
        told = [("accuracy (VII-C)", found.get("vii_c", {})), *found["curves"].items()]
        there = {kind for key, kind in KIND.items() if final.get(key) is not None}
        drawn = found["drawn"]
        told += [(f"no interval by person, {_KINDS[kind]}", drawn[kind]) for kind in drawn if kind in there]
        lacking = {
            unplaced(f"{what}: {one['refused']}", self.recipes.path): None for what, one in told if "refused" in one
        }
        self.refused.setdefault(name, {}).update(lacking)
        self._drawn.setdefault(job.folder, {}).update(found["drawn"])
        campaign.views[job.folder] = replace(view, final=final, roc=curves)

    def _opened(self, job: Job) -> Run:
        """A run that has ended, or the network that was never trained, to be measured; data are read once for all."""
        key = repr(job.recipe.data)
        if self._loaded is None or self._loaded[0] != key:
            self._loaded = key, load_data(job.recipe.data)
        if job.variant.untrained:
            return as_untrained(load_run(job.folder, self._loaded[1], trust_code=True, device=job.recipe.run.device))
        place = Path(job.recipe.data.path) if job.recipe.data.path else None  # where the data are now
        loaded = self._loaded[1]
        printed = partial(self._printed, repr(job.recipe.net), loaded)
        device = job.recipe.run.device
        return open_run(job.folder, place, device, trust_code=True, federation=loaded, printed=printed)

    def _printed(self, net: str, loaded: Federation, seen: Federation) -> Fingerprint:
        """The fingerprint of data that were loaded before, `seen` as a network takes them."""
        if net not in self._prints or self._prints[net][0]() is not loaded:
            self._prints[net] = ref(loaded), Fingerprint.of(seen)
        return self._prints[net][1]

    def left(self, campaign: Campaign, exhibit: Exhibit) -> list[str]:
        """What is yet to be measured, in words."""
        number = sum((exhibit.option, job.folder) in self._unmeasured for job in campaign.jobs)
        return [f"Of {number} ended runs this page lacks intervals, curves or accuracies yet."] if number else []

    def interval(self, campaign: Campaign, row: Row, key: str) -> Plain | None:
        """By person, over the seeds that the mean is of."""
        if key not in KIND:
            return None
        folders = [job.folder for job in campaign.jobs if job.variant is row.variant]
        counts = [value is not None for value in row.values(key)]
        seeds = [
            self._drawn.get(folder, {}).get(KIND[key], {}) if there else None
            for folder, there in zip(folders, counts, strict=True)
        ]
        return seeds_interval(key, seeds, FIGURES[key].factor)


_KINDS = {"seen": "seen", "new": "new", "vii_c": "accuracy (VII-C)"}


def _figures(exhibit: Exhibit, rows: Sequence[Row]) -> list[str]:
    """The figures of an exhibit's page."""
    wanted = (*exhibit.figures, *exhibit.beside)
    return [key for key in figures_of(rows, exhibit.beside) if key in wanted or not wanted]
