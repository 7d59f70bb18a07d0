"""What every driver is handed: the same network, samples, batches and loss, and a clock that all of them obey.

Needs PyTorch and NumPy alone, so that it runs in the environment of any simulator.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from selfsame.nets import build


@dataclass(frozen=True)
class Work:
    """T rounds of M clients, S local steps on B samples each; written by `case.py`, the same for every simulator."""

    method: str
    shape: tuple[int, ...]
    width: int
    channels: tuple[int, ...]
    lr: float
    margin: float  # of the loss
    spread: Mapping[str, float]  # FedAwS alone: how the server pushes class vectors apart
    check: int  # the first rounds: they warm up, and what they lead to is compared
    rounds: int  # in a timed block
    repeats: int
    first: Mapping[str, Tensor]  # the network's parameters before the first round
    class_ND: Tensor  # each client's class vector before the first round
    x: Tensor  # all samples, standardised
    client_TM: np.ndarray
    index_TMSB: np.ndarray  # rows of x

    @property
    def total(self) -> int:
        return len(self.client_TM)

    @property
    def batch(self) -> int:
        return self.index_TMSB.shape[-1]

    def net(self) -> nn.Module:
        """The network as it is before the first round."""
        net = build("lenet", self.shape, self.width, channels=list(self.channels))
        net.load_state_dict(self.first)
        return net

    def samples(self, number: int, place: int) -> Tensor:
        """The samples (S * B, *shape) of the client at a place in a round, step after step."""
        return self.x[torch.from_numpy(self.index_TMSB[number, place].reshape(-1))]

    def place(self, number: int, client: int) -> int:
        """Where a client stands in a round."""
        return int(np.flatnonzero(self.client_TM[number] == client)[0])


@functools.cache
def read(folder: Path) -> Work:
    """The work that `case.py` wrote, once a process."""
    facts = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    with np.load(folder / "case.npz") as arrays:
        tensors = {name: arrays[name] for name in arrays.files}
    first = {name: torch.from_numpy(tensors.pop(name)) for name in list(tensors) if name.startswith("net.")}
    return Work(
        **facts,
        first={name.removeprefix("net."): value for name, value in first.items()},
        class_ND=torch.from_numpy(tensors["class_ND"]),
        x=torch.from_numpy(tensors["x"]),
        client_TM=tensors["client_TM"],
        index_TMSB=tensors["index_TMSB"],
    )


def pull(emb_BD: Tensor, class_D: Tensor, margin: float) -> Tensor:
    """The positive loss (23) of FedAwS: a sample costs nothing once its cosine to the class reaches the margin."""
    cosine_B = normalize(emb_BD, dim=-1) @ normalize(class_D, dim=-1)
    return (margin - cosine_B).clamp(min=0).square().mean()


def pull_and_turn(emb_BD: Tensor, row_D: Tensor, margin: float, lr: float) -> Tensor:
    """`pull`, after whose backward pass the client's class vector has taken its own SGD step, in place.

    So the vector is trained whatever training loop a simulator brings along for the network.
    """

    def turn(class_D: Tensor) -> None:
        assert class_D.grad is not None
        row_D.sub_(class_D.grad, alpha=lr)

    class_D = row_D.clone().requires_grad_()
    class_D.register_post_accumulate_grad_hook(turn)
    return pull(emb_BD, class_D, margin)


class Clock:
    """Hears of every finished round; times the blocks after the warm-up and keeps what the warm-up led to."""

    def __init__(self, work: Work) -> None:
        self.work, self.done = work, 0
        self.stamps: list[float] = []
        self.after: dict[str, Any] = {}

    def tick(self, parameters: Callable[[], Mapping[str, Tensor]], rounds: int = 1) -> None:
        self.done += rounds
        if self.done == self.work.check:
            self.after = {name: value.detach().numpy().copy() for name, value in parameters().items()}
        if self.done >= self.work.check and (self.done - self.work.check) % self.work.rounds == 0:
            self.stamps.append(time.perf_counter())

    @property
    def seconds(self) -> list[float]:
        """Of each block."""
        return [after - before for before, after in zip(self.stamps, self.stamps[1:])]

    def write(self, out: Path, version: str) -> None:
        if self.done != self.work.total:
            raise RuntimeError(f"{self.done} rounds were run, {self.work.total} were asked for")
        np.savez(out.with_suffix(".npz"), **self.after)
        out.write_text(json.dumps({"seconds": self.seconds, "version": version}), encoding="utf-8")


@dataclass(frozen=True)
class Order:
    """What a driver is told: where the work lies, where the result goes, and how much of the machine it gets."""

    folder: Path
    out: Path
    threads: int
    workers: int


def order() -> Order:
    """The order on the command line, its number of threads already set."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    told = Order(**vars(parser.parse_args()))
    torch.set_num_threads(told.threads)
    return told
