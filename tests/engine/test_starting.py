"""Networks that begin with given weights: files, names, what does not fit, batch norms, recurrent layers."""

from __future__ import annotations

import argparse
import copy
import hashlib
import re
import tomllib
from pathlib import Path

import pytest
import torch
from own_nets import Normed, Recurrent, Tied, after_data, with_norm
from safetensors.torch import save_file
from small import assert_same, build, people, train
from test_equal import compare

from selfsame import nets
from selfsame.config.recipe import NetPart, from_mapping, to_mapping, to_toml
from selfsame.engine.cohort import fused
from selfsame.engine.starting import keep_start, load_weights, renamed
from selfsame.engine.weight_files import read_weights
from selfsame.errors import SelfsameError
from selfsame.export.trained import network
from selfsame.nets.frozen import ChannelAffine, freeze

LENET = {"name": "lenet", "width": 8, "channels": [4, 4]}
SHAPE = (1, 8, 8)


def other_weights() -> dict[str, torch.Tensor]:
    net = nets.build("lenet", SHAPE, 8, seed=99, channels=(4, 4))
    return {name: value.detach().clone() for name, value in net.named_parameters()}


def started(file, **part) -> torch.Tensor:
    problem = build("fedhide", net={**LENET, "start": str(file), **part})
    assert problem.recipe.net.digest == hashlib.sha256(file.read_bytes()).hexdigest()
    return problem.model.net_views(problem.model.first_theta)


@pytest.mark.parametrize("ending", ["safetensors", "pt", "bin", "ckpt", "weights"])
@pytest.mark.parametrize("kind", ["safetensors", "pt", "old pt", "pt in a checkpoint"])
def test_a_network_begins_with_the_weights_of_a_file(tmp_path, kind, ending):
    """Whatever it is called."""
    tensors = other_weights()
    file = tmp_path / f"weights.{ending}"
    if kind == "safetensors":
        save_file(tensors, file)
    else:
        held = {"step": 3, "model_state": tensors, "optimizer": {"lr": 1}} if "checkpoint" in kind else tensors
        torch.save(held, file, _use_new_zipfile_serialization=kind != "old pt")
    views = started(file)
    assert set(views) == set(tensors)
    assert all(torch.equal(views[name], value.double()) for name, value in tensors.items())


def test_a_header_whose_length_begins_like_a_pickle_is_a_header(tmp_path):
    file = tmp_path / "w.bin"
    for wide in range(0, 256, 8):
        save_file({"a": torch.ones(2)}, file, metadata={"wide": " " * wide})
        if file.read_bytes()[0] == 0x80:
            break
    assert file.read_bytes()[0] == 0x80 and set(read_weights(file).tensors) == {"a"}


@pytest.mark.parametrize(
    "name, beside",
    [
        ("state_dict", {"loss": torch.tensor(0.3), "curve": torch.zeros(90000)}),
        ("model", {"loss": torch.tensor(0.3), "epoch": 3, "ema": {"fc": torch.zeros(2)}}),
        ("weights", {"loss": torch.tensor(0.3), "curve": torch.zeros(9)}),
    ],
)
def test_a_loss_beside_the_weights_is_none_of_them(tmp_path, name, beside):
    tensors = other_weights()
    torch.save({**beside, name: tensors, "optimizer": {"state": {0: {"step": torch.tensor(1.0)}}}}, tmp_path / "w.pt")
    found = read_weights(tmp_path / "w.pt").tensors
    assert set(found) == set(tensors) and all(torch.equal(found[key], value) for key, value in tensors.items())


def test_tables_that_nobody_can_tell_apart_get_one_line(tmp_path):
    torch.save({"student": other_weights(), "teacher": other_weights()}, tmp_path / "w.pt")
    with pytest.raises(SelfsameError, match=r"several tables of tensors in it \(student, teacher\), and none"):
        read_weights(tmp_path / "w.pt")
    torch.save({"state_dict": other_weights(), "config": argparse.Namespace(lr=1)}, tmp_path / "w.pt")
    with pytest.raises(SelfsameError, match=r"holds more than weights: argparse\.Namespace; save its state_dict\(\)"):
        read_weights(tmp_path / "w.pt")


