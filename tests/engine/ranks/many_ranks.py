"""The same cases in one process and in several: what they are, and what each process does when it is started."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import time
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from small import people, recipe
from test_hostile import poisoned

from selfsame.engine.plan import make_plan
from selfsame.engine.ranks import shards
from selfsame.engine.ranks.group import Ranks, join, leave
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS, SplitLoss
from selfsame.runs.course import Run
from selfsame.runs.loop import carry_on
from selfsame.runs.run import load_run, start

PLENTY = 240  # seconds after which processes that do not end are given up


@dataclass(frozen=True)
class Case:
    """A method on small data for a few rounds."""

    method: str
    people: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, Any] = field(default_factory=dict)
    poisoned: tuple[int, ...] = ()
    whole: bool = False  # as a run with its evaluations, not rounds alone

    def run(self, ranks: Ranks, folder: Path | None = None) -> Run:
        federation = people(**self.people)
        if self.poisoned:
            federation = poisoned(federation, float("nan"), list(self.poisoned))
        order = recipe(self.method, self.options, **{**self.parts, "run": {"rounds": 2, **self.parts.get("run", {})}})
        one = start(order, folder, federation, ranks)
        if self.whole:
            return carry_on(one)
        state = one.state
        losses = Engine(one.problem).run(state, make_plan(order, 0, order.run.rounds, state.present))
        state.losses = losses.tolist()
        shards.collect(one.problem, state, everywhere=True)
        return one


SOME = {"size": 7, "dropout": 0.3}
MOMENTUM = {"optimiser": "momentum", "weight_decay": 1e-3}
CASES: dict[str, Case] = {}
for name, kind in METHODS.items():
    often = 1 if issubclass(kind, SplitLoss) else 2
    CASES[f"{name}, one step"] = Case(
        name, poisoned=(2, 7), parts={"cohort": SOME, "local": {"batch": 9}, "server": MOMENTUM}
    )
    CASES[f"{name}, two clients a class"] = Case(
        name, {"clients_per_class": 2}, parts={"cohort": {"size": 9, "weights": "uniform"}, "local": {"steps": often}}
    )
    CASES[f"{name}, fewer clients than processes"] = Case(
        name, parts={"cohort": {"size": 3, "dropout": 0.2}, "server": {"optimiser": "adam"}}
    )
CASES["fedmetric, passes"] = Case("fedmetric", parts={"cohort": SOME, "local": {"epochs": 1, "batch": 3}})
CASES["fedhide, clusters"] = Case("fedhide", options={"search": "clustered", "negatives": 4}, parts={"cohort": SOME})
CASES["fedaws, full"] = Case("fedaws", options={"spread": "full"}, parts={"cohort": SOME, "local": {"lr": 0.01}})
CASES["fdml, noise"] = Case("fdml", options={"noise": "laplace", "drop": 0.2}, parts={"cohort": SOME})
CASES["fdml, class vectors"] = Case("fdml", options={"kind": "margin-softmax"}, parts={"cohort": SOME})
CASES["fdml, replies lost"] = Case(
    "fdml", parts={"cohort": {"size": 5, "dropout": 0.5}, "split": {"over": 2.0, "lost": 0.3, "strategy": "as"}}
)

SHARDED = {"run": {"shard_tables": True}, "cohort": SOME, "server": MOMENTUM}
for name in ("fedaws", "positive-only", "fixed"):
    CASES[f"{name}, in blocks"] = Case(name, parts=SHARDED)
CASES["fedaws, in blocks, two clients a class"] = Case(
    "fedaws", {"clients_per_class": 2}, {"distance": "euclidean", "server_steps": 2}, {**SHARDED, "local": {"lr": 0.01}}
)
CASES["fedaws, in blocks, subset"] = Case("fedaws", options={"subset": 5, "server_steps": 2}, parts=SHARDED)
CASES["fedaws, in blocks, three classes"] = Case("fedaws", {"clients": 3}, {"neighbours": 9}, {**SHARDED, "cohort": {}})

LATE = {"size": 5, "late": 0.5, "join_round": 2}
EVERY = {"rounds": 4, "eval_every": 2}
CASES["fedhide, late clients"] = Case("fedhide", parts={"cohort": LATE, "run": EVERY}, whole=True)
CASES["fedaws, late clients in blocks"] = Case(
    "fedaws", parts={"cohort": LATE, "run": {**EVERY, "shard_tables": True}}, whole=True
)
ADAPTED = {"name": "lenet", "width": 8, "channels": [4, 4], "adapters": 2, "keep": 0.3}
CASES["fedhide, adapters"] = Case("fedhide", parts={"net": ADAPTED, "cohort": SOME, "local": {"steps": 2}})
CASES["deepsvdd, whole run"] = Case("deepsvdd", parts={"cohort": SOME, "run": EVERY}, whole=True)
HALF = recipe("fedaws", cohort=SOME, server=MOMENTUM, run={"rounds": 6, "eval_every": 3, "shard_tables": True})


def cases(size: int) -> dict[str, tuple[int, Case]]:
    """The cases by number for so many processes: more processes cost more, so four leave one out."""
    numbered = {name: (number, case) for number, (name, case) in enumerate(CASES.items())}
    return {name: one for name, one in numbered.items() if size < 4 or "class" not in name or "blocks" in name}


def spread(size: int, folder: Path) -> None:
    """Run `main` below in so many processes that know of one another; raise if one fails.

    They are forked from this one and import nothing. A process that has been on a GPU cannot be forked: they are new.
    """
    import torch._dynamo  # derivatives of stacked networks ask for it, which takes seconds in each

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    context = get_context("spawn" if torch.cuda.is_available() else "fork")
    ranks = [context.Process(target=main, args=(folder, rank, place), daemon=True) for rank in range(size)]
    last = time.monotonic() + PLENTY
    try:
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(max(0, last - time.monotonic()))
    finally:
        for rank in ranks:
            if rank.exitcode is None and rank.pid is not None:
                rank.kill()
    codes = [rank.exitcode for rank in ranks]  # None: it did not end
    if codes != [0] * size:
        raise RuntimeError(f"processes ended with {codes}; what they said is in the captured output")


def digest(state: State) -> str:
    whole = hashlib.sha256()
    for name, value in sorted(state.tensors().items()):
        whole.update(name.encode() + value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()


def main(folder: Path, rank: int, place: dict[str, str]) -> None:
    """What each process does: every case, then the second half of a run. Rank 0 keeps the states."""
    os.environ |= {**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    torch.set_num_threads(1)
    ranks = join()
    found: dict[str, Any] = {"bits": {}, "losses": {}, "crossed": {}}
    for name, (number, case) in cases(ranks.size).items():
        one = case.run(ranks, folder / f"run{number}" if case.whole else None)
        found["losses"][name] = one.state.losses
        found["crossed"][name] = {field: (one.how, one.size) for field, one in ranks.crossed.items()}
        if not case.whole:  # there rank 0 alone has the whole of a table in blocks
            found["bits"][name] = digest(one.state)
        if ranks.first:
            save_file({k: v.clone() for k, v in one.state.tensors().items()}, folder / f"{number}.safetensors")
    secret = start(
        recipe("feduv", {"secrets": "system"}, cohort={"late": 0.5, "join_round": 1, "size": 4}, run={"rounds": 2}),
        None, people(), ranks,
    )  # fmt: skip
    found["secret"] = digest(carry_on(secret).state)
    found["refused"] = refused(ranks)
    half = folder / "half"
    if ranks.first:
        shutil.copytree(folder.parent / "half", half)
    carry_on(load_run(half, people(), ranks))
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(found))
    leave(ranks)


def refused(ranks: Ranks) -> dict[str, str]:
    """What is said of settings that cannot be."""
    said = {}
    federations = {"other data": people(samples=8 if ranks.rank == 1 else 9)}
    orders = {
        "reference": recipe("fedhide", run={"engine": "reference"}),
        "device": recipe("fedhide", run={"device": "cuda:1"}),
        "other data": recipe("fedhide"),
    }
    for name, order in orders.items():
        try:
            start(order, None, federations.get(name) or people(), ranks)
        except SelfsameError as error:
            said[name] = str(error)
        ranks.wait()
    return said
