"""Accuracy beside what the strongest attacker gets: python bench/frontier.py choose|measure|table FILE [options].

choose   every setting of every method's grid, on people set apart of those that are trained on (`for_choosing`), or on
         samples where P@1 is the figure; one seed; nothing of the test is looked at. All grids have as many settings.
measure  the best setting of each method by that, on the whole federation, three seeds, in the clear and as sums; then
         the attackers of `selfsame audit` that read reports, updates, sums, differences and polls, and with the first
         seed the active server.
table    what is in the file.

Every finished run is a line of the file, and a run that is there is not repeated; several processes share a file
(`selfsame/runs/sharing.py`). The rest of a recipe is that of recipes/DATA.toml, or --recipe.

    python bench/frontier.py choose omniglot.jsonl --data omniglot --path DATA --device cuda
    python bench/frontier.py measure omniglot.jsonl --data omniglot --path DATA --device cuda
    python bench/frontier.py choose cifar100.jsonl --data cifar100 --recipe cifar100-tuned --by p@1 --rounds 4000 \\
        --set net.standardise=true --set net.groups=2 --precision auto --path DATA --device cuda
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sized
from dataclasses import asdict
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

from selfsame.audit.active import ActiveServer  # noqa: E402
from selfsame.audit.attackers import Audited, findings, strongest  # noqa: E402
from selfsame.audit.readers import ReportReader, SumReader, UpdateReader  # noqa: E402
from selfsame.audit.spans import PollReader  # noqa: E402
from selfsame.config.presets import preset  # noqa: E402
from selfsame.config.recipe import from_mapping, merged  # noqa: E402
from selfsame.data import Federation, load  # noqa: E402
from selfsame.data.choosing import for_choosing, samples_for_choosing  # noqa: E402
from selfsame.engine.machine import choose_machine, facts  # noqa: E402
from selfsame.engine.plan import make_plan  # noqa: E402
from selfsame.engine.rounds import Engine  # noqa: E402
from selfsame.engine.setup import prepare  # noqa: E402
from selfsame.engine.state import begin  # noqa: E402
from selfsame.measure.bootstrap import interval, replicates  # noqa: E402
from selfsame.measure.trials import Scored  # noqa: E402
from selfsame.runs.course import Run  # noqa: E402
from selfsame.runs.redrawn import REPLICATES  # noqa: E402
from selfsame.runs.sharing import finished, share  # noqa: E402
from selfsame.runs.untrained import as_untrained  # noqa: E402
from selfsame.streams import host_generator  # noqa: E402

Tables = dict[str, Any]
LADDER = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
# The place of the lowest of four learning rates, by data.
LOWEST = {"audiomnist": 1, "lfw": 2, "mnist_uv": 2, "cifar100": 2}
# The loss is a softmax of scale s and its gradients about s times as long: it has the next lower four.
STEEP = ("FedCrowd",)
_HIDE = {"name": "fedhide", "alpha": 0.01, "neighbours": 5}
_NEGATIVES = ({"negative_weight": 10.0}, {"negative_weight": 30.0})
_MARGINS = ({"positive_margin": 0.9}, {"positive_margin": 0.7})
# The split rounds of FDML have Adam on the server, and these rates there: a device returns its gradient as it is.
ADAM = {"optimiser": "adam", "momentum": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.0}
RATES = (0.0003, 0.001, 0.003, 0.01)
UNTRAINED = "untrained"
# Of each method four learning rates times two settings of its own.
METHODS: dict[str, tuple[Tables, tuple[Tables, Tables]]] = {
    "softmax": ({"name": "softmax"}, ({"scale": 16.0}, {"scale": 32.0})),
    "FedCrowd": ({"name": "fedcrowd"}, ({"prototype_weight": 1.0}, {"prototype_weight": 0.0})),
    "FedCrowd, quadratic": ({"name": "fedcrowd", "loss_kind": "quadratic"}, _NEGATIVES),
    "FedHide": (_HIDE, _NEGATIVES),
    "FedHide, no negatives": ({**_HIDE, "negative_weight": 0.0}, ({"first_length": 0.0}, {"first_length": 1.0})),
    "FedGN(1)": ({"name": "fedgn", "sigma": 1.0}, _NEGATIVES),
    "FedCS(0.05)": ({"name": "fedcs", "cosine": 0.05}, _NEGATIVES),
    "FedMetric": ({"name": "fedmetric"}, ({"negative_weight": 0.5}, {"negative_weight": 0.1})),
    "FDML": ({"name": "fdml"}, ({"normalise": False}, {"normalise": True})),
    "FedAwS": ({"name": "fedaws"}, ({"spread_weight": 10.0}, {"spread_weight": 1.0})),
    "FedUV": ({"name": "feduv", "secrets": "seeded"}, ({"code_length": 127}, {"code_length": 255})),
    "fixed": ({"name": "fixed"}, _MARGINS),
    "own fixed": ({"name": "fixed-own"}, _MARGINS),
}
ATTACKERS = (ReportReader(), UpdateReader(), SumReader(), PollReader())


def base(args: argparse.Namespace) -> Tables:
    """The recipe's tables without its variants, and what --set says."""
    file = ROOT / "recipes" / f"{args.recipe or args.data}.toml"
    if not file.is_file():
        return preset("softmax", args.data) | {"data": {"name": args.data}}
    tables = tomllib.loads(file.read_text())
    tables = {name: part for name, part in tables.items() if name not in ("variant", "seeds", "grid", "paper")}
    for one in args.set:
        place, _, value = one.partition("=")
        part, _, name = place.partition(".")
        tables = merged(tables, {part: {name: tomllib.loads(f"x = {value}")["x"]}})
    return tables


