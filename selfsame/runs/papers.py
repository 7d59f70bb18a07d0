"""A paper's table or figure repeated: what the data at hand allow is run, and what came of it is put on a page."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

from selfsame.config.exhibits import FOLDERS, Exhibit, recipe_file
from selfsame.config.experiment import FIGURES, Experiment, Job, Variant, decided, read_experiment, shortened
from selfsame.config.recipe import DataPart, Recipe, parse_setting, to_mapping
from selfsame.data import DATASETS, Federation, checked_options
from selfsame.data.fingerprint import Fingerprint
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods import make
from selfsame.report.beside import CHOSEN, Row, beside_plain, figures_of
from selfsame.report.exhibit_lines import drawing
from selfsame.report.exhibit_page import FORMAT, exhibit_files, only_figures, page_again, tells
from selfsame.runs.beyond import beyond
from selfsame.runs.controls import alike, with_controls
from selfsame.runs.course import Run
from selfsame.runs.experiments import Campaign, load_data
from selfsame.runs.redrawn import KIND, REPLICATES, seeds_interval
from selfsame.runs.run import load_run, open_run
from selfsame.runs.untrained import as_untrained

Plain = dict[str, Any]


@dataclass
class Reprint:
    """The recipes of some exhibits with their controls: those that can be run, and those that lack their data."""

    paper: str
    exhibits: Sequence[Exhibit]
    folder: Path
    path: Path | None = None
    recipes: Path | None = None
    given: Mapping[str, Any] = field(default_factory=dict)
    settings: Sequence[str] = ()
    changed: Sequence[str] = ()
    share: float = 1.0  # of the recipes' rounds
    bootstrap: int = REPLICATES  # of each interval; 0: none
    only: Sequence[str] = ()  # texts in titles of the variants that are trained; none: all
    campaigns: dict[str, Campaign] = field(init=False, default_factory=dict)
    missing: dict[str, Plain] = field(init=False, default_factory=dict)
    told: dict[str, str] = field(init=False, default_factory=dict)  # why, with the places of this machine
    kept: list[str] = field(init=False, default_factory=list)  # pages that are not written, in words
    refused: dict[str, dict[str, None]] = field(
        init=False, default_factory=dict
    )  # what a recipe's data are too few for
    drawn: dict[Path, Plain] = field(init=False, default_factory=dict)  # replicates of each run by kind
    unmeasured: set[tuple[str, Path]] = field(init=False, default_factory=set)  # exhibits and ended runs
    put_off: dict[Path, str] = field(init=False, default_factory=dict)  # why a run that ended was not measured at once
    timings: Plain = field(init=False, default_factory=dict)
    _read_first: dict[str, Experiment] = field(init=False, default_factory=dict)  # before data were looked for
    _before: dict[str, Plain] = field(init=False, default_factory=dict)  # the pages of earlier calls
    _written: dict[Path, Plain] = field(init=False, default_factory=dict)
    _loaded: tuple[str, Federation] | None = field(init=False, default=None)
    _prints: dict[str, tuple[ref[Federation], Fingerprint]] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.bootstrap < 0:
            raise SelfsameError(f"--bootstrap: must be at least 0, got {self.bootstrap}")
        names = dict.fromkeys(name for exhibit in self.exhibits for name in exhibit.recipes)
        if self.recipes is not None and not any((self.recipes / f"{name}.toml").is_file() for name in names):
            wanted = " or ".join(f"{name}.toml" for name in names)
            raise SelfsameError(
                f"--recipes {self.recipes}: expected {wanted} there; what is not there is read from recipes/"
            )
        self._read_first = {name: self._read(name) for name in names}  # what is wrong is said before data is read
        for experiment in self._read_first.values():
            _check(experiment)
        for name, experiment in self._read_first.items():
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
        found = read_experiment(recipe_file(self.recipes, name), given, chosen)
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
        shown = {
            v.number: v for exhibit in self.exhibits if name in exhibit.recipes for v in _shown(exhibit, experiment)
        }
        runs = sum(len(variant.seeds) for variant in shown.values())
        wants = DATASETS[part.name].wants if part.name in DATASETS else ""
        data = FOLDERS.get(name, part.name)
        return {"recipe": name, "data": data, "runs": runs, "why": _unplaced(why, self.path), "wants": wants}

    def chosen(self) -> dict[str, list[Job]]:
        """The runs of each recipe that the exhibits show; with texts, those that have one of them in their titles."""
        only, shown = self.only, {name: self._variants(name) for name in self.campaigns}
        if only:
            every = [variant for variants in shown.values() for variant in variants]
            for text in only:
                if every and not any(_meant(text, variant, every) for variant in every):
                    known = "; ".join(dict.fromkeys(variant.title for variant in every))
                    raise SelfsameError(f"--only {text}: no variant has this in its title; there are: {known}")
            shown = {
                name: [v for v in variants if any(_meant(text, v, every) for text in only)]
                for name, variants in shown.items()
            }
        found = {
            name: [job for job in campaign.jobs if job.variant in shown[name]]
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

    def _variants(self, name: str) -> list[Variant]:
        experiment = self.campaigns[name].experiment
        wanted = [v for exhibit in self.exhibits if name in exhibit.recipes for v in _shown(exhibit, experiment)]
        return [variant for variant in experiment.variants if variant in wanted]

    def so_far(self, job: Job | None = None, federation: Federation | None = None) -> dict[Path, Plain]:
        """The pages while runs are still to come: with what is kept of runs that have been measured.

        A run that has just ended is measured as well, where its data are at hand. Others may be at work then, so one
        that cannot be measured, as on a full GPU, is left for the end, and `put_off` says why.
        """
        if job is not None and federation is not None:
            self._loaded = repr(job.recipe.data), federation
        try:
            self.complete(measured=lambda one: one is job)
        except Exception as error:
            if job is None:
                raise
            self.put_off[job.folder] = f"{job.title}: not measured yet, tried again in the end: {error}"
            self.complete(measured=lambda _: False)
        self._loaded = None  # data of the next recipe may need the room
        return self.write_pages()

    def complete(
        self, tick: Callable[[str], None] = lambda _: None, measured: Callable[[Job], bool] = lambda _: True
    ) -> None:
        """Measure what the pages tell of ended runs beyond their records; `tick` is told of each run.

        `measured`: whether a run is. Otherwise what is kept of it is read, and the rest is left for another time.
        """
        for exhibit in self.exhibits:
            for name in exhibit.recipes:
                if (campaign := self.campaigns.get(name)) is None:
                    continue
                shown = _shown(exhibit, campaign.experiment)
                rows = [row for row in campaign.rows() if row.variant in shown]
                kinds = list(dict.fromkeys(KIND[key] for key in _figures(exhibit, rows) if key in KIND))
                for job in campaign.jobs:
                    if job.variant in shown:
                        tick(job.title)
                        self._complete(exhibit, name, job, kinds, measured(job))

    def _complete(self, exhibit: Exhibit, name: str, job: Job, kinds: Sequence[str], measure: bool) -> None:
        campaign = self.campaigns[name]
        view = campaign.views.get(job.folder)
        portions = job.variant.paper.portions if "vii_c" in exhibit.figures else ()
        kinds = kinds if self.bootstrap else ()
        if view is None or view.diverged or not (portions or exhibit.curves or kinds):
            return
        ended = int(view.history[-1]["round"]) if view.history else 0
        opened = partial(self._opened, job) if measure else None
        found = beyond(job.folder, ended, opened, portions, exhibit.curves, kinds, self.bootstrap)
        (self.unmeasured.add if found["left"] else self.unmeasured.discard)((exhibit.option, job.folder))
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
        lacking = {_unplaced(f"{what}: {one['refused']}", self.path): None for what, one in told if "refused" in one}
        self.refused.setdefault(name, {}).update(lacking)
        self.drawn.setdefault(job.folder, {}).update(found["drawn"])
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

    def plain(self, exhibit: Exhibit) -> Plain:
        """What an exhibit's page says, ready for JSON.

        What an earlier call of this command has told of a recipe stays, where its data cannot be read this time.
        """
        command, kept = self._command(exhibit), self._earlier(exhibit) if self.missing else {}
        parts = {name: self._part(name, exhibit) for name in exhibit.recipes if name in self.campaigns}
        parts |= {name: kept[name] for name in exhibit.recipes if name in self.missing and name in kept}
        return {
            "format": FORMAT,
            "paper": self.paper,
            "exhibit": exhibit.name,
            "title": f"{_NAMES[self.paper]}, {exhibit.name}",
            "what": exhibit.what,
            "file": _file(exhibit),
            "command": command,
            "parts": [parts[name] for name in exhibit.recipes if name in parts],
            "timings": self.timings if exhibit.timed else {},
            "missing": [
                {**self.missing[name], "variants": self._reported(name, exhibit)}
                for name in exhibit.recipes
                if name in self.missing and name not in parts
            ],
        }

    def _reported(self, name: str, exhibit: Exhibit) -> list[Plain]:
        """The variants with what the paper reports of them, where none has been run."""
        experiment = self._read_first[name]
        shown = [variant for variant in _shown(exhibit, experiment) if variant.paper.figures]
        shown += _quoted(exhibit, experiment)
        rows = [Row(_own_length(variant), (None,) * len(variant.seeds)) for variant in shown]
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
            self._before[exhibit.option] = page_again(self.folder / f"{_file(exhibit)}.json")
        return self._before[exhibit.option]

    def _command(self, exhibit: Exhibit) -> str:
        data = ["--path DATA"] if exhibit.recipes else []
        data += [f"--recipes {_shown_place(self.recipes)}"] if exhibit.recipes and self.recipes is not None else []
        chosen = [f"--only {shlex.quote(text)}" for text in self.only] if exhibit.recipes else []
        set_to = [_typed(one) for one in self.changed]
        drawn = [f"--bootstrap {self.bootstrap}"] if exhibit.recipes and self.bootstrap != REPLICATES else []
        return " ".join(["selfsame paper", self.paper, exhibit.option, *data, *chosen, *set_to, *drawn])

    def _part(self, name: str, exhibit: Exhibit) -> Plain:
        campaign = self.campaigns[name]
        shown = _shown(exhibit, campaign.experiment)
        run: list[Row] = [row for row in campaign.rows() if row.variant in shown]
        quoted = [Row(one, ()) for one in _quoted(exhibit, campaign.experiment)]
        rows = [*(row for row in run if not row.variant.control), *quoted, *(row for row in run if row.variant.control)]
        found = beside_plain(rows, name, self.changed, exhibit.beside)
        found["remarks"] += [*self.refused.get(name, ()), *self._left(campaign, exhibit)]
        what = f"{_NAMES[self.paper]}, {exhibit.name}: {exhibit.what}, {name}"
        for row, variant in zip(rows, found["variants"], strict=True):
            for key, figure in variant["figures"].items():
                figure["interval"] = self._interval(campaign, row, key)
            variant["settings"] = {} if row.variant.quoted else _settings(row.variant.recipe)
        return {
            **found,
            "replicates": self.bootstrap,
            "variants": only_figures(found["variants"], (*exhibit.figures, *exhibit.beside)),
            "data": FOLDERS.get(name, campaign.experiment.variants[0].recipe.data.name),
            "drawing": drawing(exhibit.panes, run, f"{_file(exhibit)}-{name}.svg", what),
        }

    def _left(self, campaign: Campaign, exhibit: Exhibit) -> list[str]:
        """What is yet to be measured, in words."""
        number = sum((exhibit.option, job.folder) in self.unmeasured for job in campaign.jobs)
        return [f"Of {number} ended runs this page lacks intervals, curves or accuracies yet."] if number else []

    def _interval(self, campaign: Campaign, row: Row, key: str) -> Plain | None:
        """By person, over the seeds that the mean is of."""
        if key not in KIND:
            return None
        folders = [job.folder for job in campaign.jobs if job.variant is row.variant]
        counts = [value is not None for value in row.values(key)]
        seeds = [
            self.drawn.get(folder, {}).get(KIND[key], {}) if there else None
            for folder, there in zip(folders, counts, strict=True)
        ]
        return seeds_interval(key, seeds, FIGURES[key].factor)

    def write_pages(self) -> dict[Path, Plain]:
        """A page for each exhibit with its figures, and beside it the JSON that they are made from: what each says.

        One that tells of runs, by another command, is not replaced by one that tells of none, and is not given.
        """
        out = {}
        self.kept.clear()
        for exhibit in self.exhibits:
            plain, page = self.plain(exhibit), self.folder / f"{_file(exhibit)}.md"
            if not tells(plain) and tells(self._page(exhibit)):
                self.kept.append(f"{page}: stays; it tells of runs, and this command has none to tell of")
                continue
            if plain != self._written.get(page):
                for name, content in exhibit_files(plain).items():
                    write(self.folder / name, content)
            self._written[page] = out[page] = plain
        return out

    def diverged(self, chosen: Mapping[str, Sequence[Job]]) -> list[str]:
        """Those of the chosen runs that did."""
        views = ((job, self.campaigns[name].views.get(job.folder)) for name, jobs in chosen.items() for job in jobs)
        return [job.title for job, view in views if view is not None and view.diverged]


_KINDS = {"seen": "seen", "new": "new", "vii_c": "accuracy (VII-C)"}
_NAMES = {"fedaws": "FedAwS", "feduv": "FedUV", "fedmetric": "FedMetric", "fedhide": "FedHide", "fdml": "FDML"}


def _own_length(variant: Variant) -> Variant:
    """The variant with the rounds of its file: what is not run has none of the command line's."""
    if variant.quoted:
        return variant
    run = replace(variant.recipe.run, rounds=variant.own_rounds)
    return replace(variant, recipe=replace(variant.recipe, run=run))


