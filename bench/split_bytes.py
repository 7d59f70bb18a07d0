"""Bytes of FDML's messages a device and a round at ResNet-18 size, on messages of rounds that were run.

    python bench/split_bytes.py [--batch 8]

The samples are noise: what is measured is what travels.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from selfsame.config.recipe import Recipe, from_mapping
from selfsame.data import Federation, Held, Samples
from selfsame.deploy.codec import glance
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.attest import Policy
from selfsame.deploy.split.device import SplitDevice
from selfsame.deploy.split.server import SplitServer

NODES = 3
SHAPE = (3, 32, 32)
WAIT = 1e6  # the clock stands still


def the_recipe(batch: int) -> Recipe:
    """FedHide's network for CIFAR-100, one round of FDML."""
    return from_mapping(
        {
            "method": {"name": "fdml"},
            "data": {"name": "cifar100"},
            "net": {"name": "resnet18", "width": 512},
            "run": {"rounds": 1, "device": "cpu", "precision": "float32"},
            "local": {"batch": batch, "lr": 1.0},
            "server": {"optimiser": "adam", "lr": 1e-4},
        }
    )


def one_round(folder: Path, batch: int, transport: str) -> tuple[int, dict[str, tuple[int, int]]]:
    """(parameters, bytes down and up of the last message of each kind)."""
    x = torch.randint(0, 256, (NODES * batch, *SHAPE), dtype=torch.uint8)
    held, none, count_N = Held(x, torch.arange(NODES) * batch), Samples.none(SHAPE), torch.full((NODES,), batch)
    people = Federation("noise", SHAPE, torch.arange(NODES), count_N, held, none, none, (0.5,) * 3, (0.25,) * 3)
    policy, sizes = Policy(allow_simulated=True), {}
    devices = {
        str(i): SplitDevice(folder / str(i), part, policy=policy, trial=True) for i, part in enumerate(x.split(batch))
    }
    terms = Terms(NODES, embedding_wait=WAIT, answer_wait=WAIT)
    with SplitServer(folder / "server", the_recipe(batch), terms, federation=people, transport=transport) as server:
        server.begin(list(devices), 0.0)
        while not server.done:
            for ask in server.step(0.0):
                answer = devices[ask.node].reply(ask.payload)
                sizes[glance(ask.payload, len(ask.payload))[0]] = len(ask.payload), len(answer)
                refused = server.answer(ask.node, answer, 0.0)
                assert refused is None, refused
        return server.mandate.parameters, sizes


def main() -> None:
    """Print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=8)
    batch = parser.parse_args().batch
    print("| network down | parameters | embed: down | up | derive: down | up | a round: down | up |")
    print("|---|" + "---:|" * 7)
    for transport in ("exact", "half"):
        with tempfile.TemporaryDirectory() as folder:
            count, sizes = one_round(Path(folder), batch, transport)
        (a, b), (c, d) = sizes["embed"], sizes["derive"]
        print(f"| {transport} | " + " | ".join(f"{number:,}" for number in (count, a, b, c, d, a + c, b + d)) + " |")


if __name__ == "__main__":
    main()
