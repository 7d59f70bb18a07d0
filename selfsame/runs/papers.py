"""A paper's table or figure repeated: what the data at hand allow is run, and what came of it is put on a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import FOLDERS, Exhibit
from selfsame.config.experiment import Job, Variant, decided
from selfsame.config.recipe import to_mapping
from selfsame.data import Federation
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.report.beside import CHOSEN, Row, beside_plain
from selfsame.report.exhibit_lines import drawing
from selfsame.report.exhibit_page import FORMAT, exhibit_files, only_figures, page_again, tells
from selfsame.runs.experiments import Campaign
from selfsame.runs.paper_measures import PaperMeasures
from selfsame.runs.paper_recipes import PaperRecipes, quoted, shown
from selfsame.runs.redrawn import REPLICATES

Plain = dict[str, Any]


@dataclass
class Reprint:
    """Some exhibits of a paper: the runs that they want, and a page of each."""

    measures: PaperMeasures
    only: Sequence[str] = ()  # texts in titles of the variants that are trained; none: all
    timings: Plain = field(init=False, default_factory=dict)
    kept: list[str] = field(init=False, default_factory=list)  # pages that are not written, in words
    put_off: dict[Path, str] = field(init=False, default_factory=dict)  # why a run that ended was not measured at once
    _before: dict[str, Plain] = field(init=False, default_factory=dict)  # the pages of earlier calls
    _written: dict[Path, Plain] = field(init=False, default_factory=dict)

    @property
    def recipes(self) -> PaperRecipes:
        """What can be run, and what lacks its data."""
        return self.measures.recipes

    @property
    def campaigns(self) -> dict[str, Campaign]:
        """Of the recipes whose data are at hand."""
        return self.recipes.campaigns

    def chosen(self) -> dict[str, list[Job]]:
        """The runs of each recipe that the exhibits show; with texts, those that have one of them in their titles."""
        only, wanted = self.only, {name: self.recipes.variants(name) for name in self.campaigns}
        if only:
            every = [variant for variants in wanted.values() for variant in variants]
            for text in only:
                if every and not any(_meant(text, variant, every) for variant in every):
                    known = "; ".join(dict.fromkeys(variant.title for variant in every))
                    raise SelfsameError(f"--only {text}: no variant has this in its title; there are: {known}")
            wanted = {
                name: [v for v in variants if any(_meant(text, v, every) for text in only)]
                for name, variants in wanted.items()
            }
        found = {
            name: [job for job in campaign.jobs if job.variant in wanted[name]]
            for name, campaign in self.campaigns.items()
        }
        for name, jobs in found.items():  # of all recipes, before the first page is written
            for job in jobs:
                if differs := self.campaigns[name].there[job.folder].differs:
                    raise SelfsameError(
                        f"{job.folder}: holds a run of another recipe ({', '.join(differs)}); "
                        "name another folder with --out"
                    )
        return found

    def so_far(self, job: Job | None = None, federation: Federation | None = None) -> dict[Path, Plain]:
        """The pages while runs are still to come: with what is kept of runs that have been measured.

        A run that has just ended is measured as well, where its data are at hand. Others may be at work then, so one
        that cannot be measured, as on a full GPU, is left for the end, and `put_off` says why.
        """
        if job is not None and federation is not None:
            self.measures.hold(job, federation)
        try:
            self.measures.complete(measured=lambda one: one is job)
        except Exception as error:
            if job is None:
                raise
            self.put_off[job.folder] = f"{job.title}: not measured yet, tried again in the end: {error}"
            self.measures.complete(measured=lambda _: False)
        self.measures.release()
        return self.write_pages()

    def plain(self, exhibit: Exhibit) -> Plain:
        """What an exhibit's page says, ready for JSON.

        What an earlier call of this command has told of a recipe stays, where its data cannot be read this time.
        """
        command, kept = self._command(exhibit), self._earlier(exhibit) if self.recipes.missing else {}
        parts = {name: self._part(name, exhibit) for name in exhibit.recipes if name in self.campaigns}
        parts |= {name: kept[name] for name in exhibit.recipes if name in self.recipes.missing and name in kept}
        return {
            "format": FORMAT,
            "paper": self.recipes.paper,
            "exhibit": exhibit.name,
            "title": f"{_NAMES[self.recipes.paper]}, {exhibit.name}",
            "what": exhibit.what,
            "file": _file(exhibit),
            "command": command,
            "parts": [parts[name] for name in exhibit.recipes if name in parts],
            "timings": self.timings if exhibit.timed else {},
            "missing": [
                {**self.recipes.missing[name], "variants": self._reported(name, exhibit)}
                for name in exhibit.recipes
                if name in self.recipes.missing and name not in parts
            ],
        }

    def _reported(self, name: str, exhibit: Exhibit) -> list[Plain]:
        """The variants with what the paper reports of them, where none has been run."""
        experiment = self.recipes.read_first[name]
        variants = [variant for variant in shown(exhibit, experiment) if variant.paper.figures]
        variants += quoted(exhibit, experiment)
        rows = [Row(_own_length(variant), (None,) * len(variant.seeds)) for variant in variants]
        out = []
        for variant in only_figures(beside_plain(rows, name)["variants"], exhibit.figures):
            told = {key: one for key, one in variant["figures"].items() if one["paper"] is not None}
            out.append(
                {**variant, "settings": {}, "figures": {key: {**one, "interval": None} for key, one in told.items()}}
            )
        return [variant for variant in out if variant["figures"]]

    def _earlier(self, exhibit: Exhibit) -> dict[str, Plain]:
        """The parts of the page that the same command has left, by recipe."""
        found = self._page(exhibit)
        return (
            {part["recipe"]: part for part in found["parts"]} if found.get("command") == self._command(exhibit) else {}
        )

    def _page(self, exhibit: Exhibit) -> Plain:
        """What the page that lay there at first says."""
        if exhibit.option not in self._before:
            self._before[exhibit.option] = page_again(self.recipes.folder / f"{_file(exhibit)}.json")
        return self._before[exhibit.option]

    def _command(self, exhibit: Exhibit) -> str:
        if not exhibit.recipes:  # seconds of the enclave want no data
            return " ".join(["selfsame paper", self.recipes.paper, exhibit.option, *map(_typed, self.recipes.changed)])
        place, replicates = self.recipes.place, self.measures.bootstrap
        recipes = [] if place is None else [f"--recipes {_shown_place(place)}"]
        only = [f"--only {shlex.quote(text)}" for text in self.only]
        drawn = [] if replicates == REPLICATES else [f"--bootstrap {replicates}"]
        options = ["--path DATA", *recipes, *only, *map(_typed, self.recipes.changed), *drawn]
        return " ".join(["selfsame paper", self.recipes.paper, exhibit.option, *options])

    def _part(self, name: str, exhibit: Exhibit) -> Plain:
        campaign = self.campaigns[name]
        variants = shown(exhibit, campaign.experiment)
        run: list[Row] = [row for row in campaign.rows() if row.variant in variants]
        drawn = [row for row in run if not row.variant.oracle]
        others = [Row(one, ()) for one in quoted(exhibit, campaign.experiment)]
        rows = [*(row for row in run if not row.variant.control), *others, *(row for row in run if row.variant.control)]
        found = beside_plain(rows, name, self.recipes.changed, exhibit.beside)
        found["remarks"] += [*self.measures.refused.get(name, ()), *self.measures.left(campaign, exhibit)]
        what = f"{_NAMES[self.recipes.paper]}, {exhibit.name}: {exhibit.what}, {name}"
        for row, variant in zip(rows, found["variants"], strict=True):
            for key, figure in variant["figures"].items():
                figure["interval"] = self.measures.interval(campaign, row, key)
            variant["settings"] = {} if row.variant.quoted else _settings(row.variant)
        return {
            **found,
            "replicates": self.measures.bootstrap,
            "variants": only_figures(found["variants"], (*exhibit.figures, *exhibit.beside)),
            "data": FOLDERS.get(name, campaign.experiment.variants[0].recipe.data.name),
            "drawing": drawing(exhibit.panes, drawn, f"{_file(exhibit)}-{name}.svg", what),
        }

    def write_pages(self) -> dict[Path, Plain]:
        """A page for each exhibit with its figures, and beside it the JSON that they are made from: what each says.

        One that tells of runs, by another command, is not replaced by one that tells of none, and is not given.
        """
        out = {}
        self.kept.clear()
        for exhibit in self.recipes.exhibits:
            plain, page = self.plain(exhibit), self.recipes.folder / f"{_file(exhibit)}.md"
            if not tells(plain) and tells(self._page(exhibit)):
                self.kept.append(f"{page}: stays; it tells of runs, and this command has none to tell of")
                continue
            if plain != self._written.get(page):
                for name, content in exhibit_files(plain).items():
                    write(self.recipes.folder / name, content)
            self._written[page] = out[page] = plain
        return out

    def diverged(self, chosen: Mapping[str, Sequence[Job]]) -> list[str]:
        """Those of the chosen runs that did."""
        views = ((job, self.campaigns[name].views.get(job.folder)) for name, jobs in chosen.items() for job in jobs)
        return [job.title for job, view in views if view is not None and view.diverged]


_NAMES = {"fedaws": "FedAwS", "feduv": "FedUV", "fedmetric": "FedMetric", "fedhide": "FedHide", "fdml": "FDML"}


def _own_length(variant: Variant) -> Variant:
    """The variant with the rounds of its file: what is not run has none of the command line's."""
    if not variant.trained:
        return variant
    run = replace(variant.recipe.run, rounds=variant.own_rounds)
    return replace(variant, recipe=replace(variant.recipe, run=run))


def _settings(variant: Variant) -> Plain:
    """What was run, without places and machines, as JSON reads it; an oracle has its method and data alone."""
    found: Plain = json.loads(json.dumps(decided(to_mapping(variant.recipe))))
    return {part: found[part] for part in ("method", "data")} if variant.oracle else found


def _meant(text: str, variant: Variant, every: Sequence[Variant]) -> bool:
    """Whether a text is the variant's title or, where it is nobody's whole title, a part of it."""
    whole = any(one.title == text for one in every)
    return variant.title == text if whole else text.lower() in variant.title.lower()


def _typed(changed: str) -> str:
    """What the command line changed, as it is typed."""
    if changed.startswith(CHOSEN):
        return CHOSEN + shlex.quote(changed.removeprefix(CHOSEN))
    return changed if changed.startswith("--") else f"--set {changed}"


def _shown_place(folder: Path) -> str:
    """A folder as a page names it: as it was given, but for places of this machine."""
    given = folder.as_posix()
    return shlex.quote(given) if not folder.is_absolute() and ".." not in folder.parts else "RECIPES"


def _file(exhibit: Exhibit) -> str:
    return f"{exhibit.kind}-{exhibit.number.lower()}"
