"""FedMetric with settings chosen on validation alone: python bench/fedmetric.py choose|measure|table|... FILE.

choose   successive halving over each method's grid, one seed: the best eighth of the settings goes on to three times
         the rounds, begun anew. MNIST: the last tenth of each client's training images judges, by one-class
         AUROC. Elsewhere: people set apart of those that are trained on (`for_choosing`), by EER of pairs. Nothing of
         the test is looked at.
measure  the best setting of each method by that, on the whole federation, by its test.
table    what is in the file.
centres  no training: where the network's first embeddings put the clients, beside how far a client's samples spread;
         and what negatives weigh there.

Every finished run is a line of the file; several processes share it (`selfsame/runs/sharing.py`). The rest is that of
recipes/DATA.toml and --set, as with bench/frontier.py. docs/results/fedmetric.md has what was asked of it:

    python bench/fedmetric.py choose mnist.jsonl --data mnist --path DATA --rounds 900
    python bench/fedmetric.py measure mnist.jsonl --data mnist --path DATA --rounds 3000
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from frontier import alike, base  # noqa: E402
from torch import Tensor  # noqa: E402

from selfsame.config.recipe import Recipe, from_mapping, merged  # noqa: E402
from selfsame.data import Federation, load  # noqa: E402
from selfsame.data.choosing import for_choosing, samples_for_choosing  # noqa: E402
from selfsame.engine.machine import choose_machine, facts  # noqa: E402
from selfsame.engine.plan import make_plan  # noqa: E402
from selfsame.engine.rounds import Engine  # noqa: E402
from selfsame.engine.setup import prepare  # noqa: E402
from selfsame.engine.state import begin  # noqa: E402
from selfsame.runs.course import Run  # noqa: E402
from selfsame.runs.sharing import finished, share  # noqa: E402
from selfsame.runs.untrained import as_untrained  # noqa: E402

Tables = dict[str, Any]
Setting = dict[str, Any]  # of a recipe's keys, "local.lr" among them
RECIPE = {"mnist": "fedmetric-table2-mnist"}
BUDGET = {"DeepSVDD": 16}  # settings of a method, where 32 are not
_READING = {
    "method.centre_rate": (0.0, 0.001, 0.01, 1.0),
    "method.reduction": ("mean", "sum"),
    "method.unit_length": (False, True),
    "local.lr": (0.03, 0.1),
}
_NEGATIVES = {"method.squared": (False, True), "method.negative_weight": (0.01, 0.1, 0.5)}
# The radius before the local step: a round then costs one pass, 2.2 times less than with Algorithm 1's order.
_PROXY = {"method.name": "fedmetric", "method.radius": "before"}
_SVDD = {
    "local.lr": (0.0003, 0.001, 0.003, 0.01),
    "net.bias": (False, True),
    "net.groups": (1, 2),
    "data.standardise": (False, True),
}
# A method: what is the same in all its settings, and the values that are crossed.
Grid = tuple[Setting, dict[str, tuple[Any, ...]]]
MNIST: dict[str, Grid] = {
    "pos": ({"method.name": "fedmetric-pos"}, _READING),
    "proxy": (_PROXY, _READING | _NEGATIVES),
    "DeepSVDD": ({"method.name": "deepsvdd"}, _SVDD),
    "fixed": ({"method.name": "fixed"}, {"local.lr": (0.03, 0.1, 0.3, 1.0)}),
}
# The reading that was chosen on MNIST.
_KEPT = {"method.centre_rate": 0.0, "method.reduction": "sum", "method.unit_length": True}
_POS = {"method.name": "fedmetric-pos", **_KEPT}
PEOPLE: dict[str, Grid] = {
    "pos": (_POS, {"local.lr": (0.01, 0.03)}),
    "pos, all centres first": (_POS | {"first.centres": True}, {"local.lr": (0.01, 0.03, 0.001)}),
    "pos, all centres first, whitened": (
        _POS | {"first.centres": True, "local.lr": 0.01},
        {"first.whitened": ("mean", "all")},
    ),
    "proxy": (
        _PROXY | _KEPT | {"method.squared": False},
        {"method.negative_weight": (0.1, 0.001), "local.lr": (0.01,)},
    ),
    # Negatives pull as one client among many: about lambda / (N - 1) with the lambdas of Fig. 2.
    "proxy, all centres first, whitened": (
        _PROXY | _KEPT | {"method.squared": False, "first.centres": True, "first.whitened": "all", "local.lr": 0.01},
        {"method.negative_weight": (0.0001, 0.0003, 0.001, 0.003)},
    ),
    "fixed": ({"method.name": "fixed"}, {"local.lr": (1.0, 0.3)}),
    "FedCrowd": ({"method.name": "fedcrowd"}, {"local.lr": (0.1, 0.03)}),
}
METHODS = {"mnist": MNIST, "omniglot": PEOPLE, "lfw": PEOPLE}


def grid(data: str, name: str) -> list[Setting]:
    """A method's settings: all of its grid, or as many as its budget drawn of it."""
    common, ladders = METHODS[data][name]
    every = [common | dict(zip(ladders, values, strict=True)) for values in product(*ladders.values())]
    budget = BUDGET.get(name, 32)
    return every if len(every) <= budget else random.Random(0).sample(every, budget)


