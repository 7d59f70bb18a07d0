import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, World, each_row, normal_rows
from selfsame.methods.fedaws import FedAwS, draw_subset, mining_step, spread_gradient
from selfsame.streams import Stream

DISTANCES = ["cosine", "euclidean"]


def stream(round=0):
    return Stream.named(3, "test", torch.tensor([0]), round)


def cohort(classes, alive=None):
    class_M = torch.tensor(classes)
    alive_M = torch.ones(len(classes), dtype=torch.bool) if alive is None else torch.tensor(alive)
    return Cohort(torch.arange(len(classes)), class_M, alive_M)


def table(classes=7, dim=4, dtype=torch.float64):
    return normal_rows(each_row(stream(), classes), dim).to(dtype)


def distance_of(a, b, kind):
    """(11), or the Euclidean distance; two vectors."""
    if kind == "cosine":
        return 1 - (a @ b) / (a.square().sum().sqrt() * b.square().sum().sqrt())
    return (a - b).square().sum().sqrt()


def regulariser_7(w, margin, kind):
    total = w.new_zeros(())
    for c in range(len(w)):
        for other in range(len(w)):
            if other != c:
                total = total + torch.clamp(margin - distance_of(w[c], w[other], kind), min=0) ** 2
    return total


def regulariser_8(w, classes, k, subset, kind):
    total = w.new_zeros(())
    for c in sorted(set(classes)):
        near = sorted((y for y in subset if y != c), key=lambda y: float(distance_of(w[c], w[y], kind).detach()))[:k]
        for y in near:
            total = total - distance_of(w[c], w[y], kind) ** 2
    return total


def gradient(function, w):
    leaf = w.clone().requires_grad_()
    return torch.autograd.grad(function(leaf), leaf)[0]


def sizes(method, m=3, b=4, d=5, dtype=torch.float64):
    generator = torch.Generator().manual_seed(5)
    emb = torch.randn(m, b, d, generator=generator).to(dtype)
    mask = (torch.rand(m, b, generator=generator) < 0.7).to(dtype)
    mask[0] = 0
    who = cohort([4, 1, 4][:m])
    server = {"class_embedding": table(6, d, dtype)}
    sent = method.send(server, who)
    return emb, mask, who, server, sent


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("distance", DISTANCES)
def test_the_loss_is_the_mean_of_23_or_of_the_positive_part_of_6(distance, dtype):
    method = FedAwS(distance=distance)
    emb, mask, who, server, sent = sizes(method, dtype=dtype)
    method.wire.check_down(sent)
    mine = method.start({}, sent, who, emb, mask)
    got = method.loss(emb, mask, mine, sent, {}, who)
    assert got.dtype == dtype
    for m in range(3):
        w, values = server["class_embedding"][who.class_M[m]], []
        for b in range(4):
            if mask[m, b]:
                d = distance_of(emb[m, b], w, distance)
                values.append(max(0.0, 0.9 - (1 - float(d))) ** 2 if distance == "cosine" else float(d) ** 2)
        expected = sum(values) / len(values) if values else 0.0
        assert math.isclose(float(got[m]), expected, rel_tol=1e-4 if dtype == torch.float32 else 1e-12)


def test_rows_of_loss_and_report_are_the_clients_alone():
    method = FedAwS()
    emb, mask, who, _, sent = sizes(method)
    mine = method.start({}, sent, who, emb, mask)
    whole = method.loss(emb, mask, mine, sent, {}, who)
    stays, leaves = method.report(mine, sent, who, emb, mask, stream())
    method.wire.check_up(leaves, {**mine, **stays})
    for m in range(3):
        row = slice(m, m + 1)
        one = {name: value[row] for name, value in mine.items()}
        assert torch.equal(method.loss(emb[row], mask[row], one, {}, {}, who[row]), whole[row])
        _, alone = method.report(one, {}, who[row], emb[row], mask[row], stream())
        assert torch.equal(alone["class_embedding"], leaves["class_embedding"][row])


@pytest.mark.parametrize("rows", [1, 3, 1024])
@pytest.mark.parametrize("margin", [2.5, 4.0])
@pytest.mark.parametrize("distance", DISTANCES)
def test_gradient_of_7_equals_the_double_loop_in_any_blocks(distance, margin, rows):
    w = table()
    expected = gradient(lambda leaf: regulariser_7(leaf, margin, distance), w)
    assert expected.abs().max() > 0
    assert torch.allclose(spread_gradient(w, margin, distance, rows=rows), expected, atol=1e-12)


def test_coinciding_rows_do_not_break_the_gradient_of_7():
    w = table()
    w[3] = w[1]
    w[5] = 0
    for distance in DISTANCES:
        assert torch.isfinite(spread_gradient(w, 1.5, distance)).all()


