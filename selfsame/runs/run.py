"""Runs are begun, gone on with where they stopped, and opened to be looked at: from a recipe or a folder to a `Run`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe, from_mapping, stored_recipe, to_toml
from selfsame.data import DATASETS, Federation
from selfsame.data.federation import SAMPLES, read_samples
from selfsame.data.fingerprint import Fingerprint, check_fingerprint, keep_fingerprint
from selfsame.engine import checkpoint
from selfsame.engine.enrolling import own_templates
from selfsame.engine.groups import initially_present
from selfsame.engine.problem import Problem
from selfsame.engine.ranks.group import ALONE, Ranks
from selfsame.engine.setup import keep_first, prepare, resolve
from selfsame.engine.state import begin, join
from selfsame.errors import SelfsameError
from selfsame.files import read_records, write, write_records
from selfsame.runs.claim import RECORDS, vacant
from selfsame.runs.course import Run
from selfsame.runs.together import as_first

_ENROLLED = 64  # samples of a client that make a template, at most


def new_folder(name: str) -> Path:
    """The next free folder under runs/."""
    for number in range(1, 100000):
        folder = Path("runs") / f"{name}-{number}"
        if not folder.exists():
            return folder
    raise SelfsameError("runs/: too many runs; delete some or name a folder with --out")


def start(
    recipe: Recipe, folder: Path | None = None, federation: Federation | None = None, ranks: Ranks = ALONE
) -> Run:
    """A run before its first round; a folder is created for it, and must not hold another run.

    With several ranks, each calls this, and rank 0 alone has a folder.
    """
    folder = folder if ranks.first else None
    if folder is not None:
        vacant(folder)
    problem = fitting(recipe, federation, ranks)
    state = begin(problem, initially_present(recipe, problem.world.clients))
    as_first(problem, state)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RECORDS).touch()
        _lay_down(problem, folder)  # its recipe is the last: with it there is a run
    return Run(problem, state, folder)


def order(recipe: Recipe, folder: Path) -> None:
    """Write the recipe alone into a new folder: `load_run` begins the run there, in this process or another."""
    vacant(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / RECORDS).unlink(missing_ok=True)  # of one that was killed as it began
    write(folder / "recipe.toml", to_toml(resolve(placed(recipe))).encode())


def _ordered(folder: Path) -> bool:
    """Whether nobody has begun the run there yet."""
    return not (folder / RECORDS).is_file() and not (folder / "checkpoint").is_dir()


def _lay_down(problem: Problem, folder: Path) -> None:
    """What a run keeps of how it began."""
    keep_fingerprint(problem.federation, folder)
    keep_first(problem, folder)
    write(folder / "recipe.toml", to_toml(problem.recipe).encode())


def fitting(recipe: Recipe, federation: Federation | None = None, ranks: Ranks = ALONE) -> Problem:
    """The problem of a run that may begin; what does not fit is said."""
    if recipe.net.digest and not recipe.net.start:
        raise SelfsameError("net.digest: of which file? Name it with net.start")
    if recipe.cohort.late and not recipe.cohort.join_round:
        raise SelfsameError(f"cohort.late: {recipe.cohort.late:g} of the clients join, at which cohort.join_round?")
    problem = prepare(placed(recipe), federation, ranks)
    _check_patience(problem)
    return problem


def _check_patience(problem: Problem) -> None:
    """Early stopping needs something to judge by, and one judge."""
    if not problem.recipe.run.patience:
        return
    if not len(problem.federation.validation.y):
        raise SelfsameError("run.patience: needs samples for validation, e.g. --set data.validation=2")
    if problem.ranks.active:
        raise SelfsameError("run.patience: not with torchrun; train in one process")


def placed(recipe: Recipe, path: Path | None = None) -> Recipe:
    """The recipe with where its data, now or by `path`, and its weights lie, from whatever folder it is read later."""
    where = recipe.data.path if path is None else str(path)
    if where:
        recipe = replace(recipe, data=replace(recipe.data, path=_absolute(where)))
    return replace(recipe, net=replace(recipe.net, start=_absolute(recipe.net.start))) if recipe.net.start else recipe


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _longer(recipe: Recipe, folder: Path, rounds: int) -> Recipe:
    """The recipe with another number of rounds, none of which is past."""
    saved = folder / "checkpoint" / "state.safetensors"
    done = checkpoint.peek(saved)["round"] if saved.is_file() else 0
    if rounds <= done:
        raise SelfsameError(f"--rounds {rounds}: the run has {done:,} behind it; name a larger number")
    return replace(recipe, run=replace(recipe.run, rounds=rounds))


def with_data(recipe: Recipe, folder: Path, path: Path | None = None) -> Recipe:
    """The recipe of a run's folder, if its data is where it says, or at `path`."""
    recipe = recipe if path is None else placed(recipe, path)
    known = DATASETS.get(recipe.data.name)
    if known is not None and known.needs_path and not Path(recipe.data.path or "-").exists():
        where = recipe.data.path or "any place that its recipe names"
        raise SelfsameError(f"{folder}: its data is not at {where}; say where it is now with --path")
    return recipe


