"""A ready encoder adapted to one's own people: python bench/adapt.py choose|measure|table FILE [options].

choose   every learning rate of every method and every way of learning (the last layer, adapters, all), on people set
         apart of those that are trained on (`for_choosing`; of LFW on the first of --folds); nothing of the test is
         looked at.
measure  the best rate of each by that, on the whole federation, three seeds, every fold: EER on unseen people by the
         encoder as it is published, by the adapted one, and the change, on the same pairs, with intervals by person.
         Then the same on what may be forgotten: the same unseen people in grey and blurred, or in noise.
table    what is in the file.

Every finished run is a line of the file, and a run that is there is not repeated; several processes share a file
(`selfsame/runs/sharing.py`). Where the last layer alone learns, the others are constant: what they make of the samples
is computed once (`Tail`), with the same result.

    selfsame weights convert dlib-face face-api-1.7.15.tgz --out face.safetensors
    python bench/adapt.py choose lfw.jsonl --data lfw --path DATA --start face.safetensors --device cuda
    python bench/adapt.py measure lfw.jsonl --data lfw --path DATA --start face.safetensors --device cuda --folds 1-10
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
import tomllib
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from hashlib import sha256
from itertools import product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import frontier
import torch
from safetensors.torch import load_file, save, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame import nets
from selfsame.config.recipe import Recipe, from_mapping
from selfsame.data import Federation, Held, Samples, load
from selfsame.data.choosing import for_choosing
from selfsame.engine.machine import choose_machine, facts
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.files import write
from selfsame.runs.course import Run
from selfsame.runs.elsewhere import elsewhere
from selfsame.runs.sharing import finished, share

Tables = dict[str, Any]


@dataclass(frozen=True)
class Subject:
    """A data set, its encoder, and how it is trained."""

    net: Tables
    data: Tables
    last: str  # the layer that `last` means
    cohort: int
    batch: int
    rounds: int


SUBJECTS = {
    "lfw": Subject({"name": "dlib-face", "crop": 56}, {"size": 64, "least": 4}, "head", 64, 4, 500),
    "audiomnist": Subject({"name": "ge2e-voice"}, {}, "linear", 12, 8, 500),
}
METHODS: dict[str, Tables] = {
    "FedCrowd": {"name": "fedcrowd"},
    "FedCrowd, sums": {"name": "fedcrowd"},  # fixed groups, of which nothing but masked sums leaves
    "FedAwS": {"name": "fedaws"},
    "FedUV": {"name": "feduv", "code_length": 127, "secrets": "seeded"},
    "FedHide": {"name": "fedhide", "alpha": 0.01, "neighbours": 5},
    "FDML": {"name": "fdml", "normalise": True},
    "softmax": {"name": "softmax"},
}
RATES = {"last": (0.1, 0.3, 1.0, 3.0), "adapters": (0.001, 0.003, 0.01, 0.03), "all": (0.0001, 0.0003, 0.001, 0.003)}
# Where a method's best rate is known to lie elsewhere; four of each all the same.
OWN_RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("FedCrowd", "all"): (0.00001, 0.00003, 0.0001, 0.0003),
    ("softmax", "all"): (0.00003, 0.0001, 0.0003, 0.001),
    ("FDML", "all"): (0.003, 0.01, 0.03, 0.1),
    ("FedHide", "all"): (0.001, 0.003, 0.01, 0.03),
    ("FDML", "adapters"): (0.03, 0.1, 0.3, 1.0),
    ("FedHide", "adapters"): (0.03, 0.1, 0.3, 1.0),
    ("FedAwS", "adapters"): (0.003, 0.01, 0.03, 0.1),
    ("FedUV", "adapters"): (0.003, 0.01, 0.03, 0.1),
}
# Adam's learning rate is the server's, the same for every method; a client's own vector learns by SGD at ADAM_VECTORS.
ADAM_RATES = {"last": (0.0003, 0.001, 0.003, 0.01), "adapters": (0.0001, 0.0003, 0.001, 0.003, 0.01),
              "all": (0.000003, 0.00001, 0.00003, 0.0001)}  # fmt: skip
ADAM = {**frontier.ADAM, "epsilon": 1e-10, "schedule": "cosine"}
ADAM_VECTORS = 0.001
KINDS: dict[str, Tables] = {"last": {"train": ["last"]}, "adapters": {}, "all": {}}


class FaceTail(nn.Module):
    """What follows the constant layers of dlib-face."""

    def __init__(self, shape: tuple[int], width: int) -> None:
        super().__init__()
        self.head = nn.Linear(shape[0], width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(x)
        return out


class VoiceTail(nn.Module):
    """What follows the constant layers of ge2e-voice, for recordings of one part."""

    def __init__(self, shape: tuple[int], width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(shape[0], width)

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(self.linear(x).relu(), dim=-1)


TAILS = {"dlib-face": ("face-tail", FaceTail), "ge2e-voice": ("voice-tail", VoiceTail)}


class Tail:
    """The samples of a federation as the constant layers of an encoder leave them."""

    def __init__(self, args: argparse.Namespace, federation: Federation) -> None:
        subject = SUBJECTS[args.data]
        self.device = choose_machine(from_mapping({"run": {"device": args.device}}).run).device
        problem = prepare(recipe(args, "softmax", "all", 0.0, 0, tail=False), federation)
        net = nets.build(problem.recipe.net.name, federation.shape, problem.world.dim, **problem.recipe.net.options)
        net.load_state_dict(
            {name: value.cpu() for name, value in problem.model.net_views(problem.model.first_theta).items()}
        )
        self.net, self.layer = net.eval().to(self.device), getattr(net, subject.last)
        self.scale = problem.federation.scale
        self.file: Path | None = args.features
        self.known: dict[bytes, Tensor] = {}
        if self.file is not None and self.file.exists():
            held = load_file(self.file)
            names = [row.numpy().tobytes() for row in held["digest"]]
            self.known = dict(zip(names, held["features"], strict=True))

    @torch.no_grad()
    def features(self, raw: Tensor) -> Tensor:
        """What the last layer is given, (S, features)."""
        names = [sha256(row.numpy().tobytes()).digest() for row in raw.cpu().contiguous()]
        new = [place for place, name in enumerate(names) if name not in self.known]
        if new:
            self.known |= dict(zip([names[place] for place in new], self._computed(raw[new]), strict=True))
            self._keep()
        return torch.stack([self.known[name] for name in names]) if names else torch.empty(0, self.layer.in_features)

    def _computed(self, raw: Tensor) -> Tensor:
        seen: list[Tensor] = []
        hook = self.layer.register_forward_pre_hook(lambda _, given: seen.append(given[0].float().cpu()))
        for part in raw.split(128):
            self.net(self.scale(part.to(self.device)).float())
        hook.remove()
        return torch.cat(seen)

    def _keep(self) -> None:
        """Write what is known to the file of features, as a whole or not at all."""
        if self.file is None:
            return
        digest = torch.frombuffer(bytearray(b"".join(self.known)), dtype=torch.uint8).reshape(-1, 32)
        write(self.file, save({"digest": digest, "features": torch.stack(list(self.known.values()))}))

    def of(self, federation: Federation) -> Federation:
        """The federation with features in place of samples."""
        counts = federation.count_N.tolist()
        rows = [federation.source.rows(torch.tensor([n]), torch.arange(c)[None])[0] for n, c in enumerate(counts)]
        start_N = torch.cumsum(federation.count_N, 0) - federation.count_N
        held = self.features(torch.cat(rows))
        sets = {
            name: Samples(self.features(_all(getattr(federation, name))), getattr(federation, name).y)
            for name in ("test", "unseen", "validation")
        }
        return replace(
            federation, shape=(held.shape[1],), source=Held(held, start_N), mean=(0.0,), std=(1.0,), **sets
        )  # fmt: skip


def _all(samples: Samples) -> Tensor:
    x = samples.x[torch.arange(len(samples.y))]
    return x[:, 0] if x.dim() == 4 and x.shape[1] == 1 and x.shape[2] == 1 else x


def federation_of(args: argparse.Namespace, fold: int) -> Federation:
    options = {**SUBJECTS[args.data].data, **args.people, **({"fold": fold} if args.data == "lfw" else {})}
    return load(args.data, args.path, **options)


def changed(federation: Federation) -> Federation:
    """What the encoder may forget: the unseen people in grey and blurred, or in noise 20 dB below the loudest."""
    x = _all(federation.unseen)
    if x.dtype == torch.uint8:
        grey = x.float().mean(1, keepdim=True)
        soft = F.avg_pool2d(F.pad(grey, (1, 1, 1, 1), mode="replicate"), 3, 1)
        x = soft.round().to(torch.uint8).expand(-1, x.shape[1], -1, -1).contiguous()
    else:
        draw = torch.Generator().manual_seed(0)
        loud = x.float().abs().amax(-1, keepdim=True)
        noise = torch.randn(x.shape, generator=draw) * loud / 30
        x = (x.float() + noise).round().clamp(-32768, 32767).to(torch.int16)
    return replace(federation, unseen=Samples(x, federation.unseen.y))


@cache
def tail_file(start: str, last: str) -> str:
    """The weights of the last layer alone."""
    kept = {name: value for name, value in load_file(start).items() if name.startswith(f"{last}.")}
    file = Path(tempfile.mkdtemp()) / "tail.safetensors"
    save_file(kept, file)
    return str(file)


def recipe(args: argparse.Namespace, name: str, kind: str, rate: float, seed: int, tail: bool | None = None) -> Recipe:
    subject, method = SUBJECTS[args.data], METHODS[name]
    tail = kind == "last" if tail is None else tail
    encoder = subject.net["name"]
    net: Tables = {"start": args.start, "keep": args.keep}
    if method["name"] == "feduv":  # its width is that of its codewords, so the last layer is drawn anew, and learns
        net |= {"skip": [f"{subject.last}.*"]}
        net |= {"train": ["last"]} if kind == "adapters" else {}
    if method["name"] == "fdml":  # the enclave knows no first network
        net["keep"] = 0.0
    if not tail:
        ranks = {"adapters": args.rank} if kind == "adapters" else {}
        net = {**subject.net, **args.net, **KINDS[kind], **ranks, **net}
    else:
        nets.register(*TAILS[encoder])
        width, drawn = nets.own_width(encoder), "skip" in net
        file = {} if drawn else {"start": tail_file(args.start, subject.last)}
        net = {"name": TAILS[encoder][0], "width": width, "keep": net["keep"], **file}
    graphs = "graphs" if args.device.startswith("cuda") else "off"
    run = {"rounds": args.rounds or subject.rounds, "seed": seed, "device": args.device, "compile": graphs}
    return from_mapping(
        {
            "method": method,
            "data": {"name": args.data},
            "net": net,
            "run": {**run, "precision": args.precision},
            "cohort": {"size": args.cohort or subject.cohort, "weights": args.weights},
            "sums": {"aggregation": "masked" if _summed(name) else "clear"},
            "local": {"batch": subject.batch, **_local(args, rate)},
            "server": {**ADAM, "lr": rate} if args.server == "adam" else {"optimiser": "momentum"},
            "augment": args.augment,
        }
    )


def _local(args: argparse.Namespace, rate: float) -> Tables:
    return {"lr": ADAM_VECTORS} if args.server == "adam" else {"lr": rate, "schedule": "cosine"}


def _summed(name: str) -> bool:
    return name.endswith(", sums")


def rates_of(args: argparse.Namespace, name: str, kind: str) -> tuple[float, ...]:
    """The rates that are tried."""
    if args.server == "adam":
        return tuple(args.rates or ADAM_RATES[kind])
    return tuple(args.rates or OWN_RATES.get((name.removesuffix(", sums"), kind), RATES[kind]))


def trained(order: Recipe, federation: Federation, warm: bool, folder: Path | None = None) -> tuple[Run, float]:
    """A run to its end, and how long its rounds took; `folder`: that keeps the network to begin with."""
    vectors = "" if warm else "drawn"  # "": as enrolled, where the method keeps any
    order = replace(order, net=replace(order.net, vectors=vectors))
    problem = prepare(order, federation, folder=folder)
    state = begin(problem)
    engine = Engine(problem, graphs=choose_machine(order.run).graphs)
    begun = time.perf_counter()
    engine.run(state, make_plan(problem.recipe, 0, order.run.rounds, state.present))
    return Run(problem, state), time.perf_counter() - begun


def compared(args: argparse.Namespace, run: Run, federation: Federation, bootstrap: int) -> Tables:
    """EER before, after, and the change: over the data set's own list of pairs, or over pairs that are drawn."""
    found = elsewhere(run, args.data, federation, trials=args.trials, bootstrap=bootstrap)["protocols"][0]
    return {name: found[name] for name in ("name", "people", "before", "after", "change")}


