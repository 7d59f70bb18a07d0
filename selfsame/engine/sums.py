"""What is released of a group's updates where nobody may see one alone: clipped, weighted, noisy, with stand-ins.

masked: whole numbers modulo a power of two (`privacy.fixed`). The masks themselves cancel and are not simulated.
enclave: clipped updates in the run's precision; the enclave adds the noise, once.

A member of the group that does not answer is stood in for by its last contribution that was released, and counts as
zero where there is none: what is released is always over the whole group. With too few answers nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfsame.config.recipe import Recipe
from selfsame.engine.groups import groups_of, initially_present, most_turns
from selfsame.errors import SelfsameError
from selfsame.methods import LocalLoss, SplitLoss
from selfsame.methods.base import Fields, put_rows
from selfsame.methods.poll import Poll
from selfsame.privacy.accountant import PrivacySpent, gaussian_epsilon
from selfsame.privacy.fixed import FixedPoint, shortened
from selfsame.streams import Stream

Draw = Callable[[str, Tensor], Stream]  # the round's randomness, of a purpose and some clients
_AT_ONCE = 2**23  # numbers of contributions in work at a time


@dataclass(frozen=True)
class Sums:
    """The terms on which updates of a group are added up."""

    clip: float  # the longest update, L2
    least: int  # answers without which nothing is released
    code: FixedPoint | None = None  # of masked contributions; None: sealed to an enclave
    noise: float = 0.0  # deviation of the noise on the sum
    quiet: float = 0.0  # the chance that a device sends zero
    stand_ins: int = 0  # the most rounds in which a device is stood in for; 0: any

    @staticmethod
    def of(recipe: Recipe, clients: int, longest: int) -> Sums | None:
        """The terms of a recipe that says everything (`with_sums`); None: updates are seen by the server.

        `longest` is the number of samples of the client with most, which bounds weights where nothing else does.
        """
        part = recipe.sums
        if not part.summed:
            return None
        code = None
        if part.aggregation == "masked":
            group = max(len(group) for group in groups_of(recipe, recipe.cohort.join_round, clients))
            cap = (recipe.cohort.cap or longest) if recipe.cohort.weights == "samples" else 1
            alone = part.noise * part.clip / math.sqrt(part.least)
            code = FixedPoint(part.clip, part.reach, part.bits, group, cap, alone)
        return Sums(part.clip, part.least, code, part.noise * part.clip, part.quiet, part.stand_ins)

    def begin(self, clients: int, theta_P: Tensor) -> Fields:
        """Everybody's last contribution, and in how many rounds it stood in; -1 where nothing was released yet."""
        dtype = theta_P.dtype if self.code is None else torch.int32
        return {
            "contribution": torch.zeros(clients, len(theta_P) + 1, dtype=dtype, device=theta_P.device),
            "stood": torch.full((clients,), -1, dtype=torch.int64, device=theta_P.device),
        }

    def nothing(self, theta_P: Tensor) -> Tensor:
        """The sum of no contributions, (P + 1,)."""
        dtype = torch.float64 if self.code is None else torch.int64
        return torch.zeros(len(theta_P) + 1, dtype=dtype, device=theta_P.device)

    def contributions(self, client_M: Tensor, update_MP: Tensor, weight_M: Tensor, draw: Draw) -> Tensor:
        """What devices of these weights send, (M, P + 1): weight times clipped update, and the weight.

        With the chance `quiet` a device sends zero instead, with the same noise on it as on any other.
        """
        weight_M = self._unless_quiet(client_M, weight_M, draw)
        if self.code is None:
            share_M1 = weight_M[:, None].to(update_MP.dtype)
            return torch.cat([shortened(update_MP, self.clip) * share_M1, share_M1], 1)
        size = update_MP.shape[1]
        normal_MP = draw("sum noise", client_M).normal(size) if self.code.noise else None
        return self.code.contribution(update_MP, weight_M, draw("rounding", client_M).uniform(size), normal_MP)

    def _unless_quiet(self, client_M: Tensor, weight_M: Tensor, draw: Draw) -> Tensor:
        """The weights, zero for devices that chance has keep quiet."""
        if not self.quiet:
            return weight_M
        return torch.where(draw("quiet", client_M).uniform(1)[:, 0] < self.quiet, 0, weight_M)

    def mean(self, sum_P: Tensor, draw: Draw) -> Tensor:
        """The weighted mean update of a whole group's sum, (P,) in double precision."""
        if self.code is not None:
            total_P, weight = self.code.total(torch.remainder(sum_P, 2**self.code.bits))
        else:
            total_P, weight = sum_P[:-1].double(), sum_P[-1]
            if self.noise:
                nobody_1 = torch.zeros(1, dtype=torch.int64, device=sum_P.device)
                total_P = total_P + self.noise * draw("enclave noise", nobody_1).normal(len(total_P))[0].double()
        return total_P / weight.clamp(min=1)

    def may_stand(self, stood_M: Tensor) -> Tensor:
        """Whose last contribution may stand in once more."""
        return (stood_M >= 0) & (stood_M < self.stand_ins if self.stand_ins else True)

    def add_up(
        self, last: Fields, client_M: Tensor, member_M: Tensor, fresh_M: Tensor, update_MP: Tensor, weight_M: Tensor,
        draw: Draw,
    ) -> Tensor:  # fmt: skip
        """The released mean update of a group of which some answered; `last` is brought up to date, in place.

        Where the round releases nothing, nobody is a member.
        """
        if self.code is not None and not last:
            counted_M = torch.where(fresh_M, self._unless_quiet(client_M, weight_M, draw), 0)
            at_once_P = self.code.summed(update_MP, counted_M, draw("rounding", client_M))
            if at_once_P is not None:
                return self.mean(at_once_P, draw)
        sum_P = self.nothing(update_MP[0])
        standing_M = torch.zeros_like(fresh_M)
        if last:
            stood_M = last["stood"][client_M]
            standing_M = member_M & ~fresh_M & self.may_stand(stood_M)
            put_rows(
                last["stood"], client_M, torch.where(fresh_M, stood_M.clamp(min=0), stood_M + standing_M), member_M
            )
        step = max(1, _AT_ONCE // len(sum_P))
        for at in range(0, len(client_M), step):
            part = slice(at, at + step)
            sent_MP = self.contributions(client_M[part], update_MP[part], weight_M[part], draw)
            if last:
                kept_MP = last["contribution"][client_M[part]].to(sent_MP.dtype)
                put_rows(last["contribution"], client_M[part], sent_MP, fresh_M[part])
                sent_MP = torch.where(fresh_M[part, None], sent_MP, kept_MP)
            counted_M1 = (fresh_M | standing_M)[part, None]
            sum_P += torch.where(counted_M1, sent_MP, 0).sum(0, dtype=sum_P.dtype)
        return self.mean(sum_P, draw)


def check_sums(recipe: Recipe, method: LocalLoss) -> None:
    """Refuse sums that a method's devices cannot be part of, and what only sums can have."""
    part = recipe.sums
    if not part.summed:
        for name in ("noise", "quiet"):
            if getattr(part, name):
                raise SelfsameError(
                    f"sums.{name}: hides nothing from a server that reads every update; set sums.aggregation to masked "
                    "or enclave"
                )
        return
    if isinstance(method, SplitLoss):
        raise SelfsameError(
            f"sums.aggregation: {recipe.method.name} sends its gradients to the enclave, which releases their sum "
            "already; leave it clear"
        )
    if not method.federated:
        raise SelfsameError(f"sums.aggregation: {recipe.method.name} sends no updates; leave it clear")
    if part.noise and recipe.cohort.weights != "uniform":
        raise SelfsameError("sums.noise: hides one update among equals only; set cohort.weights to uniform")


def with_sums(recipe: Recipe, clients: int, length: float) -> Recipe:
    """The recipe with what its sums leave to the rest: t, the clip and the reach, so that it says everything.

    `length` is that of the first network.
    """
    part, cohort = recipe.sums, recipe.cohort
    first = initially_present(recipe, clients)
    if cohort.sampling == "groups":  # what cannot be grouped is said before the first round
        groups_of(recipe, 0, first)
        groups_of(recipe, cohort.join_round, clients)
    if not part.summed:
        return recipe
    size = cohort.size or first
    least = part.least or -(-size // 2)
    if least > size:
        raise SelfsameError(f"sums.least: {least} answers are wanted, a group may have {size}; lower it")
    clip = part.clip or float(f"{length:.6g}")
    return replace(recipe, sums=replace(part, least=least, clip=clip, reach=part.reach or clip))


def noise_spent(recipe: Recipe, rounds: int, clients: int, poll: Poll | None = None) -> PrivacySpent | None:
    """What the noise on sums is worth to the device whose group came most often; None: there is no noise.

    Neighbours: one device's samples, and with them its vector, are replaced. Nothing is gained by sampling: everybody
    knows whose turn it is, and polls ask everybody. Gaussian noise composes exactly: its squared ratios of sensitivity
    and deviation add up. An enclave draws noise anew for every sum, stand-ins or not. A masked stand-in brings its old
    noise along, which the differences of sums cancel, so that with drop-outs each device's own share is all that is
    sure to hide it.
    """
    part, delta = recipe.sums, recipe.split.delta
    polled = poll.noise if poll is not None else 0.0
    if not part.noise and not polled:
        return None
    turns = most_turns(recipe, rounds, clients)
    if poll is not None and not polled:
        return PrivacySpent(turns, delta, None, "updates carry noise, polls none")
    shared = part.aggregation != "masked" or not recipe.cohort.dropout
    square = 0.0
    if part.noise:
        square += turns * (2 / part.noise) ** 2 * (1 if shared else part.least)
    if poll is not None:
        ratio = poll.apart / (polled * poll.longest)
        square += poll.count(rounds) * ratio**2 * (1 if shared else max(poll.least, part.least))
    try:
        epsilon = gaussian_epsilon(math.sqrt(square), delta)
    except SelfsameError as error:  # a run that has been trained is not lost for want of its accountant
        return PrivacySpent(turns, delta, None, str(error))
    return PrivacySpent(turns, delta, epsilon, "" if part.noise else "polls alone: updates carry no noise")
