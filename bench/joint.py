"""Losses that see the whole round, on unseen people: python bench/joint.py choose|measure|table FILE [options].

FDML's losses in the enclave beside softmax, which has everybody's class vector in the open, and FedCrowd, whose clients
see two sums. What the loss does and what the optimiser does is told apart: the first two have both optimisers.

choose   every setting of every loss's grid (four learning rates times two settings of its own), on people set apart of
         those that are trained on (`for_choosing`), one seed; nothing of the test is looked at. With --after ROUNDS
         only the better half of each grid, by the runs of so many rounds that the file has.
measure  the best setting of each by that, on the whole federation, three seeds, with intervals by person. The control
         beside them is the network as it starts.
table    what is in the file.

Every finished run is a line of the file, and a run that is there is not repeated; several processes share a file
(`selfsame/runs/sharing.py`). The rest of a recipe is that of recipes/DATA.toml. Options as of bench/frontier.py:

    python bench/joint.py choose omniglot.jsonl --data omniglot --path DATA --device cuda --rounds 2500
    python bench/joint.py choose omniglot.jsonl --data omniglot --path DATA --device cuda --after 2500
    python bench/joint.py measure omniglot.jsonl --data omniglot --path DATA --device cuda
    python bench/joint.py choose lfw.jsonl --data lfw --path DATA --device cuda --methods "softmax; semi-hard, Adam"
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import cache
from itertools import product

import frontier
from frontier import (
    RATES,
    UNTRAINED,
    Tables,
    adam,
    all_chosen,
    chosen,
    eer_by_person,
    federation_of,
    figures,
    grid_keys,
    last_tried,
    ran,
    recipe,
    spread,
    tried_with,
    worth,
)

from selfsame.data import Federation
from selfsame.data.choosing import for_choosing
from selfsame.engine.machine import choose_machine, facts
from selfsame.measure.looks import unseen_trials
from selfsame.runs.sharing import finished, share

# The momentum rows have the recipe's server and the learning rates of bench/frontier.py, the others Adam with its own.
MOMENTUM = ("softmax", "FedCrowd")


def _enclave(kind: str, *own: Tables) -> tuple[Tables, tuple[Tables, ...]]:
    return {"name": "fdml", "kind": kind}, own


LOSSES: dict[str, tuple[Tables, tuple[Tables, ...]]] = {
    "softmax": frontier.METHODS["softmax"],
    "softmax, Adam": frontier.METHODS["softmax"],
    "FedCrowd": frontier.METHODS["FedCrowd"],
    "FedCrowd, Adam": frontier.METHODS["FedCrowd"],
    "semi-hard, Adam": _enclave("semi-hard", {"normalise": False}, {"normalise": True}),
    "multi-similarity, Adam": _enclave("multi-similarity", {"beta": 50.0}, {"beta": 20.0}),
    "supervised contrastive, Adam": _enclave("supervised-contrastive", {"temperature": 0.1}, {"temperature": 0.05}),
    "margin softmax, Adam": _enclave("margin-softmax", {"logit_scale": 16.0}, {"logit_scale": 32.0}),
}


def settings(data: str, name: str) -> Iterator[tuple[Tables, float]]:
    """The grid of a loss."""
    if name in MOMENTUM:
        yield from frontier.settings(data, name)
        return
    common, own = LOSSES[name]
    for more, rate in product(own, RATES):
        yield {**common, **more}, rate


def server_of(name: str, rate: float) -> Tables:
    """What of the recipe the optimiser needs: Adam's learning rate is the server's, with the recipe's cosine."""
    return {} if name in MOMENTUM else adam(rate)


def measured(
    args: argparse.Namespace, federation: Federation, name: str, setting: tuple[Tables, float], seed: int
) -> Tables:
    """The figures of one run."""
    method, rate = setting
    order = recipe(args, method, rate, seed, server_of(name, rate))
    run, seconds = ran(name, order, federation)
    machine = facts(choose_machine(run.recipe.run).device)
    scored = unseen_trials(run.problem.method, run.embed, run.problem.federation.unseen, run.problem.federation.trials)
    by_person = {"by person": eer_by_person(scored, "unseen")}
    return {"options": method, "lr": rate, **figures(run), **by_person, "seconds": seconds, "machine": machine}


def choose(args: argparse.Namespace, names: list[str]) -> None:
    federation = cache(lambda: for_choosing(federation_of(args)))
    grids = {name: list(settings(args.data, name)) for name in names}

    def one(key: Tables) -> Tables:
        name = key["method"]
        return measured(args, federation(), name, grids[name][key["setting"]], 0)

    keys = grid_keys(args, grids)
    if args.after is not None:
        better = {name: better_half(args, name, len(grids[name])) for name in names}
        keys = [key for key in keys if key["setting"] in better[key["method"]]]
    share(args.file, keys, one)


def better_half(args: argparse.Namespace, name: str, count: int) -> list[int]:
    """The numbers of a grid's better half by its shorter runs, all of which the file has to have."""
    tried = tried_with(args.file, name, args.after)
    if {line["key"]["setting"] for line in tried} != set(range(count)):
        raise SystemExit(f"{args.file}: {name} was not tried with each of {count} settings and {args.after} rounds")
    ordered = sorted(tried, key=lambda line: worth(args, line), reverse=True)
    return [line["key"]["setting"] for line in ordered[: count // 2]]


def measure(args: argparse.Namespace, names: list[str]) -> None:
    federation, best = cache(lambda: federation_of(args)), all_chosen(args, names)
    if UNTRAINED in names:
        best[UNTRAINED] = (LOSSES["softmax"][0], RATES[0])  # which matter as little as any: cosines, and no step

    def one(key: Tables) -> Tables:
        name = key["method"]
        return measured(args, federation(), name, best[name], key["seed"])

    asked = {"phase": "measure", "data": args.data, "rounds": args.rounds}
    share(args.file, [{**asked, "method": name, "seed": s} for s, name in product(range(args.seeds), best)], one)


def table(args: argparse.Namespace) -> None:
    lines = finished(args.file)
    print("| loss | EER, people set apart | EER, unseen | EER, seen | P@1 | chosen | seeds |")
    print("|---|---:|---:|---:|---:|---|---:|")
    for name in (*LOSSES, UNTRAINED):
        here = [line for line in lines if line["key"]["method"] == name]
        tried = [line["eer"] for line in last_tried(args, name) if line["eer"] is not None]
        some = [line for line in here if line["key"]["phase"] == "measure"]
        best = chosen(args, name)
        if best is None and not some:
            continue
        cells = [spread([line[what] for line in some]) for what in ("eer", "eer_seen", "p@1")]
        apart = f"{100 * min(tried):.1f}" if tried else "-"
        said = "-"
        if best is not None:
            own = ", ".join(f"{key} {value}" for key, value in best[0].items() if key not in ("name", "kind"))
            said = f"lr {best[1]:g}, {own}"
        print(f"| {name} | {apart} | {' | '.join(cells)} | {said} | {len(some)} |")


def main() -> None:
    parser = frontier.options(__doc__)
    parser.add_argument("--after", type=int, metavar="ROUNDS", help="only the better half by runs of so many rounds")
    args = parser.parse_args()
    names = frontier.asked(args, (*LOSSES, UNTRAINED) if args.what == "measure" else LOSSES)
    if args.what == "table":
        table(args)
    else:
        (choose if args.what == "choose" else measure)(args, names)


if __name__ == "__main__":
    main()
