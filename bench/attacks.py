"""What attackers on updates and on their sums get: python bench/attacks.py --data NAME --path DATA --out FILE.

updates      from the last layer's update of single clients, in single and in half precision, and from sums over 2, 4,
             16 and 64 clients: identified and cosine, after a third, two thirds and the whole of a run.
differences  from the sums of a whole run and the rosters: random cohorts, groups that stay together, drop-outs, and
             each remedy. The best of all the attacker's ways of weighing is shown. EER of unseen people beside it.

Every finished run is a line of the file; a run that is there already is not repeated, and several processes share a
file (`selfsame/runs/sharing.py`). --table prints what is there.
Noise is in clips, on the sum of a round; a clip is the median length of the first round's updates.

    python bench/attacks.py --data digits --size 7 --rounds 300 --out digits.jsonl         14 clients, on a CPU
    python bench/attacks.py --data omniglot --path DATA --device cuda --out omniglot.jsonl
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from selfsame.audit.differences import identified  # noqa: E402
from selfsame.audit.leakage import closest, cosine_statistics  # noqa: E402
from selfsame.audit.transcript import Release, local_updates, record  # noqa: E402
from selfsame.audit.updates import can_watch, over_groups, watch  # noqa: E402
from selfsame.config.recipe import from_mapping  # noqa: E402
from selfsame.engine.plan import make_plan  # noqa: E402
from selfsame.engine.problem import Problem  # noqa: E402
from selfsame.engine.rounds import Engine  # noqa: E402
from selfsame.engine.setup import prepare  # noqa: E402
from selfsame.engine.state import State, begin  # noqa: E402
from selfsame.runs.course import Run  # noqa: E402
from selfsame.runs.sharing import finished, share  # noqa: E402

_SMALL = {"local": {"lr": 0.03}, "server": {"optimiser": "average", "weight_decay": 0.0}}
_CENTRED = {"reduction": "mean", "squared": False, "radius": "before"}
METHODS: dict[str, dict[str, Any]] = {
    "FedHide(0.01, 5)": {"method": {"name": "fedhide", "alpha": 0.01, "neighbours": 5}},
    "FedGN(1)": {"method": {"name": "fedgn", "sigma": 1.0}},
    "FedCS(0.05)": {"method": {"name": "fedcs", "cosine": 0.05}},
    "FedAwS": {"method": {"name": "fedaws"}},
    "Baseline-1": {"method": {"name": "positive-only"}},
    "Baseline-2": {"method": {"name": "fixed"}},
    "FedUV(127)": {"method": {"name": "feduv", "code_length": 127, "secrets": "seeded"}},
    "FedUV(127), negative": {"method": {"name": "feduv-negative", "code_length": 127, "secrets": "seeded"}},
    "FL-traditional": {"method": {"name": "fl-traditional"}, **_SMALL},
    "FedMetric, pos": {"method": {"name": "fedmetric-pos", "reduction": "mean"}, **_SMALL},
    "FedMetric": {"method": {"name": "fedmetric", **_CENTRED}, **_SMALL},
    "FedMetric, true": {"method": {"name": "fedmetric-true", **_CENTRED}, **_SMALL},
}
GROUPS = (2, 4, 16, 64)
STEPS = (1, 5)
WATCHED = 64


def settings(size: int, clip: float) -> dict[str, Release]:
    """What is released, by name."""
    found = {"random cohorts": Release(size), "groups": Release(size, True)}
    for lost in (0.1, 0.3, 0.6):
        found[f"groups, {lost:.0%} lost"] = Release(size, True, lost)
    for lost in (0.1, 0.3, 0.6):
        kept = Release(size, True, lost, True)
        found[f"stand-ins, {lost:.0%} lost"] = kept
        for noise in (0.01, 0.1):
            found[f"stand-ins, {lost:.0%} lost, noise {noise}"] = replace(kept, noise=noise, clip=clip)
        for quiet in (0.3, 0.6):
            found[f"stand-ins, {lost:.0%} lost, quiet {quiet}"] = replace(kept, quiet=quiet)
        for short in (0.1, 0.02):
            found[f"stand-ins, {lost:.0%} lost, clip {short}"] = replace(kept, clip=short * clip)
        found[f"stand-ins, {lost:.0%} lost, clip 0.02, quiet 0.3"] = replace(kept, clip=0.02 * clip, quiet=0.3)
    return found


def problem_of(options: argparse.Namespace, method: str, seed: int, steps: int) -> Problem:
    """A method on the data, everybody of one weight."""
    special = METHODS[method]
    data: dict[str, Any] = {"name": options.data}
    data |= {"path": options.path} if options.path else {}
    data |= {"people": options.people} if options.data == "omniglot" else {}
    net: dict[str, Any] = {} if options.width == 0 else {"width": options.width}
    lr = 0.3 if options.data == "omniglot" else 0.1
    tables: dict[str, Any] = {
        "method": special["method"],
        "data": data,
        "net": net,
        "run": {
            "rounds": options.rounds,
            "seed": seed,
            "device": options.device,
            "precision": "float32",
            "compile": "off",
        },
        "cohort": {"weights": "uniform", "size": options.size},
        "local": {"batch": 8, "lr": lr, "schedule": "cosine", "steps": steps, **special.get("local", {})},
        "server": {"optimiser": "momentum", "weight_decay": 5e-4, **special.get("server", {})},
    }
    if options.data == "omniglot":
        tables["augment"] = {"crop": 2}
    return prepare(from_mapping(tables))


def judged(problem: Problem, state: State, client_M: torch.Tensor, half: bool, group: int) -> list[float] | None:
    """[identified, cosine] of these clients, in groups as they come."""
    watched = watch(problem, state, client_M, half)
    guess = problem.method.attack_updates(over_groups(watched.seen, group))
    if guess is None or not len(guess):
        return None
    client_M = client_M[: len(guess) * group]
    row_M = client_M if problem.method.row == "client" else problem.world.class_of_N[client_M]
    truth_RD = problem.method.truth(state.own, state.server, problem.model.head_views(state.theta_P)).double()
    if watched.truth_MD is not None:
        truth_RD = truth_RD.index_copy(0, row_M, watched.truth_MD[: len(row_M)].double())
    guess_MD = guess.repeat_interleave(group, 0)
    near_M = closest(truth_RD, guess_MD, problem.method.by_angle)
    own_M = (near_M == row_M) & (guess_MD != 0).any(1)
    return [float(own_M.double().mean()), cosine_statistics(truth_RD[row_M], guess_MD)[0]]


def updates(options: argparse.Namespace, method: str, seed: int, steps: int) -> dict[str, Any]:
    """What single updates and sums give away, at three times of a run over random cohorts."""
    problem = problem_of(options, method, seed, steps)
    assert can_watch(problem)
    state, engine = begin(problem), Engine(problem)
    order = torch.randperm(state.present, generator=torch.Generator().manual_seed(seed))[:WATCHED]
    client_M = order.to(state.theta_P.device)
    found: dict[str, Any] = {"clients": problem.world.clients, "rows": len(_truth(problem, state))}
    for mark in (0, options.rounds // 3, 2 * options.rounds // 3, options.rounds):
        if mark > state.round:
            engine.run(state, make_plan(problem.recipe, state.round, mark - state.round, state.present))
        found[str(mark)] = {
            "single": judged(problem, state, client_M, False, 1),
            "half": judged(problem, state, client_M, True, 1),
        } | {f"sum {g}": judged(problem, state, client_M, False, g) for g in GROUPS if g <= len(client_M)}
    return found


def _truth(problem: Problem, state: State) -> torch.Tensor:
    return problem.method.truth(state.own, state.server, problem.model.head_views(state.theta_P))


def differences(options: argparse.Namespace, method: str, seed: int, setting: str) -> dict[str, Any]:
    """What the sums of a whole run give away, and how good its network is."""
    problem = problem_of(options, method, seed, 1)
    state = begin(problem)
    lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=state.theta_P.device)
    client_M = torch.arange(min(options.size, state.present), device=state.theta_P.device)
    clip = float(local_updates(problem, state, client_M, lr)[0].norm(dim=1).median())
    seen = record(problem, state, settings(options.size, clip)[setting], options.rounds)
    row_N = torch.arange(state.present) if problem.method.row == "client" else problem.world.class_of_N.cpu()
    got = identified(seen, _truth(problem, state).cpu()[row_N], problem.method.by_angle)
    figures = Run(problem, state).evaluate().figures
    return {
        "clients": problem.world.clients, "share": got.share, "cosine": got.cosine, "way": str(got.way), "clip": clip,
        "eer": figures.get("eer"), "p@1": figures.get("p@1"),
    }  # fmt: skip


def work(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every run's name."""
    chosen = [name for name in METHODS if not options.methods or name in options.methods.split(";")]
    common = {"data": options.data, "rounds": options.rounds, "size": options.size}
    for seed in range(options.first, options.first + options.seeds):
        for method in chosen:
            for steps in STEPS if options.only != "differences" else ():
                yield {"kind": "updates", "method": method, "steps": steps, "seed": seed, **common}
            for setting in settings(options.size, 1.0) if options.only != "updates" else ():
                if options.settings and setting not in options.settings.split(";"):
                    continue
                yield {"kind": "differences", "method": method, "setting": setting, "seed": seed, **common}


