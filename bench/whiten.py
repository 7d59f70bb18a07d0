"""What one sum makes of an encoder without training it: python bench/whiten.py [options].

Embeddings of one person differ in directions that say nothing about who it is, such as the digit that is spoken.
`selfsame whiten` shortens them by one sum over devices (`selfsame.methods.within`). This script says what that gives
for several shares and several ways of hearing: as published, without the encoder's last ReLU, and by its states over
time (`net.states`). Both are chosen on people set apart of the clients; then the encoder is judged on unseen people, as
it is and whitened. With --train R adapters of rank 4 learn for R rounds first, by softmax or --method; with --behind
they learn with the layer of share 0.3 behind the network already, and it is whitened anew when they have learnt.

With --cross it rotates over speakers instead: a part of them is judged by the sums of the others, in turn. The share is
chosen in four parts of the clients, so that nothing of the unseen is looked at; then everybody, the unseen too, is
judged in five parts with that share. The last line says what a sum of products m m' of everybody's mean m would give as
well: whole, where its rank is the number of devices and its span names them, and half as wide as that, as in polls.

With --noise it rotates over some samples of the clients, clean ones and the same in noise: where devices add up clean
samples, and where they add up both.

With --members it says instead what the sum gives away: somebody who has samples of people guesses who of the clients is
in it. Samples that fit the sum of covariances, by their squared length in it, count as a member's: the very samples of
each device, or, where devices add up one half of their samples, the other half.

    python bench/whiten.py --path DATA --start voice.safetensors
    python bench/whiten.py --path DATA --start voice.safetensors --cross
    python bench/whiten.py --path DATA --start voice.safetensors --noise
    python bench/whiten.py --path DATA --start voice.safetensors --train 400 --lr 0.03 --seeds 3
    python bench/whiten.py --path DATA --start voice.safetensors --only "states and spectrum" --train 400 --lr 0.01 \\
        --method FedCrowd --behind --seeds 3 --device cuda
    python bench/whiten.py --path DATA --start voice.safetensors --members
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import adapt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from selfsame import nets
from selfsame.data import Federation, load
from selfsame.data.choosing import for_choosing
from selfsame.data.noisy import in_noise
from selfsame.engine.setup import prepare
from selfsame.engine.starting import KEPT, keep_start
from selfsame.measure.curves import roc
from selfsame.measure.trials import draw_pairs
from selfsame.methods.moments import unpacked_moments
from selfsame.methods.within import summand, whitening
from selfsame.nets.whitened import LAYER, whitened

SHARES = (0.1, 0.3, 1.0, 3.0)
SIZES, DRAWS = (4, 8, 16, 32, 41), 10  # devices in a sum of which members are guessed, and how often they are drawn
PARTS, EVERYBODY, TURNS = 4, 5, 2  # of the clients, of everybody; how often the clients are divided anew
DECIBELS = 20 * math.log10(30)  # of noise below the loudest sample of a recording
NOISY, SHARE = 40, 0.3  # samples of each client that are heard in noise too, and the share of their layer
SEED = 0


@dataclass(frozen=True)
class Front:
    """A way of hearing: options of the network and of the data."""

    net: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    @property
    def learns(self) -> dict[str, Any]:
        """The network's options where it is trained first: the ReLU is left out afterwards."""
        return {name: value for name, value in self.net.items() if name != "signed"}


FRONTS = {
    "as it is": Front(),
    "without the ReLU": Front({"signed": True}),
    "states": Front({"states": True, "width": 256}, {"seconds": 1.6}),
    "states and spectrum": Front({"states": True, "width": 320}, {"seconds": 1.6}),
}


@dataclass(frozen=True)
class Embedded:
    """What a network makes of a federation."""

    clients: list[Tensor]  # (samples, D) each
    unseen_SD: Tensor
    unseen_S: Tensor  # who


def federation_of(args: argparse.Namespace, front: Front, apart: bool, **options: Any) -> Federation:
    """AudioMNIST for a way of hearing, or some of its clients set apart."""
    whole = load("audiomnist", args.path, **front.data, **options)
    return for_choosing(whole) if apart else whole