def test_names_are_mapped_and_left_out(tmp_path):
    tensors = {f"backbone.{name}": value for name, value in other_weights().items()}
    last = [name for name in tensors if name.startswith("backbone.fc")] or list(tensors)[-2:]
    for name in last:
        tensors["classes." + name.rpartition(".")[2]] = tensors.pop(name)
    save_file(tensors, tmp_path / "w.safetensors")
    skipped = [name.removeprefix("backbone.") for name in last]
    part = {"rename": {"backbone.": ""}, "skip": ["classes.*", *skipped]}
    views, drawn = started(tmp_path / "w.safetensors", **part), nets.build("lenet", SHAPE, 8, channels=(4, 4))
    plain = dict(drawn.named_parameters())
    for name, value in views.items():
        wanted = plain[name] if name in skipped else tensors[f"backbone.{name}"]
        assert torch.equal(value, wanted.double()), name


def test_the_longest_beginning_is_replaced():
    found = renamed(["a.b.c", "a.d", "e"], {"a.": "x.", "a.b.": ""}, "w")
    assert found == {"a.b.c": "c", "a.d": "x.d", "e": "e"}
    with pytest.raises(SelfsameError, match="w: no tensor's name begins with q"):
        renamed(["a"], {"q": "r"}, "w")


def test_two_tensors_with_one_name_are_refused(tmp_path):
    first, second, *_ = other_weights()
    save_file(other_weights(), tmp_path / "w.safetensors")
    with pytest.raises(SelfsameError, match=rf"net\.rename gives two tensors the name {re.escape(second)}"):
        started(tmp_path / "w.safetensors", rename={first: second})


@pytest.mark.parametrize("pattern", ["classes.*", "encoder.classes.*"])
def test_what_is_left_out_is_named_as_in_the_file_or_as_in_the_network(tmp_path, pattern):
    """Whether names are mapped first or patterns are looked at first makes no difference."""
    tensors = {f"encoder.{name}": value for name, value in other_weights().items()}
    extra = {"encoder.classes.weight": torch.zeros(9, 8), "encoder.steps": torch.tensor(7)}
    save_file(tensors | extra, tmp_path / "w.safetensors")
    views = started(tmp_path / "w.safetensors", rename={"encoder.": ""}, skip=[pattern, "*steps"])
    assert all(torch.equal(views[name], value.double()) for name, value in other_weights().items())


@pytest.mark.parametrize(
    "skip, line",
    [
        (["fc9.*"], r"nothing in it or in the network is called fc9\.\* \(net\.skip\)"),
        (["*"], r"net\.skip leaves out all of the network"),
    ],
)
def test_patterns_that_leave_out_nothing_or_everything_are_refused(tmp_path, skip, line):
    save_file(other_weights(), tmp_path / "w.safetensors")
    with pytest.raises(SelfsameError, match=line):
        started(tmp_path / "w.safetensors", skip=skip)


def test_a_layer_that_is_drawn_and_does_not_learn_is_refused(tmp_path):
    tensors = other_weights()
    last = list(tensors)[-1].rpartition(".")[0]
    save_file({name: value for name, value in tensors.items() if not name.startswith(last)}, tmp_path / "w.safetensors")
    part = {**LENET, "start": str(tmp_path / "w.safetensors"), "skip": [f"{last}.*"]}
    first = next(iter(tensors)).rpartition(".")[0]
    with pytest.raises(SelfsameError, match=rf"net\.skip: {last}\.weight.* would be drawn at random and stay so"):
        build("fedhide", net={**part, "train": [first]})
    for learns in ({}, {"train": ["last"]}, {"train": ["last"], "adapters": 1}):
        build("fedhide", net={**part, **learns})


