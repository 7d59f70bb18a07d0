"""FedHide's bound (15) in plain loops: where it is wrong, and what holds instead (docs/results/fedhide-bound.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from selfsame.methods.base import Cohort
from selfsame.methods.fedhide import FedHide

Vector = tuple[float, ...]
UP: Vector = (0.0, 1.0)


def dot(a: Vector, b: Vector) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))


def gap(a: Vector, b: Vector) -> float:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def at(angle: float) -> Vector:
    return math.cos(angle), math.sin(angle)


def loss(w: Vector, f: Vector, proxies: Sequence[Vector], weight: float) -> float:
    """(1) of the paper's supplement, of one sample."""
    total = (1 - dot(w, f)) ** 2
    for proxy in proxies:
        total += weight / len(proxies) * (1 + dot(w, proxy)) ** 2
    return total


def slope(angle: float, f: Vector, proxies: Sequence[Vector], weight: float) -> float:
    """The derivative of the loss by the angle of a unit prototype in the plane."""
    w, aside = at(angle), (-math.sin(angle), math.cos(angle))
    total = -2 * (1 - dot(w, f)) * dot(aside, f)
    for proxy in proxies:
        total += weight / len(proxies) * 2 * (1 + dot(w, proxy)) * dot(aside, proxy)
    return total


def test_the_loss_is_the_methods_own() -> None:
    """The same number from the package, for clients 0 to 3 of which the first has the prototype."""
    proxies = [at(1.0), at(2.5), at(-0.7)]
    method = FedHide(negative_weight=3.0, neighbours=1)
    sent = {
        "proxies": torch.tensor([at(0.4), *proxies], dtype=torch.float64),
        "proxy_classes": torch.arange(4),
    }
    who = Cohort(torch.tensor([0]), torch.tensor([0]), torch.tensor([True]))
    mine = {"prototype": 5 * torch.tensor([at(0.3)], dtype=torch.float64)}
    emb = torch.tensor([[at(1.1)]], dtype=torch.float64)
    found = method.loss(emb, torch.ones(1, 1, dtype=torch.float64), mine, sent, {}, who)
    assert found.item() == pytest.approx(loss(at(0.3), at(1.1), proxies, 3.0))


# ---- what is printed, and what holds


def added_as_printed(l2: float, g1: float, g2: float, weight: float, clients: int, lr: float, steps: int) -> float:
    """What aggregation adds to the loss at most, by Lemma 2."""
    return (l2**2 + weight / (clients - 1)) * lr**2 * steps * g1**2 + 4 * weight / (clients - 1) * g2**2


def reach(l2: float, g1: float, g2: float, weight: float, lr: float, steps: int) -> float:
    """R: how far aggregation moves the root of the loss at most."""
    moved = lr * steps * g1
    return math.sqrt((2 * l2 * moved) ** 2 + weight * (moved + 2 * g2) ** 2)


def rounds_as_printed(
    epsilon: float, first: float, least: float, smooth: float, added: float, lr: float, steps: int
) -> float:
    """T of (15) without noise in the gradients: `added` is the last two terms of (14)."""
    below = steps * epsilon * (2 * lr - smooth * lr**2) - 2 * added
    assert below > 0, "(15) asks for it"
    return 2 * (first - least) / below


# ---- the other clients' proxies swing: C - 1 terms of (3) do not vanish with C

CLIENTS = 100
LR = 0.1
SMOOTH = 2 * math.sqrt(2)  # L1
G1 = 2 * math.sqrt(2)
G2 = math.sqrt(2)
SIGNS = (1.0, -1.0)


def swinging(sign: float, clients: int = CLIENTS) -> list[Vector]:
    """All other prototypes are (0, 1), their proxies (0, 1) or (0, -1), by one coin for all."""
    return [(0.0, sign)] * (clients - 1)


def gradients(rounds: int, lr: float, weight: float, clients: int) -> list[float]:
    """E |grad L|^2 of each round, over all falls of the coin; the embedding is (1, 0) and nothing trains it."""
    angles, means = [0.0], []
    for _ in range(rounds):
        slopes = [(a, slope(a, at(0.0), swinging(sign, clients), weight)) for a in angles for sign in SIGNS]
        means.append(sum(s * s for _, s in slopes) / len(slopes))
        angles = [a - lr * s for a, s in slopes]
    return means