def _check(experiment: Experiment) -> None:
    """Refuse what is wrong with options of data and methods: it is no lack of files."""
    for variant in experiment.variants:
        plan = variant.recipe
        checked_options(plan.data.name, plan.data.options)
        make(plan.method.name, plan.method.options)


def _shown(exhibit: Exhibit, experiment: Experiment) -> list[Variant]:
    """The variants of an exhibit, and the controls with their networks."""
    own = [variant for variant in experiment.variants if not variant.control and exhibit.shows(variant.title)]
    return own + [
        variant
        for variant in experiment.variants
        if variant.control and any(alike(variant.recipe, one.recipe) for one in own)
    ]


def _settings(recipe: Recipe) -> Plain:
    """What was run, without places and machines, as JSON reads it."""
    found: Plain = json.loads(json.dumps(decided(to_mapping(recipe))))
    return found


def _quoted(exhibit: Exhibit, experiment: Experiment) -> list[Variant]:
    """The rows of an exhibit that are not run."""
    return [variant for variant in experiment.quoted if exhibit.shows(variant.title)]


def _meant(text: str, variant: Variant, every: Sequence[Variant]) -> bool:
    """Whether a text is the variant's title or, where it is nobody's whole title, a part of it."""
    whole = any(one.title == text for one in every)
    return variant.title == text if whole else text.lower() in variant.title.lower()


def _typed(changed: str) -> str:
    """What the command line changed, as it is typed."""
    if changed.startswith(CHOSEN):
        return CHOSEN + shlex.quote(changed.removeprefix(CHOSEN))
    return changed if changed.startswith("--") else f"--set {changed}"


def _figures(exhibit: Exhibit, rows: Sequence[Row]) -> list[str]:
    """The figures of an exhibit's page."""
    wanted = (*exhibit.figures, *exhibit.beside)
    return [key for key in figures_of(rows, exhibit.beside) if key in wanted or not wanted]


def _shown_place(folder: Path) -> str:
    """A folder as a page names it: as it was given, but for places of this machine."""
    given = folder.as_posix()
    return shlex.quote(given) if not folder.is_absolute() and ".." not in folder.parts else "RECIPES"


def _file(exhibit: Exhibit) -> str:
    return f"{exhibit.kind}-{exhibit.number.lower()}"


def _unplaced(words: str, path: Path | None) -> str:
    """Words that name no place of this machine."""
    return words if path is None else words.replace(str(path), "DATA")
