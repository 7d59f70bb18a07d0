"""Networks of which a part learns, by name or through adapters, and the pull to where training began."""

from __future__ import annotations

import math

import own_nets
import pytest
import torch
from own_nets import Recurrent
from small import build, people, train
from test_equal import compare
from torch import nn

from selfsame import nets
from selfsame.config.recipe import from_mapping
from selfsame.engine.batches import Batch
from selfsame.engine.checkpoint import read_tensors, save_model
from selfsame.engine.machine import Machine
from selfsame.engine.model import Model
from selfsame.engine.settle import Kept
from selfsame.errors import SelfsameError
from selfsame.nets.learned import Learned, choose_learned

LENET = {"name": "lenet", "width": 8, "channels": [4, 4]}
SHAPE = (1, 8, 8)
TOP = ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")


def example() -> nn.Module:
    """A convolution, its norm, and two linear layers with a norm at the end."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.GroupNorm(2, 6), nn.Flatten(), nn.Linear(6 * 36, 5), nn.Linear(5, 4), nn.LayerNorm(4)
    )


@pytest.mark.parametrize(
    "patterns, wanted",
    [
        ((), [f"{layer}.{kind}" for layer in (0, 1, 3, 4, 5) for kind in ("weight", "bias")]),
        (("last",), ["4.weight", "4.bias", "5.weight", "5.bias"]),
        (("norms",), ["1.weight", "1.bias", "5.weight", "5.bias"]),
        (("3", "*.bias"), ["0.bias", "1.bias", "3.weight", "3.bias", "4.bias", "5.bias"]),
        (("norms", "0.weight"), ["0.weight", "1.weight", "1.bias", "5.weight", "5.bias"]),
    ],
)  # fmt: skip
def test_patterns_and_presets(patterns, wanted):
    assert choose_learned(example(), patterns, 0, SHAPE).names == tuple(wanted)


@pytest.mark.parametrize(
    "name, wanted",
    [
        ("Backwards", ["head.weight", "head.bias"]),  # declared first, and another that no pass uses last of all
        ("Rooted", ["proj", "norm.weight", "norm.bias"]),  # the tokens beside it are used first
        ("Top", [f"rnn.{kind}_l1{way}" for way in ("", "_reverse") for kind in TOP]),
        ("Tied", ["second.weight", "third.bias"]),
    ],
)
def test_the_last_layer_is_the_one_that_runs_last(name, wanted):
    net = getattr(own_nets, name)(SHAPE, 6)
    assert sorted(choose_learned(net, ("last",), 0, SHAPE).names) == sorted(wanted)
    assert choose_learned(nets.build("dlib-face", (3, 64, 64), 8), ("last",), 0, (3, 64, 64)).names == ("head.weight",)


def test_gains_and_shifts_of_every_kind_are_norms():
    face = choose_learned(nets.build("dlib-face", (3, 64, 64), 8), ("norms",), 0, (3, 64, 64)).names
    assert len(face) == 58 and {name.rpartition(".")[2] for name in face} == {"gain", "shift"}  # of 29 convolutions
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.RMSNorm(6), own_nets.OwnNorm(6), own_nets.NormedLinear(6, 4))
    assert choose_learned(net, ("norms",), 0, SHAPE).names == ("2.weight", "3.scale")


def test_a_shared_matrix_has_one_adapter_and_learns_by_any_of_its_names():
    net = own_nets.Tied(SHAPE, 6)
    assert set(choose_learned(net, (), 2, SHAPE).ranks) == {"first.weight", "second.weight"}
    assert choose_learned(net, ("third",), 0, SHAPE).names == ("second.weight", "third.bias")


def test_adapters_are_for_matrices_that_do_not_learn_themselves():
    found = choose_learned(example(), ("4", "norms"), 3, SHAPE)
    assert found.ranks == {"0.weight": 3, "3.weight": 3}  # of kernels 6 x 9, and of a matrix 5 x 216
    narrow = choose_learned(nn.Sequential(nn.Linear(3, 400), nn.Linear(400, 400)), (), 8, (3,))
    assert narrow.ranks == {"0.weight": 3, "1.weight": 8}  # no more than a matrix can use
    recurrent = choose_learned(Recurrent(SHAPE, 4), (), 2, SHAPE)
    assert recurrent.names == () and set(recurrent.ranks.values()) == {2} and len(recurrent.ranks) == 5


def test_what_fits_nothing_gets_one_line():
    with pytest.raises(
        SelfsameError, match=r"net\.train: nothing fits 'fc9'; known: all, last, norms, and names: 0.we"
    ):
        choose_learned(example(), ("fc9",), 0, SHAPE)
    with pytest.raises(SelfsameError, match=r"net\.adapters: no matrix .* is left to adapt"):
        choose_learned(example(), ("all",), 2, SHAPE)
    with pytest.raises(SelfsameError, match=r"net\.adapters: of rank 8 they hold 1,195 numbers and their .* 1,134;"):
        choose_learned(example(), ("4", "norms"), 8, SHAPE)  # 6 (6 + 9) + 5 (5 + 216), and 6 x 9 + 5 x 216
    with pytest.raises(SelfsameError, match=r"net\.adapters: must be at least 0"):
        from_mapping({"net": {"adapters": -1}})
    assert from_mapping({"net": {"train": "last"}}).net.train == ("last",)


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_with_adapters_the_first_network_is_the_starting_one(name):
    shape = SHAPE if name == "lenet" else (8,)
    net = nets.build(name, shape, 6)
    plain, adapted = (
        Model(nets.build(name, shape, 6), {}, Machine(), learned)
        for learned in (None, choose_learned(net, (), 2, shape, seed=3))
    )
    x = torch.rand(5, *shape)
    one, two = adapted.net_views(adapted.first_theta), plain.net_views(plain.first_theta)
    assert set(one) == set(two) and all(torch.equal(one[key], two[key]) for key in two)
    emb, wanted = adapted.embed_eager(adapted.first_theta, x), plain.embed_eager(plain.first_theta, x)
    assert torch.allclose(emb, wanted, rtol=0, atol=1e-5)
    ranks = choose_learned(net, (), 2, shape).ranks
    sizes = {key: value.shape for key, value in net.named_parameters()}
    count = sum(rank * (sizes[key][0] + math.prod(sizes[key][1:])) for key, rank in ranks.items())
    assert adapted.parameters == count < plain.parameters == adapted.whole


def test_an_adapted_matrix_is_the_matrix_and_the_product():
    net = example().double()
    held = {name: value.detach().clone() for name, value in net.named_parameters()}
    model = Model(net, {}, Machine(dtype=torch.float64), Learned(("5.bias",), {"0.weight": 2, "3.weight": 3}))
    theta_P = torch.randn(model.parameters, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    parts, views = model.learned_views(theta_P), model.net_views(theta_P)
    assert set(views) == set(held)
    for name in ("0.weight", "3.weight"):
        up, down = parts[f"{name}.up"], parts[f"{name}.down"]
        for row in range(len(up)):
            for column in range(down.shape[1]):
                product = sum(float(up[row, r] * down[r, column]) for r in range(up.shape[1]))
                wanted = float(held[name][row].flatten()[column]) + product
                assert float(views[name][row].flatten()[column]) == pytest.approx(wanted, rel=0, abs=1e-12)
    assert torch.equal(views["4.weight"], held["4.weight"]) and torch.equal(views["5.bias"], parts["5.bias"])


PARTS = [
    pytest.param({"train": ["last"]}, id="last"),
    pytest.param({"train": ["norms"]}, id="norms"),
    pytest.param({"adapters": 2}, id="adapters"),
    pytest.param({"adapters": 1, "train": ["norms"], "keep": 0.7}, id="adapters, norms, keep"),
    pytest.param({"keep": 2.0}, id="keep"),
]


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("name, steps", [("softmax", 1), ("fedhide", 2)])
def test_engines_agree_on_what_learns(name, steps, part):
    net = {**LENET, "width": 8} if "norms" not in part.get("train", []) else {"name": "resnet8", "width": 8}
    compare(name, people(clients=6), net={**net, **part}, local={"steps": steps}, run={"rounds": 2})


@pytest.mark.parametrize("part", [{"adapters": 2}, {"train": ["last"]}, {"narrow": 3, "adapters": 1}, {"narrow": 3}])
@pytest.mark.parametrize("steps", [1, 2])
def test_recurrent_networks_too(part, steps):
    """Also with states that are projected (`proj_size`)."""
    net = {"name": "own_nets:Recurrent", "width": 8, **part}
    compare("fedhide", people(clients=6), net=net, local={"steps": steps}, run={"rounds": 2})


@pytest.mark.parametrize("part", [{"adapters": 2}, {"train": ["last"]}])
def test_sums_and_split_rounds_hold_only_what_learns(part):
    compare("fedhide", net={**LENET, **part}, sums={"aggregation": "masked"}, cohort={"size": 6})
    compare("fdml", net={**LENET, **part})


@pytest.mark.parametrize("part", [{"adapters": 2}, {"train": ["last"]}])
def test_what_does_not_learn_stays_and_the_model_file_is_whole(tmp_path, part):
    problem = build("softmax", net={**LENET, **part})
    state, _ = train(problem)
    first, views = (problem.model.net_views(theta) for theta in (problem.model.first_theta, state.theta_P))
    moved = {name for name in views if not torch.equal(first[name], views[name])}
    if "train" in part:
        assert moved and moved == set(problem.model.learned_views(state.theta_P))
    else:
        assert moved == set(problem.model.adapted)
    assert problem.model.size + sum(v.numel() for v in problem.model.head_views(state.theta_P).values()) == len(
        state.theta_P
    )
    save_model(problem, state.theta_P, tmp_path / "model.safetensors")
    written, _ = read_tensors(tmp_path / "model.safetensors")
    assert all(torch.equal(written[f"net.{name}"], value) for name, value in views.items())
    assert not any(name.endswith((".up", ".down")) for name in written)


@pytest.mark.parametrize("part", [{"adapters": 1}, {"train": ["last"]}])
def test_projected_states_are_what_the_module_makes_of_them(part):
    """A matrix more in each layer, `weight_hr`, is adapted and put in its place like the others."""
    problem = build("softmax", net={"name": "own_nets:Recurrent", "width": 8, "narrow": 3, **part})
    state, _ = train(problem)
    model = problem.model
    assert ("rnn.weight_hr_l1" in model.adapted) == ("adapters" in part)
    net = Recurrent(problem.federation.shape, 8, narrow=3).double()
    net.load_state_dict(model.net_views(state.theta_P))
    x = torch.rand(3, *problem.federation.shape, dtype=torch.float64)
    assert torch.allclose(net(x), model.embed_eager(state.theta_P, x), rtol=0, atol=1e-12)
    theta_MP = torch.stack([state.theta_P, model.first_theta])
    first = Recurrent(problem.federation.shape, 8, narrow=3).double()
    first.load_state_dict(model.net_views(model.first_theta))
    wanted = torch.stack([net(x), first(x)])
    assert torch.allclose(model.embed_each(theta_MP, torch.stack([x, x])), wanted, rtol=0, atol=1e-12)


# The pull to where training began


def test_the_pull_in_plain_loops():
    draw = torch.Generator().manual_seed(2)
    emb, first = torch.randn(2, 3, 4, 5, generator=draw, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, True], [False, True, False, False], [True, True, True, True]])
    unit_first = first / first.norm(dim=-1, keepdim=True)
    found = Kept(0.3, unit_first).loss(emb, mask)
    for m in range(3):
        each = []
        for b in range(4):
            if mask[m, b]:
                a, c = emb[m, b].tolist(), first[m, b].tolist()
                long_a, long_c = (math.sqrt(sum(v * v for v in row)) for row in (a, c))
                each.append(sum((p / long_a - q / long_c) ** 2 for p, q in zip(a, c, strict=True)))
        assert float(found[m]) == pytest.approx(0.3 * sum(each) / len(each), rel=1e-9)


def test_the_first_network_pulls_and_others_do_not():
    """At the start the pull is nothing; later it is the distance from the first network's embeddings."""
    problem = build("fedhide", net={**LENET, "keep": 4.0})
    state, losses = train(problem)
    free, without = train(build("fedhide", net=LENET))
    assert losses[0] == pytest.approx(float(without[0]), rel=1e-12)
    model = problem.model
    (batch,) = problem.batches(torch.arange(12), 0)
    assert isinstance(batch, Batch)

    def away(theta_P: torch.Tensor) -> float:
        kept = problem.kept(batch.x_MB)
        emb = torch.stack([model.embed_eager(theta_P, x_B) for x_B in batch.x_MB])
        return float(kept.loss(emb, batch.mask_MB).mean())

    assert away(model.first_theta) == pytest.approx(0, abs=1e-20)
    assert 0 < away(state.theta_P) < away(free.theta_P)


def test_split_rounds_know_no_first_network():
    with pytest.raises(SelfsameError, match=r"net\.keep: in split rounds"):
        build("fdml", net={**LENET, "keep": 1.0})