def test_the_swinging_proxies_keep_the_assumptions() -> None:
    others = [sum((UP[i] - sign * UP[i]) for sign in SIGNS) / 2 for i in range(2)]
    assert others == [0.0, 1.0]  # (12): the mean of delta is the same in every round
    assert sum(gap(UP, (0.0, sign)) for sign in SIGNS) / 2 == pytest.approx(G2**2)  # (13)
    for sign in SIGNS:
        assert slope(math.pi / 2, UP, swinging(sign), 1.0) == pytest.approx(0, abs=1e-15)  # the others stand still
        for step in range(-40, 41):
            angle = step / 10
            assert loss(at(angle), at(0.0), swinging(sign), 1.0) == pytest.approx(
                3 - 2 * math.sqrt(2) * math.cos(angle + sign * math.pi / 4)
            )
            found = slope(angle, at(0.0), swinging(sign), 1.0)
            assert found == pytest.approx(G1 * math.sin(angle + sign * math.pi / 4))  # (7) and (10)


def test_bound_15_is_violated_where_its_assumptions_hold() -> None:
    """It promises a mean below 2.5 after seven rounds; the mean is 4 in every round, for ever."""
    added = added_as_printed(0.0, G1, G2, 1.0, CLIENTS, LR, 1)
    least = 3 - 2 * math.sqrt(2)
    rounds = math.ceil(rounds_as_printed(2.5, 1.0, least, SMOOTH, added, LR, 1))
    assert rounds == 7
    found = gradients(rounds, LR, 1.0, CLIENTS)
    assert found == pytest.approx([4.0] * rounds)
    assert sum(found) / rounds > 2.5


def test_theorem_1_is_violated_in_the_first_round() -> None:
    """(14) with its left side 0.3 above its right; the corrected line holds."""
    after_step = [(-LR * slope(0.0, at(0.0), swinging(sign), 1.0), sign) for sign in SIGNS]
    before = sum(loss(at(angle), at(0.0), swinging(sign), 1.0) for angle, sign in after_step) / 2
    after = sum(loss(at(angle), at(0.0), swinging(new), 1.0) for angle, _ in after_step for new in SIGNS) / 4
    printed = 1.0 - (LR - SMOOTH * LR**2 / 2) * 4 + added_as_printed(0.0, G1, G2, 1.0, CLIENTS, LR, 1)
    assert after == pytest.approx(3 - 2 * math.cos(0.2))
    assert after > printed + 0.3
    assert after > before + added_as_printed(0.0, G1, G2, 1.0, CLIENTS, LR, 1)
    assert math.sqrt(after) <= math.sqrt(before) + reach(0.0, G1, G2, 1.0, LR, 1)


@given(
    weight=st.floats(0, 10),
    clients=st.integers(2, 6),
    lr=st.floats(0.001, 1),
    rounds=st.integers(1, 5),
)
def test_the_corrected_theorem_2_holds_on_swinging_proxies(weight: float, clients: int, lr: float, rounds: int) -> None:
    smooth = 4 * (1 + weight)
    assume(lr * smooth < 2)
    found = sum(gradients(rounds, lr, weight, clients)) / rounds
    moved = reach(0.0, 2.6 * (1 + weight), G2, weight, lr, 1)
    added = 4 * moved * math.sqrt(1 + weight) + moved**2
    assert found <= (2 * weight / rounds + 2 * added) / (2 * lr - smooth * lr**2) + 1e-9


# ---- step (a): networks are averaged


def test_step_a_fails_for_products_of_0_and_minus_1() -> None:
    assert (1 - -1) ** 2 - (1 - 0) ** 2 == 3
    assert (-1 - 0) ** 2 == 1


