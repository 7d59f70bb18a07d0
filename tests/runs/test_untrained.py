"""Networks that nobody trained here: measured by the protocols of runs, refused where the weights do not fit."""

import json

import pytest
import torch
from safetensors.torch import save_file

from selfsame import nets
from selfsame.commands.evaluate import evaluate
from selfsame.data import DATASETS
from selfsame.errors import SelfsameError
from selfsame.runs.untrained import untrained_run

SMALL = ["data.turns=1", "net.width=8"]


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    net = nets.build("lenet", (1, 8, 8), 8, seed=5, **DATASETS["digits"].net_options)
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(net.state_dict(), file)
    return net, file


def test_a_network_and_its_weights_are_measured(weights, tmp_path, capsys):
    net, file = weights
    run = untrained_run("lenet", file, "digits", settings=SMALL)
    federation = run.problem.federation
    x = federation.test.x[:5]
    with torch.no_grad():
        torch.testing.assert_close(run.embed(x), net(federation.scale(x)), rtol=1e-4, atol=1e-5)
        own = federation.source.rows(torch.tensor([1]), torch.arange(min(64, int(federation.count_N[1])))[None])[0]
        each = net(federation.scale(own))
        mean = (each / each.norm(dim=1, keepdim=True)).mean(0)
    torch.testing.assert_close(run.truth()[int(federation.class_of_N[1])], mean, rtol=1e-4, atol=1e-5)
    out = tmp_path / "out"
    evaluate(None, net="lenet", start=file, data="digits", settings=SMALL, out=out, trials=200, bootstrap=0, quiet=True)
    found = json.loads((out / "evaluation.json").read_text())
    assert found["title"] == "lenet, not trained" and found["facts"]["start"].startswith("w.safetensors, SHA-256 ")
    assert {one["name"] for one in found["protocols"]} >= {"test samples", "unseen pairs"}
    assert found["notes"][0].startswith("not trained on these people")
    assert "not trained on these people" in capsys.readouterr().out


def test_what_does_not_fit_gets_one_line(weights, tmp_path):
    _, file = weights
    with pytest.raises(SelfsameError, match="No such file"):
        untrained_run("lenet", tmp_path / "none.safetensors", "digits", settings=SMALL)
    with pytest.raises(SelfsameError, match="does not fit the network"):
        untrained_run("lenet", file, "digits", settings=["data.turns=1", "net.width=9"])
    for given in ({"net": "lenet"}, {"run": tmp_path, "net": "lenet"}, {"run": tmp_path, "settings": ["a=1"]}, {}):
        with pytest.raises(SelfsameError, match="name the folder of a run, or --net"):
            evaluate(**{"run": None, **given})


def test_encoders_by_distance():
    assert [nets.own_distance(name) for name in ("dlib-face", "ge2e-voice", "lenet")] == [
        "euclidean",
        "cosine",
        "cosine",
    ]