def network(
    args: argparse.Namespace, front: Front, federation: Federation, seed: int
) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    """The encoder for a way of hearing, adapted first with --train, and what its samples are scaled by."""
    kind = "adapters" if args.train else "all"
    given = argparse.Namespace(**{**vars(args), "net": front.learns})
    order = adapt.recipe(given, args.method if args.train else "softmax", kind, args.lr, seed, tail=False)
    if args.train:
        folder = with_layer(args, front, federation) if args.behind else None
        if folder is not None:
            order = replace(order, net=replace(order.net, whitened=SHARE))
        run, _ = adapt.trained(order, federation, warm=True, folder=folder)
        problem, theta_P = run.problem, run.state.theta_P
    else:
        problem = prepare(order, federation)
        theta_P = problem.model.first_theta
    options = {**problem.recipe.net.options, **{name: True for name in front.net if name == "signed"}}
    whitens = bool(problem.recipe.net.whitened)
    net = nets.build(problem.recipe.net.name, federation.shape, problem.world.dim, whitened=whitens, **options)
    net.load_state_dict({name: value.cpu() for name, value in problem.model.net_views(theta_P).items()})
    return net.eval(), problem.federation.scale


def with_layer(args: argparse.Namespace, front: Front, federation: Federation) -> Path:
    """A folder with the encoder as it is published and the layer of its clients' sum behind it."""
    plain = argparse.Namespace(**{**vars(args), "train": 0})
    here = embedded(plain, front, federation, SEED)
    sum_V = torch.stack([summand(emb_SD) for emb_SD in here.clients]).sum(0)
    layer = whitening(sum_V, here.clients[0].shape[1], len(here.clients), SHARE)
    views = dict(network(plain, front, federation, SEED)[0].named_parameters())
    folder = Path(tempfile.mkdtemp())
    keep_start(views | dict(zip(LAYER, (part.float() for part in layer), strict=True)), "", folder / KEPT)
    return folder


def embedded(args: argparse.Namespace, front: Front, federation: Federation, seed: int) -> Embedded:
    """The samples of the clients and of the unseen."""
    net, scale = network(args, front, federation, seed)
    rows = [_embed(net, scale, x) for x in _samples(federation)]
    return Embedded(rows[:-1], rows[-1], federation.unseen.y)


def _samples(federation: Federation) -> Iterator[Tensor]:
    """Of each client, and last of the unseen."""
    for client, count in enumerate(federation.count_N.tolist()):
        yield federation.source.rows(torch.tensor([client]), torch.arange(count)[None])[0]
    yield adapt._all(federation.unseen) if len(federation.unseen.y) else torch.empty(0, *federation.shape)


