"""A paper's table or figure repeated: what the data at hand allow is run, and what came of it is put on a page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import Exhibit, recipe_file
from selfsame.config.experiment import Experiment, read_experiment
from selfsame.data import DATASETS
from selfsame.errors import SelfsameError
from selfsame.files import write, write_json
from selfsame.report.exhibit_page import FORMAT, exhibit_markdown, only_figures
from selfsame.report.table import beside_plain
from selfsame.runs.experiments import Campaign, load_data

Plain = dict[str, Any]


@dataclass
class Reprint:
    """The recipes of some exhibits: those that can be run, and those that lack their data."""

    paper: str
    exhibits: Sequence[Exhibit]
    folder: Path
    path: Path | None = None
    recipes: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    changed: Sequence[str] = ()
    campaigns: dict[str, Campaign] = field(init=False, default_factory=dict)
    missing: dict[str, Plain] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for exhibit in self.exhibits for name in exhibit.recipes)
        read = {name: self._read(name) for name in names}  # what is wrong with one is said before data is read
        for name, experiment in read.items():
            try:
                ready = self._with_data(name, experiment)
            except SelfsameError as error:
                self.missing[name] = self._missing(name, experiment, str(error))
            else:
                self.campaigns[name] = Campaign(ready, self.folder / name, self.changed)

    def _read(self, name: str, path: Path | None = None) -> Experiment:
        given = dict(self.given)
        if path is not None:
            given["data"] = {**given.get("data", {}), "path": str(path)}
        return read_experiment(recipe_file(self.recipes, name), given, self.settings)

    def _with_data(self, name: str, experiment: Experiment) -> Experiment:
        """The experiment with the place where its data was found: the path itself, or a folder there of its name."""
        part = experiment.variants[0].recipe.data
        needs = part.name in DATASETS and DATASETS[part.name].needs_path
        if self.path is None or not needs:
            load_data(part)
            return experiment
        below = self.path / part.name
        places = [below] if below.is_dir() else [self.path]
        load_data(replace(part, path=str(places[0])))
        return self._read(name, places[0])

    def _missing(self, name: str, experiment: Experiment, why: str) -> Plain:
        data = experiment.variants[0].recipe.data.name
        runs = sum(len(variant.seeds) for variant in experiment.variants)
        wants = DATASETS[data].wants if data in DATASETS else ""
        return {"recipe": name, "data": data, "runs": runs, "why": _unplaced(why, self.path), "wants": wants}

    def plain(self, exhibit: Exhibit) -> Plain:
        """What an exhibit's page says, ready for JSON."""
        parts = [self._part(name, exhibit.figures) for name in exhibit.recipes if name in self.campaigns]
        return {
            "format": FORMAT,
            "paper": self.paper,
            "exhibit": exhibit.name,
            "title": f"{_NAMES[self.paper]}, {exhibit.name}",
            "what": exhibit.what,
            "command": f"selfsame paper {self.paper} {exhibit.option} --path DATA",
            "parts": parts,
            "missing": [self.missing[name] for name in exhibit.recipes if name in self.missing],
        }

    def _part(self, name: str, figures: Sequence[str]) -> Plain:
        campaign = self.campaigns[name]
        found = beside_plain(campaign.rows(), name, self.changed)
        data = campaign.experiment.variants[0].recipe.data.name
        return {**found, "variants": only_figures(found["variants"], figures), "data": data}

    def write_pages(self) -> list[Path]:
        """A page for each exhibit, and beside it the JSON that it is made from."""
        out = []
        for exhibit in self.exhibits:
            plain = self.plain(exhibit)
            page = self.folder / f"{exhibit.kind}-{exhibit.number.lower()}.md"
            write_json(page.with_suffix(".json"), plain)
            write(page, exhibit_markdown(plain))
            out.append(page)
        return out

    @property
    def diverged(self) -> Iterable[str]:
        """The runs that did."""
        every = ((job, campaign) for campaign in self.campaigns.values() for job in campaign.jobs)
        return [
            job.title for job, campaign in every if job.folder in campaign.views and campaign.views[job.folder].diverged
        ]


_NAMES = {"fedaws": "FedAwS", "feduv": "FedUV", "fedmetric": "FedMetric", "fedhide": "FedHide"}


def _unplaced(words: str, path: Path | None) -> str:
    """Words that name no place of this machine."""
    return words if path is None else words.replace(str(path), "DATA")
