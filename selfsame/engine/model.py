"""The network and the head as one parameter vector theta, and its forward pass for one or for many theta."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from selfsame.engine.machine import Machine
from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields
from selfsame.nets.coupling import batch_coupled
from selfsame.nets.fast import Load, Passes, passes_for
from selfsame.nets.learned import DOWN, UP, Learned
from selfsame.nets.own_kernels import OwnKernels
from selfsame.nets.tied import further_names, tie

_HERE = Machine()
_CACHED = 2**16  # numbers in a piece of a batch on the CPU
_LEAST = 64  # samples in such a piece
_DERIVED = 2**12  # each piece has derivatives in all parameters: so many of these a sample are worth a longer piece
_LONGEST = 2**18  # numbers in a piece for their sake
_ALONE = 2**13  # numbers in a client's batch from which on it runs by itself on the CPU


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in theta: averaging, optimisers and checkpoints then see one vector.

    Kernels of convolutions lie channels-last, the order in which the GPU reads them.
    """

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(tensors: Fields) -> Layout:
        return Layout(tuple(tensors), tuple(t.shape for t in tensors.values()))

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    def flatten(self, tensors: Fields) -> Tensor:
        return torch.cat([_last(tensors[name].detach()).reshape(-1) for name in self.names])

    def views(self, theta_P: Tensor) -> Fields:
        """The named tensors as views of theta; a leading axis of theta stays in front of each."""
        lead = theta_P.shape[:-1]
        parts = theta_P.split(self.sizes, dim=-1)
        return {n: _first(p, lead, s) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}


def _last(tensor: Tensor) -> Tensor:
    """A convolution's kernels (O, I, *K) as (O, *K, I); anything else as it is."""
    return tensor.movedim(1, -1) if tensor.dim() > 2 else tensor


def _channels_last(x: Tensor) -> Tensor:
    """Images with the channels innermost: convolutions, norms and pooling are faster so, on the CPU too."""
    if x.shape[1] > 1 or x.requires_grad or not x.is_contiguous():
        return x.contiguous(memory_format=torch.channels_last)
    height, width = x.shape[2:]
    return x.as_strided(x.shape, (height * width, 1, width, 1))  # of one channel both formats look alike: say which


def _first(flat: Tensor, lead: torch.Size, shape: torch.Size) -> Tensor:
    """The tensor whose numbers lie in `flat`, with `lead` in front."""
    if len(shape) <= 2 or shape[1] == 1:
        return flat.reshape((*lead, *shape))
    return flat.reshape((*lead, shape[0], *shape[2:], shape[1])).movedim(-1, len(lead) + 1)