def test_what_does_not_fit_is_said_in_one_line(tmp_path):
    tensors = other_weights()
    first, second, *_ = tensors
    tensors["extra"] = tensors.pop(first)
    tensors[second] = torch.zeros(3, 2)
    save_file(tensors, tmp_path / "w.safetensors")
    line = rf"1 missing \({first}\), 1 surplus \(extra\), 1 misshapen \({second} 3x2 in place of"
    with pytest.raises(SelfsameError, match=line) as caught:
        build("fedhide", net={**LENET, "start": str(tmp_path / "w.safetensors")})
    assert "\n" not in str(caught.value)


def test_a_whitened_network_starts_nothing_unless_its_layer_is_left_out(tmp_path):
    tensors = other_weights() | {"whitening_mean": torch.zeros(2), "whitening_matrix": torch.eye(2)}
    save_file(tensors, tmp_path / "w.safetensors")
    start = {**LENET, "start": str(tmp_path / "w.safetensors")}
    with pytest.raises(SelfsameError, match="was whitened, and training goes on without that layer"):
        build("fedhide", net=start)
    build("fedhide", net={**start, "skip": ["whitening_*"]})


@pytest.mark.parametrize(
    "name, content, line",
    [
        ("absent.pt", None, "cannot be read: No such file"),
        ("w.pt", b"", "neither a safetensors file nor one of PyTorch"),
        ("w.pt", b"\x80\x04cos\nsystem\n.", "holds more than weights"),
        ("w.pt", b"PK\x03\x04 and nothing else", "damaged, or holds more than weights"),
        ("w.safetensors", b"12345678", "neither a safetensors file nor one of PyTorch"),
        ("w.safetensors", b"\xff\0\0\0\0\0\0\0{}", "damaged or not a safetensors file"),
    ],
)
def test_an_unfit_file_gets_one_line(tmp_path, name, content, line):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_weights(tmp_path / name)
    assert "\n" not in str(caught.value)


def test_weights_are_finite_and_those_that_the_recipe_names(tmp_path):
    tensors = other_weights()
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(SelfsameError, match="not the file that the recipe names"):
        build("fedhide", net={**LENET, "start": str(tmp_path / "w.safetensors"), "digest": "0" * 64})
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(SelfsameError, match="holds values that are not finite"):
        read_weights(tmp_path / "w.safetensors")
    torch.save([1, 2], tmp_path / "w.pt")
    with pytest.raises(SelfsameError, match="no table of tensors by name in it"):
        read_weights(tmp_path / "w.pt")
    with pytest.raises(SelfsameError, match="not a finished run"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    "name, value, line",
    [
        ("fc", torch.ones(3).to(torch.float8_e4m3fn), "fc is float8_e4m3fn, and a network begins with float32"),
        ("fc", torch.ones(3, dtype=torch.complex64), "fc is complex64, and a network begins with"),
        ("norm.running_var", torch.tensor([1.0, -1e-6]), "norm.running_var holds negative numbers"),
    ],
)
@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_numbers_that_no_network_begins_with_get_one_line(tmp_path, kind, name, value, line):
    file = tmp_path / f"w.{kind}"
    (torch.save if kind == "pt" else save_file)({name: value}, file)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_weights(file)
    assert "\n" not in str(caught.value)


def test_numbers_that_are_too_large_for_the_network_get_one_line(tmp_path):
    first, *_ = tensors = other_weights()
    tensors[first] = tensors[first].double() * 1e300
    save_file(tensors, tmp_path / "w.safetensors")
    with pytest.raises(SelfsameError, match=f"{re.escape(first)} would not be finite in the network"):
        started(tmp_path / "w.safetensors")


def test_a_recipe_with_names_is_written_and_read():
    recipe = from_mapping({"net": {"start": "a.pt", "rename": {"a b.": "", "c": "d"}, "skip": ["fc.*"]}})
    assert from_mapping(tomllib.loads(to_toml(recipe))) == from_mapping(to_mapping(recipe)) == recipe


# Batch norms


