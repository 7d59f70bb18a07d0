"""Gradient inversion: the pictures behind an update of the network, or behind the mean of several.

After Geiping et al. (2020), whose code FedHide's Table 2 used: pictures are looked for whose gradient points where the
update points, with little total variation. What stands for the owner enters the loss and is not known. It is looked
for together with the pictures, from where the analytic attack on the last layer (`attack_updates`) puts it.

The attacker is a server that knows the network, the method, who was asked and with how many samples. It sees the mean
of n devices' updates. Updates of several local steps are taken for one step on all of their samples.

What was found is judged in `likeness`.

Shapes: M clients, G groups of n, Q = G x restarts searches, S = n B pictures of a group, P parameters, L tensors of the
network, D embedding width.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from selfsame.audit.layers import LastLayer
from selfsame.audit.likeness import Inverted, compare, others, pixels
from selfsame.audit.lpips import Lpips
from selfsame.audit.traced import Traced, traced
from selfsame.audit.transcript import local_updates
from selfsame.audit.unfolded import Unfolded
from selfsame.engine.batches import steps_a_round
from selfsame.engine.capture import aside, captured
from selfsame.engine.problem import Problem
from selfsame.engine.settle import over
from selfsame.engine.state import State
from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, Fields, LocalLoss, pick
from selfsame.streams import Stream

WEIGHTS = ("equal", "linear", "layers")
_TENTH = (3 / 8, 5 / 8, 7 / 8)  # of the way: from there on steps are a tenth as long
_SLOWER = 0.1  # the step of what stands for the owner, over that of the pictures; in units of its own size
_FEW = 8  # searches in one pass on a CPU, which spends more on calls than on numbers where pictures are small
_WARM = 3  # iterations before a CUDA graph is captured
_TINY = 1e-30
_WHO = ("client_M", "class_M", "alive_M")  # of a cohort


@dataclass(frozen=True)
class Inversion:
    """How the pictures are looked for."""

    iterations: int = 2400
    restarts: int = 1  # the best by its mismatch is kept
    variation: float = 0.01  # weight of the total variation
    step: float = 0.1  # of Adam, in standardised pixels; of the derivative's sign alone, as Geiping et al. do
    weights: str = "equal"  # of the network's tensors, see `tensor_weights`
    seed: int = 0
    together: int = 0  # searches in one pass; 0: all on CUDA, eight on a CPU
    compile: str = ""  # the backend of `torch.compile` for an iteration's derivatives; empty: they are not compiled

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("restarts", 1), ("variation", 0), ("step", 1e-9), ("together", 0)):
            if not getattr(self, name) >= least:
                raise SelfsameError(f"inversion: {name} must be at least {least}, got {getattr(self, name)!r}")
        if self.weights not in WEIGHTS:
            raise SelfsameError(f"inversion: weights must be one of {', '.join(WEIGHTS)}, got {self.weights!r}")


def total_variation(x_QS: Tensor) -> Tensor:
    """The mean size of the step from a pixel to the next, down plus across: shape (Q,) for (Q, S, C, H, W)."""
    down, across = x_QS.diff(dim=-2).abs(), x_QS.diff(dim=-1).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)


def mismatch(grad_QP: Tensor, target_QP: Tensor, sizes: list[int], weight_QL: Tensor | None) -> Tensor:
    """1 - the cosine of gradient and target, where the tensor l of the network counts weight_l times: shape (Q,).

    Without weights all count the same.
    """
    if weight_QL is None:
        pairs = ((grad_QP, target_QP), (grad_QP, grad_QP), (target_QP, target_QP))
        product_Q, one_Q, other_Q = ((a * b).sum(1) for a, b in pairs)
    else:
        pieces = zip(grad_QP.split(sizes, 1), target_QP.split(sizes, 1), strict=True)
        both_L3Q = torch.stack([torch.stack([(a * b).sum(1), a.square().sum(1), b.square().sum(1)]) for a, b in pieces])
        product_Q, one_Q, other_Q = (both_L3Q * weight_QL.T[:, None]).sum(0)
    return 1 - product_Q / (one_Q * other_Q).clamp(min=_TINY).sqrt()


def tensor_weights(how: str, target_QP: Tensor, sizes: list[int]) -> Tensor | None:
    """How much each tensor counts, shape (Q, L): falling from the first to the last ("linear"), or each by one over its
    squared length, so that all of them count the same however long they are ("layers"); None: all alike ("equal").
    """
    if how == "equal":
        return None
    square_QL = torch.stack([part.square().sum(1) for part in target_QP.split(sizes, 1)], 1)
    if how == "linear":
        return torch.arange(len(sizes), 0, -1).to(square_QL).expand_as(square_QL) / len(sizes)
    return torch.where(square_QL > 0, 1 / square_QL.clamp(min=_TINY), 0)


@dataclass(frozen=True)
class _Case:
    """What the attacker has of each search, Q rows, or Q x n where it is of devices."""

    target_QP: Tensor
    weight_QL: Tensor | None
    who: Cohort
    mask_MB: Tensor
    known: Fields
    first_QS: Tensor
    first: Fields  # where the search for the unknown fields begins

    def part(self, begin: int, end: int, size: int) -> _Case:
        """The searches from `begin` to `end`."""
        q, m = slice(begin, end), slice(begin * size, end * size)
        known, first = ({name: value[m] for name, value in part.items()} for part in (self.known, self.first))
        weight_QL = None if self.weight_QL is None else self.weight_QL[q]
        return _Case(self.target_QP[q], weight_QL, self.who[m], self.mask_MB[m], known, self.first_QS[q], first)


def invert(
    problem: Problem,
    state: State,
    client_M: Tensor | None = None,
    size: int = 1,
    terms: Inversion | None = None,
    judge: Lpips | None = None,
    taken: Fields | None = None,
) -> Inverted:
    """The pictures that these clients train on next, from the mean updates of groups of `size`, in order.

    `taken`: working fields by name, a row per client, that the attacker takes for the truth and leaves as they are. By
    default it is up to four groups of the first clients, and nothing is taken that the server does not know.
    """
    _check(problem, size, state.present)
    terms = terms or Inversion()
    began = time.perf_counter()
    device = state.theta_P.device
    if client_M is None:
        client_M = torch.arange(min(state.present // size, 4) * size, device=device)
    client_M = client_M[: len(client_M) // size * size].to(device)
    if not len(client_M):
        raise SelfsameError(f"inversion: a group needs {size} clients")
    case, x_MB = _case(problem, state, client_M, size, terms, taken or {})
    other_T = others(problem, state, client_M, size * x_MB.shape[1])
    searches = len(case.target_QP)
    step = terms.together or (searches if device.type == "cuda" else _FEW)
    parts = [case.part(q, min(q + step, searches), size) for q in range(0, searches, step)]
    ready: dict[int, Traced] = {}
    done = [_search(problem, state, part, size, terms, ready) for part in parts]
    found_QS, mismatch_Q = (torch.cat(one) for one in zip(*done, strict=True))
    rest_GR = mismatch_Q.unflatten(0, (-1, terms.restarts)).nan_to_num(nan=torch.inf)
    best_G = rest_GR.argmin(1)
    row_G = torch.arange(len(best_G), device=device) * terms.restarts + best_G
    original_GS = pixels(problem, x_MB.unflatten(0, (-1, size)).flatten(1, 2))
    found_GS = pixels(problem, found_QS[row_G])
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - began
    compared = compare(original_GS, found_GS, other_T, judge)
    figures = (compared.found, compared.unrelated, compared.chance, compared.blank)
    return Inverted(*figures, original_GS, found_GS, other_T, mismatch_Q[row_G], seconds)


def _check(problem: Problem, size: int, present: int) -> None:
    method, shape = problem.method, problem.federation.shape
    if not isinstance(method, LocalLoss) or not method.federated:
        raise SelfsameError(f"inversion: {method.name} sends no updates of a loss on the device")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise SelfsameError(f"inversion: needs pictures of 1 or 3 channels, got samples of shape {shape}")
    if not 1 <= size <= present:
        raise SelfsameError(f"inversion: groups must be of 1 to {present} clients, got {size}")


def _case(
    problem: Problem, state: State, client_M: Tensor, size: int, terms: Inversion, taken: Fields
) -> tuple[_Case, Tensor]:
    """(what the attacker has, the standardised originals (M, B, C, H, W))."""
    method, recipe, theta_P = problem.method, problem.recipe, state.theta_P
    lr = torch.tensor(recipe.local.lr, dtype=torch.float64, device=theta_P.device)
    scale = recipe.local.lr * steps_a_round(recipe.local, problem.longest)
    batches = list(problem.batches(client_M, state.round))
    x_MB, mask_MB = (torch.cat(parts, 1) for parts in zip(*((one.x_MB, one.mask_MB) for one in batches), strict=True))
    change_MP, _, _ = local_updates(problem, state, client_M, lr)
    change_GP = change_MP.unflatten(0, (-1, size)).mean(1)
    groups, restarts = len(change_GP), terms.restarts

    def again(rows: Tensor) -> Tensor:
        """Each group's rows, of itself or of its members, once for every restart."""
        return rows.unflatten(0, (groups, -1)).repeat_interleave(restarts, 0).flatten(0, 1)

    who = problem.cohort(again(client_M), torch.ones_like(again(client_M), dtype=torch.bool))
    mask_MB = again(mask_MB)
    sent = method.send(state.server, who)
    # Of the private fields the shapes alone are used, unless they are among those taken.
    none_MBD = theta_P.new_zeros(*mask_MB.shape, problem.world.dim)
    mine = method.start(pick(state.own, who.client_M), sent, who, none_MBD, mask_MB)
    strange = sorted(set(taken) - set(mine))
    if strange:
        raise SelfsameError(f"inversion: {method.name} works with {', '.join(mine) or 'nothing'}, not {strange[0]}")
    wanted = {name: v for name, v in mine.items() if v.is_floating_point() and name not in sent and name not in taken}
    known = {name: value for name, value in mine.items() if name not in wanted}
    known |= {name: again(value).to(theta_P) for name, value in taken.items()}
    target_QP = again(-change_GP / scale)
    stream = Stream.named(terms.seed, "inversion", torch.arange(len(target_QP), device=theta_P.device))
    first_QS = stream.normal(size * x_MB.shape[1], *problem.federation.shape).to(theta_P)
    weight_QL = tensor_weights(terms.weights, target_QP, problem.model.layout.sizes)
    first = _first_fields(problem, theta_P, change_GP, scale, wanted, restarts, size, stream.fold(1))
    return _Case(target_QP, weight_QL, who, mask_MB, known, first_QS, first), x_MB


