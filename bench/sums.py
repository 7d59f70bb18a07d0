"""What sums cost in accuracy: clear, masked and enclave; drop-outs with stand-ins; noise; silence; groups.

python bench/sums.py RESULTS.jsonl --data digits --device cpu
python bench/sums.py RESULTS.jsonl --data omniglot --path DATA --device cuda
python bench/sums.py RESULTS.jsonl --table

DATA holds omniglot/images_background and omniglot/images_evaluation. A run is one line of the file, written when it
ends; what the file has already is not run again, and several processes share a file (`selfsame/runs/sharing.py`).
Omniglot: LeNet, 128-d, 200 characters as clients, 20 a round, EER on 659 unseen characters. Digits: 14 clients, 7 a
round, P@1 on test samples.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch

from selfsame.config.presets import make_recipe
from selfsame.config.recipe import Recipe, from_mapping, merged
from selfsame.data import Federation, load
from selfsame.engine.machine import choose_machine, facts
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.engine.sums import noise_spent
from selfsame.runs.course import Run
from selfsame.runs.sharing import finished, share

METHODS: dict[str, dict[str, Any]] = {
    "fedhide": {"alpha": 0.01, "neighbours": 10},
    "feduv": {"code_length": 127, "secrets": "seeded"},
    "fedaws": {},
    "softmax": {},
}
# Updates after the first rounds are 0.1 to 1 long, with numbers up to 0.04; those of softmax, with the class matrix
# among their parameters, up to 2 and 0.4 (the 40 first rounds on Omniglot).
CLIP = {"softmax": {"clip": 2.0, "reach": 0.5}}
OMNIGLOT = {
    "data": {"name": "omniglot"},
    "net": {"name": "lenet", "width": 128},
    "run": {"rounds": 600},
    "cohort": {"size": 20},
    "local": {"batch": 8, "lr": 0.3, "schedule": "cosine"},
    "server": {"optimiser": "momentum", "weight_decay": 5e-4},
    "augment": {"crop": 2},
}
PEOPLE = {"omniglot": {"people": 200, "validation": 0}, "digits": {}}

Tables = dict[str, dict[str, Any]]


def cases(method: str) -> dict[str, Tables]:
    """What is compared, by name; group sizes and rounds are the data set's."""
    short = CLIP.get(method, {"clip": 1.0, "reach": 0.05})
    clip = {"clip": short["clip"]}
    groups, uniform = {"sampling": "groups"}, {"weights": "uniform"}
    masked, enclave = {"aggregation": "masked"}, {"aggregation": "enclave"}
    found: dict[str, Tables] = {
        "clear, random cohorts": {},
        "clear, groups": {"cohort": groups},
        "masked, 32 bits": {"sums": masked},
        "masked, 32 bits, clipped": {"sums": masked | clip},
        "masked, 16 bits, clipped": {"sums": masked | short | {"bits": 16}},
        "enclave, clipped": {"sums": enclave | clip},
    }
    for gone in (0.1, 0.3, 0.6):
        percent = f"{100 * gone:.0f} % gone"
        lost = {"dropout": gone}
        found[f"clear, groups, {percent}"] = {"cohort": groups | lost}
        few = {"least": 2}  # with 60 % gone half of a group seldom answers
        found[f"masked, {percent}, stood in for"] = {"cohort": lost, "sums": masked | clip | few}
        if gone == 0.1:  # where more are gone, no group of 20 is ever whole
            found[f"masked, {percent}, whole groups alone"] = {"cohort": lost, "sums": masked | clip | {"least": 20}}
    for noise in (0.003, 0.01, 0.03, 0.1, 1.0):
        found[f"masked, noise {noise:g}"] = {"cohort": uniform, "sums": masked | clip | {"noise": noise}}
    for quiet in (0.1, 0.3, 0.6):
        found[f"masked, quiet {quiet:g}"] = {"sums": masked | clip | {"quiet": quiet}}
    return found


def order(data: str, method: str, case: str, seed: int, rounds: int | None, device: str) -> Recipe:
    """The recipe of one run."""
    run: dict[str, Any] = {"seed": seed, "device": device, "precision": "float32"}
    run["compile"] = "graphs" if device.startswith("cuda") else "off"
    if rounds is not None:
        run["rounds"] = rounds
    over = merged({"run": run}, cases(method)[case])
    if data == "omniglot":
        return from_mapping(merged(OMNIGLOT, {"method": {"name": method, **METHODS[method]}}, over))
    secrets = {"secrets": "seeded"} if method == "feduv" else {}  # or no two runs would have the same codewords
    return make_recipe(method, None, merged({"data": {"name": data}, "method": secrets, "cohort": {"size": 7}}, over))