def one(options: argparse.Namespace, key: dict[str, Any]) -> dict[str, Any]:
    """One run."""
    begun = time.perf_counter()
    if key["kind"] == "updates":
        found = updates(options, key["method"], key["seed"], key["steps"])
    else:
        found = differences(options, key["method"], key["seed"], key["setting"])
    line = {**key, "found": found, "seconds": round(time.perf_counter() - begun, 1)}
    print(json.dumps(line), flush=True)
    return line


def _cell(values: list[list[float]]) -> str:
    """Identified in per cent and cosine, the mean over seeds."""
    if not values:
        return "–"
    share, cosine = (statistics.fmean(value[place] for value in values) for place in (0, 1))
    return f"{100 * share:.0f} ({cosine:.3f})"


def table(runs: list[dict[str, Any]]) -> None:
    """Both tables, as Markdown."""
    found = [run for run in runs if run["kind"] == "updates"]
    if found:
        columns = ["single", "half", *(f"sum {g}" for g in GROUPS)]
        bounds = ["100", "100", *(f"{100 / g:.1f}" for g in GROUPS)]
        print("identified % (cosine), mean over seeds; at most 1/g:", ", ".join(bounds))
        print("| method | steps | round | chance % |", " | ".join(columns), "|")
        print("|---|---:|---:|---:|" + "---:|" * len(columns))
        for method, steps in dict.fromkeys((run["method"], run["steps"]) for run in found):
            mine = [run for run in found if (run["method"], run["steps"]) == (method, steps)]
            for mark in (key for key in mine[0]["found"] if key.isdigit()):
                cells = [
                    _cell([run["found"][mark][name] for run in mine if run["found"][mark].get(name)])
                    for name in columns
                ]
                chance = 100 / mine[0]["found"]["rows"]
                print(f"| {method} | {steps} | {mark} | {chance:.1f} |", " | ".join(cells), "|")
    found = [run for run in runs if run["kind"] == "differences"]
    if found:
        first = found[0]
        chance, bound = 100 / first["found"]["clients"], 100 / first["size"]
        print(f"\nidentified % (cosine), EER % of unseen people; chance {chance:.1f} %, 1/g {bound:.1f} %")
        names = list(dict.fromkeys(run["method"] for run in found))
        print("| released |", " | ".join(names), "|")
        print("|---|" + "---:|" * len(names))
        for setting in dict.fromkeys(run["setting"] for run in found):
            cells = []
            for name in names:
                mine = [run["found"] for run in found if (run["setting"], run["method"]) == (setting, name)]
                eer = [one["eer"] for one in mine if one["eer"] is not None]
                rate = f", {100 * statistics.fmean(eer):.1f}" if eer else ""
                cells.append(_cell([[one["share"], one["cosine"]] for one in mine]) + rate)
            print(f"| {setting} |", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="omniglot")
    parser.add_argument("--path", default="", help="where the data set lies")
    parser.add_argument("--out", type=Path, default=Path("attacks.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--people", type=int, default=200, help="clients, of omniglot")
    parser.add_argument("--size", type=int, default=20, help="clients in a round, or in a group")
    parser.add_argument("--width", type=int, default=0, help="of the embedding; 0: the data set's own")
    parser.add_argument("--rounds", type=int, default=600)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first", type=int, default=0, help="the first of the seeds")
    parser.add_argument("--methods", default="", help="some of them, with ; between")
    parser.add_argument("--settings", default="", help="some of them, with ; between")
    parser.add_argument("--only", choices=("updates", "differences"))
    parser.add_argument("--table", action="store_true", help="print what is there and stop")
    options = parser.parse_args()
    if not options.table:
        share(options.out, work(options), lambda key: one(options, key))
    table(finished(options.out))


if __name__ == "__main__":
    main()
