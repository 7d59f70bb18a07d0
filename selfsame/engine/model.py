"""The network and the head as one parameter vector theta, and its forward pass for one or for many theta."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from selfsame.errors import SelfsameError
from selfsame.methods.base import Fields
from selfsame.nets.check import batch_coupled


@dataclass(frozen=True)
class Layout:
    """Where each named tensor lies in theta: averaging, optimisers and checkpoints then see one vector."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]

    @staticmethod
    def of(tensors: Fields) -> Layout:
        return Layout(tuple(tensors), tuple(t.shape for t in tensors.values()))

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    def flatten(self, tensors: Fields) -> Tensor:
        return torch.cat([tensors[name].detach().reshape(-1) for name in self.names])

    def views(self, theta_P: Tensor) -> Fields:
        """The named tensors as views of theta; a leading axis of theta stays in front of each."""
        lead = theta_P.shape[:-1]
        parts = theta_P.split(self.sizes, dim=-1)
        return {n: p.reshape((*lead, *s)) for n, p, s in zip(self.names, parts, self.shapes, strict=True)}


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
    ) -> None:
        coupled = batch_coupled(net)
        if coupled is not None:
            raise SelfsameError(
                f"net: layer {coupled} makes samples depend on one another or on chance, so a client's update would "
                "depend on who else is in the cohort; use group norm and no dropout"
            )
        self.device, self.dtype, self.autocast = torch.device(device), dtype, autocast
        first = {f"net.{name}": p.detach() for name, p in net.named_parameters()}
        first |= {f"head.{name}": value for name, value in head.items()}
        self.layout = Layout.of(first)
        self.first_theta = self.layout.flatten(first).to(device=self.device, dtype=dtype)
        self.net = net.to("meta")  # only its structure is used: a forgotten theta would fail loudly
        self.compiled = compile
        self._fast: Callable[[Tensor, Tensor], Tensor] = (
            torch.compile(self.embed_eager, dynamic=False) if compile else self.embed_eager
        )

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
        if x.dim() == 4 and x.device.type == "cuda":
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, dtype=self.autocast, enabled=self.autocast is not None):
            out = functional_call(self.net, self.net_views(theta_P), (x,))
        return out.to(self.dtype)

    def embed(self, theta_P: Tensor, x_MB: Tensor) -> Tensor:
        """One network for everybody: (M, B, D) from (M, B, *shape), in one pass."""
        return self._fast(theta_P, x_MB.flatten(0, 1)).unflatten(0, x_MB.shape[:2])

    def embed_each(self, theta_MP: Tensor, x_MB: Tensor) -> Tensor:
        """A network for each client: (M, B, D), stacked replicas under vmap."""
        return vmap(self.embed_eager)(theta_MP, x_MB)