def result(recipe: Recipe, federation: Federation) -> dict[str, Any]:
    """Train and look once, at the end."""
    problem = prepare(recipe, federation)
    state = begin(problem)
    engine = Engine(problem, graphs=choose_machine(recipe.run).graphs)
    begun = time.perf_counter()
    plan = make_plan(problem.recipe, 0, recipe.run.rounds, state.present)
    losses = engine.run(state, plan)
    seconds = time.perf_counter() - begun
    finite = bool(torch.isfinite(state.theta_P).all())
    figures = Run(problem, state).evaluate().figures if finite else {}
    spent = noise_spent(problem.recipe, recipe.run.rounds, state.present)
    least = 1 if problem.sums is None else problem.sums.least
    return {
        "p@1": figures.get("p@1"),
        "eer": figures.get("eer"),
        "auroc": figures.get("auroc"),
        "epsilon": None if spent is None else spent.epsilon,
        "released": int((plan.alive_TM.sum(1) >= least).sum()),
        "loss": float(losses[-10:].mean()) if finite else None,
        "refused": int(state.refused),
        "seconds": round(seconds, 2),
        "sums": {name: getattr(problem.recipe.sums, name) for name in ("clip", "reach", "bits", "least")},
    }


def work(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every run's name."""
    for seed, method in product(given.seeds, given.methods):
        for case in cases(method):
            if given.data != "omniglot" and "whole" in case:  # groups of 20 are Omniglot's
                continue
            if given.cases and not case.startswith(tuple(given.cases)):
                continue
            rounds = order(given.data, method, case, seed, given.rounds, given.device).run.rounds
            yield {"data": given.data, "method": method, "case": case, "seed": seed, "rounds": rounds}


def table(runs: Iterable[dict[str, Any]]) -> None:
    """A table for each data set: mean and deviation over seeds, in per cent."""
    runs = list(runs)
    for data in dict.fromkeys(run["data"] for run in runs):
        figure = "eer" if data == "omniglot" else "p@1"
        mine = [run for run in runs if run["data"] == data]
        names = list(dict.fromkeys(run["method"] for run in mine))
        rounds, seeds = sorted({run["rounds"] for run in mine}), sorted({run["seed"] for run in mine})
        print(f"\n{data}: {figure.upper()} %, rounds {rounds}, seeds {seeds}\n\n| | {' | '.join(names)} | epsilon |")
        print("|---|" + "---:|" * (len(names) + 1))
        for case in dict.fromkeys(run["case"] for run in mine):
            row = [[run for run in mine if (run["case"], run["method"]) == (case, name)] for name in names]
            epsilon = next((run["epsilon"] for cell in row for run in cell if run["epsilon"] is not None), None)
            cells = [_cell([run[figure] for run in cell]) for cell in row]
            print(f"| {case} | {' | '.join(cells)} | {'' if epsilon is None else f'{epsilon:.4g}'} |")


def _cell(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "diverged" if values else ""
    spread = f" ± {statistics.stdev(known):.1f}" if len(known) > 1 else ""
    return f"{statistics.mean(known):.1f}{spread}" + (
        f" ({len(values) - len(known)} diverged)" * (len(known) < len(values))
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--data", choices=list(PEOPLE), default="digits")
    parser.add_argument("--path", type=Path, help="where the data set lies")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--cases", nargs="+", default=[], help="only those whose name begins so")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    given = parser.parse_args()
    if given.table:
        table(finished(given.results))
        return
    federation = load(given.data, given.path, **PEOPLE[given.data])

    def one(key: dict[str, Any]) -> dict[str, Any]:
        recipe = order(key["data"], key["method"], key["case"], key["seed"], key["rounds"], given.device)
        found = result(recipe, federation) | {"machine": facts(choose_machine(recipe.run).device)}
        print(*key.values(), *(f"{name} {found[name]}" for name in ("p@1", "eer", "epsilon", "seconds")), flush=True)
        return key | found

    share(given.results, work(given), one)
    table(finished(given.results))


if __name__ == "__main__":
    main()
