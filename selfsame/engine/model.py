"""The network and the head as one parameter vector theta, and its forward pass for one or for many theta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields
from selfsame.nets.coupling import batch_coupled
from selfsame.nets.fast.lenet_cpu import WrittenLeNet
from selfsame.nets.fast.resnet_cuda import FusedResNet
from selfsame.nets.lenet import LeNet
from selfsame.nets.resnet import ResNet

_STREAMS = 4  # on which the replicas of a cohort run on CUDA
_CACHED = 2**16  # numbers in a piece of a batch on the CPU
_LEAST = 64  # samples in such a piece
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
    """An embedding network without parameters of its own: theta is always passed in."""

    def __init__(
        self,
        net: nn.Module,
        head: Fields,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        autocast: torch.dtype | None = None,
        compile: bool = False,
        graphs: bool = False,
    ) -> None:
        coupled = batch_coupled(net)
        if coupled is not None:
            raise SelfsameError(
                f"net: layer {coupled} makes samples depend on one another or on chance, so a client's update would "
                "depend on who else is in the cohort; use group norm and no dropout"
            )
        self.device, self.dtype, self.autocast = torch.device(device), dtype, autocast
        # Matrices, then vectors: each kind has its own precision on the GPU and lies in one piece.
        named = sorted(net.named_parameters(), key=lambda pair: pair[1].dim() < 2)
        first = {f"net.{name}": p.detach() for name, p in named}
        first |= {f"head.{name}": value for name, value in head.items()}
        self.layout = Layout.of(first)
        self.first_theta = self.layout.flatten(first).to(device="cpu", dtype=dtype)  # not twice on the device
        self.net = net.to("meta")  # only its structure is used: a forgotten theta would fail loudly
        self.compiled = compile
        self._streams: list[torch.cuda.Stream] = []
        self.fused = self._fused(net) if compile or graphs else None
        self.written = None if compile else self._written(net)
        self._fast: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self.embed_eager, dynamic=False) if compile and self.fused is None else self.embed_eager
        )

    def _fused(self, net: nn.Module) -> FusedResNet | None:
        """The version of the network whose passes are written out for CUDA, if there is one."""
        if self.device.type != "cuda" or self.autocast != torch.bfloat16 or not FusedResNet.fits(net):
            return None
        assert isinstance(net, ResNet)
        return FusedResNet(net, *self._order())

    def _written(self, net: nn.Module) -> WrittenLeNet | None:
        """The version of the network whose passes are written out for the CPU, if there is one."""
        if self.device.type != "cpu" or self.autocast is not None or not WrittenLeNet.fits(net):
            return None
        assert isinstance(net, LeNet)
        return WrittenLeNet(net, *self._order())

    def _order(self) -> tuple[tuple[str, ...], tuple[torch.Size, ...]]:
        """Names and shapes of the network's tensors as they lie in theta."""
        pairs = zip(self.layout.names, self.layout.shapes, strict=True)
        names, shapes = zip(*((n.removeprefix("net."), s) for n, s in pairs if n.startswith("net.")), strict=True)
        return names, shapes

    @property
    def parameters(self) -> int:
        return len(self.first_theta)

    def net_views(self, theta_P: Tensor) -> Fields:
        """The network's named tensors."""
        views = self.layout.views(theta_P)
        return {name.removeprefix("net."): v for name, v in views.items() if name.startswith("net.")}

    def head_views(self, theta_P: Tensor) -> Fields:
        """The averaged parameters beside the network."""
        views = self.layout.views(theta_P)
        return {name.removeprefix("head."): v for name, v in views.items() if name.startswith("head.")}

    def embed_eager(self, theta_P: Tensor, x: Tensor) -> Tensor:
        """Embeddings (S, D) of samples (S, *shape)."""
        if self.fused is not None and not x.requires_grad:
            return self.fused(theta_P, x)
        views = self.net_views(theta_P)
        if torch._C._functorch.maybe_current_level() is not None:  # vmap knows one memory format only
            views = {name: view.contiguous() for name, view in views.items()}
        elif x.dim() == 4:
            x = _channels_last(x)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            out = functional_call(self.net, views, (x,))
        return out.to(self.dtype)

    def embed(self, theta_P: Tensor, x_MB: Tensor) -> Tensor:
        """One network for everybody: (M, B, D) from (M, B, *shape), in one pass."""
        return self._fast(theta_P, x_MB.flatten(0, 1)).unflatten(0, x_MB.shape[:2])

    def embed_and_back(self, theta_P: Tensor, x_MB: Tensor) -> tuple[Tensor, Callable[[Tensor], list[Tensor]]]:
        """Embeddings (M, B, D), and what turns derivatives in them into those in the network's part of theta.

        These come as pieces in theta's order, some in the lower precision in which they were computed.
        """
        if self.fused is not None:
            fused = self.fused
            emb, done = fused.forward(theta_P.detach(), x_MB.flatten(0, 1))
            return emb.unflatten(0, x_MB.shape[:2]), lambda pull: fused.backward(done, pull.flatten(0, 1), True)
        if self.written is not None and self.written.takes(x_MB, 1):
            written = self.written
            emb_1SD, passed = written.forward(theta_P.detach()[None], x_MB.flatten(0, 1)[None])
            return emb_1SD[0].unflatten(0, x_MB.shape[:2]), lambda pull: [
                written.backward(passed, pull.flatten(0, 1)[None])[0]
            ]
        theta = theta_P.detach().requires_grad_()
        with torch.enable_grad():
            parts = [self._fast(theta, part) for part in x_MB.flatten(0, 1).split(self._piece(x_MB))]
        emb_MBD = (parts[0] if len(parts) == 1 else torch.cat(parts)).detach().unflatten(0, x_MB.shape[:2])
        size = self._net_size()

        def back(pull_MBD: Tensor) -> list[Tensor]:
            pulls = pull_MBD.flatten(0, 1).split([len(part) for part in parts])
            # As the derivative of a product with the pulls: when they are handed to it, autograd imports a library of
            # symbolic algebra to compare sizes, for half a second and 30 MiB.
            with torch.enable_grad():
                value = torch.stack([torch.dot(a.flatten(), b.flatten()) for a, b in zip(parts, pulls, strict=True)])
            return [torch.autograd.grad(value.sum(), theta)[0][:size]]

        return emb_MBD, back

    def _piece(self, x_MB: Tensor) -> int:
        """Samples at a time in one pass: on the CPU as many as leave the activations in its cache."""
        count = x_MB.shape[0] * x_MB.shape[1]
        if self.device.type != "cpu" or self.compiled:
            return count
        return min(count, max(_LEAST, _CACHED // max(1, x_MB[0, 0].numel())))

    def embed_each(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """A network for each client: (M, B, D), stacked replicas under vmap.

        On the CPU, clients with much to compute run one after another: there is little to gain from stacking them, and
        convolutions in groups are slow. Where the passes are written out, they do so on a few CUDA streams: each fills
        the gaps that the small kernels of the others leave.
        """
        if self.written is not None and not theta_MP.requires_grad and self.written.takes(x_MB, x_MB.shape[0]):
            return self.written.forward(theta_MP, x_MB)[0]
        each = list(zip(theta_MP.unbind(), x_MB.unbind(), strict=True))
        if self.device.type == "cpu" and (self.fused is not None or x_MB[0].numel() >= _ALONE):
            return torch.stack([self.embed_eager(theta_P, x_B) for theta_P, x_B in each])
        if self.fused is None:
            return vmap(self.embed_eager)(theta_MP, x_MB)
        main = torch.cuda.current_stream(self.device)
        out = []
        for place, (theta_P, x_B) in enumerate(each):
            stream = self._stream(place % _STREAMS)
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                out.append(self.fused(theta_P, x_B, overlap=False))
        for place in range(min(_STREAMS, len(out))):
            main.wait_stream(self._stream(place))
        return torch.stack(out)

    def embed_each_and_back(self, theta_MP: Tensor, x_MB: Tensor) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
        """Embeddings (M, B, D), and what turns derivatives in them into those in the network's part of each theta."""
        if self.written is not None and self.written.takes(x_MB, x_MB.shape[0]):
            written = self.written
            emb_MBD, passed = written.forward(theta_MP.detach(), x_MB)
            return emb_MBD, lambda pull_MBD: written.backward(passed, pull_MBD)
        theta = theta_MP.detach().requires_grad_()
        with torch.enable_grad():
            emb = self.embed_each(theta, x_MB)
        return emb.detach(), lambda pull: torch.autograd.grad(emb, theta, pull)[0][:, : self._net_size()]

    def _net_size(self) -> int:
        sizes = zip(self.layout.names, self.layout.sizes, strict=True)
        return sum(size for name, size in sizes if name.startswith("net."))

    def _stream(self, place: int) -> torch.cuda.Stream:
        while len(self._streams) <= place:
            self._streams.append(torch.cuda.Stream(self.device))
        return self._streams[place]