@pytest.mark.parametrize("gathered", [1, 2**18])
@pytest.mark.parametrize("subset", [None, [0, 2, 5, 6], [2, 3]])
@pytest.mark.parametrize("k", [1, 3, 50])
@pytest.mark.parametrize("distance", DISTANCES)
def test_a_mining_step_is_a_gradient_step_on_8(distance, k, subset, gathered):
    w, classes = table(), [2, 5, 0, 3]
    allowed = list(range(7)) if subset is None else subset
    expected = w - 0.3 * gradient(lambda leaf: regulariser_8(leaf, classes, k, allowed, distance), w)
    got = w.clone()
    subset_S = None if subset is None else torch.tensor(subset)
    mining_step(got, cohort(classes), k, subset_S, 0.3, distance, gathered=gathered)
    assert torch.allclose(got, expected, atol=1e-12)
    assert not torch.equal(got, w)


def test_pieces_of_the_cohort_equal_the_whole_cohort():
    w = table(9)
    whole, pieces = w.clone(), w.clone()
    who = cohort([2, 5, 0, 3, 3, 8, 1])
    mining_step(whole, who, 3, None, 0.3, "cosine")
    mining_step(pieces, who, 3, None, 0.3, "cosine", gathered=1)  # the table allows 9 // 3 clients at once
    few = w.clone()
    mining_step(few, who, 3, None, 0.3, "cosine", worked=5)  # one client at a time
    assert torch.allclose(few, whole, rtol=0, atol=1e-12)
    assert torch.allclose(whole, pieces, atol=1e-14)


def test_mining_moves_only_the_cohort_and_its_neighbours():
    w = table(40)
    got = w.clone()
    mining_step(got, cohort([4, 9]), 2, None, 0.5, "cosine")
    moved = set((got != w).any(1).nonzero().flatten().tolist())
    near = set()
    for c in (4, 9):
        order = sorted((y for y in range(40) if y != c), key=lambda y: float(distance_of(w[c], w[y], "cosine")))
        near |= {c, *order[:2]}
    assert moved == near


def test_a_class_counts_once_and_only_if_a_client_of_it_answered():
    w = table()
    once, several, dead = w.clone(), w.clone(), w.clone()
    mining_step(once, cohort([2, 5]), 3, None, 0.3, "cosine")
    mining_step(several, cohort([2, 5, 2, 2, 6], [True, True, False, True, False]), 3, None, 0.3, "cosine")
    mining_step(dead, cohort([2, 5], [False, False]), 3, None, 0.3, "cosine")
    assert torch.allclose(once, several, atol=1e-14)
    assert torch.equal(dead, w)


def absorbed(method, w, classes, alive, reports, weights, lr=0.1, round=0):
    server = {"class_embedding": w.clone()}
    who = cohort(classes, alive)
    method.absorb(server, {"class_embedding": reports}, who, torch.tensor(weights).to(w.dtype), lr, stream(round))
    return server["class_embedding"]


@pytest.mark.parametrize("distance", DISTANCES)
def test_absorb_is_step_13_with_weighted_means_then_step_14(distance):
    w = table()
    reports = torch.arange(16.0).reshape(4, 4).double().sin()
    step_13 = w.clone()
    step_13[5] = 0.25 * reports[0] + 0.75 * reports[2]
    step_13[1] = reports[1]
    arguments = (w, [5, 1, 5, 3], [True, True, True, False], reports, [0.1, 0.6, 0.3, 0.0])

    mining = FedAwS(neighbours=2, distance=distance)
    after = gradient(lambda leaf: regulariser_8(leaf, [5, 1], 2, range(7), distance), step_13)
    expected = step_13 - 10 * 0.1 * after
    assert torch.allclose(absorbed(mining, *arguments), expected, atol=1e-12)
    assert torch.allclose(absorbed(mining, *arguments, lr=torch.tensor(0.1).double()), expected, atol=1e-12)

    full = FedAwS(spread="full", margin=1.2, spread_weight=0.5, server_steps=2, distance=distance)
    expected = step_13
    for _ in range(2):
        expected = expected - 0.05 * gradient(lambda leaf: regulariser_7(leaf, 1.2, distance), expected)
    assert torch.allclose(absorbed(full, *arguments), expected, atol=1e-12)


def test_silent_clients_change_nothing_whatever_they_hold():
    w, reports = table(), table()[:3] + 1
    bad = reports.clone()
    bad[1] = float("nan")
    method = FedAwS(neighbours=3)
    with_bad = absorbed(method, w, [0, 4, 4], [True, False, True], bad, [0.5, 0.0, 0.5])
    without = absorbed(method, w, [0, 4], [True, True], reports[[0, 2]], [0.5, 0.5])
    assert torch.allclose(with_bad, without, atol=1e-14)
    nobody = absorbed(method, w, [0, 4, 4], [False] * 3, bad, [0.0] * 3)
    assert torch.equal(nobody, w)


def test_a_zero_report_does_not_reach_the_others():
    w = table()
    reports = w[[0, 4]].clone()
    reports[1] = 0
    got = absorbed(FedAwS(), w, [0, 4], [True, True], reports, [0.5, 0.5])
    assert torch.isfinite(got).all() and got.norm(dim=1).max() < 100