@torch.no_grad()
def _embed(net: nn.Module, scale: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return torch.cat([net(scale(part).float()) for part in x.split(128)]) if len(x) else torch.empty(0)


def judged(emb_SD: Tensor, person_S: Tensor, trials: int) -> float:
    """The EER of cosines over pairs that are drawn, in per cent."""
    unit_SD = F.normalize(emb_SD.double(), dim=1)
    left, right, same = draw_pairs(person_S.numpy(), trials, SEED)
    score = (unit_SD[left] * unit_SD[right]).sum(1).numpy()
    return 100 * roc(score[same], score[~same]).eer


def figures(here: Embedded, trials: int) -> dict[str, float]:
    """EER by share, and without a layer."""
    found = {"plain": judged(here.unseen_SD, here.unseen_S, trials)}
    sum_V = torch.stack([summand(emb_SD) for emb_SD in here.clients]).sum(0)
    for share in SHARES:
        mean_D, matrix_DD = whitening(sum_V, here.unseen_SD.shape[1], len(here.clients), share)
        found[f"share {share:g}"] = judged(whitened(here.unseen_SD, mean_D, matrix_DD), here.unseen_S, trials)
    return found


def divided(clients: list[Tensor], parts: int, turns: int) -> Iterator[tuple[list[Tensor], Tensor, Tensor]]:
    """Embeddings of all others by speaker, those of a part of the speakers, and whose these are, part by part."""
    for turn in range(turns):
        order = torch.randperm(len(clients), generator=torch.Generator().manual_seed(SEED + turn)).tolist()
        for part in range(parts):
            apart = order[part::parts]
            person_S = torch.cat([torch.full((len(clients[client]),), client) for client in apart])
            others = [emb_SD for client, emb_SD in enumerate(clients) if client not in apart]
            yield others, torch.cat([clients[client] for client in apart]), person_S


def crossed(clients: list[Tensor], parts: int, turns: int, trials: int) -> dict[str, list[float]]:
    """EER by share: of each part of the speakers, by the sums of all others, for every turn."""
    found: dict[str, list[float]] = {}
    for others, emb_SD, person_S in divided(clients, parts, turns):
        for name, value in figures(Embedded(others, emb_SD, person_S), trials).items():
            found.setdefault(name, []).append(value)
    return found


def show_crossed(args: argparse.Namespace) -> None:
    for name, front in chosen_fronts(args):
        whole = federation_of(args, front, False)
        everybody = federation_of(args, front, False, held_out=0, validation=0, test=0)
        rows = dict(zip(everybody.class_names, embedded(args, front, everybody, SEED).clients, strict=True))
        clients = [rows[who] for who in whole.class_names[: whole.classes]]
        mean = {share: statistics.mean(values) for share, values in crossed(clients, PARTS, TURNS, args.trials).items()}
        print(f"{len(clients)} clients, {name}:", json.dumps(_rounded(mean)), flush=True)
        best = min(mean, key=lambda share: mean[share])
        found = crossed(list(rows.values()), EVERYBODY, 1, args.trials)
        for share in dict.fromkeys(("plain", best)):
            said = [round(value, 2) for value in found[share]]
            print(f"all {len(rows)} speakers, {name}, {share}: {statistics.mean(found[share]):.2f} {said}", flush=True)
        with_means = {kind: statistics.mean(values) for kind, values in crossed_means(clients, args.trials).items()}
        print(f"{len(clients)} clients, {name}, with products of means:", json.dumps(_rounded(with_means)), flush=True)


def chosen_fronts(args: argparse.Namespace) -> list[tuple[str, Front]]:
    return [(name, front) for name, front in FRONTS.items() if args.only in ("", name)]


def crossed_means(clients: list[Tensor], trials: int) -> dict[str, list[float]]:
    """EER of each part of the speakers by the sums of all others, with products of their means, whole or narrow."""
    found: dict[str, list[float]] = {}
    for others, emb_SD, person_S in divided(clients, PARTS, TURNS):
        width = emb_SD.shape[1]
        sum_V = torch.stack([summand(one_SD) for one_SD in others]).sum(0)
        mean_D, matrix_DD = whitening(sum_V, width, len(others), SHARE)
        within_DD = unpacked_moments(sum_V, width)[1]
        mean_ND = torch.stack([F.normalize(one_SD.double(), dim=1).mean(0) for one_SD in others])
        loudest_DD = torch.linalg.eigh(matrix_DD.T @ within_DD @ matrix_DD).eigenvectors.flip(1)
        for kind, kept in (("whole", width), ("half as wide as devices", len(others) // 2)):
            ask_DK = loudest_DD[:, :kept]
            apart_NK = (mean_ND - mean_D) @ matrix_DD @ ask_DK
            scale_KK = scaled_means(apart_NK.T @ apart_NK)
            rest_DD = torch.eye(width, dtype=torch.float64) - ask_DK @ ask_DK.T
            layer_DD = matrix_DD @ (rest_DD + ask_DK @ scale_KK @ ask_DK.T)
            found.setdefault(kind, []).append(judged(whitened(emb_SD, mean_D, layer_DD), person_S, trials))
    return found


def scaled_means(second_KK: Tensor) -> Tensor:
    """Directions scaled by sqrt((b + 0.2) / (b + 0.5)), where b is how much means differ in them, 1 on average."""
    value_K, vector_KK = torch.linalg.eigh(second_KK)
    value_K = value_K.clamp(min=0) / value_K.mean()
    return (vector_KK * ((value_K + 0.2) / (value_K + 0.5)).sqrt()) @ vector_KK.T


def show_noise(args: argparse.Namespace) -> None:
    for name, front in chosen_fronts(args):
        federation = federation_of(args, front, False)
        net, scale = network(args, front, federation, SEED)
        count_N = federation.count_N.clamp(max=NOISY)
        samples = list(_samples(replace(federation, count_N=count_N)))[:-1]
        clean = [_embed(net, scale, x) for x in samples]
        noisy = [
            _embed(net, scale, in_noise(x, DECIBELS, torch.Generator().manual_seed(client)))
            for client, x in enumerate(samples)
        ]
        both = [torch.cat(pair) for pair in zip(clean, noisy, strict=True)]
        for said, added in (("clean samples", clean), ("both", both)):
            found = in_turn(added, clean, noisy)
            print(f"{name}, a sum of {said}:", json.dumps(_rounded(found)), flush=True)


def in_turn(added: list[Tensor], clean: list[Tensor], noisy: list[Tensor]) -> dict[str, float]:
    """EER over all pairs of each part of the clients by the sums of the others: clean, in noise, one of each."""
    found: dict[str, list[float]] = {"clean": [], "in noise": [], "one of each": []}
    order = torch.randperm(len(added), generator=torch.Generator().manual_seed(SEED)).tolist()
    for part in range(PARTS):
        apart = order[part::PARTS]
        others = [emb_SD for client, emb_SD in enumerate(added) if client not in apart]
        sum_V = torch.stack([summand(emb_SD) for emb_SD in others]).sum(0)
        layer = whitening(sum_V, added[0].shape[1], len(others), SHARE)
        still, loud = (whitened(torch.cat([one[client] for client in apart]), *layer) for one in (clean, noisy))
        person_S = torch.cat([torch.full((len(clean[client]),), client) for client in apart])
        left, right = torch.triu_indices(len(person_S), len(person_S), 1)
        same = (person_S[left] == person_S[right]).numpy()
        for name, a, b in (("clean", still, still), ("in noise", loud, loud), ("one of each", still, loud)):
            score = (a @ b.T)[left, right].numpy()
            found[name].append(100 * roc(score[same], score[~same]).eer)
    return {name: statistics.mean(values) for name, values in found.items()}


def _rounded(found: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in found.items()}


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


def show_members(args: argparse.Namespace) -> None:
    for name, front in chosen_fronts(args):
        clients = embedded(args, front, federation_of(args, front, False), SEED).clients
        for devices in SIZES:
            very, other = (members(clients, devices, halves) for halves in (False, True))
            print(f"{name}, {devices} devices: AUROC {very:.3f} by the very samples, {other:.3f} by others", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--path", default="", help="where AudioMNIST lies")
    parser.add_argument("--start", required=True, help="weights of ge2e-voice, by `selfsame weights convert`")
    parser.add_argument("--train", type=int, default=0, help="rounds in which adapters learn first")
    parser.add_argument("--method", choices=("softmax", "FedCrowd"), default="softmax", help="by which they learn")
    parser.add_argument("--behind", action="store_true", help="they learn with the layer behind the network already")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--lr", type=float, default=0.03)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--trials", type=int, default=20_000)
    parser.add_argument("--only", default="", choices=["", *FRONTS], help="one way of hearing")
    parser.add_argument("--cross", action="store_true", help="rotate over speakers")
    parser.add_argument("--noise", action="store_true", help="the same in noise")
    parser.add_argument("--members", action="store_true", help="guess who is in the sum")
    args = parser.parse_args()
    rest = {"data": "audiomnist", "keep": 0.0, "rank": 4, "cohort": 0, "precision": "float32"}
    args = argparse.Namespace(**vars(args), **rest, rounds=args.train)
    if args.members:
        show_members(args)
    elif args.cross:
        show_crossed(args)
    elif args.noise:
        show_noise(args)
    else:
        show(args)


def show(args: argparse.Namespace) -> None:
    """Choose the way of hearing and the share on speakers set apart, and judge the unseen."""
    apart = {}
    for name, front in chosen_fronts(args):
        found = figures(embedded(args, front, federation_of(args, front, True), SEED), args.trials)
        print(f"speakers set apart, {name}:", json.dumps(_rounded(found)), flush=True)
        apart |= {(name, share): value for share, value in found.items()}
    best = min(apart, key=lambda one: apart[one])
    for name in dict.fromkeys((args.only or "as it is", best[0])):
        front = FRONTS[name]
        federation = federation_of(args, front, False)
        tested = [figures(embedded(args, front, federation, seed), args.trials) for seed in range(args.seeds)]
        for share in dict.fromkeys(("plain",) if name != best[0] else ("plain", best[1])):
            values = [one[share] for one in tested]
            said = [round(value, 2) for value in values]
            print(f"unseen speakers, {name}, {share}: {statistics.mean(values):.2f} {said}", flush=True)


if __name__ == "__main__":
    main()
