"""A run measured from its folder: the figures are those of training, the protocols those of the papers."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from selfsame.commands.evaluate import evaluate
from selfsame.config.presets import preset
from selfsame.config.recipe import from_mapping, merged
from selfsame.data import Samples, Trials, from_classes, load
from selfsame.errors import SelfsameError
from selfsame.measure import protocols as module
from selfsame.measure.curves import auroc, roc
from selfsame.report.evaluation import FEW, WIDE, evaluation_page, evaluation_remarks, protocol_tables, user_sheet
from selfsame.runs.assess import assess
from selfsame.runs.course import Run
from selfsame.runs.loop import carry_on
from selfsame.runs.run import open_run, start

NAMES = ["training samples", "test samples", "unseen impostors", "unseen, enrolled", "unseen pairs", "trial list"]


def trained(method, folder, federation=None, **tables):
    small = {
        "method": {"name": method},
        "data": {"name": "digits", "turns": 1},
        "run": {"rounds": 30, "eval_every": 20, "device": "cpu"},
        "local": {"batch": 8},
    }
    recipe = from_mapping(merged(preset(method, "digits"), small, tables))
    return carry_on(start(recipe, folder, federation))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return trained("fedhide", tmp_path_factory.mktemp("runs") / "fedhide")


@pytest.fixture(scope="module")
def people():
    """30 seen and 24 unseen people, 45 samples of each unseen one, and a list of trials in four folds."""
    draw = torch.Generator().manual_seed(0)
    centre = torch.randn(54, 1, 8, 8, generator=draw)

    def samples(first, number, each):
        y = torch.arange(number).repeat_interleave(each)
        return Samples(centre[first + y] + 0.8 * torch.randn(len(y), 1, 8, 8, generator=draw), y)

    train, test, unseen = samples(0, 30, 6), samples(0, 30, 4), samples(30, 24, 45)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(unseen.y))
    unseen = Samples(unseen.x[order], unseen.y[order] * 3 + 1000)  # labels of no order that overlap nothing
    a, b = (torch.from_numpy(rng.integers(len(unseen.y), size=4000)) for _ in range(2))
    keep = a != b
    a, b = a[keep], b[keep]
    trials = Trials(a, b, unseen.y[a] == unseen.y[b], torch.arange(len(a)) % 4)
    names = tuple(f"P{i}" for i in range(30))
    return replace(from_classes("digits", train.x, train.y, test=test, unseen=unseen, class_names=names), trials=trials)


def by_name(result):
    return {protocol["name"]: protocol for protocol in result["protocols"]}


@pytest.fixture(scope="module")
def result(run):
    return assess(open_run(run.folder), trials=10**7, bootstrap=0)


def test_the_figures_are_those_of_training(run, result):
    """Federated digits: seen people against their templates, and all pairs of unseen samples."""
    final, found = run.final, by_name(result)
    assert list(found) == NAMES[:5] and [s["name"] for s in result["skipped"]] == NAMES[5:]
    test, pairs = found["test samples"], found["unseen pairs"]
    assert test["identification"]["rank_1"]["value"] == pytest.approx(final["p@1"], abs=2e-3)
    assert test["identification"]["p@1"] == test["identification"]["rank_1"]["value"]
    assert test["auroc"]["value"] == pytest.approx(final["auroc_seen"], abs=1e-4)
    assert test["eer"]["value"] == pytest.approx(final["eer_seen"], abs=2e-3)
    assert result["one_class_auroc"] == pytest.approx(final["one_class_auroc"], abs=1e-4)
    assert pairs["auroc"]["value"] == pytest.approx(final["auroc"], abs=1e-4)
    assert pairs["eer"]["value"] == pytest.approx(final["eer"], abs=1e-3)


def test_every_population_is_there(run, result):
    found, federation = by_name(result), run.problem.federation
    classes, train, test = federation.classes, int(federation.count_N.sum()), len(federation.test.y)
    unseen = len(federation.unseen.y)
    size = federation.unseen.y.unique(return_counts=True)[1]
    sizes = {name: (p["genuine"], p["impostor"], p["people"]) for name, p in found.items()}
    genuine = int((size * (size - 1) // 2).sum())
    probes = int((size - size // 2).sum())
    assert sizes == {
        "training samples": (train, train * (classes - 1), classes),
        "test samples": (test, test * (classes - 1), classes),
        "unseen impostors": (test, unseen * classes, classes + len(size)),
        "unseen, enrolled": (probes, probes * (len(size) - 1), len(size)),
        "unseen pairs": (genuine, unseen * (unseen - 1) // 2 - genuine, len(size)),
    }
    users = found["test samples"]["users"]
    assert users["number"] == classes and {user["name"] for user in users["each"]} == {str(d) for d in range(classes)}
    assert [user["tpr"] for user in users["each"]] == sorted(user["tpr"] for user in users["each"])
    assert {user["name"] for user in found["unseen pairs"]["users"]["each"]} == {"7", "8", "9"}


def test_training_scores_and_strangers_by_loops(run, result):
    """The own samples of each client, and unseen samples, against the templates, one by one."""
    method, federation = run.problem.method, run.problem.federation
    template = method.truth(run.state.own, run.state.server, {})
    own, other = [], []
    for client in range(federation.clients):
        index = torch.arange(int(federation.count_N[client]))[None]
        score = method.score(run.embed(federation.source.rows(torch.tensor([client]), index)[0]), template)
        own += score[:, client].tolist()
        other += [row[c] for row in score.tolist() for c in range(len(template)) if c != client]
    found = by_name(result)
    assert found["training samples"]["auroc"]["value"] == pytest.approx(auroc(np.array(own), np.array(other)), abs=1e-5)
    assert found["training samples"]["eer"]["value"] == pytest.approx(roc(np.array(own), np.array(other)).eer, abs=1e-3)
    score = method.score(run.embed(federation.test.x), template)
    genuine = score.gather(1, federation.test.y[:, None])[:, 0]
    strangers = method.score(run.embed(federation.unseen.x), template).flatten()
    assert found["unseen impostors"]["auroc"]["value"] == pytest.approx(auroc(genuine, strangers), abs=1e-5)


def test_rates_that_the_trials_cannot_support_are_refused(result):
    test = by_name(result)["test samples"]
    for at, figure in test["tpr_at_fpr"].items():
        assert ("refused" in figure) == (float(at) * test["impostor"] < 10)
    assert "value" in test["tpr_at_fpr"]["0.1"]
    assert "needs 100,000 impostor trials, there are" in test["tpr_at_fpr"]["0.0001"]["refused"]
    assert any("test samples: TPR at FPR 0.01 % needs 100,000" in line for line in evaluation_remarks(result))
    assert test["min_dcf"].keys() == {"0.01", "0.05"}
    assert any(
        line.startswith("test samples: own template among the k best: rank-1 ") and "rank-5" in line
        for line in evaluation_remarks(result)
    )


def test_nothing_in_the_folder_changes(run):
    before = {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()}
    open_run(run.folder)
    assert {path: path.read_bytes() for path in run.folder.rglob("*") if path.is_file()} == before


@pytest.fixture(scope="module")
def known(people):
    """A run on them."""
    return trained("fedhide", None, people)


def test_trial_lists_folds_fdml_and_intervals(people, known):
    run = known
    found = assess(run, trials=500, bootstrap=30, seed=3)
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found == assess(run, trials=500, bootstrap=30, seed=3)
    protocols = by_name(found)
    assert list(protocols) == NAMES
    emb = run.embed(people.unseen.x)
    score = torch.nn.functional.cosine_similarity(emb[people.trials.index_a], emb[people.trials.index_b]).double()
    same = people.trials.same
    listed = protocols["trial list"]
    assert listed["auroc"]["value"] == pytest.approx(auroc(score[same], score[~same]), abs=1e-5)
    assert len(listed["folds"]["each"]) == 4 and 0.5 < listed["folds"]["accuracy"] <= 1
    assert protocols["unseen pairs"]["genuine"] == protocols["unseen pairs"]["impostor"] == 250
    assert any("500 of 582,660 pairs" in note and "seed 3" in note for note in protocols["unseen pairs"]["notes"])
    assert found["fdml"]["users"] == 24 and 0.5 < found["fdml"]["value"] <= 1
    for protocol in found["protocols"]:
        for figure in (protocol["eer"], protocol["auroc"], protocol["min_dcf"]["0.05"]):
            assert figure["low"] <= figure["high"]
            assert figure["low"] - 0.05 <= figure["value"] <= figure["high"] + 0.05
    rank = protocols["unseen, enrolled"]["identification"]["rank_1"]
    assert rank["low"] <= rank["value"] <= rank["high"]
    assert {user["name"] for user in protocols["test samples"]["users"]["each"]} == {f"P{i}" for i in range(30)}
    assert protocols["unseen pairs"]["users"]["each"][0]["name"].startswith("person 1")
    page, lines = evaluation_page(found), evaluation_remarks(found)
    assert "over 4 folds" in page and any(line.startswith("FDML accuracy: ") and "%" in line for line in lines)
    results = page[page.index('id="results"') : page.index('id="curves"')]
    assert 'data-label="minDCF 0.05"' in results and 'data-label="genuine"' not in results  # fits 1,280 px, and phones
    assert "250 genuine and 250 impostor trials of 24 people" in results


def test_what_is_left_out_is_said(known, monkeypatch):
    monkeypatch.setattr(module, "_MOST_TRIALS", 300)
    monkeypatch.setattr(module, "_MOST_SAMPLES", 100)
    found = by_name(assess(known, trials=200, bootstrap=0))
    for name, total in (("training samples", 180), ("test samples", 120)):
        protocol = found[name]
        assert (protocol["genuine"], protocol["impostor"], protocol["people"]) == (100, 300, 30)
        assert any(f"100 of {total} samples, drawn evenly with seed 0" in note for note in protocol["notes"])
        assert "300 of 2,900 impostor trials, drawn evenly with seed 0" in protocol["notes"]
    assert any("100 of 1,080 samples" in note for note in found["unseen impostors"]["notes"])
    assert len(found["unseen, enrolled"]["users"]["each"]) == 24


def test_clients_with_networks_of_their_own(tmp_path):
    run = trained("deepsvdd", tmp_path / "run")
    found = assess(open_run(run.folder), bootstrap=0)
    protocols = by_name(found)
    assert list(protocols) == NAMES[:3] and len(found["skipped"]) == 3 and "refused" in found["fdml"]
    test, final = protocols["test samples"], run.final
    assert test["identification"]["rank_1"]["value"] == pytest.approx(final["p@1"], abs=2e-3)
    assert test["auroc"]["value"] == pytest.approx(final["auroc_seen"], abs=1e-4)
    assert found["one_class_auroc"] == pytest.approx(final["one_class_auroc"], abs=1e-4)
    federation = run.problem.federation
    centre = run.state.own["centre"]
    columns = [
        run.problem.method.score(run.embed(federation.unseen.x, c), centre[c : c + 1])[:, 0] for c in range(len(centre))
    ]
    genuine = [float(run.problem.method.score(run.embed(x[None], c), centre[c : c + 1])) for x, c in
               zip(federation.test.x, federation.test.y.tolist())]  # fmt: skip
    expected = auroc(np.array(genuine), torch.cat(columns).numpy())
    assert protocols["unseen impostors"]["auroc"]["value"] == pytest.approx(expected, abs=1e-4)


def test_a_run_that_some_clients_have_not_joined(tmp_path):
    run = trained("fedhide", tmp_path / "run", cohort={"late": 0.4, "join_round": 25}, run={"rounds": 20})
    opened = open_run(run.folder)
    assert opened.state.present == 4
    found = by_name(assess(opened, bootstrap=0))
    assert found["test samples"]["people"] == found["training samples"]["people"] == 4


def test_data_without_test_or_unseen_samples(people, known):
    bare = replace(people, test=Samples.none((1, 8, 8), torch.float32), trials=Trials.none())
    found = assess(Run(replace(known.problem, federation=bare), known.state), bootstrap=0)
    assert [s["name"] for s in found["skipped"]] == ["test samples", "unseen impostors", "trial list"]
    assert found["one_class_auroc"] is None
    nobody = replace(people, unseen=Samples.none((1, 8, 8), torch.float32), trials=Trials.none())
    found = assess(Run(replace(known.problem, federation=nobody), known.state), bootstrap=0)
    assert [p["name"] for p in found["protocols"]] == NAMES[:2]
    assert "21 unseen people with 40 samples are needed, there are 0 among 0" in found["fdml"]["refused"]
    assert "What to know" in evaluation_page(found)


def test_several_true_labels(people, known):
    """P@k counts every true label, as in training."""
    from selfsame.data.sets.xc import MultiLabelled, Ragged

    y = people.test.y
    labels = Ragged(torch.arange(0, 2 * len(y) + 1, 2), torch.stack([y, (y + 1) % 30], 1).sort(1).values.flatten())
    several = replace(people, test=MultiLabelled(people.test.x, y, labels=labels, missed=40))
    run = Run(replace(known.problem, federation=several), known.state)
    found = by_name(assess(run, bootstrap=0))["test samples"]["identification"]
    expected = run.evaluate().figures
    assert [found[f"p@{k}"] for k in (1, 3, 5)] == pytest.approx([expected[f"p@{k}"] for k in (1, 3, 5)], abs=1e-3)
    assert found["rank_1"]["value"] == found["p@1"]


@pytest.fixture(scope="module")
def command():
    app = typer.Typer()
    app.command()(evaluate)
    return app


def test_the_command_writes_tables_and_files(run, command, tmp_path):
    done = CliRunner().invoke(
        command, [str(run.folder), "--trials", "400", "--bootstrap", "0", "--out", str(tmp_path / "o"), "--quiet"]
    )
    assert done.exit_code == 0, done.output
    for words in (
        *NAMES[:5],
        FEW,
        "EER",
        "worst tenth",
        "locked out",
        "FDML accuracy: not measured",
        "one-class AUROC",
    ):
        assert words in done.output
    kept = json.loads((tmp_path / "o" / "evaluation.json").read_text())
    assert kept["format"] == "selfsame-evaluation-1" and len(kept["protocols"]) == 5
    page = (tmp_path / "o" / "evaluation.html").read_text()
    assert page.count("<figure>") == 3 + 5 and "<script" not in page and "http://www.w3.org" in page
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == ["evaluation.html", "evaluation.json"]
    assert not (run.folder / "evaluation.json").exists()


def test_names_from_data_are_escaped(result):
    hostile = json.loads(json.dumps(result))
    hostile["title"] = "<script>alert(1)</script>"
    for user in hostile["protocols"][1]["users"]["each"]:
        user["name"] = "[bold]<img src=x>"
    page = evaluation_page(hostile)
    assert "<script" not in page and "<img" not in page and "&lt;img src=x&gt;" in page
    assert protocol_tables(hostile, 200) and user_sheet(hostile).terminal()


def test_a_narrow_terminal_gets_two_tables(result):
    assert [len(protocol_tables(result, width)) for width in (80, WIDE - 1, WIDE)] == [2, 2, 1]
    narrow = protocol_tables(result, 80)
    assert {str(c.header) for t in narrow for c in t.table(80).columns} == {
        str(c.header) for c in protocol_tables(result, 200)[0].table(200).columns
    }


@pytest.mark.parametrize(
    ("options", "line"),
    [({"trials": 1}, "--trials: must be at least 2, got 1"), ({"bootstrap": -1}, "--bootstrap: must be at least 0")],
)
def test_bad_options(run, options, line):
    with pytest.raises(SelfsameError, match=line):
        assess(run, **options)


def test_bad_folders(tmp_path):
    with pytest.raises(SelfsameError, match="not a run"):
        open_run(tmp_path)
    recipe = from_mapping(
        merged(preset("fedhide", "digits"), {"method": {"name": "fedhide"}, "data": {"name": "digits"}})
    )
    start(recipe, tmp_path / "new", load("digits", turns=1))
    with pytest.raises(SelfsameError, match="no checkpoint yet; train it"):
        open_run(tmp_path / "new")
    with pytest.raises(SelfsameError, match="takes no path"):
        (tmp_path / "new" / "checkpoint").mkdir()
        (tmp_path / "new" / "checkpoint" / "state.safetensors").touch()
        open_run(tmp_path / "new", path=tmp_path)