def test_a_frozen_network_gives_the_originals_inference():
    net = after_data(Normed(SHAPE, 5), SHAPE).double()
    original = copy.deepcopy(net).eval()
    x = torch.rand(6, *SHAPE, dtype=torch.float64)
    frozen = freeze(net)
    assert sum(isinstance(module, ChannelAffine) for module in frozen.modules()) == 3
    assert not list(frozen.named_buffers())
    assert torch.allclose(frozen.train()(x), original(x), rtol=0, atol=1e-12)
    by_hand = original.body[1]
    gain = by_hand.weight / torch.sqrt(by_hand.running_var + by_hand.eps)
    assert torch.allclose(frozen.body[1].weight, gain) and frozen.body[1].weight.requires_grad


def test_statistics_of_a_file_are_folded_in(tmp_path):
    original = after_data(Normed(SHAPE, 5), SHAPE).eval()
    torch.save(original.state_dict(), tmp_path / "w.pt")
    net = nets.build("own_nets:Normed", SHAPE, 5, started=True)
    load_weights(net, NetPart(), read_weights(tmp_path / "w.pt"))
    x = torch.rand(6, *SHAPE)
    assert torch.allclose(net(x), original(x), rtol=0, atol=1e-5)
    keep_start(dict(net.named_parameters()), "", tmp_path / "again.safetensors")
    again = nets.build("own_nets:Normed", SHAPE, 5, started=True, seed=4)
    load_weights(again, NetPart(), read_weights(tmp_path / "again.safetensors"))
    assert torch.equal(again(x), net(x))


