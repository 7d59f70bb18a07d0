import math

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.errors import SelfsameError
from selfsame.methods.base import Cohort, World
from selfsame.methods.baselines import FixedEmbedding, PositiveOnly, Softmax
from selfsame.methods.fedaws import FedAwS
from selfsame.methods.wire import Sight
from selfsame.streams import Stream

M, B, D, C = 3, 4, 5, 6


def stream():
    return Stream.named(3, "test", torch.tensor([0]))


def world(classes=C):
    return World(classes, classes, D, torch.arange(classes))


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    emb = torch.randn(M, B, D, generator=generator).double()
    mask = torch.tensor([[1.0, 1, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]]).double()
    who = Cohort(torch.arange(M), torch.tensor([4, 1, 4]), torch.tensor([True, True, True]))
    return emb, mask, who


def begun(method):
    return {name: value.double() for name, value in method.begin_server(world(), stream()).items()}


def length(x):
    return math.sqrt(float((x * x).sum()))


@pytest.mark.parametrize("method", [PositiveOnly(), FixedEmbedding(), PositiveOnly(positive_margin=0.5)])
def test_both_baselines_have_the_positive_loss_23(method, batch):
    emb, mask, who = batch
    server = begun(method)
    sent = method.send(server, who)
    method.wire.check_down(sent)
    mine = method.start({}, sent, who, emb, mask)
    got = method.loss(emb, mask, mine, sent, {}, who)
    for m in range(M):
        w, values = server["class_embedding"][who.class_M[m]], []
        for b in range(B):
            if mask[m, b]:
                cosine = float(emb[m, b] @ w) / (length(emb[m, b]) * length(w))
                values.append(max(0.0, method.positive_margin - cosine) ** 2)
        assert math.isclose(float(got[m]), sum(values) / max(len(values), 1), rel_tol=1e-12)
        row = slice(m, m + 1)
        one_mine, one_sent = ({n: v[row] for n, v in fields.items()} for fields in (mine, sent))
        assert torch.equal(method.loss(emb[row], mask[row], one_mine, one_sent, {}, who[row]), got[row])
    stays, leaves = method.report(mine, sent, who, emb, mask, stream())
    method.wire.check_up(leaves, {**mine, **stays})


def test_positive_only_takes_the_reports_and_spreads_nothing(batch):
    _, _, who = batch
    method = PositiveOnly()
    server = begun(method)
    before, reports = server["class_embedding"].clone(), torch.randn(M, D).double()
    weight = torch.tensor([0.1, 0.5, 0.3]).double()
    method.absorb(server, {"class_embedding": reports}, who, weight, 0.1, stream())
    expected = before.clone()
    expected[1] = reports[1]
    expected[4] = 0.25 * reports[0] + 0.75 * reports[2]
    assert torch.allclose(server["class_embedding"], expected, atol=1e-14)

    idle = FedAwS(spread_weight=0.0)
    same = {"class_embedding": before.clone()}
    idle.absorb(same, {"class_embedding": reports}, who, weight, 0.1, stream())
    assert torch.equal(same["class_embedding"], server["class_embedding"])


def test_silent_clients_change_nothing(batch):
    _, _, who = batch
    method = PositiveOnly()
    server = begun(method)
    before = server["class_embedding"].clone()
    silent = Cohort(who.client_M, who.class_M, torch.zeros(M, dtype=torch.bool))
    nothing = torch.full((M, D), float("nan")).double()
    method.absorb(server, {"class_embedding": nothing}, silent, torch.zeros(M).double(), 0.1, stream())
    assert torch.equal(server["class_embedding"], before)


def test_fixed_embeddings_never_change_and_nothing_leaves(batch):
    emb, mask, who = batch
    method = FixedEmbedding()
    server = begun(method)
    before = server["class_embedding"].clone()
    sent = method.send(server, who)
    mine = method.start({}, sent, who, emb, mask)
    stays, leaves = method.report(mine, sent, who, emb, mask, stream())
    assert method.learns == () and mine == {} and stays == {} and leaves == {}
    assert [row[0] for row in method.wire.rows() if row[1] == "up"] == ["network update"]
    method.absorb(server, leaves, who, torch.ones(M).double(), 0.1, stream())
    assert torch.equal(server["class_embedding"], before)
    assert torch.equal(method.exposed(server, {}), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 16.0])
def test_softmax_is_cross_entropy_on_the_logits(scale, dtype, batch):
    emb, mask, who = batch
    emb, mask = emb.to(dtype), mask.to(dtype)
    method = Softmax(scale=scale)
    matrix = 10 * method.begin_head(world(), stream())["class_matrix"].to(dtype)
    got = method.loss(emb, mask, {}, {}, {"class_matrix": matrix}, who)
    assert got.dtype == dtype
    for m in range(M):
        values = []
        for b in range(B):
            if mask[m, b]:
                logits = [float(emb[m, b].double() @ w.double()) for w in matrix]
                if scale:
                    logits = [scale * x / (length(emb[m, b]) * length(w)) for x, w in zip(logits, matrix)]
                values.append(math.log(sum(math.exp(x) for x in logits)) - logits[int(who.class_M[m])])
        assert math.isclose(float(got[m]), sum(values) / max(len(values), 1), rel_tol=1e-5)

    stacked = {"class_matrix": matrix.expand(M, C, D)}
    assert torch.allclose(method.loss(emb, mask, {}, {}, stacked, who), got)
    row = slice(1, 2)
    assert torch.allclose(method.loss(emb[row], mask[row], {}, {}, {"class_matrix": matrix}, who[row]), got[row])


def test_softmax_declares_that_everybody_sees_the_class_matrix(batch):
    emb, mask, who = batch
    method = Softmax()
    declared = [(name, way, sight) for name, way, sight, _ in method.wire.rows() if name == "class_matrix"]
    assert declared == [("class_matrix", "down", Sight.PUBLIC), ("class_matrix", "up", Sight.PUBLIC)]
    method.wire.check_down(method.send({}, who))
    stays, leaves = method.report({}, {}, who, emb, mask, stream())
    method.wire.check_up(leaves, stays)
    head = method.begin_head(world(), stream())
    assert set(head) == set(method.wire.head)
    assert torch.equal(method.truth({}, {}, head), method.exposed({}, head))
    assert torch.equal(method.begin_head(world(9), stream())["class_matrix"][:C], head["class_matrix"])
    assert Softmax(scale=0.0).begin_head(world(), stream())["class_matrix"].abs().max() < 0.1


def test_softmax_reads_no_value_back():
    with FakeTensorMode():
        who = Cohort(torch.arange(M), torch.arange(M), torch.ones(M, dtype=torch.bool))
        head = {"class_matrix": torch.randn(C, D)}
        assert Softmax().loss(torch.randn(M, B, D), torch.ones(M, B), {}, {}, head, who).shape == (M,)


def test_bad_values_are_refused():
    with pytest.raises(SelfsameError, match="softmax: scale"):
        Softmax(scale=-1.0)
    with pytest.raises(SelfsameError, match="fixed: distance"):
        FixedEmbedding(distance="")
    with pytest.raises(SelfsameError, match="2 classes"):
        Softmax().check(world(1))
    PositiveOnly().check(world(1))


@pytest.mark.parametrize("method", [PositiveOnly(), FixedEmbedding(), Softmax(), FedAwS()])
def test_every_method_says_where_it_comes_from(method):
    assert method.name and "2020" in method.paper and method.shared_class
