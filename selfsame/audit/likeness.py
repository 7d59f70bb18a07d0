"""How near found pictures come to the originals, beside what is there without an attack.

Shapes: G groups, S pictures of a group, T unrelated pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.lpips import Lpips, best_of, psnr
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.errors import SelfsameError

_UNRELATED = 64  # pictures of others that stand for knowing nothing


@dataclass(frozen=True)
class Likeness:
    """How alike each original (G, S) and what was put beside it are."""

    lpips_GS: Tensor | None  # None: no weights were given
    psnr_GS: Tensor

    @property
    def lpips(self) -> float | None:
        return None if self.lpips_GS is None else float(self.lpips_GS.mean())

    @property
    def psnr(self) -> float:
        return float(self.psnr_GS.mean())


@dataclass(frozen=True)
class Compared:
    """What was found beside what is there without an attack."""

    found: Likeness  # by either measure the closest of its group's
    unrelated: Likeness  # a picture of another client in its place, the mean over up to 64
    chance: Likeness  # the closest of as many pictures of others as there are in the group
    blank: Likeness  # the mean of the others' pictures in its place


@dataclass(frozen=True)
class Inverted(Compared):
    """What came of it."""

    original_GS: Tensor  # (G, S, C, H, W), pixels in 0 .. 1
    found_GS: Tensor  # in no order
    other_T: Tensor  # pictures of others
    mismatch_G: Tensor  # 1 - cosine of the best search
    seconds: float

    def matched(self) -> Tensor:
        """Beside each original the closest that was found of its group, by PSNR: (G, S, C, H, W)."""
        pairs = list(zip(self.original_GS, self.found_GS, strict=True))
        return torch.stack([found_S[psnr(original_S, found_S).argmax(1)] for original_S, found_S in pairs])


def pixels(problem: Problem, x: Tensor) -> Tensor:
    """Standardised samples as pixels in 0 .. 1."""
    federation = problem.federation
    mean, std = (x.new_tensor(values).reshape(-1, 1, 1) for values in (federation.mean, federation.std))
    return (x * std + mean).clamp(0, 1)


def compare(original_GS: Tensor, found_GS: Tensor, other_T: Tensor, judge: Lpips | None) -> Compared:
    """Both measures of what was found, and of what is there without an attack."""
    count, every_S = original_GS.shape[1], original_GS.flatten(0, 1)
    judge = None if judge is None else judge.to(every_S.device)

    def closest(measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.stack([measure(*pair).min(1).values for pair in zip(original_GS, found_GS, strict=True)])

    def beside(other_T: Tensor, reduce: Callable[[Tensor], Tensor]) -> Likeness:
        far = None if judge is None else reduce(judge.distances(every_S, other_T)).unflatten(0, (-1, count))
        return Likeness(far, -reduce(-psnr(every_S, other_T)).unflatten(0, (-1, count)))

    return Compared(
        Likeness(None if judge is None else closest(judge.distances), -closest(lambda a, b: -psnr(a, b))),
        beside(other_T, lambda value_ST: value_ST.mean(1)),
        beside(other_T, lambda value_ST: best_of(value_ST, count)),
        beside(other_T.mean(0, keepdim=True), lambda value_ST: value_ST[:, 0]),
    )


def others(problem: Problem, state: State, client_M: Tensor, least: int) -> Tensor:
    """Pictures of clients of other classes, of each in turn: (T, C, H, W), pixels in 0 .. 1."""
    federation, class_of_N = problem.federation, problem.world.class_of_N
    client_N = torch.arange(state.present, device=client_M.device)
    client_N = client_N[~torch.isin(class_of_N[: state.present], class_of_N[client_M])]
    if not len(client_N):
        raise SelfsameError("inversion: needs clients of other classes, whose pictures show what chance gives")
    most = max(_UNRELATED, 2 * least)
    index_NT = torch.arange(-(-most // len(client_N)), device=client_M.device).expand(len(client_N), -1)
    there_NT = index_NT < federation.count_N[client_N][:, None]
    raw = federation.source.rows(client_N, torch.where(there_NT, index_NT, 0))
    x_TN = pixels(problem, federation.scale(raw).to(problem.model.dtype)).transpose(0, 1)
    other_T = x_TN[there_NT.T][:most]
    if len(other_T) < least:
        raise SelfsameError(f"inversion: {least} pictures of other clients are needed, there are {len(other_T)}")
    return other_T
