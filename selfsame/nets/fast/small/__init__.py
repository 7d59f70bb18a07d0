"""Small networks on a CPU: passes as C code made for one network, image by image, all in the processor's cache."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from selfsame.nets.fast.small.build import compiler, library, macros
from selfsame.nets.fast.small.emit import MOST_THREADS, code
from selfsame.nets.fast.small.room import CHUNK
from selfsame.nets.fast.small.tiles import processor
from selfsame.nets.fast.small.trace import Steps, traced

_WORTH = 2**36  # multiplications of a training, from which on it is compiled: seconds of it on one core
_SPARE = 2**26  # numbers that are kept for the next pass: memory that is new to a process comes page by page, cleared
_A_THREAD = 2**21  # multiplications that are worth a thread of their own


@dataclass
class Done:
    """What a forward pass leaves for the backward pass."""

    theta_MP: Tensor
    saved: Tensor
    networks: int
    count: int
    spare: list[Tensor]

    def __del__(self) -> None:
        self.spare[:] = [self.saved][: self.saved.numel() <= _SPARE]


class SmallPasses:
    """The two passes of M small networks (see `Passes`)."""

    kind = "C code for this processor"
    shares = True

    def __init__(
        self,
        steps: Steps,
        shape: tuple[int, ...],
        shapes: dict[str, torch.Size],
        dtype: torch.dtype,
        made: ctypes.CDLL,
    ) -> None:
        self.steps, self.shape, self.dtype, self.made = steps, tuple(shape), dtype, made
        self.size = sum(shape.numel() for shape in shapes.values())
        self.saved = ctypes.c_int64.in_dll(made, "selfsame_saved").value
        self.space = ctypes.c_int64.in_dll(made, "selfsame_space").value
        self._spare: list[Tensor] = []

    def takes(self, theta_P: Tensor, x: Tensor) -> bool:
        """Whether they were made for samples and numbers of this kind: the code reads what lies in memory as such."""
        alike = theta_P.dtype == x.dtype == self.dtype and theta_P.shape[-1] >= self.size
        return alike and tuple(x.shape[x.dim() - len(self.shape) :]) == self.shape

    def embed(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """Embeddings (M, B, D) alone."""
        return self._forward(theta_MP, x_MB, False)[0]

    def forward(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, Done]:
        """Embeddings (M, B, D) of images (M, B, C, H, W), and what the backward pass needs."""
        return self._forward(theta_MP, x_MB, True)

    def backward(self, done: Done, pull_MBD: Tensor) -> list[Tensor]:
        """The derivatives in the network's part of each theta, (M, P)."""
        pull = pull_MBD.detach().to(self.dtype).contiguous()
        if pull.shape != (done.networks, done.count, self.steps.linear.width):
            raise ValueError(f"derivatives of shape {tuple(pull.shape)} are not those of the embeddings")
        threads = self._threads(2 * done.networks * done.count)
        grad = pull.new_zeros(done.networks, self.size)
        carry = pull.new_zeros(threads if threads > 1 else 0, self.size)
        space = pull.new_empty(threads * self.space)
        self.made.selfsame_backward(
            _at(done.theta_MP), ctypes.c_int64(done.theta_MP.stride(0)), ctypes.c_int64(done.networks),
            ctypes.c_int64(done.count), _at(done.saved), _at(pull), _at(grad), _at(carry), _at(space), threads,
        )  # fmt: skip
        return [grad]

    def _forward(self, theta_MP: Tensor, x_MB: Tensor, keep: bool) -> tuple[Tensor, Done]:
        networks, count = x_MB.shape[:2]
        if not self.takes(theta_MP, x_MB) or len(theta_MP) != networks:
            raise ValueError(f"samples of shape {tuple(x_MB.shape[2:])} for passes of {self.shape}, {self.dtype}")
        x = x_MB.detach()
        if self.steps.front is not None:
            with torch.no_grad():
                x = self.steps.front(x.flatten(0, 1))
        x = x.contiguous()
        theta = theta_MP.detach()
        if theta.stride(1) != 1:
            theta = theta.contiguous()
        threads = self._threads(networks * count)
        room = (networks * count if keep else threads * CHUNK) * self.saved
        try:
            saved = self._spare.pop()
        except IndexError:
            saved = x.new_empty(0)
        if not room <= saved.numel() <= 4 * room:
            saved = x.new_empty(room)
        space = x.new_empty(threads * self.space)
        emb = x.new_empty(networks, count, self.steps.linear.width)
        self.made.selfsame_forward(
            _at(theta), ctypes.c_int64(theta.stride(0)), _at(x), ctypes.c_int64(networks), ctypes.c_int64(count),
            _at(saved), int(keep), _at(emb), _at(space), threads,
        )  # fmt: skip
        return emb, Done(theta, saved, networks, count, self._spare)

    def _threads(self, images: int) -> int:
        """As many of PyTorch's threads as have enough to do."""
        worth = images * self.steps.work // _A_THREAD
        return max(1, min(torch.get_num_threads(), MOST_THREADS, worth, images))


def _at(values: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(values.data_ptr())


def _most_work(net: nn.Module, shape: tuple[int, ...]) -> int:
    """More multiplications for one image than any network has: what needs no tracing to be told from what is worth it.

    Each weight is used once for each place of an image, of which padding makes a few times as many at most.
    """
    return 16 * sum(value.numel() for value in net.parameters()) * math.prod(shape[1:])


def small_passes(
    net: nn.Module,
    shape: tuple[int, ...],
    shapes: dict[str, torch.Size],
    dtype: torch.dtype = torch.float32,
    samples: int | None = None,
) -> SmallPasses | None:
    """The passes of a network for images of this shape.

    None where it is not one of those, where nothing compiles here, or where a training on so many `samples` would not
    make good the seconds that a compiler takes.
    """
    if samples is not None and 3 * samples * _most_work(net, shape) < _WORTH:
        return None
    steps = traced(net, shape)
    if steps is None or (samples is not None and 3 * samples * steps.work < _WORTH) or not compiler():
        return None
    if not set(steps.names) <= set(shapes):
        return None  # some tensors are known by another's name
    made = library(code(steps, shapes, processor(macros(), 64 if dtype == torch.float64 else 32)))
    return None if made is None else SmallPasses(steps, shape, shapes, dtype, made)