def key_of(args: argparse.Namespace, phase: str, name: str, kind: str) -> Tables:
    """What tells a run from the others of the file, but for its rate, fold and seed."""
    asked = {"phase": phase, "data": args.data, "method": name, "kind": kind, "keep": args.keep, "warm": args.warm}
    return {**asked, **_said_since(args, phase), "net": args.net, "rank": args.rank if kind == "adapters" else 0}


def _said_since(args: argparse.Namespace, phase: str) -> Tables:
    """What older files do not say, where it differs from what held then."""
    weights = {} if args.weights == "samples" else {"weights": args.weights}
    more = {"augment": args.augment, "people": args.people, "server": "adam" if args.server == "adam" else ""}
    more |= frontier.alike(args.data) if phase == "choose" else {}
    return {**weights, **{name: value for name, value in more.items() if value}}


def like(args: argparse.Namespace, line: Tables, phase: str, name: str, kind: str) -> bool:
    """Whether a line is a run of these, whatever its rate, fold and seed."""
    rest = {part for part in line["key"] if part not in ("lr", "fold", "seed")}
    wanted = key_of(args, phase, name, kind)
    return rest == set(wanted) and wanted.items() <= line["key"].items()


def choose(args: argparse.Namespace) -> None:
    @cache
    def federation() -> dict[bool, Federation]:
        plain = for_choosing(federation_of(args, args.folds[0]))
        return {False: plain, True: Tail(args, plain).of(plain) if "last" in args.kinds else plain}

    def one(key: Tables) -> Tables:
        name, kind, rate, seed = (key[part] for part in ("method", "kind", "lr", "seed"))
        there = federation()[kind == "last"]
        run, seconds = trained(recipe(args, name, kind, rate, seed), there, args.warm)
        found = compared(args, run, there, 0)
        print(f"{name}, {kind}, lr {rate:g}, seed {seed}: {_said(found)}", flush=True)
        return {**found, "rounds": run.recipe.run.rounds, "seconds": seconds}

    cases = [(name, kind, r) for name, kind in product(args.methods, args.kinds) for r in rates_of(args, name, kind)]
    keys = [
        {**key_of(args, "choose", name, kind), "lr": rate, "seed": seed}
        for seed, (name, kind, rate) in product(range(args.choosing), cases)
    ]
    share(args.file, keys, one)


