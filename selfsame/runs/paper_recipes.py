"""The recipes of a paper's tables and figures, with controls: those whose data are at hand, and those that lack it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import FOLDERS, Exhibit, recipe_file
from selfsame.config.experiment import Experiment, Variant, read_experiment, shortened
from selfsame.config.recipe import DataPart, parse_setting
from selfsame.data import DATASETS, checked_options
from selfsame.errors import SelfsameError
from selfsame.methods import make
from selfsame.methods.oracles import make_oracle
from selfsame.runs.controls import alike, with_controls
from selfsame.runs.experiments import Campaign, load_data

Plain = dict[str, Any]


@dataclass
class PaperRecipes:
    """Those of some exhibits, as a command line changes them; what is wrong with one is said before data are read."""

    paper: str
    exhibits: Sequence[Exhibit]
    folder: Path  # of the runs
    path: Path | None = None  # of the data
    place: Path | None = None  # of the recipes
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    changed: Sequence[str] = ()
    share: float = 1.0  # of the recipes' rounds
    campaigns: dict[str, Campaign] = field(init=False, default_factory=dict)
    missing: dict[str, Plain] = field(init=False, default_factory=dict)
    told: dict[str, str] = field(init=False, default_factory=dict)  # why, with the places of this machine
    read_first: dict[str, Experiment] = field(init=False, default_factory=dict)  # before data were looked for

    def __post_init__(self) -> None:
        names = dict.fromkeys(name for exhibit in self.exhibits for name in exhibit.recipes)
        if self.place is not None and not any((self.place / f"{name}.toml").is_file() for name in names):
            wanted = " or ".join(f"{name}.toml" for name in names)
            raise SelfsameError(
                f"--recipes {self.place}: expected {wanted} there; what is not there is read from recipes/"
            )
        self.read_first = {name: self._read(name) for name in names}
        for experiment in self.read_first.values():
            _check(experiment)
        for name, experiment in self.read_first.items():
            try:
                ready = self._with_data(name, experiment)
            except SelfsameError as error:
                if self._there_otherwise(name):
                    raise  # it is what the command line sets that the data do not allow
                self.missing[name], self.told[name] = self._missing(name, experiment, str(error)), str(error)
            else:
                self.campaigns[name] = Campaign(ready, self.folder / name, self.changed)

    def _read(self, name: str, path: Path | None = None, settings: Sequence[str] | None = None) -> Experiment:
        given = dict(self.given)
        if path is not None:
            given["data"] = {**given.get("data", {}), "path": str(path)}
        chosen = self.settings if settings is None else settings
        found = read_experiment(recipe_file(self.place, name), given, chosen)
        return with_controls(shortened(found, self.share), self.paper)

    def _there_otherwise(self, name: str) -> bool:
        """Whether the data can be read once what the command line sets for them is left out."""
        others = [setting for setting in self.settings if parse_setting(setting)[0][0] != "data"]
        if len(others) == len(self.settings):
            return False
        try:
            self._with_data(name, self._read(name, settings=others))
        except SelfsameError:
            return False
        return True

    def _with_data(self, name: str, experiment: Experiment) -> Experiment:
        """The experiment with the place where its data was found."""
        part = experiment.variants[0].recipe.data
        needs = part.name in DATASETS and DATASETS[part.name].needs_path
        if self.path is None or not needs:
            load_data(part)
            return experiment
        place = self._place(name, part)
        load_data(replace(part, path=str(place)))
        return self._read(name, place)

    def _place(self, name: str, part: DataPart) -> Path:
        """The path itself, or a folder there of the data set's name, which data read as plain folders must have."""
        assert self.path is not None
        wanted = FOLDERS.get(name, part.name)
        if (self.path / wanted).is_dir():
            return self.path / wanted
        if name in FOLDERS and self.path.name != wanted:
            raise SelfsameError(f"{self.path / wanted}: no such folder")
        return self.path

    def _missing(self, name: str, experiment: Experiment, why: str) -> Plain:
        part = experiment.variants[0].recipe.data
        every = {
            v.number: v for exhibit in self.exhibits if name in exhibit.recipes for v in shown(exhibit, experiment)
        }
        runs = sum(len(variant.seeds) for variant in every.values())
        wants = DATASETS[part.name].wants if part.name in DATASETS else ""
        data = FOLDERS.get(name, part.name)
        return {"recipe": name, "data": data, "runs": runs, "why": unplaced(why, self.path), "wants": wants}

    def variants(self, name: str) -> list[Variant]:
        """Those of a recipe that the exhibits show."""
        experiment = self.campaigns[name].experiment
        wanted = [v for exhibit in self.exhibits if name in exhibit.recipes for v in shown(exhibit, experiment)]
        return [variant for variant in experiment.rows if variant in wanted]


def shown(exhibit: Exhibit, experiment: Experiment) -> list[Variant]:
    """The variants of an exhibit, its oracles, and the controls with their networks."""
    own = [variant for variant in experiment.rows if not variant.control and exhibit.shows(variant.title)]
    return own + [
        variant
        for variant in experiment.variants
        if variant.control and any(alike(variant.recipe, one.recipe) for one in own)
    ]


def quoted(exhibit: Exhibit, experiment: Experiment) -> list[Variant]:
    """The rows of an exhibit that are not run."""
    return [variant for variant in experiment.quoted if exhibit.shows(variant.title)]


def unplaced(words: str, path: Path | None) -> str:
    """Words that name no place of this machine."""
    return words if path is None else words.replace(str(path), "DATA")


def _check(experiment: Experiment) -> None:
    """Refuse what is wrong with options of data and methods: it is no lack of files."""
    for variant in experiment.variants:
        plan = variant.recipe
        checked_options(plan.data.name, plan.data.options)
        make(plan.method.name, plan.method.options)
    for oracle in experiment.oracles:
        make_oracle(oracle.recipe.method.name, oracle.recipe.method.options)
