"""A recipe file as an experiment: variants, a grid over options, several seeds, and the paper's figures beside them."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from selfsame.config.exhibits import FIXED, NO_NEGATIVES
from selfsame.config.recipe import (
    PARTS,
    Recipe,
    apply_settings,
    from_mapping,
    merged,
    name_of,
    parse_setting,
    read_toml,
)
from selfsame.errors import SelfsameError
from selfsame.fields import at_least, read_fields, short_name, typed

_NO_MATTER = ("data.path", "net.start", "run.seed", "run.device", "run.compile", "run.checkpoint_every")
SHARES = ("method", "net", "data")  # parts whose options belong to what they name


@dataclass(frozen=True)
class Figure:
    """How a figure is printed: its label, and the factor and digits that turn a run's number into the paper's."""

    label: str
    factor: float = 100.0
    digits: int = 1


FIGURES = {
    "p@1": Figure("P@1 %"),
    "p@3": Figure("P@3 %"),
    "p@5": Figure("P@5 %"),
    "one_class_auroc": Figure("one-class AUROC %"),
    "auroc_seen": Figure("AUROC seen %"),
    "eer_seen": Figure("EER seen %"),
    "auroc": Figure("AUROC new %"),
    "eer": Figure("EER new %"),
    "leak": Figure("leak (17) %"),
    "recovered": Figure("recovered %"),
    "p@1_shared": Figure("P@1 by the shared %"),
    "cos_mean": Figure("cosine to proxy", 1.0, 2),
    "cos_std": Figure("its deviation", 1.0, 2),
    "vii_c": Figure("accuracy (VII-C) %"),
}
PORTIONS = (
    20,
    10,
    10,
    10,
)  # FDML, section VII-C: samples for template, threshold and test; users for each of the last two


@dataclass(frozen=True)
class Paper:
    """What a paper reports of a variant, in the units it prints: {figure: (value, spread or None)}."""

    figures: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    where: str = ""  # which table or figure of which paper
    rounds: int | None = None  # None: as many as the recipe file says; 0: the paper does not say
    about: bool = False  # read off a plot
    chosen: str = ""  # how the settings were chosen, a sentence without its full stop
    portions: tuple[int, int, int, int] = PORTIONS  # what these data have for the accuracy of FDML's section VII-C


@dataclass(frozen=True)
class Variant:
    """One row of the experiment's table: a recipe, run once per seed."""

    number: int  # counts from 1 and names the folder
    title: str
    recipe: Recipe
    seeds: tuple[int, ...]
    paper: Paper
    own_rounds: int  # what the file says, whatever the command line does
    name: str = ""  # of its folders; empty: by number and method
    control: str = ""  # what it shows beside the paper's variants; empty: it is one of these
    untrained: bool = False  # measured before the first round
    digest: str = ""  # of what decides its figures in the file; a control has that of the variant it stands beside
    quoted: bool = False  # the paper's figures of what is not run here: it has no seeds
    oracle: bool = False  # not federated: its method is fitted at once to all rows with all their labels

    @property
    def trained(self) -> bool:
        """Whether it has rounds."""
        return not (self.untrained or self.quoted or self.oracle)


@dataclass(frozen=True)
class Job:
    """One run of a variant, and where it lies."""

    variant: Variant
    recipe: Recipe
    folder: Path

    @property
    def title(self) -> str:
        """The variant's, with the seed where there are several."""
        alone = len(self.variant.seeds) == 1
        return self.variant.title if alone else f"{self.variant.title}, seed {self.recipe.run.seed}"