def tried(args: argparse.Namespace, name: str, kind: str) -> dict[float, list[float]]:
    """The EER on the people set apart, of every seed, by rate."""
    found: dict[float, list[float]] = {}
    for line in finished(args.file):
        if like(args, line, "choose", name, kind):
            found.setdefault(line["key"]["lr"], []).append(line["after"]["value"])
    return found


def chosen(args: argparse.Namespace, name: str, kind: str) -> float | None:
    """The rate that was best on the people set apart, by the mean of its seeds: one that diverges now and then is not.

    Of rates of which some have more seeds, those are compared. A single one of --rates was chosen elsewhere.
    """
    if args.rates and len(args.rates) == 1:
        return float(args.rates[0])
    found = tried(args, name, kind) or tried(args, name.removesuffix(", sums"), kind)
    most = max((len(values) for values in found.values()), default=0)
    means = {rate: statistics.mean(values) for rate, values in found.items() if len(values) == most}
    return min(means, key=lambda rate: means[rate], default=None)


def measure(args: argparse.Namespace) -> None:
    rates = {pair: chosen(args, *pair) for pair in product(args.methods, args.kinds)}
    held = lru_cache(maxsize=1)(lambda fold: _both(args, fold))

    def one(key: Tables) -> Tables:
        name, kind, fold, seed = (key[part] for part in ("method", "kind", "fold", "seed"))
        here, there = held(fold)[kind == "last"]
        rate = rates[name, kind]
        run, seconds = trained(recipe(args, name, kind, rate, seed), here, args.warm)
        found = compared(args, run, here, args.bootstrap)
        away = compared(args, run, there, args.bootstrap)
        learned = run.problem.model.size * 4
        print(f"fold {fold}, seed {seed}, {name}, {kind}: {_said(found)}; away {_said(away)}", flush=True)
        rest = {"lr": rate, "rounds": run.recipe.run.rounds, "seconds": seconds, "bytes": learned}
        return {**found, "away": away, **rest, "machine": facts(run.problem.model.device)}

    keys = [
        {**key_of(args, "measure", *pair), "fold": fold, "seed": seed}
        for fold, seed, pair in product(args.folds, range(args.seeds), rates)
        if rates[pair] is not None
    ]
    share(args.file, keys, one)


