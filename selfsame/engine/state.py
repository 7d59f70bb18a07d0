"""Everything that changes during a run, in one tree."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from selfsame.engine import optimisers
from selfsame.engine.enrolling import enrol_first
from selfsame.engine.problem import Problem
from selfsame.methods.base import Fields, World
from selfsame.methods.split import SplitLoss


@dataclass
class State:
    """What changes. The engines write its tensors in place: a table may hold a million clients."""

    round: int
    theta_P: Tensor
    optim: Fields
    own: Fields  # private fields, one row a client: on real devices each row lives on its own device
    server: Fields
    alone_NP: Tensor | None  # a network for each client, for methods that are not federated
    refused: Tensor  # client updates dropped because they were not finite, counted
    present: int  # registered clients
    rows: int = 0  # of the class table, where this process holds a block of it
    losses: list[float] = field(default_factory=list)
    last: Fields = field(default_factory=dict)  # what stands in for clients, where only sums are released
    enclave: Fields = field(default_factory=dict)  # what the enclave of split rounds keeps to itself

    def __repr__(self) -> str:
        return f"State(round {self.round:,}, {self.present:,} clients, {self.theta_P.numel():,} parameters)"

    def tensors(self) -> Fields:
        """The whole state by name, for checkpoints."""
        out = {"theta": self.theta_P, "refused": self.refused}
        for part in ("optim", "own", "server", "last", "enclave"):
            out |= {f"{part}.{name}": value for name, value in getattr(self, part).items()}
        if self.alone_NP is not None:
            out["alone"] = self.alone_NP
        return out


def cast(fields: Fields, dtype: torch.dtype, device: torch.device) -> Fields:
    """Floating fields in the run's precision, everything on the run's device."""
    return {k: v.to(device=device, dtype=dtype if v.is_floating_point() else v.dtype) for k, v in fields.items()}


def smaller_world(world: World, present: int) -> World:
    """The world as it was when only the first `present` clients had registered (classes keep their numbers)."""
    if present == world.clients:
        return world
    class_of_N = world.class_of_N[:present]
    return replace(world, clients=present, classes=int(class_of_N.max()) + 1, class_of_N=class_of_N)


def begin(problem: Problem, present: int | None = None, *, blank: bool = False) -> State:
    """The state before the first round, with the first `present` clients registered (all by default).

    `blank`: another one is to be read over it, so nobody's vector needs to be right.
    """
    model, method = problem.model, problem.method
    present = problem.world.clients if present is None else present
    world = smaller_world(problem.world, present)
    client_N = torch.arange(present, device=model.device)
    theta = model.first_theta.to(model.device, copy=True)
    state = State(
        round=0,
        theta_P=theta,
        optim=optimisers.begin(problem.recipe.server, theta, model.layout),
        own=cast(method.begin_own(world, client_N, problem.stream("own", client_N)), model.dtype, model.device),
        server=cast(method.begin_server(world, problem.server_stream("server")), model.dtype, model.device),
        alone_NP=None if method.federated else theta.repeat(present, 1),
        refused=torch.zeros((), dtype=torch.int64, device=model.device),
        present=present,
        last=stand_ins(problem, theta, present),
        enclave=enclave_tables(problem, world),
    )
    if not blank:
        _enrol(problem, state, client_N)
    return state


def _enrol(problem: Problem, state: State, client_R: Tensor) -> None:
    enrol_first(problem, {**problem.model.head_views(state.theta_P), **state.server, **state.own}, client_R)


def enclave_tables(problem: Problem, world: World) -> Fields:
    """What the enclave keeps from round to round, where the loss lives there and has parameters of its own."""
    method, model = problem.method, problem.model
    return cast(method.begin_enclave(world), model.dtype, model.device) if isinstance(method, SplitLoss) else {}


def stand_ins(problem: Problem, theta_P: Tensor, clients: int) -> Fields:
    """A row of what each of some clients sent last, where only sums are released and clients may drop out."""
    if problem.sums is None or not problem.recipe.cohort.dropout:
        return {}
    return problem.sums.begin(clients, theta_P)


def join(problem: Problem, state: State) -> None:
    """Register the clients that are not there yet: rows of their own, and rows for them in the server's tables."""
    model, method, world = problem.model, problem.method, problem.world
    new_R = torch.arange(state.present, world.clients, device=model.device)
    if not len(new_R):
        return
    fresh = method.begin_own(world, new_R, problem.stream("own", new_R), own=state.own)
    fresh = cast(fresh, model.dtype, model.device)
    state.own = {name: torch.cat([state.own[name], rows]) for name, rows in fresh.items()}
    tables = cast(method.begin_server(world, problem.server_stream("server")), model.dtype, model.device)
    for name, table in tables.items():
        old = state.server[name]
        state.server[name] = torch.cat([old, table[len(old) :]])
    for name, table in enclave_tables(problem, world).items():
        kept = state.enclave[name]
        state.enclave[name] = torch.cat([kept, table[len(kept) :]])
    for name, rows in stand_ins(problem, state.theta_P, len(new_R)).items():
        state.last[name] = torch.cat([state.last[name], rows])
    if state.alone_NP is not None:
        state.alone_NP = torch.cat([state.alone_NP, model.first_theta.to(model.device).repeat(len(new_R), 1)])
    state.present = world.clients
    _enrol(problem, state, new_R)
