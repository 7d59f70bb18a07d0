"""What polls give away: the difference of two sums is a sum over those who have changed, and few of them span little.

Between two polls the second moment changes by sum w w' (new) - u u' (old) over the devices that have trained and
answered. With m of them its rank is at most 2m, so where 2m is less than the width, all their vectors lie in a subspace
that the attacker knows, and the vector of a device lies in the subspaces of all polls that it has changed in. That is
why a poll is refused unless twice as many devices as the width have trained since the last one.

Shapes: T polls, N clients, K width of the polls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from selfsame.audit.attackers import ANY, Audited, Finding
from selfsame.engine.plan import make_plan
from selfsame.engine.polls import answering, least_answers, poll_if_due
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods.base import unit

_RANK = 1e-6  # of the largest eigenvalue: what counts as a dimension of its own


@dataclass(frozen=True)
class PollTranscript:
    """What a server sees of polls: who can have changed since the last, and the second moment each time."""

    changed_TN: Tensor  # bool; trained since the last poll, and answered this one
    sum_TKK: Tensor  # of w w' over everybody, stand-ins included


def record_polls(problem: Problem, state: State, polls: int) -> PollTranscript:
    """Train `state` until so many more polls were released, in place, and write down what the server sees of them."""
    terms = problem.poll
    if terms is None:
        raise SelfsameError(f"audit: {problem.method.name} has no polls")
    trained_N = torch.zeros(state.present, dtype=torch.bool)
    engine, sums, changed = Engine(problem), list[Tensor](), list[Tensor]()
    for _ in range(polls):
        alive_N = answering(problem, state.present, state.round)
        released = terms.due(state.round) and int(alive_N.sum()) >= least_answers(problem)
        if released:
            poll_if_due(problem, state)  # once more when the engine begins, on the same state: the same sum
            sums.append(state.server["crowd_second"].double().cpu() * int(state.server["crowd_count"]))
            changed.append(trained_N & alive_N)
            trained_N = trained_N & ~alive_N
        plan = make_plan(problem.recipe, state.round, terms.every - state.round % terms.every, state.present)
        engine.run(state, plan)
        trained_N[plan.client_TM[plan.alive_TM].unique().cpu()] = True
    if len(sums) < 2:
        raise SelfsameError("audit: two polls are needed to compare; train for longer, or poll more often")
    return PollTranscript(torch.stack(changed), torch.stack(sums))


def span_guesses(seen: PollTranscript) -> Tensor:
    """Each client's vector as far as subspaces tell: what lies in those of its own polls and not in the others, (N, K).

    A subspace counts the more the less of all dimensions it takes; one that takes all of them says nothing.
    """
    differences_TKK = seen.sum_TKK[1:] - seen.sum_TKK[:-1]
    width, changed_TN = differences_TKK.shape[1], seen.changed_TN[1:]
    own_NKK = torch.zeros(changed_TN.shape[1], width, width, dtype=torch.float64)
    for difference_KK, changed_N in zip(differences_TKK, changed_TN, strict=True):
        value_K, vector_KK = torch.linalg.eigh(difference_KK)
        kept_K = value_K.abs() > _RANK * value_K.abs().max().clamp(min=1e-300)
        basis_KR = vector_KK[:, kept_K]
        share = basis_KR.shape[1] / width
        project_KK = basis_KR @ basis_KR.T
        # Projected onto, a vector that has nothing to do with it keeps this share of its square.
        own_NKK[changed_N] += (1 - share) * (project_KK - share * torch.eye(width, dtype=torch.float64))
        rest = share / max(1, int((~changed_N).sum()))
        own_NKK[~changed_N] -= rest * (project_KK - share * torch.eye(width, dtype=torch.float64))
    return torch.linalg.eigh(own_NKK).eigenvectors[..., -1]


def identified_by_polls(seen: PollTranscript, truth_NK: Tensor) -> tuple[float, float]:
    """(the share of clients whose guess lies nearest to their own vector, up to its sign; the mean size of cosines)"""
    guess_NK, truth_NK = unit(span_guesses(seen)), unit(truth_NK.double().cpu())
    cosine_NN = (guess_NK @ truth_NK.T).abs()
    right_N = cosine_NN.argmax(1) == torch.arange(len(truth_NK))
    return float(right_N.double().mean()), float(cosine_NN.diagonal().mean())


@dataclass(frozen=True)
class PollReader:
    """Compares polls, of methods that have them: at least three, over as many rounds as an attacker watches."""

    name: str = "polls"

    def fits(self, case: Audited) -> bool:
        return case.problem.poll is not None and not case.problem.federation.empty

    def run(self, case: Audited) -> Iterator[Finding]:
        problem, after = case.going_on, case.copy()
        assert problem.poll is not None
        polls = 1 + max(3, -(-case.rounds // problem.poll.every))
        seen = record_polls(problem, after, polls)
        polled_NW = after.own["polled"]
        share, cosine = identified_by_polls(seen, polled_NW[:, polled_NW.shape[1] - seen.sum_TKK.shape[1] :])
        fewest = int(seen.changed_TN[1:].sum(1).min())
        said = f"subspaces of {len(seen.sum_TKK)} polls, between which {fewest} devices or more have changed"
        rounds = after.round - case.state.round
        yield Finding(self.name, "subspaces", "public", ANY, share, cosine, case.chance, rounds, said=said)
