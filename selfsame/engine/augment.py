"""Random crop, flip and rotation of image batches on whatever device they are on."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from selfsame.config.recipe import AugmentPart
from selfsame.errors import SelfsameError
from selfsame.streams import Stream


def augment(x_MB: Tensor, change: AugmentPart, stream: Stream) -> Tensor:
    """Images (M, B, C, H, W) changed at random, each by its own draw; anything else is refused."""
    if not (change.crop or change.flip or change.rotation):
        return x_MB
    if x_MB.dim() != 5:
        raise SelfsameError(f"augment: needs images, got samples of shape {tuple(x_MB.shape[2:])}")
    x = x_MB.flatten(0, 1)
    # One stream a purpose: columns of a common draw come out wrong from torch.compile's CPU backend (2.13).
    turn, down, right, mirror = (stream.fold(part).uniform(x_MB.shape[1]).flatten() for part in range(4))
    if change.rotation:
        x = rotate(x, (2 * turn - 1) * (change.rotation * math.pi / 180))
    if change.crop or change.flip:
        reach = 2 * change.crop + 1
        flip = mirror < 0.5 if change.flip else torch.zeros_like(mirror, dtype=torch.bool)
        x = shift_and_flip(x, (down * reach).long() - change.crop, (right * reach).long() - change.crop, flip)
    return x.unflatten(0, x_MB.shape[:2])


def shift_and_flip(x: Tensor, down_S: Tensor, right_S: Tensor, flip_S: Tensor) -> Tensor:
    """Each image moved by whole pixels (what comes in is zero), then mirrored left-right where asked."""
    S, _, H, W = x.shape
    row_SH = torch.arange(H, device=x.device) + down_S[:, None]
    col_SW = torch.arange(W, device=x.device).expand(S, W)
    col_SW = torch.where(flip_S[:, None], W - 1 - col_SW, col_SW) + right_S[:, None]
    inside_SHW = ((row_SH >= 0) & (row_SH < H))[:, :, None] & ((col_SW >= 0) & (col_SW < W))[:, None, :]
    place_SHW = row_SH.clamp(0, H - 1)[:, :, None] * W + col_SW.clamp(0, W - 1)[:, None, :]
    moved = x.flatten(2).gather(2, place_SHW.flatten(1)[:, None, :].expand(-1, x.shape[1], -1)).unflatten(2, (H, W))
    return moved * inside_SHW[:, None].to(x.dtype)


def rotate(x: Tensor, angle_S: Tensor) -> Tensor:
    """Each image turned about its centre, bilinear, zero outside."""
    cos, sin = angle_S.cos().to(x.dtype), angle_S.sin().to(x.dtype)
    zero = torch.zeros_like(cos)
    turn_S23 = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
    grid = F.affine_grid(turn_S23, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