def _first_fields(
    problem: Problem,
    theta_P: Tensor,
    change_GP: Tensor,
    scale: float,
    wanted: Fields,
    restarts: int,
    size: int,
    stream: Stream,
) -> Fields:
    """Where the unknown fields begin: at what the analytic attack finds, or at random.

    The attack finds one vector for a group. The members of a larger one begin around it, as far off as it is long.
    """
    layer = LastLayer.of(problem)
    seen = None if layer is None else layer.seen(problem, theta_P, change_GP, scale)
    read_GD = None if seen is None else problem.method.attack_updates(seen)
    first = {}
    for place, (name, value_MX) in enumerate(wanted.items()):
        shape = value_MX.shape[1:]
        noise_MX = stream.fold(place).normal(size, *shape).flatten(0, 1).to(theta_P)
        if read_GD is None or shape != read_GD.shape[1:]:
            first[name] = noise_MX
            continue
        read_MX = read_GD.to(theta_P).repeat_interleave(restarts * size, 0)
        first[name] = read_MX + (size > 1) * over(_size(read_MX), read_MX) * noise_MX
    return first


def _size(value_MX: Tensor) -> Tensor:
    """The root of the mean square of each row: shape (M,)."""
    return value_MX.flatten(1).square().mean(1).sqrt()