def nested(setting: Setting) -> Tables:
    tables: Tables = {}
    for key, value in setting.items():
        part, _, name = key.partition(".")
        tables.setdefault(part, {})[name] = value
    return tables


def recipe(args: argparse.Namespace, setting: Setting, rounds: int, seed: int) -> Recipe:
    run = {"seed": seed, "rounds": rounds, "eval_every": 0, "device": args.device, "precision": "float32"}
    run["compile"] = "graphs" if args.device.startswith("cuda") else "auto"
    there = {"run": run, "data": {"path": args.path}}
    said = {key: value for key, value in setting.items() if not key.startswith("first.")}
    return from_mapping(merged(merged(base(args), there), nested(said)))


class Data:
    """The federation as a recipe wants it, whole or for choosing; read once."""

    def __init__(self, args: argparse.Namespace, choosing: bool) -> None:
        self.args, self.choosing = args, choosing
        self.known: dict[str, Federation] = {}

    def of(self, order: Recipe) -> Federation:
        options = order.data.options
        key = str(sorted(options.items()))
        if key not in self.known:
            whole = load(self.args.data, self.args.path, **options)
            apart = samples_for_choosing if self.args.data == "mnist" else for_choosing
            self.known[key] = apart(whole) if self.choosing else whole
        return self.known[key]


def first_run(order: Recipe, federation: Federation, setting: Setting) -> Run:
    """A run before its first round.

    `first.whitened` whitens its embeddings by a sum over clients. With `first.centres` every client has its centre from
    the untrained network, as where all take part in the first round, and not from the network that it meets first.
    """
    problem = prepare(order, federation)
    run = Run(problem, begin(problem))
    if "first.whitened" in setting:
        whiten(run, setting["first.whitened"])
    if "first.centres" in setting:
        run.state.own["centre"].copy_(torch.stack([cloud.mean(0) for cloud in embedded_clients(run)]))
    return run


def whiten(run: Run, what: str) -> None:
    """Change the last layer so that first embeddings have mean 0 and, but for `mean`, covariance I.

    The covariance is that of `all` embeddings, or of those `within` a client.
    """
    clouds = [cloud.double().cpu() for cloud in embedded_clients(run, placed=False)]
    mean_D = torch.cat(clouds).mean(0)
    map_DD = torch.eye(len(mean_D), dtype=torch.float64)
    if what != "mean":
        centred = [cloud - (mean_D if what == "all" else cloud.mean(0)) for cloud in clouds]
        free = sum(len(cloud) - (what == "within") for cloud in centred)
        value_D, vector_DD = torch.linalg.eigh(sum(cloud.T @ cloud for cloud in centred) / free)
        value_D = value_D.clamp(min=1e-4 * float(value_D.max()))  # directions without spread stay short
        map_DD = (vector_DD / value_D.sqrt()) @ vector_DD.T
    last = run.problem.model.learned_views(run.state.theta_P)
    weight, bias = last["head.weight"], last["head.bias"]
    bias.copy_((map_DD @ (bias.double().cpu() - mean_D)).to(bias.dtype))
    weight.copy_((map_DD @ weight.double().cpu()).to(weight.dtype))


def embedded_clients(run: Run, placed: bool = True) -> list[Tensor]:
    """Embeddings of each client's first training samples, as many as a batch has, as they are or as they are placed."""
    federation, place = run.problem.federation, run.problem.method.place
    clouds, device = [], run.problem.model.device
    for client, count in enumerate(federation.count_N.tolist()):
        index_1B = torch.arange(min(run.recipe.local.batch, count), device=device)[None]
        emb_BD = run.embed(federation.source.rows(torch.tensor([client], device=device), index_1B)[0])
        clouds.append(place(emb_BD) if placed else emb_BD)
    return clouds


def train(run: Run, rounds: int, engine: Engine) -> Tensor:
    """The losses of the next rounds."""
    return engine.run(run.state, make_plan(run.recipe, run.state.round, rounds, run.state.present))


def figures(run: Run) -> Tables:
    """What a run is worth; nothing where it has diverged."""
    names = ("one_class_auroc", "p@1", "eer", "eer_seen")
    if not run.sound():
        return dict.fromkeys(names)
    found = run.evaluate().figures
    return {name: found.get(name) for name in names}


