"""Group norm, the one kind used here: it never mixes samples, so a client alone equals a client in a cohort."""

from __future__ import annotations

from torch import nn

from selfsame.errors import SelfsameError


def group_norm(channels: int, groups: int, affine: bool = True) -> nn.GroupNorm:
    """Group norm with the largest number of groups that divides the channels and is at most `groups`."""
    if groups < 1:
        raise SelfsameError(f"groups must be at least 1, got {groups}")
    fitting = max(number for number in range(1, min(groups, channels) + 1) if channels % number == 0)
    return nn.GroupNorm(fitting, channels, affine=affine)