def _search(
    problem: Problem, state: State, case: _Case, size: int, terms: Inversion, ready: dict[int, Traced]
) -> tuple[Tensor, Tensor]:
    """(pictures, mismatches) of some searches: Adam on all of them at once, each by itself.

    `ready` keeps what was compiled, by how many searches it is for.
    """
    sizes = problem.model.layout.sizes
    least_C11, most_C11 = (problem.federation.scale(case.first_QS.new_full((1, 1, 1), side)) for side in (0.0, 1.0))
    x_QS = case.first_QS.clamp(least_C11, most_C11).requires_grad_()
    # Fields are moved in units of their own size, each row of its own.
    unit_M = {name: over(_size(value).clamp(min=_TINY), value) for name, value in case.first.items()}
    moved = {name: (value / unit_M[name]).requires_grad_() for name, value in case.first.items()}
    adam = _adam([x_QS], list(moved.values()), terms.step)
    sent = problem.method.send(state.server, case.who)
    pull = _derivatives(problem, state, case, sent, size, terms, ready)

    def step() -> None:
        unknown = {name: value * unit_M[name] for name, value in moved.items()}
        x_QS.grad, *rest = pull(x_QS, unknown)
        x_QS.grad.sign_()
        for (name, value), grad in zip(moved.items(), rest, strict=True):
            value.grad = grad * unit_M[name]
        adam.step()
        with torch.no_grad():
            x_QS.clamp_(least_C11, most_C11)

    _repeat(step, adam, terms.iterations)
    unknown = {name: value * unit_M[name] for name, value in moved.items()}
    grad_QP = _gradients(problem, state.theta_P, case, sent, x_QS, unknown, size)
    return x_QS.detach(), mismatch(grad_QP, case.target_QP, sizes, case.weight_QL).detach()