@dataclass(frozen=True)
class Experiment:
    """A recipe file, read and checked."""

    file: Path
    variants: tuple[Variant, ...]
    first_seed: int  # its runs have the plain folder names, so that seeds can be added later
    flat: bool  # a single run lies in the folder itself
    quoted: tuple[Variant, ...] = ()  # rows of the paper's that are not run here
    oracles: tuple[Variant, ...] = ()  # rows that are fitted beside the runs

    @property
    def rows(self) -> tuple[Variant, ...]:
        """What is run and what is fitted."""
        return (*self.variants, *self.oracles)

    def jobs(self, folder: Path) -> list[Job]:
        """Every run, variant by variant, then every fit of an oracle."""
        out = []
        for variant in self.rows:
            for seed in variant.seeds:
                name = variant.name or f"{variant.number:02d}-{short_name(variant.recipe.method.name)}"
                name += "" if seed == self.first_seed else f"-seed{seed}"
                plan = replace(variant.recipe, run=replace(variant.recipe.run, seed=seed))
                out.append(Job(variant, plan, folder if self.flat else folder / name))
        return out

    def select(self, titles: Iterable[str]) -> list[Variant]:
        """The rows of these titles; a text that is no whole title stands for all titles that hold it."""
        chosen: list[Variant] = []
        for wanted in titles:
            exact = [v for v in self.rows if v.title == wanted]
            found = exact or [v for v in self.rows if wanted.lower() in v.title.lower()]
            if not found:
                known = "; ".join(v.title for v in self.rows)
                raise SelfsameError(
                    f"--only {wanted}: no variant of {self.file} has this in its title; there are: {known}"
                )
            chosen += [v for v in found if v not in chosen]
        return [variant for variant in self.rows if variant in chosen or not chosen]


def read_experiment(file: Path, given: Mapping[str, Any] | None = None, settings: Sequence[str] = ()) -> Experiment:
    """The experiment of a recipe file; `given` tables and key=value `settings` are laid over every variant."""
    tables = read_toml(file)
    variants, grid, paper = tables.pop("variant", [{}]), tables.pop("grid", {}), tables.pop("paper", {})
    if not isinstance(variants, list) or not variants or not all(isinstance(v, dict) for v in variants):
        raise SelfsameError(f"{file}: variant must be an array of tables: [[variant]]")
    quoted, oracles = tables.pop("quoted", []), tables.pop("oracle", [])
    seeds = _seeds(file, tables.pop("seeds")) if "seeds" in tables else ()
    base = from_mapping(tables)
    found: list[Variant] = []
    for variant in variants:
        control = _control(file, variant)
        own = {key: variant[key] for key in variant if key not in ("grid", "paper", "control")}
        from_mapping(own)
        whole = inherit(tables, {"title": control, **own} if control else own)
        points = _points(file, _both(file, "grid", grid, variant))
        papers = _papers(file, _both(file, "paper", paper, variant), len(points))
        for point, reported in zip(points, papers, strict=True):
            laid = lay(whole, point)
            if point:
                before = whole.get("title") or name_of(from_mapping(whole))
                laid["title"] = ", ".join([before, *(f"{key.split('.')[-1]} {value}" for key, value in point.items())])
            rounds = from_mapping(laid).run.rounds
            plan = from_mapping(apply_settings(merged(laid, given or {}), settings))
            mine = (plan.run.seed,) if not seeds or _sets_seed(settings) else seeds
            tied = recipe_digest(laid, reported.portions)
            found.append(
                Variant(len(found) + 1, name_of(plan), plan, mine, reported, rounds, control=control, digest=tied)
            )
    rows = _quoted(file, quoted, paper, base)
    beside = _oracles(file, oracles, paper, (tables, given or {}, settings), seeds)
    titles = [variant.title for variant in (*found, *rows, *beside)]
    if twice := next((title for title in titles if titles.count(title) > 1), None):
        raise SelfsameError(f"{file}: two variants are called {twice!r}; give each a title of its own")
    first = seeds[0] if seeds else base.run.seed
    alone = len(found) == 1 and len(seeds) <= 1 and not beside
    return Experiment(file, tuple(found), first, alone, rows, beside)


def _control(file: Path, variant: Mapping[str, Any]) -> str:
    """Which control of ours a variant is, or none."""
    if (control := variant.get("control", "")) not in ("", FIXED, NO_NEGATIVES):
        raise SelfsameError(f'{file}: control: expected "{FIXED}" or "{NO_NEGATIVES}", got {control!r}')
    said = typed(f"{file}: [paper]", variant.get("paper", {}), dict[str, Any])
    if control and ("grid" in variant or set(said) - {"chosen"}):
        raise SelfsameError(f"{file}: a control is ours: it has no grid, and in a paper table nothing but chosen")
    return str(control)