def _both(args: argparse.Namespace, fold: int) -> dict[bool, tuple[Federation, Federation]]:
    """The federation of a fold and what may be forgotten, as samples and as features."""
    plain = federation_of(args, fold)
    pair = plain, changed(plain)
    if "last" not in args.kinds:
        return {False: pair}
    tail = Tail(args, plain)
    here = tail.of(plain)
    away = Samples(tail.features(pair[1].unseen.x), plain.unseen.y)
    return {False: pair, True: (here, replace(here, unseen=away))}


def _said(found: Tables) -> str:
    return f"EER {100 * found['before']['value']:.2f} -> {100 * found['after']['value']:.2f} %"


def table(args: argparse.Namespace) -> None:
    """A row for each method and kind over the folds of --folds that it has with every seed: means over those folds."""
    lines = finished(args.file)
    print("| method | learns | KB up | before | after | intervals below zero | away: before | after | lr | folds |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for name, kind in product(args.methods, args.kinds):
        some = {
            (line["key"]["fold"], line["key"]["seed"]): line
            for line in lines
            if like(args, line, "measure", name, kind)
        }
        folds = [fold for fold in args.folds if all((fold, seed) in some for seed in range(args.seeds))]
        if not folds:
            continue
        every = [some[fold, seed] for fold, seed in product(folds, range(args.seeds))]
        seeds = [_mean([some[fold, seed]["after"]["value"] for fold in folds]) for seed in range(args.seeds)]
        below = sum(line["change"]["high"] is not None and line["change"]["high"] < 0 for line in every)
        learns = f"adapters of rank {args.rank}" if kind == "adapters" else kind
        cells = [
            *(name, learns, f"{every[0]['bytes'] / 1000:,.0f}"),
            f"{_mean([line['before']['value'] for line in every]):.2f}",
            f"{statistics.mean(seeds):.2f} [{min(seeds):.2f}, {max(seeds):.2f}]",
            f"{below} of {len(every)}",
            *(f"{_mean([line['away'][what]['value'] for line in every]):.2f}" for what in ("before", "after")),
            *(", ".join(dict.fromkeys(f"{line['lr']:g}" for line in every)), str(len(folds))),
        ]
        print("|", " | ".join(cells), "|")


def _mean(values: list[float]) -> float:
    """In per cent."""
    return 100 * statistics.mean(values)


def _folds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def _values(given: list[str]) -> Tables:
    """NAME=VALUE, as a recipe would have them."""
    pairs = dict(one.split("=", 1) for one in given)
    return {name: tomllib.loads(f"x = {value}")["x"] for name, value in pairs.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choose", "measure", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", choices=tuple(SUBJECTS), default="lfw")
    parser.add_argument("--path", default="", help="where the data set lies")
    parser.add_argument("--start", default="", help="the encoder's weights, as `selfsame weights convert` leaves them")
    parser.add_argument("--net", nargs="*", default=[], help="options of the encoder: crop=0 eyes=[23,26,40,26]")
    parser.add_argument("--augment", nargs="*", default=[], help="random changes to pictures: flip=true crop=2")
    parser.add_argument("--people", nargs="*", default=[], help="options of the data set: least=2 test=0")
    parser.add_argument("--methods", default=";".join(METHODS), help="separated by semicolons")
    parser.add_argument("--kinds", default=",".join(KINDS), help="what learns: last, adapters, all")
    parser.add_argument(
        "--folds", default="1", help="of LFW: one, or a range such as 1-10; settings are chosen on the first"
    )
    parser.add_argument("--weights", choices=("samples", "uniform"), default="uniform", help="of clients in a round")
    parser.add_argument("--server", choices=("momentum", "adam"), default="momentum", help="the server's optimiser")
    parser.add_argument("--keep", type=float, default=0.0, help="weight of the pull towards the first network")
    parser.add_argument("--warm", action="store_true", help="vectors that stand for people begin as what they enrol")
    parser.add_argument(
        "--features", type=Path, help="file that keeps what the constant layers make of samples; one for each encoder"
    )
    parser.add_argument(
        "--rates", type=float, nargs="*", help="in place of those that are tried, or the one to measure with"
    )
    parser.add_argument("--rank", type=int, default=4, help="of adapters")
    parser.add_argument("--choosing", type=int, default=1, help="seeds of every rate that is tried")
    parser.add_argument("--rounds", type=int, default=0)
    parser.add_argument("--cohort", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--trials", type=int, default=20_000, help="pairs that are drawn, where the data has no list")
    parser.add_argument("--bootstrap", type=int, default=200)
    parser.add_argument("--precision", default="float32")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    args.methods = [name.strip() for name in args.methods.split(";")]
    args.kinds, args.folds = args.kinds.split(","), _folds(args.folds)
    args.net, args.augment, args.people = _values(args.net), _values(args.augment), _values(args.people)
    {"choose": choose, "measure": measure, "table": table}[args.what](args)


if __name__ == "__main__":
    main()
