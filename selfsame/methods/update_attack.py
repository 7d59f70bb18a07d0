"""What a client's update of the last layer tells of the vector that stands for its owner.

The last layer is z = W h + b. With d the descent direction of a sample's loss in its embedding z, the update over the
learning rate is dW = sum d h' and db = sum d, so that whoever knows W and b has G = dW W' + db b' = sum d z', for any
number of samples.

A loss of the cosine c between z and w alone has d = a(c) (w - c z / |z|) / |z|, where a is the loss's slope, which the
method makes public. Then G = w s' - Q with s = sum a z / |z| and a symmetric Q, so G - G' = w s' - s w': a plane that
holds w. Within it, for each direction w and its right angle p, of samples at about one cosine c:
    p'Gw = -c^2 p's      and      w'Gw = a(c) c (1 - c^2),
two equations for the angle of w and for c. Nothing here depends on how many samples there were.

A loss of the distance to a centre C has d along C - z and G = S C' - P with S = sum d and a symmetric P: the part of C
across S follows from G - G', the part along S does not: P has no negative eigenvalue, which bounds it from below, and
centres of one network lie near one another.

Shapes: M updates, D embedding width, H features before the last layer, K directions tried.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Pull = Callable[[Tensor], Tensor]  # a(c): how hard a sample at this cosine pulls
_DIRECTIONS = 720
_ROUNDS = 50  # in which the middle of all centres settles


@dataclass(frozen=True)
class Seen:
    """What is seen of M updates, or sums of updates, of the last layer."""

    moment_MDD: Tensor  # G
    shift_MD: Tensor  # db; without a bias the row sums of dW, which point there where features are mostly positive
    biased: bool

    def __getitem__(self, row_M: Tensor) -> Seen:
        return Seen(self.moment_MDD[row_M], self.shift_MD[row_M], self.biased)


def seen_of(weight_MDH: Tensor, bias_MD: Tensor | None, layer_DH: Tensor, offset_D: Tensor | None) -> Seen:
    """The moments of these updates over the learning rate, in double precision, before a layer W, b."""
    weight_MDH, layer_DH = weight_MDH.double(), layer_DH.double()
    moment_MDD = weight_MDH @ layer_DH.T
    if bias_MD is None or offset_D is None:
        return Seen(moment_MDD, weight_MDH.sum(2), False)
    bias_MD = bias_MD.double()
    return Seen(moment_MDD + bias_MD[..., None] * offset_D.double(), bias_MD, True)


def plane(moment_MDD: Tensor) -> Tensor:
    """Two orthonormal columns that span the largest plane of G - G': shape (M, D, 2)."""
    skew_MDD = moment_MDD - moment_MDD.mT
    return torch.linalg.eigh(skew_MDD @ skew_MDD.mT).eigenvectors[..., -2:]


def by_angle(seen: Seen, pull: Pull) -> Tensor:
    """The unit vector that each update pulls its samples towards: shape (M, D)."""
    plane_MD2 = plane(seen.moment_MDD)
    inside_M22 = plane_MD2.mT @ seen.moment_MDD @ plane_MD2
    toward_M2 = (plane_MD2.mT @ seen.shift_MD[..., None])[..., 0]
    angle_M = _angle(inside_M22, toward_M2, pull)
    vector_M2 = torch.stack([angle_M.cos(), angle_M.sin()], 1)
    return (plane_MD2 @ vector_M2[..., None])[..., 0]


