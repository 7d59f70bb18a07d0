"""Running a plan: round after round in eager mode, or as one captured CUDA graph that is replayed."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from selfsame.engine import cohort, joint, reference
from selfsame.engine.batches import Batch, rounds_ahead
from selfsame.engine.capture import aside, captured
from selfsame.engine.machine import keep_freed_memory
from selfsame.engine.plan import Plan, Turn
from selfsame.engine.polls import poll_if_due
from selfsame.engine.problem import Problem
from selfsame.engine.state import State
from selfsame.methods import SplitLoss

RunRound = Callable[[Problem, State, Turn], Tensor]  # in place; returns the loss
_BLOCK = 512  # rounds whose plan lies on the device at a time when graphs are replayed
_AHEAD = 32  # rounds whose batches are drawn at a time then, at most
_AHEAD_BYTES = 2**28  # and what these may take
_AHEAD_BYTES_EAGER = 2**21  # the same without graphs: on the CPU they should stay in its cache


class Engine:
    """Runs rounds of a problem on a state with the chosen engine."""

    def __init__(self, problem: Problem, name: str = "cohort", graphs: bool = False) -> None:
        self.problem, self.name = problem, name
        if problem.model.device.type == "cpu":
            keep_freed_memory()
        # Passes over the data are drawn inside the round, which a graph cannot do with samples that the host fetches.
        inside = problem.federation.source.on_host and bool(problem.recipe.local.epochs)
        # Nor are collectives captured: a rank that ends would leave the others in a replay that cannot be stopped.
        alone = not problem.ranks.active
        self.graphs = graphs and name == "cohort" and problem.model.device.type == "cuda" and not inside and alone
        self._graph: _Graph | None = None
        split = isinstance(problem.method, SplitLoss)
        slow, fast = (joint.run_alone, joint.run_round) if split else (reference.run_round, cohort.run_round)
        self._step = slow if name == "reference" else fast

    def run(self, state: State, plan: Plan, tick: Callable[[int], None] | None = None) -> Tensor:
        """All rounds of the plan; returns the losses (T,), on the CPU. `tick` hears how many rounds are done."""
        if plan.first != state.round:
            raise ValueError(f"the plan begins at round {plan.first}, the state is at {state.round}")
        if isinstance(self.problem.method, SplitLoss):
            joint.count_rounds(self.problem.method, state, plan.client_TM)
        terms = self.problem.poll
        if terms is None:
            return self._run(state, plan, tick)
        losses, begin = [], 0
        while begin < len(plan):
            poll_if_due(self.problem, state)
            end = begin + terms.every - state.round % terms.every
            losses.append(self._run(state, plan.part(begin, end), tick))
            begin = end
        return torch.cat(losses)

    def _run(self, state: State, plan: Plan, tick: Callable[[int], None] | None) -> Tensor:
        """Rounds with no poll between them."""
        if self.graphs:
            return self._replay(state, plan, tick)
        # A number that changes would have what reads it compiled anew.
        compiled = self.problem.model.compiled and self.name == "cohort"
        here = plan.to(self.problem.model.device)
        mine = self.problem.ranks.part(plan.client_TM.shape[1])
        enough_T = self._enough(plan).tolist()
        ahead = 0
        if self.name == "cohort" and not compiled:
            ahead = rounds_ahead(self.problem.sampler, mine.stop - mine.start, _AHEAD, _AHEAD_BYTES_EAGER)
        drawn: list[Batch] = []
        # One tensor: many small ones between large ones that come and go would keep memory from being used again.
        loss_T = torch.zeros(len(plan), dtype=state.theta_P.dtype, device=state.theta_P.device)
        for t in range(len(plan)):
            if ahead and t % ahead == 0:
                drawn = self.problem.batches_ahead(here.client_TM[t : t + ahead, mine], plan.first + t)
            batches = [Batch(*(part[t % ahead] for part in batch.parts())) for batch in drawn] if ahead else None
            number = torch.tensor(plan.first + t) if compiled else plan.first + t
            client_M, alive_M, lr, server_lr, member_M = (part[t] for part in here.tensors())
            if enough_T[t]:
                turn = Turn(client_M, alive_M, lr, server_lr, number, batches, member_M)
                loss_T[t] = self._step(self.problem, state, turn)
            state.round += 1
            if tick is not None:
                tick(1)
        return loss_T.to("cpu", torch.float64)

    def _enough(self, plan: Plan) -> Tensor:
        """Which rounds change something: nobody's answer changes nothing, nor do too few to release their sum."""
        return plan.alive_TM.sum(1) >= (1 if self.problem.sums is None else self.problem.sums.least)

    def _replay(self, state: State, plan: Plan, tick: Callable[[int], None] | None) -> Tensor:
        if self._graph is None or self._graph.state is not state or self._graph.size != plan.client_TM.shape[1]:
            self._graph = _Graph(self.problem, state, plan.client_TM.shape[1], self._step)
        out = []
        for begin in range(0, len(plan), _BLOCK):
            block = plan.part(begin, begin + _BLOCK)
            out.append(self._graph.run(block, self._enough(block).tolist()))
            state.round += len(block)
            if tick is not None:
                tick(len(block))
        return torch.cat(out).to("cpu", torch.float64)


