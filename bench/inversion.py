"""FedHide's Table 2, the pictures behind an update: python bench/inversion.py --path DATA --lpips FILE --out FILE.

shared  the paper's attacker: it takes what a device shares (its proxy) for the prototype, and one device's update.
read    ours: it reads the prototype off the update and looks for it together with the picture, from one device's
        update and from the mean of 2, 4 and 16. An untrained network's update does not depend on how proxies are made,
        so that there this is one row for all methods of the table. FedCrowd and softmax, which share no proxy, have
        their own, and are done where --methods names them.

The paper gives: ResNet-18 on CIFAR-100, before training and after 100,000 rounds of 10 of 100 clients, the loss (1),
one picture each of sea, flower, chair and porcupine, the attack of Geiping et al. and LPIPS, by their authors' code.
It does not give: which pictures, which of the five flowers of CIFAR-100, the attack's iterations, restarts, step and
weight of the total variation, the version, network and picture size of LPIPS, and what the spread is taken over. Here:
the picture that a client draws first, sunflower, LPIPS v0.1 with AlexNet at 32x32 and at 64x64, the deviation over the
pictures.

Every finished case is a line of the file; one that is there already is not repeated, and several processes share a file
(`bench/sharing.py`). So they do with the networks that cases need, which are trained first and kept in a folder beside
the file: with --train-only that is all. --table prints what is there.

    python bench/inversion.py --path DATA --lpips lpips_alex_v0.1.npz --device cuda --compile graphs --rounds 30000 \\
        --iterations 4800 --restarts 4 --out inversion.jsonl                                     full size, on a GPU
    python bench/inversion.py --path DATA --lpips lpips_alex_v0.1.npz --net resnet8 --width 64 --rounds 300 \\
        --iterations 300 --sizes 1,2,4 --methods "w/o perturbation;FedGN (0.1);FedHide (0.01, 5)" --out small.jsonl
    python bench/inversion.py --data digits --images 3 --iterations 400 --rounds 1500 --cohort 7 --sizes 1,2,4 \\
        --methods "FedHide (0.01, 5)" --out digits.jsonl --picture digits.png            nothing to fetch, on a CPU
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from sharing import OutOfTime, RunsFailed, finished, look_up, share  # noqa: E402

from selfsame.audit.inversion import WEIGHTS, Inversion, invert  # noqa: E402
from selfsame.audit.likeness import Inverted, compare  # noqa: E402
from selfsame.audit.lpips import Lpips  # noqa: E402
from selfsame.audit.transcript import local_updates  # noqa: E402
from selfsame.config.recipe import Recipe, from_mapping  # noqa: E402
from selfsame.data import Federation, load  # noqa: E402
from selfsame.engine.checkpoint import load_state, save_state  # noqa: E402
from selfsame.engine.machine import facts  # noqa: E402
from selfsame.engine.setup import prepare  # noqa: E402
from selfsame.engine.state import State, begin  # noqa: E402
from selfsame.errors import SelfsameError  # noqa: E402
from selfsame.runs.loop import carry_on  # noqa: E402
from selfsame.runs.run import start  # noqa: E402
from selfsame.streams import host_generator  # noqa: E402

# By row of Table 2: the method, and the paper's LPIPS before and after training.
METHODS: dict[str, tuple[dict[str, Any], str, str]] = {
    "w/o perturbation": ({"name": "fedgn", "sigma": 0.0}, "0.48 ± 0.05", "0.64 ± 0.07"),
    "FedGN (0.01)": ({"name": "fedgn", "sigma": 0.01}, "0.54 ± 0.08", "0.76 ± 0.06"),
    "FedGN (0.05)": ({"name": "fedgn", "sigma": 0.05}, "0.75 ± 0.01", "0.70 ± 0.13"),
    "FedGN (0.1)": ({"name": "fedgn", "sigma": 0.1}, "0.76 ± 0.01", "0.79 ± 0.01"),
    "FedCS (0.9)": ({"name": "fedcs", "cosine": 0.9}, "0.64 ± 0.04", "0.71 ± 0.13"),
    "FedCS (0.75)": ({"name": "fedcs", "cosine": 0.75}, "0.72 ± 0.01", "0.78 ± 0.03"),
    "FedCS (0.5)": ({"name": "fedcs", "cosine": 0.5}, "0.75 ± 0.01", "0.76 ± 0.07"),
    "FedHide (0.5, 1)": ({"name": "fedhide", "alpha": 0.5, "neighbours": 1}, "0.73 ± 0.02", "0.65 ± 0.11"),
    "FedHide (0.5, 5)": ({"name": "fedhide", "alpha": 0.5, "neighbours": 5}, "0.74 ± 0.00", "0.76 ± 0.01"),
    "FedHide (0.1, 1)": ({"name": "fedhide", "alpha": 0.1, "neighbours": 1}, "0.76 ± 0.02", "0.74 ± 0.02"),
    "FedHide (0.1, 5)": ({"name": "fedhide", "alpha": 0.1, "neighbours": 5}, "0.77 ± 0.01", "0.73 ± 0.08"),
    "FedHide (0.01, 1)": ({"name": "fedhide", "alpha": 0.01, "neighbours": 1}, "0.77 ± 0.02", "0.70 ± 0.11"),
    "FedHide (0.01, 5)": ({"name": "fedhide", "alpha": 0.01, "neighbours": 5}, "0.78 ± 0.02", "0.74 ± 0.06"),
}
ANY = "any method"
OTHERS: dict[str, dict[str, Any]] = {  # not of the table
    "FedCrowd, quadratic": {"name": "fedcrowd", "loss_kind": "quadratic"},
    "softmax": {"name": "softmax"},
}
FIGURES = ("found", "unrelated", "chance", "blank")
NETWORKS = ("untrained", "trained")
ATTACK = ("iterations", "restarts", "variation", "step", "weights")
NETWORK = ("data", "net", "standardise", "width", "seed")
COMMON = (*NETWORK, "batch", *ATTACK, "images")
Key = dict[str, Any]


def recipe_of(options: argparse.Namespace, method: str, attacked: bool = True) -> Recipe:
    """A method on the data: to be attacked in single precision, or to be trained as fast as the machine can."""
    data = {"name": options.data} | ({"path": options.path} if options.path else {})
    net: dict[str, Any] = {"name": options.net} if options.net else {}
    net |= {"width": options.width} if options.width else {}
    net |= {"standardise": True, "groups": 2} if options.standardise else {}
    tables: dict[str, Any] = {
        "method": OTHERS[method] if method in OTHERS else METHODS[method][0],
        "data": data,
        "net": net,
        "run": {
            "rounds": options.rounds,
            "seed": options.seed,
            "device": options.device,
            "precision": "float32" if attacked else "auto",
            "compile": "off" if attacked else options.compile,
            "eval_every": options.rounds,
        },
        "cohort": {"weights": "uniform", "size": options.cohort},
        "local": {"batch": options.batch if attacked else 16, "lr": 0.1, "schedule": "cosine"},
        # A twice as large cohort takes twice as large a step.
        "server": {"optimiser": "momentum", "weight_decay": 5e-4, "lr": max(1.0, options.cohort / 10)},
    }
    return from_mapping(tables)


class Bench:
    """The data, the judge, and each method's network once it is trained or read."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.federation: Federation = load(options.data, options.path or None)
        sides = [int(side) for side in options.sides.split(",")] if options.lpips else []
        self.judges = {f"lpips {side}": Lpips.read(options.lpips, side) for side in sides}
        self.trained: dict[str, tuple[State, float | None]] = {}
        self.networks = options.out.with_name(f"{options.out.stem}-networks") / "networks.jsonl"
        self.targets = self._targets()

    def _targets(self) -> list[int]:
        """The clients whose pictures are looked for: the first of each class named, or so many of them all."""
        words, names = self.options.images.split(","), self.federation.class_names
        if words[0].isdigit():
            return list(range(int(words[0])))
        missing = [word for word in words if word not in names]
        if missing:
            raise SelfsameError(f"--images: no class is called {missing[0]!r}; the classes are: {', '.join(names)}")
        class_of = self.federation.class_of_N.tolist()
        return [class_of.index(names.index(word)) for word in words]

    def clients(self, size: int) -> torch.Tensor:
        """Each target with size - 1 others, who are in no other group."""
        rest = [client for client in range(self.federation.clients) if client not in self.targets]
        if len(rest) < (size - 1) * len(self.targets):
            raise SelfsameError(f"--sizes: {self.federation.clients} clients are too few for groups of {size}")
        order = host_generator(self.options.seed, "inversion groups").permutation(rest).tolist()
        taken = iter(order)
        groups = [[target, *(next(taken) for _ in range(size - 1))] for target in self.targets]
        return torch.tensor(groups).flatten()

    def state(self, network: str, method: str) -> tuple[State, float | None]:
        """A network and its P@1; at round 0 whatever its training, so that the same pictures are drawn."""
        if network == "untrained":
            return begin(prepare(recipe_of(self.options, method), self.federation)), None
        if method not in self.trained:
            self.trained[method] = self._read(method)
        return self.trained[method]

    def _read(self, method: str) -> tuple[State, float | None]:
        """A trained network; whoever is training it is waited for."""
        if self.train([method], wait=True):
            raise OutOfTime
        key = network_key(self.options, method)
        state = begin(prepare(recipe_of(self.options, method, attacked=False), self.federation))
        load_state(state, self._weights(key))
        return replace(state, round=0), (look_up(self.networks, key) or {})["p@1"]

    def _weights(self, key: Key) -> Path:
        name = sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
        return self.networks.with_name(f"{name}.safetensors")

    def train(self, methods: list[str], wait: bool = False) -> list[Key]:
        """Train the networks of these methods that are not there yet; gives those that are left."""

        def one(key: Key) -> Key:
            run = carry_on(start(recipe_of(self.options, key["method"], attacked=False), None, self.federation))
            save_state(run.state, self._weights(key))
            print(f"trained: {key['method']}, P@1 {run.final.get('p@1')}, {run.seconds:.0f} s", flush=True)
            return {"p@1": run.final.get("p@1"), "seconds": round(run.seconds, 1), **facts(run.problem.model.device)}

        return share(self.networks, [network_key(self.options, method) for method in methods], one, wait=wait)

    def run(self, key: Key) -> tuple[Key, Inverted]:
        """(the figures of one case, the pictures)."""
        options, size = self.options, key["size"]
        method = "w/o perturbation" if key["method"] == ANY else key["method"]
        problem = prepare(recipe_of(options, method), self.federation)
        state, right = self.state(key["network"], method)
        client_M = self.clients(size).to(state.theta_P.device)
        taken = {}
        if key["attacker"] == "shared":
            lr = torch.tensor(problem.recipe.local.lr, dtype=torch.float64, device=client_M.device)
            taken = {"prototype": local_updates(problem, state, client_M, lr)[2]["proxy"]}
        terms = Inversion(
            options.iterations, options.restarts, options.variation, options.step, options.weights, options.seed,
            options.together, options.derivatives,
        )  # fmt: skip
        got = invert(problem, state, client_M, size, terms, taken=taken)
        found: Key = {name: {"psnr": targets(getattr(got, name).psnr_GS)} for name in FIGURES}
        for side, judge in self.judges.items():
            compared = compare(got.original_GS, got.found_GS, got.other_T, judge)
            for name in FIGURES:
                found[name][side] = targets(getattr(compared, name).lpips_GS)
        found |= {"mismatch": got.mismatch_G.tolist(), "p@1": right, "parameters": problem.model.parameters}
        return found | {"seconds": round(got.seconds, 1), **facts(problem.model.device)}, got


