"""Networks that tests name by their import path: batch norms, and recurrent layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Normed(nn.Module):
    """Two convolutions and a linear layer, a batch norm after each; the last one has no gain of its own."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(shape[0], 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU(),
            nn.Conv2d(4, 6, 3, stride=2, bias=False), nn.BatchNorm2d(6, eps=1e-3), nn.ReLU(),
        )  # fmt: skip
        self.fc = nn.Linear(6, width)
        self.norm = nn.BatchNorm1d(width, affine=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.fc(self.body(x).mean((2, 3))))


class HalfNorm(nn.BatchNorm2d):
    """A norm whose forward pass does more than its statistics say."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) / 2


class AbsoluteNorm(nn.BatchNorm2d):
    """A norm whose gains are positive: another one than a plain norm only where they are not."""

    def forward(self, x: Tensor) -> Tensor:
        training = self.training
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight.abs(), self.bias, training, self.momentum, self.eps
        )


class PlainNorm(nn.BatchNorm2d):
    """A norm with a forward pass of its own that does what its parent's does."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def with_norm(shape: tuple[int, ...], width: int, *, kind: str) -> nn.Module:
    """A network with one of these norms."""
    norm = {"half": HalfNorm, "absolute": AbsoluteNorm, "plain": PlainNorm}[kind](4)
    flat = nn.Flatten(), nn.Linear(4 * (shape[1] - 2) * (shape[2] - 2), width)
    return nn.Sequential(nn.Conv2d(shape[0], 4, 3), norm, nn.ReLU(), *flat)


class Tied(nn.Module):
    """Two linear layers with one matrix, and one norm over the batch behind both."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.first = nn.Linear(torch.Size(shape).numel(), width)
        self.second, self.third = nn.Linear(width, width), nn.Linear(width, width)
        self.third.weight = self.second.weight
        self.norm = nn.BatchNorm1d(width)
        self.again = self.norm

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.second(self.first(x.flatten(1)).tanh()))
        return self.third(self.again(x).tanh())


class Backwards(nn.Module):
    """Layers that run in another order than they are declared in, and one that never runs."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.head = nn.Linear(5, width)
        self.body = nn.Linear(torch.Size(shape).numel(), 5)
        self.classes = nn.Linear(width, 9)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.flatten(1)).relu())


class Rooted(nn.Module):
    """A matrix of its own at the end, and one at the beginning, beside layers."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tokens = nn.Parameter(torch.randn(1, torch.Size(shape).numel()))
        self.proj = nn.Parameter(torch.randn(5, width))
        self.norm = nn.LayerNorm(width)
        self.body = nn.Linear(torch.Size(shape).numel(), 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.body(x.flatten(1) + self.tokens) @ self.proj)


class Top(nn.Module):
    """Two recurrent layers in both directions with narrow states, and nothing behind them."""

    def __init__(self, shape: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.rnn = nn.LSTM(shape[-1], 2 * width, 2, batch_first=True, proj_size=width // 2, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x.flatten(1, -2))[0][:, -1]


class OwnNorm(nn.Module):
    """A norm of somebody's own."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * x.square().mean(-1, keepdim=True).rsqrt() * self.scale


class NormedLinear(nn.Linear):
    """No norm, for all its name."""


class Recurrent(nn.Module):
    """Rows of a picture one after another through a recurrent layer, then a linear one."""

    def __init__(self, shape: tuple[int, ...], width: int, *, kind: str = "LSTM", narrow: int = 0) -> None:
        super().__init__()
        self.rnn = getattr(nn, kind)(shape[-1], 5, 2, batch_first=True, **({"proj_size": narrow} if narrow else {}))
        self.fc = nn.Linear(narrow or 5, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.rnn(x.flatten(1, -2))[0][:, -1])


def seen(shape: tuple[int, ...], width: int) -> nn.Module:
    """A network whose norms have seen data."""
    return after_data(Normed(shape, width), shape)


def after_data(net: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The network after its norms have seen two batches, with gains and shifts of their own."""
    draw = torch.Generator().manual_seed(7)
    net.train()
    for _ in range(2):
        net(torch.rand(9, *shape, generator=draw))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2.0, generator=draw)
            nn.init.normal_(module.bias, generator=draw)
    return net
