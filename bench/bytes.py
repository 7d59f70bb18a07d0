"""What a round on real devices sends, what half precision costs, and what lost replies cost.

python bench/bytes.py sizes    bytes per round and device for each method, of real messages at ResNet-18 size
python bench/bytes.py parts    the same for fedhide where a part of the network learns, or adapters of it
python bench/bytes.py half     accuracy with the network in half precision against exact, digits, several seeds
python bench/bytes.py lost     accuracy where 30 % and 60 % of the replies are lost over 50 rounds, digits
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from common import header

from selfsame.config.presets import preset
from selfsame.config.recipe import Recipe, from_mapping, merged
from selfsame.data import Federation, load, without_samples
from selfsame.deploy.codec import Field, Spec, decode, encode
from selfsame.deploy.device import Device
from selfsame.deploy.folder import Seat
from selfsame.deploy.host import Ask, rates
from selfsame.deploy.schedule import Terms
from selfsame.deploy.server import Server
from selfsame.engine.plan import Start, make_plan, rate
from selfsame.engine.problem import Problem
from selfsame.engine.reference import Answer, client_update, take_answers
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.starting import KEPT
from selfsame.engine.state import State, begin
from selfsame.methods import METHODS, SplitLoss
from selfsame.methods.base import LocalLoss, pick, put_rows
from selfsame.runs.course import Run
from selfsame.streams import host_generator

LOCAL = [name for name, kind in METHODS.items() if kind.federated and not issubclass(kind, SplitLoss)]
IN_CLEAR = [name for name in LOCAL if METHODS[name].poll is LocalLoss.poll]  # a server may not see polls but as sums
CLIENTS = 100  # as in CIFAR-100
SHOWN = ("p@1", "eer")


# Sizes


class _Last(Server):
    """The one node is the last of the clients, so that every table has all its rows."""

    def _place(self, owner: str, place: int) -> Seat:
        last = self.problem.world.clients - 1
        return Seat(last, last, 0, owner)


def sizes(
    name: str, transport: str, samples: torch.Tensor, part: dict[str, object] | None = None
) -> tuple[int, int, int, int]:
    """(parameters, bytes of a request, bytes of its answer, both of a registration), of a round that is really run."""
    options = {"code_length": 511} if name.startswith("feduv") else {}
    order = from_mapping(
        {
            "method": {"name": name, **options},
            "data": {"name": "cifar100"},
            "net": {"name": "resnet18", "width": 512, **(part or {})},
            "run": {"rounds": 1, "device": "cpu", "precision": "float32"},
            "local": {"batch": len(samples)},
        }
    )
    federation = without_samples((3, 32, 32), "uint8", CLIENTS, CLIENTS, (0.5,) * 3, (0.25,) * 3)
    with tempfile.TemporaryDirectory() as folder:
        server = _Last(
            Path(folder) / "server",
            order,
            Terms(required=1, fewest=0),
            federation=federation,
            transport=transport,
        )
        device = Device(Path(folder) / "node", samples, trial=True, start=Path(folder) / "server" / KEPT)
        server.begin(["node"], 0.0)
        passed = []
        while not server.done:
            for ask in server.step(0.0):
                reply = device.reply(ask.payload)
                passed.append((len(ask.payload), len(reply)))
                refused = server.answer("node", reply, 0.0)
                assert refused is None and server.counts.keys() <= {"registered", "taken"}, (refused, server.counts)
        assert server.state is not None and server.state.present == CLIENTS
        return len(server.state.theta_P), *passed[1], sum(passed[0])


def size_table() -> None:
    samples = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    print(f"ResNet-18, 512-d, {CLIENTS} clients and classes; bytes per round and device")
    print(f"{header(torch.device('cpu'))}\n")
    print("| method | parameters | down, fp32 | up, fp32 | down, fp16 | up, fp16 | fp16 of fp32 | registration, once |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name in IN_CLEAR:
        count, down, up, once = sizes(name, "exact", samples)
        _, down16, up16, _ = sizes(name, "half", samples)
        share = (down16 + up16) / (down + up)
        print(f"| {name} | {count:,} | {down:,} | {up:,} | {down16:,} | {up16:,} | {100 * share:.1f} % | {once:,} |")


PARTS: dict[str, dict[str, object]] = {
    "all": {},
    "last": {"train": ["last"]},
    "norms": {"train": ["norms"]},
    "adapters of rank 1": {"adapters": 1},
    "adapters of rank 4": {"adapters": 4},
    "adapters of rank 4, norms": {"adapters": 4, "train": ["norms"]},
    "adapters of rank 16": {"adapters": 16},
}


def part_table() -> None:
    samples = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    print(f"fedhide, ResNet-18, 512-d; bytes per round and device; {header(torch.device('cpu'))}\n")
    print("| what learns | parameters | down, fp32 | up, fp32 | up, fp16 |")
    print("|---|---:|---:|---:|---:|")
    for what, part in PARTS.items():
        count, down, up, _ = sizes("fedhide", "exact", samples, part)
        _, _, up16, _ = sizes("fedhide", "half", samples, part)
        print(f"| {what} | {count:,} | {down:,} | {up:,} | {up16:,} |")


# Half precision


def carried(theta_P: torch.Tensor) -> torch.Tensor:
    """A network as it arrives after a way in half precision."""
    spec = Spec("x", fields={"network": Field(tuple(theta_P.shape), theta_P.dtype, half=True)})
    payload = encode("x", 0, {"run": ""}, {"network": theta_P}, frozenset({"network"}))
    return decode(payload, expected=spec).fields["network"]


def by_codec(problem: Problem, transport: str) -> State:
    """All rounds as server and devices run them, without their disks."""
    state, recipe, method = begin(problem), problem.recipe, problem.method
    plan = make_plan(recipe, 0, recipe.run.rounds, state.present)
    for t in range(len(plan)):
        answers = []
        lr = torch.tensor(rate(recipe.local, t, recipe.run.rounds), dtype=torch.float64)
        down_P = carried(state.theta_P) if transport == "half" else state.theta_P.clone()
        for client in plan.client_TM[t].tolist():
            who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
            sent = method.send(state.server, who)
            own = pick(state.own, who.client_M)
            theta_P, stays, leaves, _ = client_update(problem, down_P, Start(who, own, sent, lr, t))
            if transport == "half":
                theta_P = state.theta_P + carried(theta_P - down_P)
            for name, rows in stays.items():
                put_rows(state.own[name], who.client_M, rows, who.alive_M)
            weight = float(problem.federation.count_N[client]) if recipe.cohort.weights == "samples" else 1.0
            leaves = {name: value.clone() for name, value in leaves.items()}
            answers.append(Answer(client, int(who.class_M), weight, leaves, theta_P))
        take_answers(problem, state, answers, *rates(problem.recipe, state.round), state.round)
        state.round += 1
    return state


def order_of(method: str, rounds: int, seed: int, **parts: dict) -> Recipe:
    """The preset of a method on digits."""
    tables = merged(
        preset(method, "digits"),
        {"method": {"name": method}, "data": {"name": "digits"}, "run": {"rounds": rounds, "seed": seed}},
        {"run": {"device": "cpu", "precision": "float32"}},
        {"method": {"secrets": "seeded"}} if method.startswith("feduv") else {},
        parts,
    )
    return from_mapping(tables)


def figures(problem: Problem, state: State) -> dict[str, float]:
    found = Run(problem, state).evaluate().figures
    return {name: 100 * float(found[name]) for name in SHOWN}


def spread(values: list[float]) -> str:
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" if len(values) > 1 else f"{values[0]:.1f}"


def half_table(methods: list[str], rounds: int, seeds: int) -> None:
    federation = load("digits")
    clients = federation.clients
    print(
        f"digits, {clients} clients, {rounds} rounds, {seeds} seeds (mean ± deviation); {header(torch.device('cpu'))}\n"
    )
    print("| method | P@1 %, fp32 | P@1 %, fp16 | difference, by seed | EER new %, fp32 | EER new %, fp16 |")
    print("|---|---:|---:|---:|---:|---:|")
    for method in methods:
        found: dict[str, list[dict[str, float]]] = {"exact": [], "half": []}
        for seed in range(seeds):
            problem = prepare(order_of(method, rounds, seed), federation)
            for transport, rows in found.items():
                rows.append(figures(problem, by_codec(problem, transport)))
        exact, half = ({name: [row[name] for row in found[way]] for name in SHOWN} for way in found)
        apart = spread([b - a for a, b in zip(exact["p@1"], half["p@1"])])
        cells = [spread(exact["p@1"]), spread(half["p@1"]), apart, spread(exact["eer"]), spread(half["eer"])]
        print(f"| {method} | {' | '.join(cells)} |", flush=True)


# Lost replies


def simulated(order: Recipe, federation: Federation) -> dict[str, float]:
    """`cohort.dropout` in the simulator: a client that is not heard has not moved either."""
    problem = prepare(order, federation)
    state = begin(problem)
    Engine(problem).run(state, make_plan(problem.recipe, 0, order.run.rounds, state.present))
    return figures(problem, state)


def on_devices(order: Recipe, federation: Federation, lost: float) -> dict[str, float]:
    """The same over server and devices: a device whose reply is lost has moved, and registers again."""
    draw = host_generator(order.run.seed, "lost replies")
    heard: Callable[[Ask], bool] = lambda ask: "register" in ask.id or draw.random() >= lost  # noqa: E731
    with tempfile.TemporaryDirectory() as folder:
        nodes = [str(number) for number in range(federation.clients)]
        devices = {node: Device(Path(folder) / node, f"digits:{node}", simulate=True) for node in nodes}
        terms = Terms(required=len(nodes), fewest=0)
        server = Server(Path(folder) / "server", order, terms, federation=federation, seeded=True)
        now = 0.0
        server.begin(nodes, now)
        while not server.done:
            asks = server.step(now)
            for ask in asks:
                reply = devices[ask.node].reply(ask.payload)
                if heard(ask):
                    server.answer(ask.node, reply, now)
            now = now if asks else server.waiting_until
        state, problem = server.state, prepare(order, federation)
        assert state is not None
        kept = [device.keep.read().fields for device in devices.values()]
        state = replace(state, own={name: torch.cat([fields[name] for fields in kept]) for name in kept[0]})
        return figures(problem, state)


def lost_table(methods: list[str], rounds: int, seeds: int, steps: int, devices: bool) -> None:
    federation = load("digits")
    shares = (0.0, 0.3, 0.6)
    where = "on devices (loopback)" if devices else "in the simulator (cohort.dropout)"
    clients = federation.clients
    work = f"{rounds} rounds of {steps} local step{'s' * (steps > 1)}"
    print(f"digits, {clients} clients, {work}, {seeds} seeds, {where}; {header(torch.device('cpu'))}\n")
    print("| method | P@1 %, none lost | 30 % lost | 60 % lost | EER new %, none lost | 30 % lost | 60 % lost |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for method in methods:
        cells: dict[str, list[str]] = {name: [] for name in SHOWN}
        for lost in shares:
            rows = []
            for seed in range(seeds):
                cohort = {} if devices else {"dropout": lost}
                order = order_of(method, rounds, seed, cohort=cohort, local={"steps": steps})
                rows.append(on_devices(order, federation, lost) if devices else simulated(order, federation))
            for name in SHOWN:
                cells[name].append(spread([row[name] for row in rows]))
        print(f"| {method} | {' | '.join(cells['p@1'] + cells['eer'])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["sizes", "parts", "half", "lost"])
    parser.add_argument("--methods", nargs="+", default=LOCAL, choices=LOCAL)
    parser.add_argument("--rounds", type=int, default=0, help="50 for lost replies, 200 for half precision")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1, help="local steps per round, for lost replies")
    parser.add_argument("--devices", action="store_true", help="lost replies over server and devices, disks and all")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "sizes":
        size_table()
    elif given.what == "parts":
        part_table()
    elif given.what == "half":
        half_table(given.methods, given.rounds or 200, given.seeds)
    else:
        lost_table(given.methods, given.rounds or 50, given.seeds, given.steps, given.devices)


if __name__ == "__main__":
    main()
