"""FedUV's Figs. 3 and 4, every method tuned alike: python bench/feduv.py choose|measure|course|table|draw FILE.

choose   eight learning rates of every method, on people set apart of those that are trained on (`for_choosing`), one
         seed; nothing of the test is looked at.
measure  Fig. 4: the best learning rate of each, on the whole federation, three seeds: EER and the ROC curve on the
         clients' own samples, on their test samples, and on unseen people who enrol with half of their samples, with
         intervals by person. The control beside them is the network as it starts.
course   Fig. 3: FedUV(127) with and without the negative term, P@1 on test and training samples over the rounds; once
         with everybody from the start, once with a fifth of the users joining half-way. With --by p@1 each has the rate
         that is best for what the figure shows, P@1 on validation samples of those who train.
table    what is in the file.
draw     Fig. 4 from this file and those of --more, and Fig. 3 from this one, as --picture and the same with -rounds.

Every finished run is a line of the file; several processes share it (`selfsame/runs/sharing.py`). The rest of a recipe
is that of recipes/DATA.toml, or --recipe; for MNIST-UV that is the network of the paper's Table 2:

    python bench/feduv.py choose writers.jsonl --data mnist_uv --recipe mnist-writers --path DATA --device cuda
    python bench/feduv.py measure writers.jsonl --data mnist_uv --recipe mnist-writers --path DATA --device cuda
    python bench/feduv.py draw writers.jsonl --more speakers.jsonl faces.jsonl --picture feduv.svg
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import frontier
import numpy as np
from frontier import (
    UNTRAINED,
    Tables,
    all_chosen,
    eer_by_person,
    federation_of,
    figures,
    grid_keys,
    ran,
    recipe,
    spread,
    trained,
)

from selfsame.data import Federation
from selfsame.data.choosing import for_choosing
from selfsame.engine.machine import choose_machine, facts
from selfsame.measure.curves import roc
from selfsame.measure.protocols import PROTOCOLS, Bench
from selfsame.runs.course import Run
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.sharing import finished, share

RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
NEGATIVES = "FedUV(127), negatives"  # lambda of (3), which the paper does not give, is 1
LESS = {f"{NEGATIVES}, lambda {weight:g}": weight for weight in (0.1, 0.01)}
METHODS: dict[str, Tables] = {
    "softmax": {"name": "softmax"},
    "FedAwS": {"name": "fedaws"},
    **{f"FedUV({c})": {"name": "feduv", "secrets": "seeded", "code_length": c} for c in (127, 255, 511)},
    NEGATIVES: {"name": "feduv-negative", "secrets": "seeded", "code_length": 127},
    **{
        name: {"name": "feduv-negative", "secrets": "seeded", "code_length": 127, "negative_weight": weight}
        for name, weight in LESS.items()
    },
}
IN_COURSE = ("FedUV(127)", NEGATIVES, *LESS)
IN_ROC = [name for name in METHODS if name not in (NEGATIVES, *LESS)]
JOINING = {"everybody from the start": {}, "a fifth joins half-way": {"late": 0.2}}
GROUPS = {"training samples": "training", "test samples": "test", "unseen, enrolled": "new users"}
FPR = np.concatenate([[0.0], np.logspace(-3, 0, 61)])  # where a curve is kept
POINTS = 20  # of a course, or one more
TITLES = {"mnist_uv": "MNIST-UV", "audiomnist": "AudioMNIST", "lfw": "LFW"}
PULLS = dict(zip(IN_COURSE, ("#1565c0", "#c2185b", "#ef6c00", "#8e24aa"), strict=True))
COLOURS = {UNTRAINED: "#bdbdbd", "softmax": "#37474f", "FedAwS": "#ef6c00", "FedUV(127)": "#90caf9",
           "FedUV(255)": "#42a5f5", "FedUV(511)": "#0d47a1"}  # fmt: skip


def choose(args: argparse.Namespace, names: list[str]) -> None:
    federation = cache(lambda: for_choosing(federation_of(args)))

    def one(key: Tables) -> Tables:
        method, rate = METHODS[key["method"]], RATES[key["setting"]]
        run, seconds = trained(recipe(args, method, rate, 0, {}), federation())
        return {"options": method, "lr": rate, **figures(run), "seconds": seconds}

    share(args.file, grid_keys(args, dict.fromkeys(names, RATES)), one)


def measure(args: argparse.Namespace, names: list[str]) -> None:
    federation, best = cache(lambda: federation_of(args)), all_chosen(args, names)
    if UNTRAINED in names:
        best[UNTRAINED] = (METHODS["FedAwS"], RATES[0])  # which matter as little as any: cosines, and no step
    asked = {"phase": "measure", "data": args.data, "rounds": args.rounds}
    shown = (*IN_ROC, UNTRAINED)
    keys = [{**asked, "method": name, "seed": s} for s, name in product(range(args.seeds), best) if name in shown]

    def one(key: Tables) -> Tables:
        method, rate = best[key["method"]]
        order = recipe(args, method, rate, key["seed"], {})
        run, seconds = ran(key["method"], order, federation())
        machine = facts(choose_machine(run.recipe.run).device)
        return {"options": method, "lr": rate, **figures(run), **curves(run), "seconds": seconds, "machine": machine}

    share(args.file, keys, one)


def curves(run: Run) -> Tables:
    """EER, its interval by person and the ROC curve in each of the figure's three groups."""
    bench = Bench(run.problem.method, run.problem.federation, run.world, run.truth().detach(), run.embed, False, 0, 0)
    found: Tables = {}
    for name in GROUPS:
        scored = PROTOCOLS[name](bench).scored
        curve = roc(scored.genuine, scored.impostor)
        found[name] = {
            "eer": curve.eer,
            **eer_by_person(scored, name),
            "tpr": [round(float(y), 5) for y in np.interp(FPR, curve.fpr, curve.tpr)],
        }
    return found