def network_key(options: argparse.Namespace, method: str) -> Key:
    """What a trained network depends on."""
    return {"method": method} | {name: getattr(options, name) for name in (*NETWORK, "rounds", "cohort")}


def targets(value_GS: torch.Tensor) -> list[float]:
    """The targets' values: they come first in their groups."""
    return value_GS[:, 0].tolist()


def work(options: argparse.Namespace) -> Iterator[Key]:
    """Every case's name, the cheapest first."""
    named = [name.strip() for name in options.methods.split(";")] if options.methods else list(METHODS)
    unknown = set(named) - {*METHODS, *OTHERS}
    if unknown:
        raise SelfsameError(f"--methods: expected some of {'; '.join([*METHODS, *OTHERS])}, got {unknown.pop()!r}")
    chosen, others = [name for name in METHODS if name in named], [name for name in OTHERS if name in named]
    sizes = [int(size) for size in options.sizes.split(",")]
    common = {name: getattr(options, name) for name in COMMON}
    for network in options.networks.split(","):
        rounds, cohort = (0, 0) if network == "untrained" else (options.rounds, options.cohort)
        cases = [(name, "shared", 1) for name in chosen]
        readable = [ANY] if chosen and network == "untrained" else chosen
        cases += [(name, "read", size) for size in sizes for name in [*readable, *others]]
        cases = [case for case in cases if case[1] in options.attackers.split(",")]
        for method, attacker, size in cases:
            key = {"network": network, "method": method, "attacker": attacker, "size": size}
            yield {**key, "rounds": rounds, "cohort": cohort, **common}


