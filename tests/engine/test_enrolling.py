"""Vectors that begin as what devices enrol with the network that is given: by hand, for late clients, on devices."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from small import build, people, recipe

from selfsame import nets
from selfsame.engine.enrolling import own_templates
from selfsame.engine.setup import resolve
from selfsame.engine.state import begin, join
from selfsame.errors import SelfsameError

LENET = {"name": "lenet", "width": 8, "channels": [4, 4]}
ENROLLED = {**LENET, "vectors": "enrolled"}
WHERE = {"fedhide": "prototype", "fedcrowd": "prototype", "fedgn": "prototype", "fedaws": "class_embedding",
         "positive-only": "class_embedding", "softmax": "class_matrix"}  # fmt: skip


def table(problem, state, name):
    return {**problem.model.head_views(state.theta_P), **state.server, **state.own}[WHERE[name]]


def by_hand(problem, client, angles):
    """The mean of a client's embeddings, one sample at a time, in plain numbers."""
    federation, part = problem.federation, problem.recipe
    net = nets.build("lenet", federation.shape, 8, seed=part.run.seed, channels=[4, 4]).double()
    total = [0.0] * problem.world.dim
    count = min(32, int(federation.count_N[client]))
    for index in range(count):
        raw = federation.source.rows(torch.tensor([client]), torch.tensor([[index]]))[0]
        with torch.no_grad():
            out = net(federation.scale(raw).double())[0].tolist()
        length = math.sqrt(sum(x * x for x in out)) if angles else 1.0
        total = [a + x / length for a, x in zip(total, out, strict=True)]
    return [x / count for x in total]


@pytest.mark.parametrize("name", WHERE)
def test_a_vector_begins_as_the_mean_of_its_owners_samples(name):
    problem = build(name, net=ENROLLED)
    drawn = table(problem, begin(build(name, net=LENET)), name)
    found = table(problem, begin(problem), name)
    assert found.shape == drawn.shape and not torch.allclose(found, drawn)
    for client in range(problem.world.clients):
        mean = by_hand(problem, client, angles=True)
        length, long = math.sqrt(sum(x * x for x in mean)), math.sqrt(sum(x * x for x in drawn[client].tolist()))
        wanted = [x * long / length for x in mean]
        assert max(abs(a - b) for a, b in zip(found[client].tolist(), wanted, strict=True)) < 1e-9


def test_by_distance_it_is_the_mean_itself():
    problem = build("fedaws", net=ENROLLED, options={"distance": "euclidean"})
    found = table(problem, begin(problem), "fedaws")
    for client in (0, 7):
        gap = found[client] - torch.tensor(by_hand(problem, client, angles=False), dtype=torch.float64)
        assert float(gap.abs().max()) < 1e-9


def test_clients_of_a_class_share_the_mean_of_all_their_samples():
    """Three clients hold two classes; each sample counts once."""
    federation = people(clients=3)
    class_of_N = torch.tensor([0, 0, 1])
    problem = build("fedaws", replace(federation, class_of_N=class_of_N), {"neighbours": 1}, net=ENROLLED)
    rows, template = own_templates(problem, lambda raw: raw.flatten(1)[:, :8].double(), torch.arange(3), 4)
    assert rows.tolist() == [0, 1]
    first = torch.cat(
        [
            problem.federation.source.rows(torch.tensor([n]), torch.arange(min(4, int(federation.count_N[n])))[None])[0]
            for n in (0, 1)
        ]
    )
    places = [row / row.norm() for row in first.flatten(1)[:, :8].double()]
    assert torch.allclose(template[0], sum(places) / len(places), rtol=0, atol=1e-12)


def test_those_who_join_later_enrol_with_the_same_network():
    problem = build("fedhide", net=ENROLLED)
    whole, state = begin(problem), begin(problem, 5)
    state.theta_P.mul_(3)  # what has been learned since is not what they enrol with
    join(problem, state)
    assert torch.allclose(state.own["prototype"], whole.own["prototype"], rtol=0, atol=1e-12)


def test_a_state_to_be_read_over_enrols_nobody(monkeypatch):
    problem = build("fedhide", net=ENROLLED)
    monkeypatch.setattr(type(problem.model), "embed_eager", None)
    drawn = begin(build("fedhide", net=LENET)).own["prototype"]
    assert torch.equal(begin(problem, blank=True).own["prototype"], drawn)


def test_a_network_that_is_given_enrols_unless_told_otherwise():
    given = {**LENET, "start": "w.safetensors"}
    assert resolve(recipe("fedhide", net=LENET)).net.vectors == ""
    assert resolve(recipe("fedhide", net=given)).net.vectors == "enrolled"
    assert resolve(recipe("fedhide", net={**given, "vectors": "drawn"})).net.vectors == "drawn"
    assert resolve(recipe("fedaws", net=given, run={"shard_tables": True})).net.vectors == "drawn"
    for name in ("feduv", "fdml", "fixed", "deepsvdd"):
        assert resolve(recipe(name, net=given)).net.vectors == "", name


@pytest.mark.parametrize("name", ["feduv", "fixed", "fedmetric"])
def test_who_keeps_no_such_vector_says_so(name):
    with pytest.raises(SelfsameError, match=rf"net\.vectors: {name} keeps no vector of a person that could begin as"):
        build(name, net=ENROLLED)


def test_a_table_in_blocks_is_not_enrolled():
    with pytest.raises(SelfsameError, match=r"net\.vectors: with run\.shard_tables no process has all of them"):
        build("fedaws", net=ENROLLED, run={"shard_tables": True})
