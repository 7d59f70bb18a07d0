"""Networks that nobody trained here: measured by the protocols of runs, refused where the weights do not fit."""

import json

import pytest
import torch
from safetensors.torch import save_file

from selfsame import nets
from selfsame.commands.evaluate import evaluate
from selfsame.config.recipe import from_mapping
from selfsame.data import DATASETS
from selfsame.errors import SelfsameError
from selfsame.runs.loop import carry_on
from selfsame.runs.run import start
from selfsame.runs.untrained import untrained_run, untrained_view

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


def test_what_is_measured_before_the_first_round_is_by_the_clients_own_templates(tmp_path):
    """P@1 by plain loops: each client's template is the mean direction of its samples."""
    recipe = from_mapping(
        {"method": {"name": "fixed"}, "data": {"name": "digits", "turns": 1}, "run": {"device": "cpu", "rounds": 1}}
    )
    run = start(recipe, tmp_path / "run")
    theta = run.state.theta_P.clone()
    shown = untrained_view(run)
    assert shown.history[0]["round"] == 0 and shown.picture is None and torch.equal(run.state.theta_P, theta)
    assert set(shown.roc) == {"seen", "unseen"} and shown.figure("eer") is not None
    federation, templates = run.problem.federation, run.enrolled
    right = 0
    for x, y in zip(federation.test.x, federation.test.y, strict=True):
        emb = run.embed(x[None])[0]
        cosines = [float(emb @ one / emb.norm() / one.norm()) for one in templates]
        right += cosines.index(max(cosines)) == int(y)
    assert shown.figure("p@1") == pytest.approx(right / len(federation.test.y))
    assert shown.figure("p@1") > 0.3  # templates of fixed vectors would tell by chance


def test_figures_of_training_samples_are_recorded_where_they_are_asked_for():
    tables = {"method": {"name": "fixed"}, "data": {"name": "digits", "turns": 1}, "local": {"batch": 4}}
    length = {"rounds": 3, "eval_every": 3, "device": "cpu"}
    run = carry_on(start(from_mapping({**tables, "run": {**length, "training_figures": True}})))
    federation, right, total = run.problem.federation, 0, 0
    templates = run.truth()
    for client, count in enumerate(federation.count_N.tolist()):
        for number in range(count):
            raw = federation.source.rows(torch.tensor([client]), torch.tensor([[number]]))[0]
            emb = run.embed(raw)[0]
            cosines = [float(emb @ one / emb.norm() / one.norm()) for one in templates]
            right += cosines.index(max(cosines)) == int(run.problem.world.class_of_N[client])
            total += 1
    assert total <= 2000 and run.final["train_p@1"] == pytest.approx(right / total)
    plain = carry_on(start(from_mapping({**tables, "run": length})))
    assert "train_p@1" not in plain.final and torch.equal(plain.state.theta_P, run.state.theta_P)
