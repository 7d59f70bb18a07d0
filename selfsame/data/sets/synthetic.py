"""Made-up identities, from ten to millions: each sample is computed when it is asked for, none is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from selfsame.data.dataset import WIDE, DataSet, within
from selfsame.data.federation import Federation, Movable, Samples
from selfsame.errors import SelfsameError
from selfsame.streams import Stream

_TEST_SAMPLES = 2000  # at most, however many identities there are
_NUISANCE = 2.0  # against 1 for the identity: raw pixels then verify at 0.36 equal error, a trained LeNet at 0.1
_GAIN = 0.7  # standard deviation at the tanh: no linear map undoes it, a small network does
_TANH_POWER = 0.2704  # the mean of tanh(g)^2 for a normal g of that standard deviation


@dataclass(frozen=True)
class Generated(Movable):
    """Samples as a pure function of (seed, client, index).

    An identity is a point in latent space; a sample moves it a little, appends as many nuisance dimensions, stronger
    but saying nothing about who it is, and passes both through a fixed random layer, a tanh and a second fixed layer.
    """

    on_host: ClassVar[bool] = False

    seed: int
    size: int
    noise: float
    clients_per_class: int
    in_KH: Tensor  # K = 2 * latent
    out_HP: Tensor  # P = size * size pixels

    @staticmethod
    def make(seed: int, size: int, latent: int, noise: float, clients_per_class: int) -> Generated:
        """The generator with the two layers that belong to its seed."""
        inner, hidden, pixels = 2 * latent, 4 * latent, size * size
        spread = math.sqrt(latent * (1.0 + noise**2 + _NUISANCE**2))
        in_KH = _layer(seed, "synthetic/in", inner, hidden) * (_GAIN / spread)
        out_HP = _layer(seed, "synthetic/out", hidden, pixels) / math.sqrt(hidden * _TANH_POWER)
        return Generated(seed, size, noise, clients_per_class, in_KH, out_HP)

    def rows(self, client_M: Tensor, index_MB: Tensor) -> Tensor:
        return self.draw("train", client_M // self.clients_per_class, client_M, index_MB)

    def draw(self, part: str, class_M: Tensor, client_M: Tensor, index_MB: Tensor) -> Tensor:
        """Samples (M, B, 1, size, size) of the classes; `part` keeps the test samples apart from the training ones.

        Uniform numbers and float64 in between, because those do not depend on how many rows are computed together:
        a float32 matrix product, or a vectorised logarithm, gives other last bits for other batch sizes.
        """
        latent = len(self.in_KH) // 2
        who = Stream.named(self.seed, "synthetic/identity", class_M)
        flat = client_M[:, None].expand_as(index_MB).flatten()
        what = Stream.named(self.seed, f"synthetic/{part}", flat, index_MB.flatten())
        inner_MBK = _centred(what, 2 * latent).unflatten(0, index_MB.shape)
        inner_MBK[..., :latent] *= self.noise
        inner_MBK[..., :latent] += _centred(who, latent)[:, None]
        inner_MBK[..., latent:] *= _NUISANCE
        pixels_MBP = torch.tanh(inner_MBK @ self.in_KH) @ self.out_HP
        return pixels_MBP.to(torch.float32).unflatten(-1, (1, self.size, self.size))


def load_synthetic(
    *,
    clients: int = 1000,
    samples: int = 20,
    unequal: bool = False,
    size: int = 8,
    latent: int = 16,
    noise: float = 0.5,
    held_out: int = 50,
    test_per_client: int = 2,
    clients_per_class: int = 1,
    seed: int = 0,
) -> Federation:
    """Identities of any number; with `unequal`, clients hold between half of `samples` and all of them.

    An identity is a point in `latent` dimensions. A sample is that point with `noise`, drawn by `seed`, as a square of
    `size` pixels. There are `clients`, of whom `clients_per_class` share an identity, each with `test_per_client`
    samples apart; `held_out` identities more are unseen.
    """
    within("synthetic", 2, 100_000_000, clients=clients)
    within("synthetic", 1, 1_000_000, samples=samples)
    within("synthetic", 4, 128, size=size)
    within("synthetic", 1, 256, latent=latent)
    within("synthetic", 0, _TEST_SAMPLES // 2, held_out=held_out)
    within("synthetic", 1, _TEST_SAMPLES // 2, test_per_client=test_per_client)
    within("synthetic", 1, clients // 2, clients_per_class=clients_per_class)
    within("synthetic", 0, 100, noise=noise)
    if clients % clients_per_class:
        raise SelfsameError(f"synthetic: clients ({clients}) must be a multiple of clients_per_class")
    source = Generated.make(seed, size, latent, noise, clients_per_class)
    client_N = torch.arange(clients)
    count_N = torch.full((clients,), samples)
    if unequal:
        least = (samples + 1) // 2
        count_N = least + Stream.named(seed, "synthetic/count", client_N).below(
            torch.full_like(client_N, samples - least + 1)
        )
    classes = clients // clients_per_class
    tested = min(classes, _TEST_SAMPLES // test_per_client)
    per_unseen = max(2, min(samples, _TEST_SAMPLES // max(held_out, 1)))
    return Federation(
        name="synthetic",
        shape=(1, size, size),
        class_of_N=client_N // clients_per_class,
        count_N=count_N,
        source=source,
        test=_labelled(source, torch.arange(tested) * classes // tested, test_per_client),
        unseen=_labelled(source, torch.arange(classes, classes + held_out), per_unseen),
        notes=(f"tested on {tested} of the {classes} classes",) if tested < classes else (),
    )


SYNTHETIC = DataSet("synthetic", load_synthetic, False, "nothing: it is computed", "lenet", 32, WIDE)


def _labelled(source: Generated, class_M: Tensor, each: int) -> Samples:
    index_MB = torch.arange(each).expand(len(class_M), -1)
    return Samples(source.draw("test", class_M, class_M, index_MB).flatten(0, 1), class_M.repeat_interleave(each))


def _layer(seed: int, purpose: str, rows: int, columns: int) -> Tensor:
    return _centred(Stream.named(seed, purpose, torch.arange(rows)), columns)


def _centred(stream: Stream, number: int) -> Tensor:
    """Uniform float64 numbers of mean 0 and variance 1, shape (n, number)."""
    return (stream.uniform(number).double() - 0.5) * math.sqrt(12.0)