def course(args: argparse.Namespace, names: list[str]) -> None:
    federation, best = cache(lambda: federation_of(args)), all_chosen(args, list(IN_COURSE))
    asked = {"phase": "course", "data": args.data, "rounds": args.rounds, **judged(args)}
    cases = product(range(args.seeds), (name for name in best if name in names), JOINING)
    keys = [{**asked, "method": name, "users": users, "seed": seed} for seed, name, users in cases]

    def one(key: Tables) -> Tables:
        method, rate = best[key["method"]]
        return followed(args, method, rate, key["seed"], JOINING[key["users"]], federation())

    share(args.file, keys, one)


def judged(args: argparse.Namespace) -> Tables:
    """What tells courses of rates that another figure chose."""
    return {} if args.by == "eer" else {"by": args.by}


def followed(
    args: argparse.Namespace, method: Tables, rate: float, seed: int, joining: Tables, federation: Federation
) -> Tables:
    """P@1 on test and training samples over the rounds of one run."""
    rounds = recipe(args, method, rate, seed, {}).run.rounds
    more = {"cohort": {**joining, "join_round": rounds // 2}} if joining else {}
    order = recipe(args, method, rate, seed, more)
    watched = replace(order.run, eval_every=max(1, rounds // POINTS), training_figures=True)
    run = carry_on(start(replace(order, run=watched), federation=federation))
    points = [{"round": one["round"], "test": one["p@1"], "training": one["train_p@1"]} for one in run.history]
    return {"options": method, "lr": rate, "points": points, "machine": facts(run.problem.model.device)}


def table(args: argparse.Namespace) -> None:
    lines = finished(args.file)
    print(
        "| method | EER, people set apart | lr | " + " | ".join(f"EER, {one}" for one in GROUPS.values()) + " | seeds |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|")
    rates = {name: f"{rate:g}" for name, (_, rate) in all_chosen(args, METHODS).items()}
    for name, rate in {**rates, UNTRAINED: "-"}.items():
        here = [line for line in lines if line["key"]["method"] == name]
        tried = [line["eer"] for line in here if line["key"]["phase"] == "choose" and line["eer"] is not None]
        some = [line for line in here if line["key"]["phase"] == "measure"]
        cells = [spread([line[group]["eer"] for line in some]) for group in GROUPS]
        apart = f"{100 * min(tried):.1f}" if tried else "-"
        print(f"| {name} | {apart} | {rate} | {' | '.join(cells)} | {len(some)} |")
    courses = [line for line in lines if _is(line, "course") and line["key"].get("by", "eer") == args.by]
    print("\n| method | users | P@1 test, a quarter of the rounds | at the end | P@1 training, at the end | seeds |")
    print("|---|---|---:|---:|---:|---:|")
    for name, users in product(IN_COURSE, JOINING):
        some = [line["points"] for line in courses if (line["key"]["method"], line["key"]["users"]) == (name, users)]
        if not some:
            continue
        cells = [
            spread([points[place][what] for points in some])
            for place, what in ((POINTS // 4 - 1, "test"), (-1, "test"), (-1, "training"))
        ]
        print(f"| {name} | {users} | {' | '.join(cells)} | {len(some)} |")


def draw(args: argparse.Namespace) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    plt.rcParams |= {"svg.fonttype": "none", "font.size": 9, "svg.hashsalt": "selfsame"}
    lines = [line for file in (args.file, *args.more) for line in finished(file)]
    sets = [data for data in TITLES if any(line["key"]["data"] == data for line in lines if _is(line, "measure"))]
    figure, axes = plt.subplots(len(sets), 3, figsize=(9.6, 3 * len(sets)), squeeze=False, layout="constrained")
    for (row, data), (column, group) in product(enumerate(sets), enumerate(GROUPS)):
        _curves(
            axes[row][column], [line for line in lines if _is(line, "measure") and line["key"]["data"] == data], group
        )
        axes[row][column].set_title(f"{TITLES[data]}, {GROUPS[group]}")
    axes[0][0].legend(frameon=False)
    figure.savefig(args.picture, metadata={"Date": None, "Creator": None})
    plt.close(figure)
    courses = [line for line in finished(args.file) if _is(line, "course") and line["key"].get("by", "eer") == args.by]
    if not courses:
        return
    figure, axes = plt.subplots(1, 2, figsize=(8.2, 3.3), squeeze=False, sharey=True, layout="constrained")
    for axis, users in zip(axes[0], JOINING, strict=True):
        for name, what in product(IN_COURSE, ("test", "training")):
            some = [
                line["points"] for line in courses if (line["key"]["method"], line["key"]["users"]) == (name, users)
            ]
            if some:
                mean = [100 * float(np.mean([point[what] for point in points])) for points in zip(*some, strict=True)]
                style = {"ls": "-" if what == "test" else ":", "color": PULLS[name]}
                axis.plot([point["round"] for point in some[0]], mean, label=f"{name}, {what}", **style)
        axis.set(title=users, xlabel="round")
    axes[0][0].set_ylabel("P@1, %")
    axes[0][0].legend(frameon=False)
    figure.savefig(args.picture.with_stem(f"{args.picture.stem}-rounds"), metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _is(line: Tables, phase: str) -> bool:
    return line["key"]["phase"] == phase


def _curves(axis: Any, lines: list[Tables], group: str) -> None:
    """The mean curve of each method's seeds."""
    for name in (*IN_ROC, UNTRAINED):
        some = [line[group]["tpr"] for line in lines if line["key"]["method"] == name]
        if some:
            axis.plot(100 * FPR[1:], 100 * np.mean(some, 0)[1:], color=COLOURS[name], label=name, lw=1.2)
    axis.set(xscale="log", xlabel="FPR, %", ylabel="TPR, %")


def main() -> None:
    parser = frontier.options(__doc__, ("choose", "measure", "course", "table", "draw"))
    parser.add_argument("--more", type=Path, nargs="*", default=[], help="files of other data sets")
    parser.add_argument("--picture", type=Path, default=Path("feduv.svg"))
    args = parser.parse_args()
    if args.what == "table":
        table(args)
    elif args.what == "draw":
        draw(args)
    else:
        known = (*METHODS, UNTRAINED) if args.what == "measure" else METHODS
        {"choose": choose, "measure": measure, "course": course}[args.what](args, frontier.asked(args, known))


if __name__ == "__main__":
    main()