def _derivatives(
    problem: Problem, state: State, case: _Case, sent: Fields, size: int, terms: Inversion, ready: dict[int, Traced]
) -> Callable[[Tensor, Fields], list[Tensor]]:
    """What the cost changes by with the pictures and with each unknown field, at some of them."""
    sizes, names = problem.model.layout.sizes, list(case.first)
    held = {"theta": state.theta_P, "target": case.target_QP, "mask": case.mask_MB}
    held |= {} if case.weight_QL is None else {"weight": case.weight_QL}
    held |= {f"who {name}": getattr(case.who, name) for name in _WHO}
    held |= {f"known {name}": value for name, value in case.known.items()}
    held |= {f"sent {name}": value for name, value in sent.items()}

    def derive(*given: Tensor) -> tuple[Tensor, ...]:
        x_QS, *fields = (one.detach().requires_grad_() for one in given[: 1 + len(names)])
        part = dict(zip(held, given[1 + len(names) :], strict=True))
        who = Cohort(*(part[f"who {name}"] for name in _WHO))
        known, told = (
            {name: part[f"{kind} {name}"] for name in of} for kind, of in (("known", case.known), ("sent", sent))
        )
        here = replace(case, who=who, mask_MB=part["mask"], known=known)
        unknown = dict(zip(names, fields, strict=True))
        grad_QP = _gradients(problem, part["theta"], here, told, x_QS, unknown, size)
        cost_Q = mismatch(grad_QP, part["target"], sizes, part.get("weight")) + terms.variation * total_variation(x_QS)
        return torch.autograd.grad(cost_Q.sum(), [x_QS, *fields], allow_unused=True, materialize_grads=True)

    first = (case.first_QS, *case.first.values(), *held.values())
    if terms.compile and len(case.first_QS) not in ready:
        ready[len(case.first_QS)] = traced(derive, first, terms.compile)
    run = ready.get(len(case.first_QS), derive)
    return lambda x_QS, unknown: list(run(x_QS.detach(), *(one.detach() for one in unknown.values()), *held.values()))


def _adam(pictures: list[Tensor], fields: list[Tensor], step: float) -> torch.optim.Adam:
    """The optimiser, with steps that a CUDA graph reads anew at every replay."""
    cuda = pictures[0].is_cuda
    parts = [(pictures, step), (fields, _SLOWER * step)] if fields else [(pictures, step)]
    groups = [
        {"params": some, "lr": torch.tensor(rate, dtype=torch.float64).to(some[0].device)} for some, rate in parts
    ]
    return torch.optim.Adam(groups, capturable=cuda)


def _repeat(step: Callable[[], None], adam: torch.optim.Adam, times: int) -> None:
    """All iterations; on CUDA those after the first few as the replay of a graph, or plainly where none is captured."""
    device = adam.param_groups[0]["params"][0].device
    tenths = {round(share * times) for share in _TENTH} - {0}
    replay, tries = step, device.type == "cuda"
    for number in range(times):
        if number in tenths:
            for group in adam.param_groups:
                group["lr"].mul_(0.1)
        if tries and number < _WARM:
            aside(step, device)
            continue
        if tries and number == _WARM:
            graph = captured(step)
            replay = step if graph is None else graph.replay
        replay()


def _gradients(
    problem: Problem, theta_P: Tensor, case: _Case, sent: Fields, x_QS: Tensor, unknown: Fields, size: int
) -> Tensor:
    """The mean gradient of each search's devices at these pictures and fields, to be differentiated again: (Q, P)."""
    model = problem.model
    theta_QP = theta_P.expand(len(x_QS), -1).detach().requires_grad_()
    if len(x_QS) == 1:
        emb_QSD = model.embed_eager(theta_QP[0], x_QS[0])[None]
    else:
        with Unfolded() if x_QS.is_cuda else nullcontext():
            emb_QSD = model.embed_each(theta_QP, x_QS)
    emb_MBD = emb_QSD.unflatten(1, (size, -1)).flatten(0, 1)
    head = {name: value.repeat_interleave(size, 0) for name, value in model.head_views(theta_QP).items()}
    loss_M = problem.method.loss(emb_MBD, case.mask_MB, {**case.known, **unknown}, sent, head, case.who)
    grad_QP: Tensor = torch.autograd.grad(loss_M.sum() / size, theta_QP, create_graph=True)[0]
    return grad_QP