@pytest.mark.parametrize("lost", ["running_", "norm.running_", "body.4.running_var"])
def test_a_file_without_statistics_is_refused(tmp_path, lost):
    """Its gains and shifts alone would be taken for those of a frozen norm."""
    held = after_data(Normed(SHAPE, 5), SHAPE).state_dict()
    gone = [name for name in held if lost in name]
    save_file({name: value for name, value in held.items() if name not in gone}, tmp_path / "w.safetensors")
    net = nets.build("own_nets:Normed", SHAPE, 5, started=True)
    line = rf"holds no statistics of batch norms.*: {re.escape(', '.join(gone[:4]))}.* missing"
    with pytest.raises(SelfsameError, match=line) as caught:
        load_weights(net, NetPart(), read_weights(tmp_path / "w.safetensors"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind, type_", [("half", "HalfNorm"), ("absolute", "AbsoluteNorm")])
def test_a_norm_that_does_more_than_its_statistics_say_is_refused(kind, type_):
    """Frozen it would be another network, silently."""
    with pytest.raises(SelfsameError, match=rf"norm 1 \({type_}\) cannot be frozen: in eval\(\) it is not") as caught:
        nets.build("own_nets:with_norm", SHAPE, 5, started=True, kind=kind)
    assert "\n" not in str(caught.value)


def test_a_norm_that_only_looks_like_another_is_frozen(tmp_path):
    original = after_data(with_norm(SHAPE, 5, kind="plain"), SHAPE).eval()
    torch.save(original.state_dict(), tmp_path / "w.pt")
    net = nets.build("own_nets:with_norm", SHAPE, 5, started=True, kind="plain")
    assert net.training and isinstance(net[1], ChannelAffine)
    load_weights(net, NetPart(), read_weights(tmp_path / "w.pt"))
    x = torch.rand(6, *SHAPE)
    assert torch.allclose(net(x), original(x), rtol=0, atol=1e-5)


def test_norms_that_have_seen_nothing_are_refused():
    with pytest.raises(SelfsameError, match=r"body.1 \(BatchNorm2d\) makes samples depend on one another.*net.start"):
        nets.build("own_nets:Normed", SHAPE, 5)
    assert isinstance(nets.build("own_nets:seen", SHAPE, 5).norm, ChannelAffine)


@pytest.mark.parametrize("steps", [1, 2])
def test_a_frozen_network_has_one_answer_on_both_engines(tmp_path, steps):
    torch.save(after_data(Normed(SHAPE, 8), SHAPE).state_dict(), tmp_path / "w.pt")
    net = {"name": "own_nets:Normed", "width": 8, "start": str(tmp_path / "w.pt")}
    compare("fedhide", net=net, local={"steps": steps})


# Tensors with several names


def tied_file(folder, kind: str) -> tuple[torch.nn.Module, Path]:
    original = after_data(Tied(SHAPE, 8), SHAPE).eval()
    held = {name: value.clone() for name, value in original.state_dict().items()}
    file = folder / f"w.{kind}"
    if kind == "pt":
        torch.save(held, file)
    else:  # one name of each, as `safetensors.torch.save_model` leaves it, and not the first
        dropped = ("second.weight", "norm.")
        save_file({name: value for name, value in held.items() if not name.startswith(dropped)}, file)
    return original, file


@pytest.mark.parametrize("kind", ["pt", "safetensors"])
def test_a_tensor_with_several_names_is_read_by_any(tmp_path, kind):
    original, file = tied_file(tmp_path, kind)
    net = nets.build("own_nets:Tied", SHAPE, 8, started=True)
    assert net.norm is net.again and isinstance(net.norm, ChannelAffine)
    load_weights(net, NetPart(), read_weights(file))
    x = torch.rand(6, *SHAPE)
    assert torch.allclose(net(x), original(x), rtol=0, atol=1e-5) and net.third.weight is net.second.weight


def test_names_of_one_tensor_that_differ_are_refused(tmp_path):
    held = after_data(Tied(SHAPE, 8), SHAPE).state_dict()
    torch.save(held | {"third.weight": 2 * held["third.weight"]}, tmp_path / "w.pt")
    net = nets.build("own_nets:Tied", SHAPE, 8, started=True)
    with pytest.raises(SelfsameError, match=r"second\.weight and third\.weight are one tensor in the network, and dif"):
        load_weights(net, NetPart(), read_weights(tmp_path / "w.pt"))


@pytest.mark.parametrize("part", [{}, {"train": ["third"]}, {"adapters": 2, "train": ["norm"]}])
@pytest.mark.parametrize("steps", [1, 2])
def test_a_network_with_tied_weights_has_one_answer_everywhere(tmp_path, part, steps):
    """On both engines, and as the network that is exported."""
    _, file = tied_file(tmp_path, "pt")
    net = {"name": "own_nets:Tied", "width": 8, "start": str(file), **part}
    compare("fedhide", net=net, local={"steps": steps})
    problem = build("fedhide", net=net, local={"steps": steps})
    state, _ = train(problem)
    views = problem.model.net_views(state.theta_P)
    assert not torch.equal(views["second.weight"], problem.model.net_views(problem.model.first_theta)["second.weight"])
    whole = network(problem.recipe, problem.federation, problem.method, views)
    x = problem.federation.test.x[:5].double()
    found = problem.model.embed_eager(state.theta_P, x)
    assert torch.allclose(whole.double()(x), found, rtol=0, atol=1e-4 * float(found.abs().max()))


# Recurrent layers


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("steps", [1, 2])
def test_recurrent_layers_have_one_answer_on_both_engines(kind, steps):
    net = {"name": "own_nets:Recurrent", "width": 8, "kind": kind}
    problem = build("fedhide", people(clients=6), net=net, local={"steps": steps}, run={"rounds": 2})
    assert fused(problem) == (steps == 1)
    (a, losses_a), (b, losses_b) = train(problem, "cohort"), train(problem, "reference")
    assert_same(a, b)
    assert torch.allclose(losses_a, losses_b, rtol=1e-9, atol=0)


def test_stacked_recurrent_networks_are_the_module_with_each_ones_numbers():
    problem = build("fedhide", net={"name": "own_nets:Recurrent", "width": 8})
    model, federation = problem.model, people()
    theta_MP = torch.stack([model.first_theta, 2 * model.first_theta])
    x_MB = torch.rand(2, 3, *federation.shape, dtype=torch.float64)
    found = model.embed_each(theta_MP, x_MB)
    for theta_P, x_B, emb_BD in zip(theta_MP, x_MB, found, strict=True):
        net = Recurrent(federation.shape, 8).double()
        net.load_state_dict(model.net_views(theta_P))
        assert torch.allclose(net(x_B), emb_BD, rtol=0, atol=1e-12)