def test_the_subset_is_drawn_without_replacement_anew_and_evenly():
    assert draw_subset(5, 0, stream()) is None and draw_subset(5, 5, stream()) is None
    counts = torch.zeros(12)
    for round in range(600):
        subset = draw_subset(12, 4, stream(round))
        assert len(set(subset.tolist())) == 4
        counts[subset] += 1
    assert (counts - 200).abs().max() < 60  # five standard deviations of a binomial(600, 1/3)
    method = FedAwS(subset=3, neighbours=2, server_steps=2)
    w, reports = table(), table()[:1]
    first = absorbed(method, w, [0], [True], reports, [1.0], round=1)
    again = absorbed(method, w, [0], [True], reports, [1.0], round=1)
    other = absorbed(method, w, [0], [True], reports, [1.0], round=2)
    assert torch.equal(first, again) and not torch.equal(first, other)


def test_every_step_on_the_server_draws_its_own_subset():
    w = table()
    method = FedAwS(subset=3, neighbours=2, server_steps=2)
    expected = w.clone()
    for step in range(2):
        subset = draw_subset(7, 3, stream().fold(step)).tolist()
        expected = expected - gradient(lambda leaf, s=subset: regulariser_8(leaf, [0], 2, s, "cosine"), expected)
    assert torch.allclose(absorbed(method, w, [0], [True], w[:1], [1.0]), expected, atol=1e-12)


def test_a_class_starts_the_same_however_many_there_are():
    world = World(3, 3, 5, torch.arange(3))
    larger = World(9, 9, 5, torch.arange(9))
    few = FedAwS().begin_server(world, stream())["class_embedding"]
    many = FedAwS().begin_server(larger, stream())["class_embedding"]
    assert few.shape == (3, 5) and torch.equal(few, many[:3])
    assert torch.equal(normal_rows(each_row(stream(), 9), 5, block=2), many)
    big = normal_rows(each_row(stream(), 400), 50)
    assert abs(float(big.mean())) < 0.03 and abs(float(big.std()) - 1) < 0.03


def test_the_server_knows_every_embedding():
    method, server = FedAwS(), {"class_embedding": table()}
    assert torch.equal(method.truth({}, server, {}), method.exposed(server, {}))
    assert method.row == "class"


def test_euclidean_scores_are_distances_and_templates_plain_means():
    method, emb = FedAwS(distance="euclidean"), table()
    score = method.score(emb, emb[:2])
    assert math.isclose(float(score[3, 1]), -float(distance_of(emb[3], emb[1], "euclidean")), rel_tol=1e-9)
    assert torch.equal(method.template(emb), emb.mean(0))
    assert math.isclose(float(FedAwS().score(emb, emb)[3, 1]), 1 - float(distance_of(emb[3], emb[1], "cosine")))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", [{"subset": 5}, {"spread": "full"}, {"distance": "euclidean"}])
def test_a_round_reads_no_value_back_so_it_can_be_captured(options, dtype):
    """Fake tensors have no values: anything whose shape or control flow depends on data raises."""
    method = FedAwS(server_steps=2, **options)
    with FakeTensorMode():
        who = Cohort(torch.arange(4), torch.arange(4) % 3, torch.ones(4, dtype=torch.bool))
        server = {"class_embedding": torch.randn(9, 5, dtype=dtype)}
        sent = method.send(server, who)
        emb, mask = torch.randn(4, 2, 5, dtype=dtype), torch.ones(4, 2, dtype=dtype)
        mine = method.start({}, sent, who, emb, mask)
        loss = method.loss(emb, mask, mine, sent, {}, who)
        _, leaves = method.report(mine, sent, who, emb, mask, Stream(torch.zeros(4, dtype=torch.long)))
        lr = torch.zeros((), dtype=torch.float64)
        method.absorb(server, leaves, who, torch.ones(4, dtype=dtype), lr, Stream(torch.zeros(1, dtype=torch.long)))
    assert loss.shape == (4,) and loss.dtype == dtype


@pytest.mark.parametrize(
    "options",
    [
        {"distance": "manhattan"},
        {"positive_margin": 1.5},
        {"positive_margin": float("nan")},
        {"spread": "some"},
        {"margin": 0.0},
        {"neighbours": 0},
        {"subset": -1},
        {"spread_weight": -1.0},
        {"server_steps": 0},
    ],
)
def test_bad_values_are_refused_in_one_line_that_names_the_option(options):
    with pytest.raises(SelfsameError, match=next(iter(options))) as error:
        FedAwS(**options)
    assert "\n" not in str(error.value)


def test_one_class_cannot_be_spread_out():
    with pytest.raises(SelfsameError, match="2 classes"):
        FedAwS().check(World(2, 1, 4, torch.zeros(2, dtype=torch.long)))
    FedAwS(neighbours=500).check(World(2, 2, 4, torch.arange(2)))
