"""Networks that take samples as they are: training, evaluation, a reopened run and devices prepare them alike."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from test_run import a_recipe, digits  # noqa: F401

from selfsame import nets
from selfsame.config.recipe import from_mapping
from selfsame.deploy.agreement import sample_terms
from selfsame.engine.checkpoint import read_tensors
from selfsame.engine.setup import resolve
from selfsame.engine.weight_files import read_weights
from selfsame.export.trained import RunEmbedder
from selfsame.nets import ready
from selfsame.nets.lenet import LeNet
from selfsame.runs.loop import carry_on
from selfsame.runs.run import open_run, start


class RawLeNet(LeNet):
    full_scale = True


class Encoder:
    """What somebody's own encoder may say of itself; it is not built here."""

    full_scale, own_width, own_distance, own_rate = True, 12, "euclidean", 16000

    def __init__(self, shape, width, *, rate=16000):
        raise AssertionError


def test_all_prepare_samples_alike(digits, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setitem(nets.NETS, "raw-lenet", RawLeNet)
    part = {"name": "raw-lenet", "width": 8, "channels": [4, 4]}
    run = start(a_recipe("fedhide", net=part, run={"rounds": 2}), tmp_path / "run", digits)
    carry_on(run)
    x = digits.test.x[:5]
    assert x.dtype == torch.uint8 and digits.mean != (0.0,)
    net = LeNet((1, 8, 8), 8, channels=(4, 4))
    held, _ = read_tensors(tmp_path / "run" / "model.safetensors")
    net.load_state_dict({name.removeprefix("net."): value for name, value in held.items()})
    with torch.no_grad():
        wanted = net(x.float() / 255)
    torch.testing.assert_close(run.embed(x), wanted)
    torch.testing.assert_close(open_run(tmp_path / "run").embed(x), wanted)
    np.testing.assert_allclose(RunEmbedder(tmp_path / "run").embed(x.numpy()), wanted.numpy(), atol=1e-5)
    terms = sample_terms(run.problem.federation)
    assert (terms["mean"], terms["std"]) == ((0.0,), (1.0,))


def test_the_ready_encoders_say_so_and_others_do_not():
    assert {name for name in nets.NETS if nets.takes_full_scale(name)} == set(ready.READY)
    assert {name: nets.own_width(name) for name in ready.READY} == {one.name: one.width for one in ready.READY.values()}
    assert not nets.takes_full_scale("nothing:here") and not nets.takes_full_scale("nothing")


@pytest.mark.parametrize(
    ("data", "net", "options", "width"),
    [
        ({"name": "audiomnist"}, {"name": "ge2e-voice"}, {"rate": 8000}, 256),
        ({"name": "audiomnist", "rate": 16000}, {"name": "ge2e-voice"}, {}, 256),
        ({"name": "audiomnist"}, {"name": "ge2e-voice", "rate": 44100, "width": 7}, {"rate": 44100}, 7),
        ({"name": "audiomnist"}, {}, {"rate": 8000}, 256),
        ({"name": "audiomnist", "rate": 16000}, {}, {}, 256),  # its own network too hears what is there
        ({"name": "audiofolder", "rate": 8000}, {}, {"rate": 8000}, 512),
        ({"name": "audiomnist"}, {"name": "test_full_scale:Encoder"}, {"rate": 8000}, 12),
        ({"name": "lfw"}, {"name": "dlib-face", "crop": 56}, {"crop": 56}, 128),
        ({"name": "lfw"}, {"name": "lenet"}, {}, 128),
    ],
)
def test_an_encoder_has_its_own_width_and_the_datas_rate(data, net, options, width):
    found = resolve(from_mapping({"data": data, "net": net})).net
    assert (found.options, found.width) == (options, width)


def test_an_encoder_of_somebodys_own_says_what_it_expects():
    name = "test_full_scale:Encoder"
    said = nets.takes_full_scale(name), nets.own_width(name), nets.own_distance(name), nets.own_rate(name)
    assert said == (True, 12, "euclidean", 16000)
    assert nets.own_width("nothing:here") == 0 and nets.own_distance("nothing:here") == "cosine"


def test_converted_weights_are_a_start(tmp_path):
    tensors = {"a": torch.ones(2), "b.c": torch.zeros(3)}
    save_file(tensors, tmp_path / "w.safetensors", metadata={"format": ready.FORMAT, "net": "dlib-face"})
    found = read_weights(tmp_path / "w.safetensors").tensors
    assert all(torch.equal(found[name], value) for name, value in tensors.items())