class _Graph:
    """One round captured as a CUDA graph. It reads its plan from fixed buffers at a counter that it advances itself."""

    WARM_UP = 3  # rounds in eager mode before capture: compilation and allocation happen there

    def __init__(self, problem: Problem, state: State, size: int, step: RunRound) -> None:
        device = problem.model.device
        self.step = step
        self.problem, self.state, self.size = problem, state, size
        none = torch.zeros(_BLOCK, dtype=torch.float64)
        who, alive = torch.zeros(2, _BLOCK, size, dtype=torch.int64).unbind()
        self.plan = Plan(0, who, alive.bool(), none, none.clone()).to(device)
        self.loss_T = torch.zeros(_BLOCK, dtype=problem.model.dtype, device=device)
        self.place = torch.zeros(1, dtype=torch.int64, device=device)
        self.number = torch.zeros((), dtype=torch.int64, device=device)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.warmed = 0
        self.slot = torch.zeros(1, dtype=torch.int64, device=device)
        self.ahead = rounds_ahead(problem.sampler, size, _AHEAD, _AHEAD_BYTES)
        self.kept: list[Batch] = []

    def _draw(self, first: int, begin: int) -> None:
        """Draw the batches of the rounds from place `begin` of the block on, whose first round is `first`."""
        client_TM = self.plan.client_TM
        place_A = torch.arange(begin, begin + self.ahead, device=client_TM.device).clamp(max=_BLOCK - 1)
        drawn = self.problem.batches_ahead(client_TM[place_A], first + begin)
        if not self.kept:
            self.kept = [batch.each(torch.clone) for batch in drawn]
        for kept, batch in zip(self.kept, drawn, strict=True):
            for buffer, part in zip(kept.parts(), batch.parts(), strict=True):
                buffer.copy_(part)
        self.slot.zero_()

    def _round(self) -> None:
        parts = (part.index_select(0, self.place)[0] for part in self.plan.tensors())
        client_M, alive_M, lr, server_lr, member_M = parts
        batches = [kept.each(lambda part: part.index_select(0, self.slot)[0]) for kept in self.kept]
        turn = Turn(client_M, alive_M, lr, server_lr, self.number, batches if self.ahead else None, member_M)
        loss = self.step(self.problem, self.state, turn)
        self.loss_T.index_copy_(0, self.place, loss.reshape(1))
        self._next()

    def _next(self) -> None:
        for counter in (self.place, self.number, self.slot):
            counter += 1

    def run(self, block: Plan, enough_T: list[bool]) -> Tensor:
        """The losses of the block's rounds, of which some change nothing."""
        count = len(block)
        for buffer, values in zip(self.plan.tensors(), block.tensors(), strict=True):
            buffer[:count].copy_(values)
        self.place.zero_()
        self.number.fill_(block.first)
        for t in range(count):
            if self.ahead and t % self.ahead == 0:
                self._draw(block.first, t)
            if not enough_T[t]:
                self.loss_T[t] = 0
                self._next()
            elif self.graph is not None:
                self.graph.replay()
            elif self.warmed < self.WARM_UP:
                self._eager()
            else:
                self._capture()
                if self.graph is not None:
                    self.graph.replay()
                else:
                    self._eager()
        return self.loss_T[:count].clone()

    def _eager(self) -> None:
        aside(self._round)
        self.warmed += 1

    def _capture(self) -> None:
        """Record a round without running it; a method that cannot be recorded goes on in eager mode."""
        # What the round waits for goes before the derivatives in the weights, on which nothing waits.
        self.graph = captured(self._round, priority=-1)
        if self.graph is None:
            self.warmed = -(2**62)  # never try again
