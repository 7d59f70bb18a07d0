"""What one sum makes of an encoder without training it: python bench/whiten.py [options].

Embeddings of one person differ in directions that say nothing about who it is, such as the digit that is spoken.
`selfsame whiten` shortens them by one sum over devices (`selfsame.methods.within`). This script says what that gives
for several shares, with and without the encoder's last ReLU: both are chosen on people set apart of the clients; then
the encoder is judged on unseen people, as it is and whitened. With --train R adapters of rank 4 learn by softmax for R
rounds first.

With --members it says instead what the sum gives away: somebody who has samples of people guesses who of the clients is
in it. Samples that fit the sum of covariances, by their squared length in it, count as a member's: the very samples of
each device, or, where devices add up one half of their samples, the other half.

    python bench/whiten.py --path DATA --start voice.safetensors
    python bench/whiten.py --path DATA --start voice.safetensors --train 400 --lr 0.03 --seeds 3
    python bench/whiten.py --path DATA --start voice.safetensors --members
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
from selfsame.methods.moments import unpacked_moments
from selfsame.methods.within import summand, whitening
from selfsame.nets.whitened import whitened

SHARES = (0.1, 0.3, 1.0, 3.0)
LAYERS = {"as it is": False, "without the ReLU": True}  # whether the network is signed
SIZES, DRAWS = (4, 8, 16, 32), 10  # devices in a sum of which members are guessed, and how often they are drawn
SEED = 0


@dataclass(frozen=True)
class Embedded:
    """What a network makes of a federation."""

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
    views = {name: value.cpu() for name, value in problem.model.net_views(theta_P).items()}
    found = {}
    for layer, signed in LAYERS.items():
        options = {**problem.recipe.net.options, "signed": signed}
        net = nets.build(problem.recipe.net.name, federation.shape, problem.world.dim, **options)
        net.load_state_dict(views)
        rows = [_embed(net.eval(), problem.federation.scale, x) for x in _samples(federation)]
        found[layer] = Embedded(rows[:-1], rows[-1])
    return found


def _samples(federation: Federation) -> Iterator[Tensor]:
    """Of each client, and last of the unseen."""
    for client, count in enumerate(federation.count_N.tolist()):
        yield federation.source.rows(torch.tensor([client]), torch.arange(count)[None])[0]
    yield adapt._all(federation.unseen)


@torch.no_grad()
def _embed(net: nn.Module, scale: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([net(scale(part).float()) for part in x.split(128)])


def judged(emb_SD: Tensor, federation: Federation, trials: int) -> float:
    """The EER of cosines over pairs that are drawn, in per cent."""
    unit_SD = F.normalize(emb_SD.double(), dim=1)
    left, right, same = draw_pairs(federation.unseen.y.numpy(), trials, SEED)
    score = (unit_SD[left] * unit_SD[right]).sum(1).numpy()
    return 100 * roc(score[same], score[~same]).eer


def figures(args: argparse.Namespace, federation: Federation, seed: int) -> dict[str, float]:
    """EER by layer and share."""
    found = {}
    for layer, here in embedded(args, federation, seed).items():
        found[f"{layer}, plain"] = judged(here.unseen_SD, federation, args.trials)
        sum_V = torch.stack([summand(emb_SD) for emb_SD in here.clients]).sum(0)
        for share in SHARES:
            mean_D, matrix_DD = whitening(sum_V, here.unseen_SD.shape[1], len(here.clients), share)
            emb_SD = whitened(here.unseen_SD, mean_D, matrix_DD)
            found[f"{layer}, share {share:g}"] = judged(emb_SD, federation, args.trials)
    return found


def members(clients: list[Tensor], devices: int, halves: bool) -> float:
    """The AUROC of guesses who is in a sum over so many of the clients, by their samples."""
    draw = torch.Generator().manual_seed(SEED)
    inside, outside = [], []
    for _ in range(DRAWS):
        order = torch.randperm(len(clients), generator=draw).tolist()
        sent, known = zip(*(_parts(emb_SD, draw) if halves else (emb_SD, emb_SD) for emb_SD in clients), strict=True)
        width = sent[0].shape[1]
        sum_V = torch.stack([summand(sent[client]) for client in order[:devices]]).sum(0)
        within_DD = unpacked_moments(sum_V, width)[1]
        even = (0.1 if halves else 1e-9) * within_DD.trace() / width
        inverse_DD = torch.linalg.inv(within_DD + even * torch.eye(width, dtype=torch.float64))
        for place, client in enumerate(order):
            unit_SD = F.normalize(known[client].double(), dim=1)
            away_SD = unit_SD - unit_SD.mean(0)
            fit = -float(((away_SD @ inverse_DD) * away_SD).sum(1).mean())
            (inside if place < devices else outside).append(fit)
    return float(roc(torch.tensor(inside).numpy(), torch.tensor(outside).numpy()).area)


def _parts(emb_SD: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(emb_SD), generator=draw)
    half = len(order) // 2
    return emb_SD[order[:half]], emb_SD[order[half:]]


def show_members(args: argparse.Namespace, federation: Federation) -> None:
    clients = embedded(args, federation, SEED)["without the ReLU"].clients
    for devices in SIZES:
        very, other = (members(clients, devices, halves) for halves in (False, True))
        print(f"{devices} devices: AUROC {very:.3f} by the very samples, {other:.3f} by others", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="where AudioMNIST lies")
    parser.add_argument("--start", required=True, help="weights of ge2e-voice, by `selfsame weights convert`")
    parser.add_argument("--train", type=int, default=0, help="rounds in which adapters learn by softmax first")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--members", action="store_true", help="guess who is in the sum")
    args = parser.parse_args()
    rest = {"data": "audiomnist", "device": "cpu", "keep": 0.0, "net": {}, "cohort": 0, "precision": "float32"}
    args = argparse.Namespace(**vars(args), **rest, rounds=args.train)
    whole = adapt.federation_of(args, 1)
    if args.members:
        show_members(args, whole)
        return
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