def run_once(args: argparse.Namespace, data: Data, key: Tables, setting: Setting) -> Tables:
    """One run."""
    order = recipe(args, setting, key["rounds"], key["seed"])
    run = first_run(order, data.of(order), setting)
    begun = time.perf_counter()
    loss_T = train(run, order.run.rounds, Engine(run.problem, graphs=choose_machine(order.run).graphs))
    seconds, machine = time.perf_counter() - begun, facts(choose_machine(order.run).device)
    found = {"setting": setting, **figures(run), "loss": float(loss_T[-10:].mean())}
    return {**found, "seconds": seconds, "machine": machine}


def worth(args: argparse.Namespace, line: Tables) -> float:
    """What a setting is judged by, the larger the better."""
    value = line["one_class_auroc"] if args.data == "mnist" else line["eer"]
    if value is None:
        return -1.0
    return float(value) if args.data == "mnist" else -float(value)


def rungs(settings: int, rounds: int) -> list[int]:
    """The rounds of each rung: two rungs, or one for four settings and less."""
    return [rounds // 3, rounds] if settings > 4 else [rounds]


def choose(args: argparse.Namespace, names: list[str]) -> None:
    data, grids = Data(args, choosing=True), {name: grid(args.data, name) for name in names}

    def one(key: Tables) -> Tables:
        return run_once(args, data, key, grids[key["method"]][key["setting"]])

    for name, settings in grids.items():
        left = list(range(len(settings)))
        for rung in rungs(len(settings), args.rounds):
            common = {"phase": "choose", "data": args.data, "method": name, "seed": 0, "rounds": rung}
            common |= alike(args.data)
            keys = [{**common, "setting": number} for number in left]
            if share(args.file, keys, one, wait=True):
                return  # the time is up
            lines = [line for line in finished(args.file) if line["key"] in keys]
            lines.sort(key=lambda line: -worth(args, line))
            left = [line["key"]["setting"] for line in lines[: max(1, round(len(lines) / 8))]]
            best = [(line["key"]["setting"], round(100 * worth(args, line), 2)) for line in lines[:6]]
            print(name, rung, best, flush=True)


def chosen(args: argparse.Namespace, name: str) -> Tables | None:
    """The best of the longest runs on what was set apart."""
    tried = [line for line in finished(args.file) if line["key"]["phase"] == "choose" and line["key"]["method"] == name]
    longest = max((line["key"]["rounds"] for line in tried), default=0)
    return max(
        (line for line in tried if line["key"]["rounds"] == longest), key=lambda line: worth(args, line), default=None
    )


def measure(args: argparse.Namespace, names: list[str]) -> None:
    """The chosen settings by the test; `true` has those of `proxy`."""
    data, best = Data(args, choosing=False), {}
    for name in names:
        if (line := chosen(args, "proxy" if name == "true" else name)) is not None:
            best[name] = line["setting"] | ({"method.name": "fedmetric-true"} if name == "true" else {})
    common = {"phase": "measure", "data": args.data, "rounds": args.rounds}
    keys = [{**common, "method": name, "seed": seed} for seed, name in product(range(args.seeds), best)]
    share(args.file, keys, lambda key: run_once(args, data, key, best[key["method"]]))


def table(args: argparse.Namespace) -> None:
    lines = [line for line in finished(args.file) if line["key"]["data"] == args.data]
    print("| method | chosen by | one-class AUROC | EER, unseen | P@1 | rounds | seeds | setting |")
    print("|---|---:|---:|---:|---:|---:|---:|---|")
    some: dict[tuple[str, int], list[Tables]] = {}
    for line in lines:
        if line["key"]["phase"] == "measure":
            some.setdefault((line["key"]["method"], line["key"]["rounds"]), []).append(line)
    for (name, rounds), here in some.items():
        best = chosen(args, "proxy" if name == "true" else name)
        judged = "-" if best is None else f"{100 * abs(worth(args, best)):.2f}"
        cells = [spread([line[what] for line in here]) for what in ("one_class_auroc", "eer", "p@1")]
        said = ", ".join(f"{key.partition('.')[2]} {value}" for key, value in here[0]["setting"].items())
        print(f"| {name} | {judged} | {' | '.join(cells)} | {rounds:,} | {len(here)} | {said} |")


def spread(values: list[float | None]) -> str:
    """The mean in per cent, in brackets the least and the most; and how many have none, having diverged."""
    known = [100 * value for value in values if value is not None]
    if not known:
        return "-"
    lost = f", {len(values) - len(known)} diverged" if len(known) < len(values) else ""
    return f"{statistics.mean(known):.2f} [{min(known):.2f}, {max(known):.2f}]{lost}"


def geometry(run: Run) -> Tables:
    """Where the clients' samples lie: the spread within a client and between them, without what a batch's mean errs."""
    clouds = [cloud.double() for cloud in embedded_clients(run) if len(cloud) > 1]
    centre_KD = torch.stack([cloud.mean(0) for cloud in clouds])
    size = statistics.mean(len(cloud) for cloud in clouds)
    within = statistics.mean(float(cloud.var(0).sum()) for cloud in clouds)
    between = float(centre_KD.var(0).sum()) - within / size
    apart_KK = torch.cdist(centre_KD, centre_KD).fill_diagonal_(float("inf"))
    middle_D = centre_KD.mean(0)
    own = torch.cat([(cloud - centre).norm(dim=1) for cloud, centre in zip(clouds, centre_KD, strict=True)])
    nearest_K = apart_KK.amin(1)
    return {
        "clients": len(clouds),
        "batch": size,
        "within": within**0.5,
        "between": max(between, 0.0) ** 0.5,
        "middle": float(middle_D.norm()),
        "nearest_median": float(nearest_K.median()),
        "nearest_least": float(nearest_K.min()),
        "loss": float(own.mean()),
        "loss_collapsed": float((centre_KD - middle_D).norm(dim=1).mean()),
    }


def push(run: Run, scale: float = 1.5) -> Tables:
    """What negatives do to first embeddings: the share of hinges at work, and how long a sample's push is.

    The pull of (5) has length 1 at every sample. The push of Algorithm 1 is a sum of unit vectors, one for each hinge
    at work; that of (6) weighs them by twice the hinge.
    """
    clouds = [cloud.double() for cloud in embedded_clients(run)]
    centre_KD = torch.stack([cloud.mean(0) for cloud in clouds])
    radius_K = torch.stack([(cloud - mean).norm(dim=1).max() for cloud, mean in zip(clouds, centre_KD, strict=True)])
    draw = torch.Generator().manual_seed(0)
    offset_KD = torch.nn.functional.normalize(torch.randn(centre_KD.shape, generator=draw, dtype=torch.float64))
    proxy_KD = centre_KD + scale * radius_K[:, None] * offset_KD
    shares, plain, squared = [], [], []
    for number in range(0, len(clouds), max(1, len(clouds) // 24)):  # an even selection tells the mean
        cloud = clouds[number]
        away_BKD = cloud[:, None] - proxy_KD
        length_BK = away_BKD.norm(dim=2)
        hinge_BK = ((1 + scale) * radius_K - length_BK).clamp(min=0)
        hinge_BK[:, number] = 0
        unit_BKD = away_BKD / length_BK[..., None].clamp(min=1e-12)
        shares.append(float((hinge_BK > 0).double().sum(1).mean()) / (len(clouds) - 1))
        plain.append(float(((hinge_BK > 0)[..., None] * unit_BKD).sum(1).norm(dim=1).mean()))
        squared.append(float((2 * hinge_BK[..., None] * unit_BKD).sum(1).norm(dim=1).mean()))
    return {
        "at_work": statistics.mean(shares), "push": statistics.mean(plain), "push_squared": statistics.mean(squared)
    }  # fmt: skip


def centres(args: argparse.Namespace) -> None:
    data = Data(args, choosing=args.apart)
    common = {"phase": "centres", "data": args.data}
    cases = product(range(args.seeds), (False, True), ("as drawn", "mean", "all"))
    keys = [{**common, "unit_length": unit_length, "first": how, "seed": seed} for seed, unit_length, how in cases]

    def one(key: Tables) -> Tables:
        setting = _POS | {"method.unit_length": key["unit_length"]}
        setting |= {} if key["first"] == "as drawn" else {"first.whitened": key["first"]}
        order = recipe(args, setting, 1, key["seed"])
        run = first_run(order, data.of(order), setting)
        return geometry(run) | push(run) | figures(as_untrained(run))

    share(args.file, keys, one)


def options(what: tuple[str, ...], text: str | None) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=what)
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", default="mnist", choices=tuple(METHODS))
    parser.add_argument("--path", default="data", help="where the data set lies")
    parser.add_argument("--methods", default="", help="some of them, with ; between")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the recipe")
    parser.add_argument("--rounds", type=int, default=900, help="of the longest runs")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--apart", action="store_true", help="centres: by what is set apart, not by the test")
    return parser


def main() -> None:
    args = options(("choose", "measure", "table", "centres"), __doc__).parse_args()
    args.recipe = RECIPE.get(args.data, args.data)
    names = [name.strip() for name in args.methods.split(";") if name.strip()] or list(METHODS[args.data])
    if args.what in ("choose", "measure"):
        (choose if args.what == "choose" else measure)(args, names)
    else:
        (table if args.what == "table" else centres)(args)


if __name__ == "__main__":
    main()