def _angle(inside_M22: Tensor, toward_M2: Tensor, pull: Pull) -> Tensor:
    """Where in its plane w lies: the crossing of largest cosine that samples allow, or what comes closest to one."""
    step = 2 * math.pi / _DIRECTIONS
    angle_K = torch.arange(_DIRECTIONS, dtype=torch.float64, device=inside_M22.device) * step
    w_K2 = torch.stack([angle_K.cos(), angle_K.sin()], 1)
    p_K2 = torch.stack([-angle_K.sin(), angle_K.cos()], 1)
    ww_MK, pw_MK, pp_MK = (
        torch.einsum("ki,mij,kj->mk", left, inside_M22, right)
        for left, right in ((w_K2, w_K2), (p_K2, w_K2), (p_K2, p_K2))
    )
    skew_M1 = (inside_M22[:, 0, 1] - inside_M22[:, 1, 0])[:, None]  # p's, whatever the direction
    square_MK = -pw_MK / torch.where(skew_M1 == 0, 1, skew_M1)
    size_MK = square_MK.clamp(0, 1).sqrt()
    # The descent direction leans towards w whatever the cosine, so w is on the side of the shift.
    fits_MK = (square_MK >= 0) & (square_MK <= 1) & (toward_M2 @ w_K2.T > 0)
    found_M = torch.zeros_like(inside_M22[:, 0, 0])
    best_M = torch.full_like(found_M, -torch.inf)
    for cosine_MK in (size_MK, -size_MK):
        gap_MK = ww_MK - pull(cosine_MK) * cosine_MK * (1 - cosine_MK**2)
        good_MK = fits_MK & (-pp_MK * cosine_MK > 0)  # p'Gp = -sum a c (p'z)^2 / |z|^2
        next_MK = gap_MK.roll(-1, 1)
        crosses_MK = good_MK & good_MK.roll(-1, 1) & (gap_MK * next_MK <= 0)
        width_MK = torch.where(gap_MK == next_MK, 1, gap_MK - next_MK)
        at_MK = angle_K + step * (gap_MK / width_MK).clamp(0, 1)
        # A crossing counts for its cosine, less what p's exceeds the most that samples at this cosine can give; and
        # above everything that is none. Of the others the smallest gap.
        most_MK = (pull(cosine_MK) ** 2 * (1 - cosine_MK**2)).clamp(min=1e-300)
        excess_MK = (skew_M1**2 / most_MK).clamp(1, 100).log()
        score_MK = torch.where(crosses_MK, 6 + cosine_MK - excess_MK, -gap_MK.abs())
        score_M, place_M = score_MK.masked_fill(~good_MK, -torch.inf).max(1)
        here_M = torch.where(
            crosses_MK.gather(1, place_M[:, None])[:, 0], at_MK.gather(1, place_M[:, None])[:, 0], angle_K[place_M]
        )
        better_M = score_M > best_M
        found_M, best_M = torch.where(better_M, here_M, found_M), torch.where(better_M, score_M, best_M)
    return found_M


def by_signs(seen: Seen) -> Tensor:
    """The codeword of +1 and -1 in each update's plane: of all unit vectors in it, the one of largest sum of sizes."""
    plane_MD2 = plane(seen.moment_MDD)
    angle_K = torch.arange(_DIRECTIONS, dtype=torch.float64, device=plane_MD2.device) * 2 * math.pi / _DIRECTIONS
    try_MDK = plane_MD2 @ torch.stack([angle_K.cos(), angle_K.sin()])
    toward_MK = (seen.shift_MD[:, None] @ try_MDK)[:, 0]
    best_M = try_MDK.abs().sum(1).masked_fill(toward_MK <= 0, -torch.inf).argmax(1)
    return try_MDK.gather(2, best_M[:, None, None].expand(-1, try_MDK.shape[1], 1))[..., 0].sign()


def by_mean(seen: Seen) -> Tensor:
    """The mean of each client's embeddings, every sample weighed by how far it moves along the shift: shape (M, D)."""
    square_M1 = seen.shift_MD.square().sum(1, keepdim=True).clamp(min=1e-300)
    return (seen.moment_MDD.mT @ seen.shift_MD[..., None])[..., 0] / square_M1


def by_distance(seen: Seen) -> Tensor:
    """The centre that each update pulls its samples towards: shape (M, D)."""
    shift_MD = seen.shift_MD
    square_M1 = shift_MD.square().sum(1, keepdim=True).clamp(min=1e-300)
    skew_MDD = seen.moment_MDD - seen.moment_MDD.mT
    across_MD = -(skew_MDD @ shift_MD[..., None])[..., 0] / square_M1
    least_M1 = (by_mean(seen) * shift_MD).sum(1, keepdim=True) / square_M1
    along_M1 = least_M1
    for _ in range(_ROUNDS):
        middle_D = (across_MD + along_M1 * shift_MD).mean(0)
        near_M1 = ((middle_D - across_MD) * shift_MD).sum(1, keepdim=True) / square_M1
        along_M1 = torch.maximum(near_M1, least_M1)
    return across_MD + along_M1 * shift_MD