def _cell(values: dict[str, list[float]] | None, measure: str) -> str:
    """The mean and, of LPIPS, the deviation over the pictures."""
    if values is None or measure not in values:
        return "–"
    mean = statistics.fmean(values[measure])
    return f"{mean:.1f}" if measure == "psnr" else f"{mean:.2f} ± {statistics.pstdev(values[measure]):.2f}"


def table(cases: list[Key]) -> None:
    """A table for each network and measure, as Markdown."""
    sizes = sorted({case["size"] for case in cases})
    measures = sorted({measure for case in cases for measure in case["found"]["found"]})
    for network, measure in ((network, measure) for network in NETWORKS for measure in measures):
        mine = [case for case in cases if case["network"] == network]
        if not mine:
            continue
        unit = "PSNR in dB" if measure == "psnr" else f"LPIPS, side {measure.split()[1]} (0: as they are)"
        print(f"\n{network} network, {unit}")
        print("| method | paper | proxy taken, n = 1 |", " | ".join(f"read, n = {size}" for size in sizes), "| P@1 % |")
        print("|---|---:|---:|" + "---:|" * len(sizes) + "---:|")
        for method in dict.fromkeys(case["method"] for case in mine):
            here = {(case["attacker"], case["size"]): case["found"] for case in mine if case["method"] == method}
            printed = method in METHODS and mine[0]["data"] == "cifar100" and measure != "psnr"
            paper = METHODS[method][1 + NETWORKS.index(network)] if printed else ""
            columns = [("shared", 1), *(("read", size) for size in sizes)]
            cells = [_cell(here.get(which, {}).get("found"), measure) for which in columns]
            right = next(iter(here.values()))["p@1"]
            print(f"| {method} | {paper} |", " | ".join(cells), f"| {'' if right is None else f'{100 * right:.1f}'} |")
        for name, words in (("unrelated", "unrelated picture"), ("chance", "best of n unrelated"), ("blank", "blank")):
            floor = {case["size"]: case["found"][name] for case in mine}
            print(f"| *{words}* | | |", " | ".join(_cell(floor.get(size), measure) for size in sizes), "| |")


