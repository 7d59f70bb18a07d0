"""The other shape of a method: the devices keep the network and the data, the loss lives in trusted code.

One round (FDML, Fig. 2): devices embed their samples and send the embeddings, sealed, to the enclave; it differentiates
one loss over the embeddings of the whole cohort and sends each device the derivatives of its own; the device pulls them
back through the network and sends its gradient, sealed again; the enclave gives out the weighted sum (2) alone.
A loss may have parameters of its own, which the enclave keeps from round to round and trains: `begin_enclave`.

Shapes as in `base`; S counts the samples of all clients together.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from selfsame.methods.base import Cohort, Fields, LocalLoss, World, mean_embedding
from selfsame.methods.update_attack import Seen, by_mean
from selfsame.privacy.mechanisms import Mechanism, keep, perturb
from selfsame.streams import Stream

_LONG = 16.0  # root mean square of an embedding's numbers: the enclave clips at this length, so nothing longer is one


@dataclass(frozen=True)
class SplitLoss(LocalLoss):
    """A method whose loss is computed in the enclave, over the embeddings of the whole cohort.

    The server counts the rounds in which each client's embeddings were used: what its privacy costs.
    """

    @abstractmethod
    def joint_loss(self, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor) -> Tensor:
        """The loss of all samples together, one value; samples with mask 0 are not there."""

    # What the enclave keeps, for losses with parameters of their own

    def begin_enclave(self, world: World) -> Fields:
        """The enclave's own tables before the first round. Row r must not depend on how many rows there are."""
        return {}

    def enclave_ready(self, inside: Fields, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor) -> Fields:
        """The tables with what this round's samples begin."""
        return inside

    def enclave_loss(self, emb_SD: Tensor, label_S: Tensor, mask_S: Tensor, inside: Fields) -> Tensor:
        """`joint_loss` where it has such tables."""
        return self.joint_loss(emb_SD, label_S, mask_S)

    def enclave_moved(self, inside: Fields, grads: Fields) -> Fields:
        """The tables once they have learned from the round, which must end with a sum: else they stay."""
        return inside

    @property
    def mechanism(self) -> Mechanism | None:
        """The noise between the derivatives and the devices, by which privacy is accounted for."""
        return None

    def enclave_terms(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """(loss, privacy) as the enclave is told them; None: it knows no such loss."""
        return None

    def used(self, mask_MB: Tensor, stream: Stream) -> Tensor:
        """The mask of the embeddings that enter the loss (FDML, Algorithm 2, line 1)."""
        mechanism = self.mechanism
        return mask_MB if mechanism is None else keep(mask_MB > 0, mechanism, stream).to(mask_MB.dtype)

    def released(self, grad_MBD: Tensor, mask_MB: Tensor, stream: Stream) -> Tensor:
        """The derivatives as the devices get them (lines 3 and 4): 0 where the embedding was dropped."""
        mechanism = self.mechanism
        return grad_MBD if mechanism is None else perturb(grad_MBD, mask_MB > 0, mechanism, stream)

    def loss(self, emb_MBD: Tensor, mask_MB: Tensor, mine: Fields, sent: Fields, head: Fields, who: Cohort) -> Tensor:
        raise NotImplementedError(f"{self.name}: no device can compute this loss, see joint_loss")

    def begin_own(self, world: World, client_R: Tensor, stream: Stream, own: Fields | None = None) -> Fields:
        return {"template": torch.zeros(len(client_R), world.dim, device=client_R.device)}

    def begin_server(self, world: World, stream: Stream) -> Fields:
        return {"taken": torch.zeros(world.clients, dtype=torch.int64, device=world.class_of_N.device)}

    def rounds_used(self, server: Fields) -> Tensor:
        return server["taken"]

    def report(
        self, mine: Fields, sent: Fields, who: Cohort, emb_MBD: Tensor, mask_MB: Tensor, stream: Stream
    ) -> tuple[Fields, Fields]:
        """The embeddings leave, sealed to the enclave; the device keeps their mean as its owner's template."""
        return {"template": mean_embedding(self.place(emb_MBD), mask_MB)}, {"embedding": emb_MBD}

    def truth(self, own: Fields, server: Fields, head: Fields) -> Tensor:
        """The template that each device made of its samples when it last took part."""
        return own["template"]

    def attack_updates(self, seen: Seen) -> Tensor:
        """The mean of the owner's embeddings, whatever the derivatives are that the enclave sent.

        Distances stay as they are when all embeddings move together, so the shifts of a whole cohort add up to zero,
        but for rounding. What that leaves is far too long to be an embedding, and stands for nothing found.
        """
        guess_MD = by_mean(seen)
        longest = _LONG * guess_MD.shape[1] ** 0.5
        return torch.where(guess_MD.norm(dim=1, keepdim=True) <= longest, guess_MD, 0)


def joint_derivatives(method: SplitLoss, emb_MBD: Tensor, mask_MB: Tensor, label_M: Tensor) -> tuple[Tensor, Tensor]:
    """(loss, its derivatives in every embedding), Step 5, where the enclave has kept nothing."""
    return enclave_step(method, {}, emb_MBD, mask_MB, label_M)[:2]


def enclave_step(
    method: SplitLoss, inside: Fields, emb_MBD: Tensor, mask_MB: Tensor, label_M: Tensor
) -> tuple[Tensor, Tensor, Fields]:
    """(loss, its derivatives in every embedding, the enclave's tables after the round).

    Each client's samples carry the class of the client.
    """
    emb, mask_S = emb_MBD.detach().requires_grad_(), mask_MB.flatten()
    label_S = label_M[:, None].expand(mask_MB.shape).flatten()
    if not inside:
        with torch.enable_grad():
            value = method.joint_loss(emb.flatten(0, 1), label_S, mask_S)
            (grad,) = torch.autograd.grad(value, emb)
        return value.detach(), grad, {}
    ready = method.enclave_ready(inside, emb.detach().flatten(0, 1), label_S, mask_S)
    learned = {name: table.detach().requires_grad_() for name, table in ready.items()}
    with torch.enable_grad():
        value = method.enclave_loss(emb.flatten(0, 1), label_S, mask_S, learned)
        grad, *rest = torch.autograd.grad(value, [emb, *learned.values()])
    return value.detach(), grad, method.enclave_moved(ready, dict(zip(learned, rest, strict=True)))
