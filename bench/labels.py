"""FedAwS's Tables 3 and 4 on sets that fit: python bench/labels.py choose FILE --which bibtex.

Delicious, bibtex or corel5k, a label per client, the network of the paper; all true labels of a row count.

choose   twelve settings of every method: momentum at four learning rates, Adagrad at four, and by layer as in the paper
         (the word table by plain steps at a large learning rate, the others by Adagrad) at four. They are judged by P@1
         of a tenth of the training rows; nothing of the test is loaded.
lengths  the best of each at a third and at three times the rounds as well, judged by the same rows.
own      the best of each at the length that is best by that, where it is another, on all training rows, three seeds.
measure  the best of each by that, on all training rows, three seeds: Table 3.
curve    FedAwS's best over k and lambda, three seeds: Table 4.
table    what is in the file.

Every finished run is a line of the file; several processes share it (`selfsame/runs/sharing.py`).

    python bench/labels.py choose bibtex.jsonl --which bibtex --path DATA --device cuda
    python bench/labels.py measure bibtex.jsonl --which bibtex --path DATA --device cuda
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Callable
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

from frontier import ROOT, spread, trained

from selfsame.config.recipe import Recipe, from_mapping, merged
from selfsame.data import Federation, load
from selfsame.engine.machine import choose_machine, facts
from selfsame.runs.sharing import finished, share

Tables = dict[str, Any]
SETS = {"delicious": 256, "bibtex": 159, "corel5k": 256}  # clients in a round
METHODS: dict[str, Tables] = {
    "Baseline-1": {"name": "positive-only"},
    "Baseline-2": {"name": "fixed"},
    "softmax": {"name": "softmax"},
    "FedAwS": {"name": "fedaws", "neighbours": 10, "spread_weight": 10.0},
}
_STEEP = 10.0  # softmax, whose derivatives are smaller, has learning rates that are so many times larger
_MOMENTUM = [
    {"local": {"lr": rate, "schedule": "cosine"}, "server": {"optimiser": "momentum"}} for rate in (0.03, 0.1, 0.3, 1.0)
]
_ADAGRAD = [{"server": {"optimiser": "adagrad", "lr": rate, "schedule": "cosine"}} for rate in (0.003, 0.01, 0.03, 0.1)]
_LAYERS = [
    {"server": {"optimiser": "adagrad", "lr": rate, "schedule": "cosine", "plain": ["embedding"], "plain_lr": plain}}
    for rate, plain in product((0.01, 0.03), (1e4, 1e5))
]
SETTINGS: list[Tables] = [*_MOMENTUM, *_ADAGRAD, *_LAYERS]
KINDS = ["momentum"] * 4 + ["Adagrad"] * 4 + ["by layer"] * 4
CURVE = [(k, weight) for k, weight in product((1, 10, 100), (1.0, 10.0, 100.0)) if 10 in (k, weight)]
PS = ("p@1", "p@3", "p@5")


def recipe(args: argparse.Namespace, method: Tables, setting: Tables, seed: int, rounds: int = 0) -> Recipe:
    tables = tomllib.loads((ROOT / "recipes" / "xc-bibtex.toml").read_text())
    tables = {name: part for name, part in tables.items() if name != "variant"}
    tables["local"] = {"steps": 1, "batch": 16, "lr": 0.1}
    graphs = "graphs" if args.device.startswith("cuda") else "off"
    run = {"seed": seed, "device": args.device, "rounds": rounds or args.rounds, "compile": graphs, "eval_every": 0}
    over = {"method": method, "run": run, "data": {"which": args.which}, "cohort": {"size": SETS[args.which]}}
    tables = merged(merged(tables, over), setting)
    if method["name"] == "softmax" and setting["server"]["optimiser"] == "momentum":
        tables["local"]["lr"] *= _STEEP
    return from_mapping(tables)


def measured(
    args: argparse.Namespace, federation: Federation, method: Tables, number: int, seed: int, rounds: int = 0
) -> Tables:
    """The figures of one run."""
    run, seconds = trained(recipe(args, method, SETTINGS[number], seed, rounds), federation)
    found, machine = run.evaluate().figures, facts(choose_machine(run.recipe.run).device)
    return {"setting": number, **{name: found[name] for name in PS}, "seconds": seconds, "machine": machine}


def data_of(args: argparse.Namespace, **more: str) -> Callable[[], Federation]:
    return cache(lambda: load("xc", args.path, which=args.which, **more))


def choose(args: argparse.Namespace) -> None:
    federation = data_of(args, apart="samples")
    keys = [
        {**_asked(args, "choose", name), "setting": number} for name, number in product(METHODS, range(len(SETTINGS)))
    ]
    share(args.file, keys, lambda key: measured(args, federation(), METHODS[key["method"]], key["setting"], 0))


def chosen(args: argparse.Namespace, name: str) -> int | None:
    """The setting with most P@1 on the rows set apart, once all were tried."""
    wanted = _asked(args, "choose", name)
    tried = [line for line in finished(args.file) if wanted.items() <= line["key"].items()]
    if len(tried) < len(SETTINGS):
        return None
    return int(max(tried, key=lambda line: line["p@1"])["setting"])


def best_of(args: argparse.Namespace) -> dict[str, int]:
    """The chosen setting of every method that has one."""
    found = {name: chosen(args, name) for name in METHODS}
    return {name: number for name, number in found.items() if number is not None}


def lengths(args: argparse.Namespace) -> None:
    federation, best = data_of(args, apart="samples"), best_of(args)
    names = _named(args, list(best))
    keys = [{**_asked(args, "lengths", name), "trained": n} for n in reversed(_lengths(args)) for name in names]

    def one(key: Tables) -> Tables:
        name = key["method"]
        return measured(args, federation(), METHODS[name], best[name], 0, key["trained"])

    share(args.file, keys, one)


def _named(args: argparse.Namespace, every: list[str]) -> list[str]:
    asked = [name.strip() for name in args.methods.split(";")] if args.methods else every
    if unknown := [name for name in asked if name not in every]:
        raise SystemExit(f"--methods: {', '.join(unknown)}: of these no setting is chosen yet: {'; '.join(every)}")
    return asked


def _lengths(args: argparse.Namespace) -> tuple[int, ...]:
    """Beside that at which settings are chosen."""
    return (args.rounds // 3, 3 * args.rounds)


def own(args: argparse.Namespace) -> None:
    federation, best = data_of(args), best_of(args)
    longest = best_lengths(args, finished(args.file))
    other = {name: n for name, n in longest.items() if n != args.rounds and name in _named(args, list(best))}
    keys = [
        {**_asked(args, "own", name), "trained": other[name], "seed": s}
        for s, name in product(range(args.seeds), other)
    ]

    def one(key: Tables) -> Tables:
        name = key["method"]
        return measured(args, federation(), METHODS[name], best[name], key["seed"], key["trained"])

    share(args.file, keys, one)


def measure(args: argparse.Namespace) -> None:
    federation, best = data_of(args), best_of(args)
    keys = [{**_asked(args, "measure", name), "seed": seed} for seed, name in product(range(args.seeds), best)]

    def one(key: Tables) -> Tables:
        return measured(args, federation(), METHODS[key["method"]], best[key["method"]], key["seed"])

    share(args.file, keys, one)


def curve(args: argparse.Namespace) -> None:
    federation, number = data_of(args), chosen(args, "FedAwS")
    if number is None:
        raise SystemExit("curve: FedAwS's setting is not chosen yet")
    common = _asked(args, "curve", "FedAwS")
    keys = [{**common, "k": k, "lambda": w, "seed": s} for s, (k, w) in product(range(args.seeds), CURVE)]

    def one(key: Tables) -> Tables:
        method = {**METHODS["FedAwS"], "neighbours": key["k"], "spread_weight": key["lambda"]}
        return measured(args, federation(), method, number, key["seed"])

    share(args.file, keys, one)


def _asked(args: argparse.Namespace, phase: str, name: str) -> Tables:
    return {"phase": phase, "which": args.which, "rounds": args.rounds, "method": name}


def table(args: argparse.Namespace) -> None:
    lines = finished(args.file)
    print("| method | rows set apart: momentum | Adagrad | by layer | P@1 | P@3 | P@5 | seeds |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in METHODS:
        tried = [line for line in lines if _asked(args, "choose", name).items() <= line["key"].items()]
        some = [line for line in lines if _asked(args, "measure", name).items() <= line["key"].items()]
        best = [
            max((100 * one["p@1"] for one in tried if KINDS[one["setting"]] == kind), default=0)
            for kind in dict.fromkeys(KINDS)
        ]
        cells = [*(f"{value:.1f}" for value in best), *(spread([line[p] for line in some]) for p in PS)]
        print(f"| {name} | {' | '.join(cells)} | {len(some)} |")
    print("\n| k | lambda | P@1 | P@3 | P@5 | seeds |\n|---:|---:|---:|---:|---:|---:|")
    for k, weight in CURVE:
        wanted = {**_asked(args, "curve", "FedAwS"), "k": k, "lambda": weight}
        some = [line for line in lines if wanted.items() <= line["key"].items()]
        print(f"| {k} | {weight:g} | {' | '.join(spread([line[p] for line in some]) for p in PS)} | {len(some)} |")
    print_lengths(args, lines)


def of_lengths(args: argparse.Namespace, lines: list[Tables]) -> dict[str, dict[int, float]]:
    """P@1 on the rows set apart of every chosen setting by how long it trained."""
    return {
        name: {
            line["key"].get("trained", args.rounds): line["p@1"]
            for phase in ("choose", "lengths")
            for line in lines
            if line["setting"] == number and _asked(args, phase, name).items() <= line["key"].items()
        }
        for name, number in best_of(args).items()
    }


def best_lengths(args: argparse.Namespace, lines: list[Tables]) -> dict[str, int]:
    """The length that is best on the rows set apart, of every method of which all lengths have been tried."""
    wanted = {*_lengths(args), args.rounds}
    found = of_lengths(args, lines).items()
    return {name: max(by, key=lambda n: by[n]) for name, by in found if set(by) == wanted}


def print_lengths(args: argparse.Namespace, lines: list[Tables]) -> None:
    """Those that another length was tried of; then what is measured at a length of its own."""
    found = of_lengths(args, lines)
    tried = [name for name in METHODS if any(n in found.get(name, {}) for n in _lengths(args))]
    if not tried:
        return
    counts = sorted((*_lengths(args), args.rounds))
    print(f"\n| method | {' | '.join(f'{n} rounds' for n in counts)} |\n|---|---:|---:|---:|")
    for name in tried:
        print(f"| {name} | {' | '.join(f'{100 * found[name][n]:.1f}' if n in found[name] else '–' for n in counts)} |")
    longest = best_lengths(args, lines)
    rows = [(name, n) for name in tried for n in counts if longest.get(name) == n and _trained(args, lines, name, n)]
    if not rows:
        return
    print("\n| method, rounds that rows set apart chose | P@1 | P@3 | P@5 | seeds |\n|---|---:|---:|---:|---:|")
    for name, n in rows:
        some = _trained(args, lines, name, n)
        print(f"| {name}, {n} | {' | '.join(spread([line[p] for line in some]) for p in PS)} | {len(some)} |")


def _trained(args: argparse.Namespace, lines: list[Tables], name: str, rounds: int) -> list[Tables]:
    """What was measured at a length of its own."""
    wanted = {**_asked(args, "own", name), "trained": rounds}
    return [line for line in lines if wanted.items() <= line["key"].items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "lengths", "own", "measure", "curve", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--which", choices=tuple(SETS), default="bibtex")
    parser.add_argument("--path", default="", help="where the sets' files lie")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--methods", default="", help="of lengths and own: some of them, with semicolons between")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    what = {"choose": choose, "lengths": lengths, "own": own, "measure": measure, "curve": curve, "table": table}
    what[args.what](args)


if __name__ == "__main__":
    main()