def picture(path: Path, cases: list[Inverted]) -> None:
    """A row for each target: its original, then what each case found, each pixel a square."""
    columns = [cases[0].original_GS[:, 0], *(case.matched()[:, 0] for case in cases)]
    framed = [torch.cat(list(torch.nn.functional.pad(column, (1, 1, 1, 1), value=1.0)), 1) for column in columns]
    grid = torch.cat(framed, 2).mul(255).round().byte().permute(1, 2, 0).cpu().numpy()
    large = np.repeat(np.repeat(grid, 8, 0), 8, 1)
    Image.fromarray(large[..., 0] if large.shape[2] == 1 else large).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="cifar100")
    parser.add_argument("--path", default="", help="where the data set lies")
    parser.add_argument("--lpips", type=Path, help="weights of LPIPS, an .npz file; without them PSNR alone")
    parser.add_argument("--sides", default="0,64", help="that pictures are brought to for LPIPS; 0: as they are")
    parser.add_argument("--out", type=Path, default=Path("inversion.jsonl"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--net", default="", help="the data set's own by default, ResNet-18 for CIFAR-100")
    parser.add_argument("--standardise", action="store_true", help="kernels, with two groups per norm: trains faster")
    parser.add_argument("--width", type=int, default=0, help="of the embedding; 0: the data set's own")
    parser.add_argument("--images", default="sea,sunflower,chair,porcupine", help="classes, or how many clients")
    parser.add_argument("--batch", type=int, default=1, help="pictures of a device")
    parser.add_argument("--attackers", default="shared,read")
    parser.add_argument("--sizes", default="1,2,4,16", help="devices in the mean")
    parser.add_argument("--iterations", type=int, default=4800)
    parser.add_argument("--restarts", type=int, default=1)
    parser.add_argument("--variation", type=float, default=0.01, help="weight of the total variation")
    parser.add_argument("--step", type=float, default=0.1)
    parser.add_argument("--weights", choices=WEIGHTS, default="equal", help="of the network's tensors")
    parser.add_argument("--together", type=int, default=0, help="searches in one pass; 0: all on CUDA")
    parser.add_argument(
        "--derivatives",
        default="",
        help="the backend that compiles an iteration's derivatives: inductor; none by default",
    )
    parser.add_argument("--rounds", type=int, default=30000, help="of training, batch 16")
    parser.add_argument("--compile", choices=("off", "graphs", "on"), default="off", help="of the training, on CUDA")
    parser.add_argument("--cohort", type=int, default=10, help="clients in a round of training")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--methods", default="", help="some of them, with ; between")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--picture",
        type=Path,
        help="PNG of what this call found: one row per picture, one column per case",
    )
    parser.add_argument("--train-only", action="store_true", help="train the networks that the cases need and stop")
    parser.add_argument("--table", action="store_true", help="print what is there and stop")
    options = parser.parse_args()
    cases: list[Inverted] = []
    if not options.table:
        bench, known = Bench(options), [case["key"] for case in finished(options.out)]

        def one(key: Key) -> Key:
            found, got = bench.run(key)
            cases.append(got)
            line = {**key, "found": found}
            print(json.dumps(line), flush=True)
            return line

        left = [key for key in work(options) if key not in known]
        # Those that cannot be trained fail the cases that need them, and no others.
        with nullcontext() if options.train_only else suppress(RunsFailed):
            bench.train(list(dict.fromkeys(key["method"] for key in left if key["network"] == "trained")))
        if options.train_only:
            return
        share(options.out, work(options), one)
    table(finished(options.out))
    if options.picture and cases:
        picture(options.picture, cases)


if __name__ == "__main__":
    try:
        main()
    except SelfsameError as error:
        sys.exit(f"inversion: {error}")
