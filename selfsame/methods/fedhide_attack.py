"""The attack on FedHide: its (4) inverted, from the public table before and after an update.

With d the delegate of a subset S of table rows, s p = alpha w + (1 - alpha) d for a scale s that (4) normalised away,
and |w| = 1 leaves two candidates for s. Whether S is right shows in w itself: its nearest rows must be S. All of this
needs inner products only, so subsets are 0/1 rows S_ML over a Gram matrix of shortlisted rows.

In a table whose rows are bunched both candidates have the same nearest rows: they mirror each other across the proxy,
and one report does not tell which is right. Early in training prototypes lean away from their proxies, later towards
them, so neither is the likelier one. A second report tells (`told_apart`): the table has moved in between, and with it
the mirror. So two reports agree on the true vector, once it is moved by what the repulsion (3) is known to do to it,
and on its mirror image they do not.

Shapes: R clients attacked, N table rows, L shortlisted rows, D width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.methods.base import unit

_SHORTLIST = 256  # table rows a client's delegate is searched among at a time
_FIXED_POINT = 12  # steps after which a subset that still moves is given up
_ATTEMPTS = 3  # shortlists tried for a client whose proxy is not explained yet
_ROUNDING = 1e-5  # what a float32 report may do to alpha times its prototype, and a little more
_MEMORY = 1 << 26  # float64 numbers held for the shortlists of a block of clients


def recover_fedhide(
    proxy_RD: Tensor, before_ND: Tensor, own_row_R: Tensor, alpha: float, neighbours: int, class_of_N: Tensor
) -> Tensor:
    """The true prototypes behind FedHide's new proxies (4), as unit vectors, from the table they were made with.

    Rows of the client's own class cannot be among its neighbours. A proxy that (4) does not explain gets the candidate
    that comes closest.
    """
    proxy_RD = unit(proxy_RD.double())
    class_R = class_of_N[own_row_R]
    size_C = torch.bincount(class_of_N, minlength=1)
    neighbours_R = (len(before_ND) - size_C[class_R]).clamp(max=neighbours)  # with few others, all of them are used
    found_RD = proxy_RD.clone()  # the answer for alpha = 1, and the best there is for alpha = 0 or without neighbours
    width = min(_SHORTLIST, len(before_ND)) + before_ND.shape[1]
    step = max(1, _MEMORY // (width * min(_SHORTLIST, len(before_ND))))
    for count in torch.unique(neighbours_R).tolist():
        if count == 0 or alpha in (0, 1):
            continue
        for row_M in torch.nonzero(neighbours_R == count)[:, 0].split(step):
            other_MN = class_R[row_M, None] != class_of_N
            found_RD[row_M] = _search(proxy_RD[row_M], before_ND, other_MN, alpha, count)
    return found_RD


def mirrored(found_RD: Tensor, proxy_RD: Tensor) -> Tensor:
    """The other root's prototype: the same, with its part along the proxy turned round."""
    along_R1 = (found_RD * proxy_RD).sum(1, keepdim=True)
    return found_RD - 2 * along_R1 * proxy_RD


def told_apart(earlier_2RD: Tensor, later_2RD: Tensor, drift_2RD: Tensor | None, alpha: float) -> Tensor:
    """Of both roots of the later of two reports, the one that the earlier report confirms: shape (R, D).

    `drift_2RD` is how each earlier root would have moved in between, as far as the attacker can tell; None: prototypes
    stood. Where both are confirmed alike the first is kept.
    """
    expected_2RD = earlier_2RD if drift_2RD is None else earlier_2RD + drift_2RD
    gap_2R = torch.cdist(later_2RD.transpose(0, 1), expected_2RD.transpose(0, 1)).amin(2).T
    if drift_2RD is None:
        second_R = (gap_2R[1] < gap_2R[0] / 2) & (alpha * gap_2R[0] > _ROUNDING)
    else:  # samples pull as well, so that neither root is met exactly
        second_R = gap_2R[1] < gap_2R[0]
    return torch.where(second_R[:, None], later_2RD[1], later_2RD[0])