def _known(problem: Problem, folder: Path, printed: Callable[[Federation], Fingerprint] = Fingerprint.of) -> Problem:
    """The problem, if its data is that of the run in this folder; what to know about it is among the data's notes."""
    notes = (*problem.federation.notes, *check_fingerprint(printed(problem.federation), folder))
    return replace(problem, federation=replace(problem.federation, notes=notes))


def load_run(
    folder: Path,
    federation: Federation | None = None,
    ranks: Ranks = ALONE,
    trust_code: bool = False,
    path: Path | None = None,
    rounds: int | None = None,
    device: str | None = None,
) -> Run:
    """A run as its folder has it: from the last checkpoint, or from the beginning if there is none yet, or an order.

    `path`: where its data is now, `rounds`: how many it shall have, `device`: where it goes on; its recipe says so from
    then on. With several ranks, each calls this; rank 0 reads the folder and tells the others.
    """
    recipe = placed(stored_recipe(folder, trust_code), path) if ranks.first else Recipe()
    if recipe.net.whitened:
        raise SelfsameError(f"{folder}: whitened when training had ended; go on with the run that it was made of")
    if ranks.first and rounds is not None:
        recipe = _longer(recipe, folder, rounds)
    changed = path is not None or rounds is not None or device not in (None, recipe.run.device)
    if ranks.first and device is not None:
        recipe = replace(recipe, run=replace(recipe.run, device=device))
    if ranks.first and federation is None and not (folder / SAMPLES).is_file():
        with_data(recipe, folder)
    if ranks.active:
        recipe = from_mapping(tomllib.loads(ranks.hear(to_toml(recipe))))
    if (folder / SAMPLES).is_file():
        raise SelfsameError(f"{folder}: a run on devices; `selfsame cluster resume` or `flwr run` goes on with it")
    new = ranks.first and _ordered(folder)
    problem = prepare(recipe, federation, ranks, folder=None if new else folder)
    if new:
        _lay_down(problem, folder)
        (folder / RECORDS).touch()  # the last: until then nobody has begun it
    elif ranks.first:
        problem = _known(problem, folder)
        if changed:
            write(folder / "recipe.toml", to_toml(problem.recipe).encode())
    saved = folder / "checkpoint" / "state.safetensors"
    state = begin(problem, initially_present(recipe, problem.world.clients), blank=saved.is_file())
    if ranks.first and saved.is_file():
        if checkpoint.peek(saved)["present"] == problem.world.clients:
            join(problem, state)
        checkpoint.load_state(state, saved)
    as_first(problem, state)
    if not ranks.first:
        return Run(problem, state)
    found = [one for one in read_records(folder / RECORDS) if one["round"] <= state.round and "seconds" in one]
    write_records(folder / RECORDS, found)
    return Run(problem, state, folder, found, seconds=float(found[-1]["seconds"]) if found else 0.0)


