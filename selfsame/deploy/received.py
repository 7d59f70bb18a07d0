"""A round's network as devices receive it, and the digest by which an enclave or a helper knows it."""

from __future__ import annotations

import hashlib

from torch import Tensor

from selfsame.deploy.codec import through_half


def theta_digest(theta_P: Tensor) -> bytes:
    """What stands for a network: its numbers as they were received."""
    return hashlib.sha256(theta_P.detach().cpu().contiguous().numpy().tobytes()).digest()


def as_received(theta_P: Tensor, half: bool) -> Tensor:
    """The network as a device reads it from its request."""
    return through_half(theta_P.cpu()) if half else theta_P.cpu()