def test_lemma_2_is_violated_without_negatives() -> None:
    """Two clients pull one angle, which is the network, to opposite sides; their mean takes back what each has won."""
    network, steps, lr = 0.0, [], LR
    for sign in SIGNS:  # each pulls by 2 in the network and by 2 in its prototype's angle: G1^2 = 8
        w, f = at(sign * math.pi / 2), at(network)
        pull = -2 * (1 - dot(w, f)) * dot(w, (-math.sin(network), math.cos(network)))
        steps.append((network - lr * pull, sign * math.pi / 2 + lr * pull))
    shared = sum(own for own, _ in steps) / 2
    own, angle = steps[0]
    before, after = loss(at(angle), at(own), [UP], 0.0), loss(at(angle), at(shared), [UP], 0.0)
    assert before == pytest.approx((1 - math.sin(0.4)) ** 2) and after == pytest.approx((1 - math.sin(0.2)) ** 2)
    assert after - before > 3 * added_as_printed(1.0, G1, 0.0, 0.0, 2, lr, 1)
    assert math.sqrt(after) <= math.sqrt(before) + reach(1.0, G1, 0.0, 0.0, lr, 1)


# ---- what holds

angles = st.floats(-math.pi, math.pi)
directions = st.lists(st.floats(-1, 1), min_size=3, max_size=3).filter(lambda v: sum(x * x for x in v) > 0.01)


def of_length_one(values: list[float]) -> Vector:
    length = math.sqrt(sum(x * x for x in values))
    return tuple(x / length for x in values)


@given(st.data(), st.integers(1, 5), st.floats(0, 20))
def test_the_root_of_the_loss_moves_no_further_than_what_it_is_made_of(
    data: st.DataObject, others: int, weight: float
) -> None:
    """|sqrt L' - sqrt L| <= (|f' - f|^2 + lambda/(C-1) sum |proxy' - proxy|^2)^(1/2), both ways."""

    def drawn() -> Vector:
        return of_length_one(data.draw(directions))

    w, old_f, new_f = drawn(), drawn(), drawn()
    old, new = [drawn() for _ in range(others)], [drawn() for _ in range(others)]
    before, after = loss(w, old_f, old, weight), loss(w, new_f, new, weight)
    moved = gap(new_f, old_f) + weight / others * sum(gap(a, b) for a, b in zip(new, old, strict=True))
    assert abs(math.sqrt(after) - math.sqrt(before)) <= math.sqrt(moved) + 1e-9


@given(st.data(), st.integers(2, 4), st.integers(1, 3), st.floats(0, 10), st.floats(0.01, 1), st.floats(0.1, 3))
def test_the_corrected_lemma_2_holds_in_expectation(
    data: st.DataObject, clients: int, steps: int, weight: float, lr: float, l2: float
) -> None:
    """Any gradients, any proxies, three outcomes; the network is one number, and f turns l2 times as far."""
    start = [data.draw(angles) for _ in range(clients)]
    old = [at(data.draw(angles)) for _ in range(clients)]
    outcomes = range(3)
    pulls = [
        [[(data.draw(st.floats(-1, 1)), data.draw(st.floats(-1, 1))) for _ in range(steps)] for _ in range(clients)]
        for _ in outcomes
    ]
    new = [[at(data.draw(angles)) for _ in range(clients)] for _ in outcomes]

    g1 = math.sqrt(
        max(
            sum(pulls[o][c][e][0] ** 2 + pulls[o][c][e][1] ** 2 for o in outcomes) / 3
            for c in range(clients)
            for e in range(steps)
        )
    )
    before = after = 0.0
    deltas = [[gap(at(start[c]), old[c]) for c in range(clients)]]
    late = [0.0] * clients
    for o in outcomes:
        networks = [-lr * sum(pull[0] for pull in pulls[o][c]) for c in range(clients)]
        owners = [start[c] - lr * sum(pull[1] for pull in pulls[o][c]) for c in range(clients)]
        late = [late[c] + gap(at(owners[c]), new[o][c]) / 3 for c in range(clients)]
        shared = sum(networks) / clients
        w = at(owners[0])
        before += loss(w, at(l2 * networks[0]), old[1:], weight) / 3
        after += loss(w, at(l2 * shared), new[o][1:], weight) / 3
    g2 = math.sqrt(max(max(row) for row in [*deltas, late]))
    assert math.sqrt(after) <= math.sqrt(before) + reach(l2, g1, g2, weight, lr, steps) + 1e-9