def recipe_digest(tables: Mapping[str, Any], portions: Sequence[int] = PORTIONS) -> str:
    """SHA-256 of what a recipe's tables say that decides figures: not of titles, seeds, places or machines."""
    kept = {name: deciding(part) for name, part in decided(tables).items()}
    words = json.dumps([kept, deciding(list(portions))], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(words.encode()).hexdigest()


def decided(tables: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The parts of a recipe without what decides no figure; empty ones are left out."""
    parts = {
        name: {key: value for key, value in part.items() if f"{name}.{key}" not in _NO_MATTER}
        for name, part in tables.items()
        if isinstance(part, Mapping)
    }
    return {name: part for name, part in parts.items() if part}


def deciding(value: Any) -> Any:
    """A value in one spelling: 10 and 10.0 are the same."""
    if isinstance(value, Mapping):
        return {str(key): deciding(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [deciding(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _quoted(file: Path, given: Any, common: Any, base: Recipe) -> tuple[Variant, ...]:
    """The rows of [[quoted]]: a title and what the paper reports, with figures."""
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise SelfsameError(f"{file}: quoted must be an array of tables: [[quoted]]")
    out = []
    for one in given:
        title = typed(f"{file}: quoted.title", one.get("title", ""), str)
        reported = read_paper(file, {**_both(file, "paper", common, one), "chosen": ""})
        if set(one) != {"title", "paper"} or not title or not reported.figures:
            raise SelfsameError(
                f"{file}: [[quoted]]: expected a title and a paper table with figures, and nothing else"
            )
        out.append(Variant(0, title, base, (), reported, 0, quoted=True))
    return tuple(out)


def _oracles(
    file: Path,
    given: Any,
    common: Any,
    told: tuple[Mapping[str, Any], Mapping[str, Any], Sequence[str]],
    seeds: tuple[int, ...],
) -> tuple[Variant, ...]:
    """The rows of [[oracle]]: a title, a method with its settings, and what the paper reports of it.

    `told`: the file's tables, those of the command line and its settings, of which the data and the seeds hold for
    oracles too. How the variants' settings were chosen says nothing of theirs.
    """
    if not isinstance(given, list) or not all(isinstance(one, dict) for one in given):
        raise SelfsameError(f"{file}: oracle must be an array of tables: [[oracle]]")
    tables, more, settings = told
    own = [one for one in settings if parse_setting(one)[0][0] == "data" or _sets_seed([one])]
    out: list[Variant] = []
    for one in given:
        title = typed(f"{file}: oracle.title", one.get("title", ""), str)
        if not title or "method" not in one or set(one) - {"title", "method", "paper"}:
            raise SelfsameError(f"{file}: [[oracle]]: expected a title, a method and a paper table, and nothing else")
        laid = {"title": title, "method": one["method"], "data": tables.get("data", {})}
        seed = {"seed": tables.get("run", {}).get("seed", 0)}
        plan = from_mapping(apply_settings(merged({**laid, "run": seed}, {"data": more.get("data", {})}), own))
        reported = read_paper(file, _both(file, "paper", {**common, "chosen": ""}, one))
        mine = (plan.run.seed,) if not seeds or _sets_seed(own) else seeds
        number, digest = len(out) + 1, recipe_digest(laid, reported.portions)
        name = f"oracle-{number:02d}-{short_name(plan.method.name)}"
        out.append(Variant(number, title, plan, mine, reported, 0, name, digest=digest, oracle=True))
    return tuple(out)


def shortened(experiment: Experiment, share: float) -> Experiment:
    """Every variant with this share of its rounds, evaluated as often."""

    def part(variant: Variant) -> Variant:
        run = variant.recipe.run
        rounds, every = (max(1, round(share * number)) if number else 0 for number in (run.rounds, run.eval_every))
        return replace(variant, recipe=replace(variant.recipe, run=replace(run, rounds=rounds, eval_every=every)))

    return replace(experiment, variants=tuple(map(part, experiment.variants)))


def inherit(tables: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any]:
    """The variant over the file's own tables; another method, network or data set does not inherit options."""
    whole = merged(tables, variant)
    for part in SHARES:
        own = variant.get(part, {})
        if "name" in own and own["name"] != tables.get(part, {}).get("name"):
            whole[part] = dict(own)
    return whole


def _both(file: Path, name: str, common: Any, variant: Mapping[str, Any]) -> dict[str, Any]:
    """A table of the file and, over it, the variant's own of this name."""
    where, kind = f"{file}: [{name}]", dict[str, Any]
    return typed(where, common, kind) | typed(where, variant.get(name, {}), kind)


def lay(tables: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    """The tables with the values of one point of a grid, whose keys are like local.lr."""
    return merged(tables, *({key.split(".")[0]: {key.split(".")[1]: value}} for key, value in point.items()))


def read_paper(file: Path, table: Mapping[str, Any]) -> Paper:
    """A [paper] table: known figures, each a number or [number, spread], and where, rounds, about, chosen, portions."""
    facts = {key: value for key, value in table.items() if key in ("where", "rounds", "about", "chosen", "portions")}
    paper = read_fields(f"{file}: paper", facts, Paper)
    at_least(f"{file}: paper.rounds", paper.rounds or 0, 0)
    at_least(f"{file}: paper.portions", min(paper.portions), 1)
    figures = {key: _reported(file, key, value) for key, value in table.items() if key not in facts}
    return replace(paper, figures=figures)


def paper_table(paper: Paper, rounds: int) -> dict[str, Any]:
    """The [paper] table from which `read_paper` makes the same, of a variant that the paper trained for `rounds`."""
    figures = {key: value if spread is None else [value, spread] for key, (value, spread) in paper.figures.items()}
    facts = {"where": paper.where, "rounds": rounds if paper.rounds is None else paper.rounds, "about": paper.about}
    told: dict[str, Any] = {**figures, **facts, "chosen": paper.chosen, "portions": list(paper.portions)}
    return {} if paper == Paper() else {key: value for key, value in told.items() if value != _DEFAULTS.get(key)}


_DEFAULTS: dict[str, Any] = {"where": "", "chosen": "", "about": False, "portions": list(PORTIONS)}


def _papers(file: Path, table: Mapping[str, Any], count: int) -> list[Paper]:
    """What the paper reports of each point of a grid; `each` has lists, one entry a point in turn."""
    rest = dict(table)
    each = typed(f"{file}: paper.each", rest.pop("each", {}), dict[str, Any])
    for key, values in each.items():
        if not isinstance(values, list) or len(values) != count:
            raise SelfsameError(f"{file}: paper.each.{key}: expected a list of {count}, one for each point of the grid")
    return [read_paper(file, rest | {key: values[n] for key, values in each.items()}) for n in range(count)]


def _reported(file: Path, key: str, value: Any) -> tuple[float, float | None]:
    if key not in FIGURES:
        raise SelfsameError(f"{file}: paper.{key}: unknown figure; known: {', '.join(FIGURES)}")
    pair = value if isinstance(value, list) else [value]
    try:
        found = typed(key, pair, tuple[float, float] if len(pair) == 2 else tuple[float])
    except SelfsameError:
        raise SelfsameError(f"{file}: paper.{key}: expected a number or [number, spread], got {value!r}") from None
    return found[0], found[1] if len(found) == 2 else None


def _seeds(file: Path, given: Any) -> tuple[int, ...]:
    seeds: tuple[int, ...] = typed(f"{file}: seeds", given, tuple[int, ...])
    if not seeds or len(set(seeds)) < len(seeds):
        raise SelfsameError(f"{file}: seeds: expected a list of different seeds, got {given!r}")
    return seeds


def _sets_seed(settings: Iterable[str]) -> bool:
    return any(parse_setting(setting)[0] == ["run", "seed"] for setting in settings)


def _points(file: Path, grid: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every combination of the grid's values; none given is one empty point."""
    for key, values in grid.items():
        part = key.split(".")
        if len(part) != 2 or part[0] not in PARTS:
            raise SelfsameError(f'{file}: [grid] {key}: expected a quoted key like "method.alpha" or "local.lr"')
        if part == ["run", "seed"]:
            raise SelfsameError(f"{file}: [grid] run.seed: use seeds = [0, 1, 2] at the top of the file")
        if not isinstance(values, list) or not values:
            raise SelfsameError(f"{file}: [grid] {key}: expected a list of values, got {values!r}")
    return [dict(zip(grid, point, strict=True)) for point in itertools.product(*grid.values())]
