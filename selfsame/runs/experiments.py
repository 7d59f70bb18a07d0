"""The runs of a recipe file, or of several methods, in one folder: what has ended, what is left, what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.experiment import Experiment, Job
from selfsame.config.recipe import AGGREGATIONS, DataPart, Recipe, differences, from_mapping, parse_setting, read_toml
from selfsame.data import Federation, WholeRows, load
from selfsame.data.fingerprint import Fingerprint, check_fingerprint
from selfsame.engine import checkpoint
from selfsame.engine.setup import resolve
from selfsame.errors import SelfsameError
from selfsame.fields import short_name
from selfsame.files import write
from selfsame.methods import LocalLoss, make, method_class, options_of
from selfsame.report.beside import Row, beside_markdown, beside_plain
from selfsame.report.html import write_report
from selfsame.report.view import RunView
from selfsame.runs.beginning import recipe_for
from selfsame.runs.claim import vacant
from selfsame.runs.course import Run, ended_early
from selfsame.runs.fits import asked, fit, held_to, keep_fit, read_fit, rows_of
from selfsame.runs.parallel import resume_all
from selfsame.runs.run import fitting, load_run, order, placed, start
from selfsame.runs.stopping import Stop, never
from selfsame.runs.summary import keep_view, read_view
from selfsame.runs.untrained import untrained_view


@dataclass(frozen=True)
class Standing:
    """How far the run of a recipe has come in its folder."""

    there: bool = False
    round: int = 0
    differs: tuple[str, ...] = ()  # the keys in which the run that lies there is another one
    view: RunView | None = None  # of a run that has ended, well or not
    place: str = ""  # where its data lay
    device: str = ""  # what it ran on

    @property
    def words(self) -> str:
        """For a list of runs."""
        if not self.there:
            return "not begun"
        if self.differs:
            return f"another recipe lies there: {', '.join(self.differs)}"
        if self.view is None:
            return f"stopped at round {self.round:,}"
        return "diverged" if self.view.diverged else "done"


def standing(folder: Path, recipe: Recipe, untrained: bool = False) -> Standing:
    """What the folder holds of this recipe, read without the data; `untrained`: it has no rounds to come."""
    if not (folder / "recipe.toml").is_file():
        return Standing()
    stored, wanted = from_mapping(read_toml(folder / "recipe.toml")), resolve(recipe)
    filled_in = set() if "features" in wanted.net.options else {"net.features"}  # the data set told the network
    filled_in |= _fitted(stored, wanted)
    filled_in |= {"split.most"} if wanted.split.epsilon else set()  # the budget said how many rounds
    filled_in |= {"net.digest"} if wanted.net.start and not wanted.net.digest else set()
    filled_in |= {f"sums.{key}" for key in ("least", "clip", "reach") if not getattr(wanted.sums, key)}
    differs = [key for key in differences(stored, wanted) if key not in filled_in]
    saved = folder / "checkpoint" / "state.safetensors"
    done = checkpoint.peek(saved)["round"] if saved.is_file() else None
    shown = read_view(folder) if (folder / "result.json").is_file() else None
    ended = shown is not None and (
        untrained or _whole(shown, done) >= stored.run.rounds or shown.diverged
        or ended_early(shown.history, stored.run.patience)
    )  # fmt: skip
    return Standing(True, done or 0, tuple(differs), shown if ended else None, stored.data.path, stored.run.device)


def _whole(shown: RunView, done: int | None) -> int:
    """The round that a run has come to and was looked at; a view may be of an earlier pause.

    A run whose checkpoint was left behind, as on another machine, is as far as its view says.
    """
    seen = int(shown.history[-1]["round"]) if shown.history else 0
    return seen if done is None else min(done, seen)


def _fitted(stored: Recipe, wanted: Recipe) -> set[str]:
    """The options that a method fitted to the federation where the recipe left them open."""
    name, given = wanted.method.name, wanted.method.options
    if name != stored.method.name or method_class(name).fitted is LocalLoss.fitted:
        return set()
    asked = make(name, given)
    return {f"method.{key}" for key in stored.method.options if key not in given and not getattr(asked, key, True)}


def _standing(job: Job) -> Standing:
    """How far a run has come, or whether an oracle has been fitted; settings that this does not take are said."""
    if not job.variant.oracle:
        return standing(job.folder, job.recipe, job.variant.untrained)
    asked(job.recipe)
    found = read_fit(job.folder)
    return Standing() if found is None else Standing(True, 0, found.differs(job.recipe), found.view)


@dataclass
class Campaign:
    """A recipe file whose runs lie, or shall lie, in a folder."""

    experiment: Experiment
    folder: Path
    changed: Sequence[str] = ()  # what the command line set, for the reader of the results
    jobs: list[Job] = field(init=False)
    there: dict[Path, Standing] = field(init=False)
    views: dict[Path, RunView] = field(init=False)  # of the runs that have ended

    def __post_init__(self) -> None:
        self.jobs = self.experiment.jobs(self.folder)
        self.there = {job.folder: _standing(job) for job in self.jobs}
        self.views = {place: now.view for place, now in self.there.items() if now.view and not now.differs}

    def chosen(self, only: Iterable[str]) -> list[Job]:
        """The runs of the variants that have these texts in their titles; all without one."""
        variants = self.experiment.select(only)
        return [job for job in self.jobs if job.variant in variants]

    def left(self, jobs: Iterable[Job], known: dict[str, Federation] | None = None) -> list[tuple[Job, Federation]]:
        """Those that have not ended, with their data; what does not fit is said before the first one is trained.

        Oracles are not among them: `fits_left` has those. So is a run that was trained on other data than these.
        `known`: data that were loaded before, to which those loaded here are added.
        """
        chosen, work, data, fits = list(jobs), [], {} if known is None else known, set()
        for job in chosen:
            now = self.there[job.folder]
            if now.differs:
                keys = ", ".join(now.differs)
                raise SelfsameError(
                    f"{job.folder}: holds a run of another recipe ({keys}); name another folder with --out"
                )
            if now.view is not None or job.variant.oracle:
                continue
            if not now.there:
                vacant(job.folder)
            if (key := repr(job.recipe.data)) not in data:
                data[key] = load_data(job.recipe.data)
            if job.variant.number not in fits:
                fitting(job.recipe, data[key])
                fits.add(job.variant.number)
            work.append((job, data[key]))
        self._hold_to_data(chosen if work else [], data)
        return work

    def _hold_to_data(self, chosen: list[Job], data: Mapping[str, Federation]) -> None:
        """Refuse a run in the folder that was trained on other data: figures of both would stand in one table.

        Held to its data is each of the chosen ones, each whose data has been loaded, and each whose data lay elsewhere.
        """
        prints: dict[str, Fingerprint] = {}
        for job in self.jobs:
            now, key = self.there[job.folder], repr(job.recipe.data)
            if job.variant.oracle or not now.there or now.differs:
                continue
            if not (job in chosen or key in data or self._moved(job)):
                continue
            if key not in prints:
                prints[key] = Fingerprint.of(data[key] if key in data else load_data(job.recipe.data))
            check_fingerprint(prints[key], job.folder)

    def _moved(self, job: Job) -> bool:
        """Whether the data of a run is named at another place than where it lay when the run began."""
        now, wanted = self.there[job.folder], placed(job.recipe).data.path
        return now.there and bool(wanted) and wanted != now.place

    def _elsewhere(self, job: Job) -> bool:
        """Whether a run is to go on on another device than it began on."""
        now = self.there[job.folder]
        return now.there and now.device != job.recipe.run.device

    def open(self, job: Job, federation: Federation) -> Run:
        """The run, from its last checkpoint or from the beginning."""
        if (job.folder / "recipe.toml").is_file():
            path = Path(job.recipe.data.path) if self._moved(job) else None
            device = job.recipe.run.device
            # the recipe there is being run
            return load_run(job.folder, federation, trust_code=True, path=path, device=device)
        return start(job.recipe, job.folder, federation)

    def measure_untrained(self, work: list[tuple[Job, Federation]]) -> list[tuple[Job, Federation]]:
        """Measure those that are not trained; gives the others."""
        for job, federation in work:
            if job.variant.untrained:
                shown = untrained_view(self.open(job, federation))
                keep_view(shown, job.folder)
                self.keep(job.folder, shown)
        return [(job, federation) for job, federation in work if not job.variant.untrained]

    def fits_left(self, jobs: Iterable[Job]) -> list[Job]:
        """The oracles among them that have not been fitted yet."""
        return [job for job in jobs if job.variant.oracle and job.folder not in self.views]

    def fit_oracles(self, jobs: Iterable[Job]) -> Iterator[Job]:
        """Fit these, one after another; gives each that has been. Rows are read once for all seeds."""
        known: dict[str, tuple[WholeRows, WholeRows]] = {}
        for job in jobs:
            if (key := repr(job.recipe.data)) not in known:
                known = {key: rows_of(job.recipe.data)}
                self._hold_to_rows(key, known[key])
            found = fit(job.recipe, known[key])
            keep_fit(found, job.folder)
            self.keep(job.folder, found.view)
            yield job

    def _hold_to_rows(self, key: str, rows: tuple[WholeRows, WholeRows]) -> None:
        for job in self.jobs:
            ours = job.variant.oracle and job.folder in self.views and repr(job.recipe.data) == key
            if ours and (there := read_fit(job.folder)) is not None:
                held_to(there, rows, job.folder)

    def make_ready(self, job: Job, federation: Federation) -> None:
        """Write what a process of its own needs to begin the run, or to go on with it elsewhere."""
        if not (job.folder / "recipe.toml").is_file():
            order(job.recipe, job.folder)
        elif self._moved(job) or self._elsewhere(job):  # processes read both from its recipe
            self.open(job, federation)

    def rows(self) -> list[Row]:
        """One per variant and oracle, with what its runs found."""
        return [
            Row(variant, tuple(self.views.get(job.folder) for job in self.jobs if job.variant is variant))
            for variant in self.experiment.rows
        ]

    def keep(self, folder: Path, shown: RunView) -> None:
        """A run has ended: results.md and results.json of what there is so far."""
        self.views[folder] = shown
        self.keep_results()

    def keep_results(self) -> None:
        """results.md and results.json."""
        rows, title = self.rows(), self.experiment.file.stem
        write(self.folder / "results.md", beside_markdown(rows, title, self.changed))
        plain = json.dumps(beside_plain(rows, title, self.changed), indent=1, allow_nan=False)
        write(self.folder / "results.json", plain)

    def report(self) -> Path:
        """Write all results and the page with all runs, which is about training; gives the page."""
        self.keep_results()
        ended = [job for job in self.jobs if job.folder in self.views and not job.variant.oracle]
        named = [replace(self.views[job.folder], title=job.title) for job in ended]
        write_report(named, self.folder / "report.html", self.experiment.file.stem)
        return self.folder / "report.html"


def train_at_once(
    work: Iterable[tuple[Campaign, Job, Federation]],
    number: int,
    heard: Callable[[Job, Federation], object],
    stop: Stop = never,
    until: int = 0,
) -> None:
    """Train so many runs at a time, each in a process of its own; `heard` is told of each that has ended.

    When `stop` says so, each is told to end after its round; all end after round `until`, if there is one.
    """
    chosen = {job.folder: (campaign, job, federation) for campaign, job, federation in work}

    def ready(folder: Path) -> None:
        campaign, job, federation = chosen[folder]
        campaign.make_ready(job, federation)

    def ended(folder: Path) -> None:
        campaign, job, federation = chosen[folder]
        campaign.keep(folder, read_view(folder))
        heard(job, federation)

    resume_all(list(chosen), number, ended, stop, until, ready)


def load_data(part: DataPart) -> Federation:
    """The data that a recipe names."""
    return load(part.name, part.path or None, **part.options)


def split_aggregation(name: str) -> tuple[str, str]:
    """(method, aggregation) of a name as `compare` takes it, METHOD or METHOD/AGGREGATION; "" where none is said."""
    method, _, said = name.rpartition("/")
    return (method, said) if method and said in AGGREGATIONS else (name, "")


def short_title(name: str) -> str:
    """What folders and titles call it."""
    method, said = split_aggregation(name)
    return f"{short_name(method)}-{said}" if said else short_name(method)


def recipes_of(methods: Sequence[str], given: Mapping[str, Any], settings: Sequence[str]) -> tuple[list[Recipe], str]:
    """One recipe per method on the same data, and what was chosen by a look at it, in words.

    A name may say how updates are aggregated (`split_aggregation`). A setting with a bare key goes to every method that
    has this option.
    """
    known = {name: options_of(split_aggregation(name)[0]) for name in methods}
    bare = {setting: keys[0] for setting in settings if len(keys := parse_setting(setting)[0]) == 1}
    for setting, key in bare.items():
        if not any(key in options for options in known.values()):
            raise SelfsameError(f"--set {setting}: none of these methods has an option {key!r}")
    found, words = [], ""
    for name, options in known.items():
        mine = [setting for setting in settings if setting not in bare or bare[setting] in options]
        method, said = split_aggregation(name)
        sums = {"sums": {**given.get("sums", {}), "aggregation": said}} if said else {}
        recipe, words = recipe_for(method, None, {**given, **sums}, mine)
        found.append(replace(recipe, title=recipe.title or short_title(name)))
    return found, words