def federation_of(args: argparse.Namespace) -> Federation:
    """The data as the recipe wants them."""
    said = {name: value for name, value in base(args).get("data", {}).items() if name not in ("name", "path")}
    return load(args.data, args.path or None, **said)


def settings(data: str, name: str) -> Iterator[tuple[Tables, float]]:
    """The grid of a method."""
    common, own = METHODS[name]
    first = LOWEST.get(data, 3) - (name in STEEP)
    for more, rate in product(own, RATES if name == "FDML" else LADDER[first : first + 4]):
        yield {**common, **more}, rate


def adam(rate: float) -> Tables:
    """What of a recipe Adam needs: its learning rate is the server's, with a cosine."""
    return {"local": {"lr": 1.0, "schedule": "constant"}, "server": {**ADAM, "lr": rate, "schedule": "cosine"}}


def server_of(method: Tables, rate: float) -> Tables:
    """The server's part of a recipe, where it is not the data's."""
    return adam(rate) if method["name"] == "fdml" else {}


def recipe(args: argparse.Namespace, method: Tables, rate: float, seed: int, more: Tables) -> Any:
    run: Tables = {"seed": seed, "device": args.device, "precision": args.precision, "eval_every": 0}
    run["compile"] = "graphs" if args.device.startswith("cuda") else "auto"
    if args.rounds:
        run["rounds"] = args.rounds
    place = {"path": args.path} if args.path else {}
    over = {"method": method, "local": {"lr": rate}, "run": run, "data": place, **more}
    return from_mapping(merged(base(args), over))


def trained(order: Any, federation: Any) -> tuple[Run, float]:
    """A run to its end, and how long its rounds took."""
    problem = prepare(order, federation)
    state = begin(problem)
    engine = Engine(problem, graphs=choose_machine(order.run).graphs)
    begun = time.perf_counter()
    engine.run(state, make_plan(problem.recipe, 0, order.run.rounds, state.present))
    return Run(problem, state), time.perf_counter() - begun


def untrained(order: Any, federation: Any) -> Run:
    """The control: the network as it starts, with templates that the clients enrol with their own samples."""
    problem = prepare(order, federation)
    return as_untrained(Run(problem, begin(problem)))


def ran(name: str, order: Any, federation: Any) -> tuple[Run, float]:
    """A run to its end, or the control before its first round; and how long its rounds took."""
    return (untrained(order, federation), 0.0) if name == UNTRAINED else trained(order, federation)


def eer_by_person(scored: Scored, purpose: str) -> Tables:
    """The 95 % interval of an EER over people who are drawn anew; the same draws for every run."""
    drawn = replicates(scored, lambda curve: np.array([curve.eer]), REPLICATES, host_generator(0, f"bench/{purpose}"))
    low, high = interval(drawn[:, 0])
    return {"low": low, "high": high}


def figures(run: Run) -> Tables:
    found = run.evaluate().figures
    return {name: found.get(name) for name in ("p@1", "eer", "auroc", "eer_seen")}


def worth(args: argparse.Namespace, found: Tables) -> float:
    """What a setting is judged by, the larger the better."""
    value = found.get(args.by)
    if value is None:
        return -1.0
    return -float(value) if args.by.startswith("eer") else float(value)


def choose(args: argparse.Namespace, names: list[str]) -> None:
    """Every setting of the grids, judged by who or what was set apart."""
    apart = samples_for_choosing if args.by == "p@1" else for_choosing
    federation = cache(lambda: apart(federation_of(args)))
    grids = {name: list(settings(args.data, name)) for name in names}

    def one(key: Tables) -> Tables:
        method, rate = grids[key["method"]][key["setting"]]
        run, seconds = trained(recipe(args, method, rate, 0, server_of(method, rate)), federation())
        return {"options": method, "lr": rate, **figures(run), "seconds": seconds}

    share(args.file, grid_keys(args, grids), one)


def alike(data: str) -> Tables:
    """What older choices on people set apart do not say: there one person of LFW was judged almost alone."""
    return {"alike": True} if data == "lfw" else {}


def grid_keys(args: argparse.Namespace, grids: Mapping[str, Sized]) -> list[Tables]:
    """What tells the runs of some grids from each other."""
    asked = {"phase": "choose", "data": args.data, "rounds": args.rounds, **alike(args.data)}
    return [{**asked, "method": name, "setting": number} for name, grid in grids.items() for number in range(len(grid))]