class Model:
    """An embedding network without parameters of its own: theta is always passed in.

    Where `learned` leaves some out, theta holds those that learn and the adapters, and the rest is constant. `load` is
    what training asks of it, for passes that are made for that.
    """

    def __init__(
        self,
        net: nn.Module,
        head: Fields,
        machine: Machine = _HERE,
        learned: Learned | None = None,
        load: Load | None = None,
    ) -> None:
        coupled = batch_coupled(net)
        if coupled is not None:
            raise SelfsameError(
                f"net: layer {coupled} makes samples depend on one another or on chance, so a client's update would "
                "depend on who else is in the cohort; use group norm and no dropout"
            )
        self.device, self.dtype, self.autocast = machine.device, machine.dtype, machine.autocast
        recurrent = any(isinstance(module, nn.RNNBase) for module in net.modules())
        # PyTorch has recurrent layers in lower precision for some processors only.
        if recurrent and self.device.type == "cpu":
            self.autocast = None
        everything = {name: p.detach() for name, p in net.named_parameters()}
        learning = everything
        if learned is not None:
            learning = {name: everything[name] for name in learned.names} | learned.adapters(net)
        # Matrices, then vectors: each kind has its own precision on the GPU and lies in one piece.
        named = sorted(learning.items(), key=lambda pair: pair[1].dim() < 2)
        first = {f"net.{name}": p for name, p in named}
        first |= {f"head.{name}": value for name, value in head.items()}
        self.layout = Layout.of(first)
        self.first_theta = self.layout.flatten(first).to(device="cpu", dtype=self.dtype)  # not twice on the device
        self.constants: Fields = {
            name: p.to(device=self.device, dtype=self.dtype, copy=True)
            for name, p in everything.items()
            if name not in learning
        }
        self.adapted = () if learned is None else tuple(learned.ranks)
        shared = further_names(net)
        self.net = net.to("meta")  # only its structure is used: a forgotten theta would fail loudly
        tie(self.net, shared)
        self.compiled = machine.compile
        sizes = zip(self.layout.names, self.layout.shapes, strict=True)
        shapes = {name.removeprefix("net."): shape for name, shape in sizes if name.startswith("net.")}
        self.size = sum(shape.numel() for shape in shapes.values())  # of the network in theta, without the head
        self.whole = sum(value.numel() for value in everything.values())  # of the network, constants included
        # On the CPU a group norm of such images that needs no derivative itself crashes PyTorch 2 in its backward pass.
        self._innermost = self.device.type != "cpu" or not self.constants
        # vmap knows no recurrent layers: replicas of such a network run one after another.
        self._stacks = not recurrent
        wanted = (machine.compile or machine.graphs or load is not None) and not self.constants
        given = (shapes, self.device, self.dtype, self.autocast, load)
        self.passes: Passes | None = passes_for(net, *given) if wanted else None
        if self.passes is not None and self.device.type == "cpu":
            self.compiled = False  # what stands around such passes is too small to gain
        compiled = self.compiled and self.passes is None
        self._fast = torch.compile(self.embed_eager, dynamic=False) if compiled else self.embed_eager

    @property
    def parameters(self) -> int:
        return len(self.first_theta)

    def learned_views(self, theta_P: Tensor) -> Fields:
        """The network's part of theta, or of a change of it, by name."""
        views = self.layout.views(theta_P)
        return {name.removeprefix("net."): v for name, v in views.items() if name.startswith("net.")}

    def net_views(self, theta_P: Tensor) -> Fields:
        """The network's named tensors, with what is constant, and adapters added to their matrices."""
        views = {**self.constants, **self.learned_views(theta_P)}
        for name in self.adapted:
            matrix, up, down = views[name], views.pop(name + UP), views.pop(name + DOWN)
            views[name] = matrix + (up @ down).reshape((*theta_P.shape[:-1], *matrix.shape))
        return views

    @cached_property
    def first_here(self) -> Tensor:
        """The first theta, on the device."""
        return self.first_theta.to(self.device)

    def head_views(self, theta_P: Tensor) -> Fields:
        """The averaged parameters beside the network."""
        views = self.layout.views(theta_P)
        return {name.removeprefix("head."): v for name, v in views.items() if name.startswith("head.")}

    def embed_eager(self, theta_P: Tensor, x: Tensor) -> Tensor:
        """Embeddings (S, D) of samples (S, *shape)."""
        wanted = x.requires_grad or theta_P.requires_grad
        transformed = torch._C._functorch.maybe_current_level() is not None
        passes = None if wanted or transformed else self.passes
        if passes is not None and passes.takes(theta_P, x):  # evaluation has training's arithmetic
            return passes.embed(theta_P[None], x[None])[0]
        views = self.net_views(theta_P)
        if transformed:  # vmap knows one memory format only
            views = {name: view.contiguous() for name, view in views.items()}
        elif x.dim() == 4 and self._innermost:
            x = _channels_last(x)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            out = functional_call(self.net, views, (x,))
        return out.to(self.dtype)

    @torch.no_grad()
    def embed_first(self, x_MB: Tensor) -> Tensor:
        """What the first network makes of samples (M, B, *shape): (M, B, D)."""
        parts = x_MB.flatten(0, 1).split(self._piece(x_MB))
        return torch.cat([self.embed_eager(self.first_here, part) for part in parts]).unflatten(0, x_MB.shape[:2])

    def embed_and_back(self, theta_P: Tensor, x_MB: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        """Embeddings (M, B, D), and what turns derivatives in them into those in the network's part of theta.

        These come as pieces in theta's order, some in the lower precision in which they were computed.
        """
        passes = self.passes
        if passes is not None:
            emb_1SD, done = passes.forward(theta_P.detach()[None], x_MB.flatten(0, 1)[None])
            return emb_1SD[0].unflatten(0, x_MB.shape[:2]), lambda pull_MBD: [
                piece[0] for piece in passes.backward(done, pull_MBD.flatten(0, 1)[None])
            ]
        theta = theta_P.detach().requires_grad_()
        with torch.enable_grad():
            parts = [self._fast(theta, part) for part in x_MB.flatten(0, 1).split(self._piece_back(x_MB))]
        emb_MBD = (parts[0] if len(parts) == 1 else torch.cat(parts)).detach().unflatten(0, x_MB.shape[:2])

        def back(pull_MBD: Tensor) -> list[Tensor]:
            pulls = pull_MBD.flatten(0, 1).split([len(part) for part in parts])
            # As the derivative of a product with the pulls: when they are handed to it, autograd imports a library of
            # symbolic algebra to compare sizes, for half a second and 30 MiB.
            with torch.enable_grad():
                value = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(parts, pulls, strict=True)])
            return [torch.autograd.grad(value.sum(), theta)[0][: self.size]]

        return emb_MBD, back

    def _piece(self, x_MB: Tensor) -> int:
        """Samples at a time in one pass: on the CPU as many as leave the activations in its cache."""
        count = x_MB.shape[0] * x_MB.shape[1]
        if self.device.type != "cpu" or self.compiled:
            return count
        return min(count, max(_LEAST, _CACHED // max(1, x_MB[0, 0].numel())))

    def _piece_back(self, x_MB: Tensor) -> int:
        """The same where derivatives follow: large networks of short samples take more at a time."""
        more = min(self.size // _DERIVED, _LONGEST // max(1, x_MB[0, 0].numel()))
        return min(x_MB.shape[0] * x_MB.shape[1], max(self._piece(x_MB), more))

    def embed_each(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """A network for each client: (M, B, D), stacked replicas under vmap.

        On the CPU, clients with much to compute run one after another: there is little to gain from stacking them, and
        convolutions in groups are slow. So do recurrent networks everywhere.
        """
        if self.passes is not None and not theta_MP.requires_grad:
            return self.passes.embed(theta_MP, x_MB)
        if self._in_turn(x_MB):
            each = zip(theta_MP.unbind(), x_MB.unbind(), strict=True)
            return torch.stack([self.embed_eager(theta_P, x_B) for theta_P, x_B in each])
        return vmap(self.embed_eager)(theta_MP, x_MB)

    def embed_same_and_back(self, theta_P: Tensor, x_MB: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """As `embed_each_and_back` where all clients have the same network, as they do in their first step.

        Nothing but the derivatives in the weights differs from client to client. Where these are stacked, the forward
        pass is done twice: once for the embeddings, and once for the derivatives, which need what comes of them.
        """
        if self.passes is not None:
            row = theta_P[None]
            return self.embed_each_and_back(
                row.expand(len(x_MB), -1) if self.passes.shares else row.repeat(len(x_MB), 1), x_MB
            )
        if self._in_turn(x_MB):
            theta = theta_P.detach().requires_grad_()
            with torch.enable_grad():
                each = [self.embed_eager(theta, x_B) for x_B in x_MB.unbind()]

            def in_turn(pull_MBD: Tensor) -> Tensor:
                pairs = zip(each, pull_MBD.unbind(), strict=True)
                return torch.stack([torch.autograd.grad(emb, theta, pull)[0][: self.size] for emb, pull in pairs])

            return torch.stack([emb.detach() for emb in each]), in_turn

        def one(x_B: Tensor, pull_BD: Tensor) -> Tensor:
            with OwnKernels(len(x_MB)) if self.device.type == "cuda" else nullcontext():
                back = vjp(lambda theta: self.embed_eager(theta, x_B), theta_P)[1]
            found: Tensor = back(pull_BD)[0][: self.size]
            return found

        with torch.no_grad():
            parts = x_MB.flatten(0, 1).split(self._piece(x_MB))
            emb_MBD = torch.cat([self.embed_eager(theta_P, part) for part in parts]).unflatten(0, x_MB.shape[:2])
        return emb_MBD, lambda pull_MBD: vmap(one)(x_MB, pull_MBD)

    def _in_turn(self, x_MB: Tensor) -> bool:
        """Whether clients run one after another: recurrent networks, and on the CPU those with much to compute."""
        return not self._stacks or (self.device.type == "cpu" and x_MB[0].numel() >= _ALONE)

    def embed_each_and_back(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Embeddings (M, B, D), and what turns derivatives in them into those in the network's part of each theta."""
        passes = self.passes
        if passes is not None:
            emb_MBD, done = passes.forward(theta_MP.detach(), x_MB)
            return emb_MBD, lambda pull_MBD: _joined(passes.backward(done, pull_MBD), self.dtype)
        theta = theta_MP.detach().requires_grad_()
        with torch.enable_grad():
            emb = self.embed_each(theta, x_MB)
        return emb.detach(), lambda pull: torch.autograd.grad(emb, theta, pull)[0][:, : self.size]


def _joined(pieces: list[Tensor], dtype: torch.dtype) -> Tensor:
    return pieces[0] if len(pieces) == 1 else torch.cat([piece.to(dtype) for piece in pieces], 1)
