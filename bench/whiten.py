"""What two sums make of an encoder without training it: python bench/whiten.py [options].

Embeddings of one person differ in directions that say nothing about who it is, such as the digit that is spoken. Their
covariance within people, W, is a sum over devices, as is the mean of everybody's mean, mu. With x -> L'(x - mu), where
L L' is the inverse of W + lambda tr(W)/D, those directions are made short (Hatch and others: within-class covariance
normalisation). No device sends anything but its summand, and nobody is told apart by it.

lambda, and whether the last ReLU is left out, are chosen on people set apart of the clients; then the encoder is judged
on unseen people, as it is and whitened. With --train R adapters of rank 4 learn by softmax for R rounds first.

    python bench/whiten.py --path DATA --start voice.safetensors
    python bench/whiten.py --path DATA --start voice.safetensors --train 400 --lr 0.03 --seeds 3
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import adapt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame import nets
from selfsame.data import Federation
from selfsame.data.choosing import for_choosing
from selfsame.engine.setup import prepare
from selfsame.measure.curves import roc
from selfsame.measure.trials import draw_pairs

LAMBDAS = (0.1, 0.3, 1.0, 3.0)
SEED = 0


@dataclass(frozen=True)
class Embedded:
    """What a network makes of a federation: as it comes out, and before the last ReLU where there is one."""

    clients: list[Tensor]  # (samples, D) each
    unseen_SD: Tensor


def embedded(args: argparse.Namespace, federation: Federation, seed: int) -> dict[str, Embedded]:
    """By layer."""
    order = adapt.recipe(args, "softmax", "adapters" if args.train else "all", args.lr, seed, tail=False)
    if args.train:
        run, _ = adapt.trained(order, federation, warm=True)
        problem, theta_P = run.problem, run.state.theta_P
    else:
        problem = prepare(order, federation)
        theta_P = problem.model.first_theta
    net = nets.build(problem.recipe.net.name, federation.shape, problem.world.dim, **problem.recipe.net.options)
    net.load_state_dict({name: value.cpu() for name, value in problem.model.net_views(theta_P).items()})
    scale: Callable[[Tensor], Tensor] = problem.federation.scale
    rows = [_both(args, net.eval(), scale, x) for x in _samples(federation)]
    return {
        name: Embedded([row[place] for row in rows[:-1]], rows[-1][place])
        for place, name in enumerate(("as it is", "without the ReLU"))
    }


def _samples(federation: Federation) -> Iterator[Tensor]:
    """Of each client, and last of the unseen."""
    for client, count in enumerate(federation.count_N.tolist()):
        yield federation.source.rows(torch.tensor([client]), torch.arange(count)[None])[0]
    yield adapt._all(federation.unseen)


@torch.no_grad()
def _both(args: argparse.Namespace, net: nn.Module, scale: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    before: list[Tensor] = []
    hook = getattr(net, adapt.SUBJECTS[args.data].last).register_forward_hook(lambda *given: before.append(given[2]))
    out = torch.cat([net(scale(part).float()) for part in x.split(128)])
    hook.remove()
    return [out, torch.cat(before)]


def whitening(clients: list[Tensor], share: float) -> tuple[Tensor, Tensor]:
    """(mu, L) from the clients' summands."""
    mean_D = torch.stack([x_SD.mean(0) for x_SD in clients]).mean(0)
    within_DD = torch.zeros(len(mean_D), len(mean_D), dtype=torch.float64)
    for x_SD in clients:
        away_SD = (x_SD - x_SD.mean(0)).double()
        within_DD += away_SD.T @ away_SD
    within_DD /= sum(len(x_SD) for x_SD in clients)
    even_DD = share * within_DD.trace() / len(mean_D) * torch.eye(len(mean_D), dtype=torch.float64)
    return mean_D, torch.linalg.cholesky(torch.linalg.inv(within_DD + even_DD)).to(mean_D.dtype)


def judged(emb_SD: Tensor, federation: Federation, trials: int) -> float:
    """The EER of cosines over pairs that are drawn, in per cent."""
    unit_SD = F.normalize(emb_SD, dim=1)
    left, right, same = draw_pairs(federation.unseen.y.numpy(), trials, SEED)
    score = (unit_SD[left] * unit_SD[right]).sum(1).double().numpy()
    return 100 * roc(score[same], score[~same]).eer


def figures(args: argparse.Namespace, federation: Federation, seed: int) -> dict[str, float]:
    """EER by layer and lambda."""
    found = {}
    for layer, here in embedded(args, federation, seed).items():
        found[f"{layer}, plain"] = judged(here.unseen_SD, federation, args.trials)
        for share in LAMBDAS:
            mean_D, whiten_DD = whitening(here.clients, share)
            emb_SD = (here.unseen_SD - mean_D) @ whiten_DD
            found[f"{layer}, lambda {share:g}"] = judged(emb_SD, federation, args.trials)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="where AudioMNIST lies")
    parser.add_argument("--start", required=True, help="weights of ge2e-voice, by `selfsame weights convert`")
    parser.add_argument("--train", type=int, default=0, help="rounds in which adapters learn by softmax first")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=20_000)
    args = parser.parse_args()
    rest = {"data": "audiomnist", "device": "cpu", "keep": 0.0, "net": {}, "cohort": 0, "precision": "float32"}
    args = argparse.Namespace(**vars(args), **rest, rounds=args.train)
    whole = adapt.federation_of(args, 1)
    apart = figures(args, for_choosing(whole), SEED)
    print("speakers set apart:", json.dumps({name: round(value, 2) for name, value in apart.items()}), flush=True)
    best = min(apart, key=lambda name: apart[name])
    plain = best.split(",")[0] + ", plain"
    tested = [figures(args, whole, seed) for seed in range(args.seeds)]
    for name in ("as it is, plain", plain, best):
        values = [one[name] for one in tested]
        print(f"unseen speakers, {name}: {statistics.mean(values):.2f} {[round(value, 2) for value in values]}")


if __name__ == "__main__":
    main()
