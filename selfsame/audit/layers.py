"""The last layer of a network, whose update an attacker reads."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from selfsame.engine.problem import Problem
from selfsame.methods.update_attack import Seen, seen_of


@dataclass(frozen=True)
class Layer:
    """A last layer, one per client or the same for all: weights (M, D, H) or (D, H), a bias (M, D) or (D,), or none."""

    weight: Tensor
    bias: Tensor | None

    def embed(self, feature_MSH: Tensor) -> Tensor:
        """Embeddings of features: shape (M, S, D)."""
        emb_MSD = feature_MSH @ self.weight.mT
        return emb_MSD if self.bias is None else emb_MSD + self.bias[..., None, :]


@dataclass(frozen=True)
class LastLayer:
    """The names of the weights and, where there is one, the bias of the layer that ends in the embedding."""

    weight: str
    bias: str | None

    @staticmethod
    def of(problem: Problem) -> LastLayer | None:
        """The last linear layer as wide as the embedding; None: the network ends otherwise."""
        last: LastLayer | None = None
        learned = problem.model.layout.names
        for name, module in problem.model.net.named_modules():
            if isinstance(module, nn.Linear) and module.out_features == problem.world.dim:
                place = f"{name}." if name else ""
                last = LastLayer(f"{place}weight", None if module.bias is None else f"{place}bias")
        if last is None or not {f"net.{name}" for name in (last.weight, last.bias) if name} <= set(learned):
            return None  # it does not learn, or only through an adapter
        return last

    def shift(self, problem: Problem, change_MP: Tensor) -> Tensor:
        """How these updates move the bias; without one, the row sums of how they move the weights: shape (M, D)."""
        views = problem.model.learned_views(change_MP)
        return views[self.weight].sum(-1) if self.bias is None else views[self.bias]

    def of_network(self, problem: Problem, theta: Tensor) -> Layer:
        """The layer of a network (P,) or of several (M, P), or of their updates, in double precision."""
        views = problem.model.learned_views(theta)
        return Layer(views[self.weight].double(), None if self.bias is None else views[self.bias].double())

    def seen(self, problem: Problem, theta_P: Tensor, change_MP: Tensor, scale: float) -> Seen:
        """The moments of updates that began at `theta_P`, over `scale`: the learning rate times the steps."""
        before, change = problem.model.learned_views(theta_P), problem.model.learned_views(change_MP / scale)
        if self.bias is None:
            return seen_of(change[self.weight], None, before[self.weight], None)
        return seen_of(change[self.weight], change[self.bias], before[self.weight], before[self.bias])