def tried_with(file: Path, name: str, rounds: int | None = None) -> list[Tables]:
    """The runs of a method's grid that a file has, of any length or of one."""
    tried = [line for line in finished(file) if line["key"]["phase"] == "choose" and line["key"]["method"] == name]
    return [line for line in tried if rounds is None or line["key"]["rounds"] == rounds]


def last_tried(args: argparse.Namespace, name: str) -> list[Tables]:
    """Those that a setting is chosen by: of the length that is asked for, where the file has any of it."""
    tried = tried_with(args.file, name, args.rounds) or tried_with(args.file, name)
    return [line for line in tried if "alike" in line["key"]] or tried


def chosen(args: argparse.Namespace, name: str) -> tuple[Tables, float] | None:
    """The setting that was best on the people set apart."""
    best = max(last_tried(args, name), key=lambda line: worth(args, line), default=None)
    return None if best is None else (best["options"], best["lr"])


def all_chosen(args: argparse.Namespace, names: Iterable[str]) -> dict[str, tuple[Tables, float]]:
    """The same of several methods, without those that nobody has tried."""
    found = {name: chosen(args, name) for name in names}
    return {name: best for name, best in found.items() if best is not None}


def measure(args: argparse.Namespace, names: list[str]) -> None:
    """What was chosen, on the whole federation."""
    federation, best = cache(lambda: federation_of(args)), all_chosen(args, names)
    asked = {"phase": "measure", "data": args.data, "rounds": args.rounds}
    cases = product(range(args.seeds), best, args.modes.split(","))
    keys = [
        {**asked, "method": name, "mode": mode, "seed": seed}
        for seed, name, mode in cases
        if name != "FDML" or mode == "enclave"  # its own: devices of split rounds send nothing else
    ]
    share(args.file, keys, lambda key: measured(args, federation(), best[key["method"]], key["seed"], key["mode"]))


def measured(
    args: argparse.Namespace, federation: Federation, best: tuple[Tables, float], seed: int, mode: str
) -> Tables:
    """The figures of one run, and what the attackers get of it."""
    clip = {"clip": args.clip} if args.clip else {}
    plain = mode == "clear" or best[0]["name"] == "fdml"  # no recipe says how FDML's enclave adds up
    more = {} if plain else {"sums": {"aggregation": mode, **clip}}
    run, seconds = trained(recipe(args, *best, seed, {**server_of(*best), **more}), federation)
    case = Audited(run.problem, run.state)
    found = findings(case, ATTACKERS)
    top = strongest(found, case.aggregation)
    active = findings(case, [ActiveServer()]) if seed == 0 else []
    return {
        "options": best[0],
        "lr": best[1],
        **figures(run),
        "seconds": seconds,
        "machine": facts(choose_machine(run.recipe.run).device),
        "leak": 0.0 if top is None else top.identified,
        "by": "" if top is None else f"{top.attacker}, {top.did}",
        "group": case.group,
        "cohort": run.recipe.cohort.size,
        "chance": case.chance,
        "findings": [asdict(one) for one in found],
        "active": [asdict(one) for one in active],
    }


def table(args: argparse.Namespace) -> None:
    lines = [line for line in finished(args.file) if line["key"]["phase"] == "measure"]
    print("| method | aggregation | P@1 | EER, unseen | identified | by | lr | seeds |")
    print("|---|---|---:|---:|---:|---|---:|---:|")
    for name, mode in product(METHODS, ("clear", "masked", "enclave")):
        some = [line for line in lines if (line["key"]["method"], line["key"]["mode"]) == (name, mode)]
        if not some:
            continue
        cells = [spread([line[what] for line in some]) for what in ("p@1", "eer", "leak")]
        print(f"| {name} | {mode} | {' | '.join(cells)} | {some[0]['by']} | {some[0]['lr']:g} | {len(some)} |")


def spread(values: list[float | None]) -> str:
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    return f"{statistics.mean(known):.1f} ± {statistics.stdev(known) if len(known) > 1 else 0:.1f}"


def options(about: str | None, commands: Iterable[str] = ("choose", "measure", "table")) -> argparse.ArgumentParser:
    """What is asked of whoever chooses and measures."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=tuple(commands))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--path", default="", help="where the data set lies")
    parser.add_argument("--methods", default="", help="some of them, with ; between")
    parser.add_argument("--recipe", default="", help="of recipes/, where it is not named like the data")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--rounds", type=int, default=0, help="0: the recipe's")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--by", default="eer", help="the figure that settings are chosen by: eer, p@1, eer_seen")
    return parser


def asked(args: argparse.Namespace, known: Iterable[str]) -> list[str]:
    """The methods of --methods; all where it names none."""
    return [name.strip() for name in args.methods.split(";") if name.strip()] or list(known)


def main() -> None:
    parser = options(__doc__)
    parser.add_argument("--modes", default="clear,masked", help="the aggregations that are measured")
    parser.add_argument("--clip", type=float, default=0.0, help="of masked updates; 0: the first network's length")
    args = parser.parse_args()
    names = asked(args, METHODS)
    if args.what == "table":
        table(args)
    else:
        (choose if args.what == "choose" else measure)(args, names)


if __name__ == "__main__":
    main()