def open_run(
    folder: Path,
    path: Path | None = None,
    device: str | None = None,
    exact: bool = False,
    trust_code: bool = False,
    best: bool = False,
    *,
    as_trained: bool = False,
    federation: Federation | None = None,
    printed: Callable[[Federation], Fingerprint] = Fingerprint.of,
) -> Run:
    """The run as its last checkpoint has it, to be looked at: nothing in the folder is changed or compiled.

    With `exact`, networks run in the precision of their parameters. `best`: the checkpoint that validated best.
    `as_trained`: without the layer of a network that was whitened. `federation`: its data, where it is loaded already,
    and `printed` what is known of its fingerprint, which takes a while.
    """
    recipe = stored_recipe(folder, trust_code)
    if as_trained:
        recipe = replace(recipe, net=replace(recipe.net, whitened=0.0))
    saved = folder / "checkpoint" / (checkpoint.BEST if best else "state.safetensors")
    if best and not saved.is_file():
        raise SelfsameError(f"{folder}: has no best checkpoint; train with samples for validation (data.validation)")
    served = (folder / SAMPLES).is_file()
    if not served and not saved.is_file():
        raise SelfsameError(f"{folder}: has no checkpoint yet; train it with `selfsame resume {folder}`")
    part = replace(recipe.run, compile="off", device=device or recipe.run.device)
    if exact and part.precision != "float64":
        part = replace(part, precision="float32")
    recipe = replace(recipe if path is None else placed(recipe, path), run=part)
    if served:  # what is known of it is the network at its end, in which nothing is constant
        return _open_served(replace(recipe, net=recipe.net.merged), folder)
    problem = _known(prepare(with_data(recipe, folder), federation, folder=folder), folder, printed)
    present = checkpoint.peek(saved)["present"]
    if not 1 <= present <= problem.world.clients:
        raise SelfsameError(f"{saved}: {present} clients had registered, the data has {problem.world.clients}")
    state = begin(problem, present, blank=True)
    checkpoint.load_state(state, saved)
    run = Run(problem, state, folder)
    if recipe.net.whitened:  # the owners' vectors are of the network before
        run.enrolled, run.untrained = enrolled_by_clients(run), not state.round
    return run


def _open_served(recipe: Recipe, folder: Path) -> Run:
    """The network of a run on devices, where the owners' vectors have stayed.

    In their place stand templates that the data's own clients would enrol. Without the data set there is the network.
    """
    try:
        problem = prepare(recipe, folder=folder)
    except SelfsameError:
        if recipe.data.path:
            raise
        problem = prepare(recipe, read_samples(folder / SAMPLES), folder=folder)
    file = folder / "model.safetensors"
    if not file.is_file():
        raise SelfsameError(f"{folder}: the run on devices has not ended; its network is written at the end")
    saved = folder / "checkpoint" / "state.safetensors"
    state = begin(problem, checkpoint.peek(saved)["present"] if saved.is_file() else None, blank=True)
    tensors, _ = checkpoint.read_tensors(file)
    views = problem.model.layout.views(state.theta_P)
    if {name: value.shape for name, value in tensors.items()} != {name: value.shape for name, value in views.items()}:
        raise SelfsameError(f"{file}: does not fit the recipe beside it")
    for name, value in views.items():
        value.copy_(tensors[name])
    state.round = recipe.run.rounds
    run = Run(problem, state, folder)
    run.enrolled = enrolled_by_clients(run)
    return run


def enrolled_by_clients(run: Run) -> Tensor:
    """What clients, or the clients of a class, would enrol with some of their own samples; zeros without samples."""
    problem, federation = run.problem, run.problem.federation
    client_N = torch.arange(run.state.present, device=run.state.theta_P.device)
    rows = client_N if problem.method.row == "client" else problem.world.class_of_N[: run.state.present]
    out_RD = run.state.theta_P.new_zeros(int(rows.max()) + 1, problem.world.dim)
    if federation.empty:
        return out_RD
    row_R, template_RD = own_templates(problem, run.embed, client_N, _ENROLLED)
    out_RD[row_R] = template_RD.to(out_RD.dtype)
    return out_RD