@dataclass(frozen=True)
class Shortlist:
    """Inner products of each client's proxy with L table rows, and of these rows among themselves."""

    proxy_ML: Tensor
    gram_MLL: Tensor
    alpha: float
    count: int  # neighbours in a subset

    def __getitem__(self, row_A: Tensor) -> Shortlist:
        if len(row_A) == len(self.proxy_ML):
            return self
        return Shortlist(self.proxy_ML[row_A], self.gram_MLL[row_A], self.alpha, self.count)

    def top(self, score_ML: Tensor) -> Tensor:
        """The best-scored rows as a subset."""
        return torch.zeros_like(self.proxy_ML).scatter_(1, score_ML.topk(self.count, 1).indices, 1.0)

    def sums(self, S_ML: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Of the subset's sum: its products with every row, its squared length, its product with the proxy."""
        dot_ML = (self.gram_MLL @ S_ML[..., None])[..., 0]
        return dot_ML, (dot_ML * S_ML).sum(1), (self.proxy_ML * S_ML).sum(1)

    def greedy(self) -> Tensor:
        """A subset grown row by row, each time by the row that brings the delegate closest to the proxy."""
        S_ML, dot_ML = torch.zeros_like(self.proxy_ML), torch.zeros_like(self.proxy_ML)
        length_ML = self.gram_MLL.diagonal(dim1=1, dim2=2)
        every_M = torch.arange(len(S_ML), device=S_ML.device)
        for _ in range(self.count):
            square_ML = (dot_ML * S_ML).sum(1, keepdim=True) + 2 * dot_ML + length_ML
            cosine_ML = ((self.proxy_ML * S_ML).sum(1, keepdim=True) + self.proxy_ML) / _root(square_ML)
            best_M = cosine_ML.masked_fill(S_ML > 0, -torch.inf).argmax(1)
            S_ML[every_M, best_M] = 1.0
            dot_ML += self.gram_MLL[every_M, best_M]
        return S_ML

    def swap(self, S_ML: Tensor) -> Tensor:
        """The subset after the best exchanges of one row, while they bring the delegate closer to the proxy."""
        S_ML, (dot_ML, square_M, along_M) = S_ML.clone(), self.sums(S_ML)
        length_ML = self.gram_MLL.diagonal(dim1=1, dim2=2)
        live_A = torch.arange(len(S_ML), device=S_ML.device)  # the clients whose last exchange helped
        for _ in range(3 * self.count):
            out_AK = S_ML[live_A].topk(self.count, 1).indices
            row_A1 = live_A[:, None]
            leave_AK = length_ML[row_A1, out_AK] - 2 * dot_ML[row_A1, out_AK]
            enter_AL = length_ML[live_A] + 2 * dot_ML[live_A] + square_M[live_A, None]
            square_AKL = leave_AK[..., None] + enter_AL[:, None] - 2 * self.gram_MLL[row_A1, out_AK]
            enter_AL = self.proxy_ML[live_A] + along_M[live_A, None]
            along_AKL = enter_AL[:, None] - self.proxy_ML[row_A1, out_AK][..., None]
            cosine_AKL = (along_AKL / _root(square_AKL)).masked_fill(S_ML[live_A, None] > 0, -torch.inf)
            best_A, where_A = cosine_AKL.flatten(1).max(1)
            better_A = best_A > along_M[live_A] / _root(square_M[live_A]) + 1e-12
            if not better_A.any():
                break
            live_A, where_A = live_A[better_A], where_A[better_A]
            in_A = where_A % S_ML.shape[1]
            out_A = out_AK[better_A].gather(1, (where_A // S_ML.shape[1])[:, None])[:, 0]
            S_ML[live_A, out_A], S_ML[live_A, in_A] = 0.0, 1.0
            dot_ML[live_A] += self.gram_MLL[live_A, in_A] - self.gram_MLL[live_A, out_A]
            along_M[live_A] += self.proxy_ML[live_A, in_A] - self.proxy_ML[live_A, out_A]
            square_M[live_A] = (dot_ML[live_A] * S_ML[live_A]).sum(1)
        return S_ML

    def solve(self, S_ML: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """For both roots s of |s p - (1 - alpha) d| = alpha: (s, each row's product with w, how badly S explains p)."""
        keep = 1 - self.alpha
        dot_ML, square_M, along_M = self.sums(S_ML)
        cosine_M = along_M / _root(square_M)
        inside_M = keep**2 * cosine_M**2 - (1 - 2 * self.alpha)  # the discriminant, below 0 for a wrong subset
        half_M = inside_M.clamp(min=0).sqrt()
        scale_2M = torch.stack([keep * cosine_M + half_M, keep * cosine_M - half_M])
        length_2M = _root(scale_2M**2 - 2 * keep * scale_2M * cosine_M + keep**2)
        near_2ML = scale_2M[..., None] * self.proxy_ML - keep * dot_ML / _root(square_M)[:, None]
        near_2ML = near_2ML / length_2M[..., None]
        # The nearest rows of w should be S. Their shortfall, unlike the proxy made from w again, hardly moves when
        # rounding makes two rows of nearly equal cosine change places.
        shortfall_2M = near_2ML.topk(self.count, 2).values.sum(2) - (near_2ML * S_ML).sum(2)
        fault_2M = shortfall_2M + (-inside_M).clamp(min=0) / self.alpha**2
        fault_2M = fault_2M.masked_fill(scale_2M <= 0, torch.inf)
        # In a bunched table both roots can explain the proxy. The larger s is the first of them, up to what rounding a
        # float32 report can do to w; a second report says whether it is the right one.
        fault_2M[1] += 1e-6 / self.alpha
        return scale_2M, near_2ML, fault_2M


def _search(proxy_MD: Tensor, table_ND: Tensor, other_MN: Tensor, alpha: float, count: int) -> Tensor:
    """The best candidate prototype of each client: the first shortlist is near the proxy, the next near the last w."""
    found_MD = proxy_MD.clone()
    fault_M = torch.full_like(proxy_MD[:, 0], torch.inf)
    others_M = other_MN.sum(1)
    fewest, most = int(others_M.min()), int(others_M.max())
    short = min(max(_SHORTLIST, 4 * count), fewest)
    for _ in range(_ATTEMPTS if short < most else 1):
        row_A = torch.nonzero(fault_M > _explained(alpha))[:, 0]
        if not len(row_A):
            break
        near_AN = (found_MD[row_A].to(table_ND.dtype) @ table_ND.T).masked_fill(~other_MN[row_A], -torch.inf)
        list_AL = near_AN.topk(short, 1).indices
        new_AD, new_A = _best_candidate(proxy_MD[row_A], table_ND[list_AL].double(), alpha, count)
        if short < most:  # a nearer row outside the shortlist is a fault as well
            near_AN = (new_AD.to(table_ND.dtype) @ table_ND.T).masked_fill(~other_MN[row_A], -torch.inf)
            inside_AK = near_AN.gather(1, list_AL).topk(count, 1).values
            new_A = new_A + (near_AN.topk(count, 1).values - inside_AK).sum(1).double()
        better_A = new_A < fault_M[row_A]
        found_MD[row_A[better_A]], fault_M[row_A[better_A]] = new_AD[better_A], new_A[better_A]
    return found_MD


def _best_candidate(proxy_MD: Tensor, row_MLD: Tensor, alpha: float, count: int) -> tuple[Tensor, Tensor]:
    """The prototype that best explains each proxy and its fault, for shortlists in order of promise."""
    proxy_ML = (row_MLD @ proxy_MD[..., None])[..., 0]
    short = Shortlist(proxy_ML, row_MLD @ row_MLD.mT, alpha, count)
    first_ML = torch.zeros_like(proxy_ML)
    first_ML[:, :count] = 1.0
    greedy_ML = short.greedy()
    best_ML, scale_M = greedy_ML.clone(), torch.ones_like(proxy_ML[:, 0])
    fault_M = torch.full_like(scale_M, torch.inf)
    for start_ML, swapped in ((greedy_ML, True), (first_ML, True), (greedy_ML, False), (first_ML, False)):
        row_A = torch.nonzero(fault_M > _explained(alpha))[:, 0]
        if not len(row_A):
            break
        part = short[row_A]
        S_AL = part.swap(start_ML[row_A]) if swapped else start_ML[row_A]
        for _ in range(_FIXED_POINT):  # S becomes the nearest rows of the w it gives
            scale_2A, near_2AL, fault_2A = part.solve(S_AL)
            new_A, root_A = fault_2A.min(0)
            better_A = new_A < fault_M[row_A]
            at = row_A[better_A]
            best_ML[at], fault_M[at] = S_AL[better_A], new_A[better_A]
            scale_M[at] = scale_2A.gather(0, root_A[None])[0, better_A]
            last_AL, S_AL = S_AL, part.top(near_2AL[root_A, torch.arange(len(row_A), device=row_A.device)])
            if torch.equal(S_AL, last_AL):
                break
    delegate_MD = unit((best_ML[:, None] @ row_MLD)[:, 0])
    return unit(scale_M[:, None] * proxy_MD - (1 - alpha) * delegate_MD), fault_M


def _explained(alpha: float) -> float:
    """The fault that rounding a float32 report may leave."""
    return 1e-5 / alpha


def _root(square: Tensor) -> Tensor:
    """A square root that stays away from 0 when rounding, or rows that cancel, leave nothing."""
    return square.clamp(min=1e-24).sqrt()
