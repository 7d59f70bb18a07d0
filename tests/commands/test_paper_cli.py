"""`selfsame paper`: what the data allow is run, the rest is listed, and the page says what its JSON says."""

import inspect
import json
import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest

from selfsame.commands import progress
from selfsame.commands.paper import paper
from selfsame.config.exhibits import PAPERS, find_exhibits, recipe_file
from selfsame.config.experiment import read_experiment
from selfsame.data.fingerprint import Fingerprint
from selfsame.errors import SelfsameError
from selfsame.measure.protocols import Portions
from selfsame.report.exhibit_page import MARK, exhibit_files, exhibit_markdown
from selfsame.runs.beyond import drawn_accuracies
from selfsame.runs.paper_measures import PaperMeasures
from selfsame.runs.papers import Reprint
from selfsame.runs.redrawn import REPLICATES
from selfsame.runs.run import open_run

SMALL = """
seeds = [0, 1]
[data]
name = "digits"
turns = 1
[run]
rounds = 2
eval_every = 2
device = "cpu"
[local]
batch = 4
[paper]
where = "FedHide, Tables 3 and 4"
chosen = "as the paper prints them"
[[variant]]
title = "FedHide(0.5)"
method = { name = "fedhide", alpha = 0.5, neighbours = 3 }
paper = { "p@1" = [58.0, 1.8], leak = 9.6, cos_mean = 0.5 }
[[variant]]
title = "fixed"
method = { name = "fixed" }
paper = { "p@1" = 50.0, about = true, chosen = "by test data" }
"""
FAR = '[data]\nname = "{}"\npath = "data"\n[method]\nname = "fixed"\n'


@pytest.fixture
def selfsame(monkeypatch, tmp_path, call):
    """The command beside a folder of recipes, of which one can be run."""
    monkeypatch.chdir(tmp_path)
    Path("mine").mkdir()
    Path("mine/fedhide-cifar100.toml").write_text(SMALL)
    Path("mine/fedhide-voxceleb1.toml").write_text(FAR.format("voxceleb"))
    Path("mine/fedhide-vggface2.toml").write_text(FAR.format("vggface2"))
    Path("empty").mkdir()
    return call


def test_a_table_is_repeated_as_far_as_the_data_go(selfsame, monkeypatch):
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", Path("empty").absolute(), "--out", "p")
    code, out, err = selfsame(*words, "--quiet")
    assert code == 0, err
    assert "not run: fedhide-voxceleb1: " in err and "not run: fedhide-vggface2: " in err
    plain = json.loads(Path("p/table-4.json").read_text())
    text = Path("p/table-4.md").read_text()
    assert text == exhibit_markdown(plain)
    assert max(map(len, out.split("How settings")[0].splitlines())) <= 80  # up to the remarks
    assert str(Path.cwd()) not in text + json.dumps(plain)  # no place of this machine
    (part,) = plain["parts"]
    titles = ["FedHide(0.5)", "fixed", "untrained network", "no negative term"]  # fixed vectors are there already
    assert [one["title"] for one in part["variants"]] == titles
    assert [one["control"] for one in part["variants"]] == ["", "", *titles[2:]]
    assert [one["rounds"] for one in part["variants"]] == [2, 2, 0, 2]
    assert all(one["seeds"] == [0, 1] and one["figures"]["p@1"]["measured"] for one in part["variants"])
    assert "| untrained network (control) | P@1 % | – |" in text and "Controls are ours" in text
    hide = part["variants"][0]
    told = {one.title: one.digest for one in read_experiment(Path("mine/fedhide-cifar100.toml")).variants}
    assert {one["title"]: one["digest"] for one in part["variants"][:2]} == told and len(set(told.values())) == 2
    assert [one["digest"] for one in part["variants"][2:]] == [hide["digest"]] * 2
    assert hide["settings"]["method"] == {"name": "fedhide", "alpha": 0.5, "neighbours": 3}
    assert hide["settings"]["run"]["rounds"] == 2 and not {"seed", "device"} & set(hide["settings"]["run"])
    assert list(hide["figures"]) == ["p@1", "leak", "recovered"] and hide["seeds"] == [0, 1]
    value = hide["figures"]["p@1"]
    mean = sum(value["values"]) / 2
    assert value["measured"] == pytest.approx(mean) and value["difference"] == pytest.approx(mean - 58.0)
    half = abs(value["values"][0] - value["values"][1]) / 2
    row = (
        f"| FedHide(0.5) | P@1 % | 58.0 ± 1.8 | {mean:.1f} ± {half:.1f} | {mean - 58:+.1f} | 2 | 0, 1; collapsed: all |"
    )
    assert row in text and "| fixed | P@1 % | ≈ 50.0 |" in text and "Run with selfsame" in text
    assert "- How settings were chosen: as the paper prints them.\n- How settings of fixed were chosen: by test" in text
    assert [one["chosen"] for one in part["variants"]] == ["as the paper prints them", "by test data", "", ""]
    assert [one["recipe"] for one in plain["missing"]] == ["fedhide-voxceleb1", "fedhide-vggface2"]
    assert "veri\\_test2.txt" in text.split("## Not run")[1]

    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        assert selfsame(*words, "--quiet") == (code, out, err)
        code, out, _ = selfsame("paper", "fedhide", "--table", 3, "--recipes", "mine", "--out", "p", "--quiet")
    assert code == 0 and "cosine to proxy" in out and "P@1" not in out.split("How settings")[0]
    assert "| FedHide(0.5) | cosine to proxy | 0.50 |" in Path("p/table-3.md").read_text()  # of the same runs
    with monkeypatch.context() as patch:
        patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))
        for number in ("3", "S3"):
            code, _, err = selfsame(
                "paper", "fedhide", "--figure", number, "--recipes", "mine", "--out", "p", "--quiet"
            )
            assert code == 0, err
    for page in ("table-3", "table-4", "figure-3", "figure-s3"):
        remade(Path("p"), page)
    assert "](figure-s3-fedhide-cifar100.svg)" in Path("p/figure-s3.md").read_text()
    space, _ = drawn("p/figure-s3.json")["panes"]  # of two seeds
    assert space["kind"] == "space" and space["samples"] and len(space["truth"]) == len(space["proxy"]) > 1
    curve, plane = drawn("p/figure-3.json")["panes"]
    assert {line["title"] for line in curve["lines"]} == {"FedHide(0.5)", "untrained network", "no negative term"}
    assert [line["x"] for line in curve["lines"] if line["from"] == "paper"] == [[2]] and len(plane["lines"]) >= 2


def test_what_was_found_stays_where_the_data_are_gone(selfsame):
    Path("mine/fedhide-cifar100.toml").write_text(SMALL)
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", "empty", "--out", "p", "--quiet")
    code, _, err = selfsame(*words)
    assert code == 0, err
    page, before = Path("p/table-4.md").read_text(), json.loads(Path("p/table-4.json").read_text())
    Path("mine/fedhide-cifar100.toml").write_text(SMALL.replace('"digits"\nturns = 1', '"cifar100"'))
    code, out, err = selfsame(*words)
    assert code == 1 and "not run: fedhide-cifar100: empty" in err and "| FedHide(0.5) |" in page
    assert (Path("p/table-4.md").read_text(), json.loads(Path("p/table-4.json").read_text())) == (page, before)
    assert "FedHide(0.5)" in out
    code, out, err = selfsame(*words, "--share", "0.5")  # another command, of which nothing is known
    assert code == 1 and out == "" and "p/table-4.md: stays; it tells of runs" in err
    assert (Path("p/table-4.md").read_text(), json.loads(Path("p/table-4.json").read_text())) == (page, before)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("data.nosuch=1", "unknown option 'nosuch'"),
        ("data.name=nosuch", "unknown data set 'nosuch'"),
        ("method.nosuch=1", "unknown option 'nosuch'"),
    ],
)
def test_a_wrong_option_is_no_lack_of_data(setting, said, selfsame):
    """Nor does it touch the page that is there."""
    for name in ("cifar10", "cifar100"):
        Path(f"mine/fedaws-table1-{name}.toml").write_text(FAR.format(name))
    Path("p").mkdir()
    Path("p/table-1.md").write_text("a page")
    words = ("paper", "fedaws", "--table", "1", "--recipes", "mine", "--path", "empty", "--out", "p")
    code, out, err = selfsame(*words, "--set", setting)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert Path("p/table-1.md").read_text() == "a page" and sorted(Path("p").iterdir()) == [Path("p/table-1.md")]


def test_an_option_that_only_the_loader_can_judge_is_no_lack_of_data_either(selfsame):
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", "empty", "--out", "p")
    for name in ("voxceleb1", "vggface2"):
        Path(f"mine/fedhide-{name}.toml").write_text(SMALL)
    assert selfsame(*words, "--set", "data.turns=9") == (2, "", "selfsame: digits: turns must be 1 to 4, got 9\n")


def test_a_run_that_diverged_counts_where_it_is_shown_and_chosen(selfsame):
    """Table 4 has FedGN, Fig. S3 does not."""
    wild = '[[variant]]\ntitle = "FedGN(0.1)"\nmethod = { name = "fedgn" }\nlocal = { lr = 1e30 }\n'
    Path("mine/fedhide-cifar100.toml").write_text(SMALL.replace("seeds = [0, 1]", "") + wild)
    words = ("paper", "fedhide", "--recipes", "mine", "--out", "p", "--bootstrap", "0", "--quiet")
    code, _, _ = selfsame(*words, "--table", "4", "--only", "FedGN", "--only", "FedHide")
    assert code == 1 and "FedGN(0.1): diverged" in Path("p/table-4.md").read_text()
    assert selfsame(*words, "--figure", "S3")[0] == 0  # it is not on that page
    assert selfsame(*words, "--table", "4", "--only", "FedHide")[0] == 0
    assert selfsame(*words, "--table", "4", "--only", "FedGN")[0] == 1


def test_a_place_that_is_not_there(selfsame):
    answer = selfsame("paper", "fedhide", "--recipes", "mine", "--path", "nowhere", "--out", "p")
    assert answer == (2, "", "selfsame: --path nowhere: no such folder\n") and not Path("p").exists()
    code, _, err = selfsame("paper", "nosuch")
    assert (code, err) == (2, "selfsame: unknown paper 'nosuch'; known: fdml, fedaws, fedhide, fedmetric, feduv\n")


def drawn(page):
    return json.loads(Path(page).read_text())["parts"][0]["drawing"]


def remade(folder, page, seeds="0, 1"):
    """Everything of a page is what its JSON alone makes, byte for byte."""
    plain = json.loads((folder / f"{page}.json").read_text())
    found = exhibit_files(plain)
    assert {f"{page}.json", f"{page}.md"} <= set(found)
    assert len(found) == 2 + sum(part["drawing"] is not None for part in plain["parts"])
    for name, content in found.items():
        assert (folder / name).read_bytes() == content, name
    text = found[f"{page}.md"].decode()
    assert MARK in text and plain["command"] in text and seeds in text


UV = """
[data]
name = "digits"
turns = 1
[run]
rounds = 2
eval_every = 2
device = "cpu"
training_figures = true
[local]
batch = 4
[paper]
where = "FedUV"
[[variant]]
title = "FedUV(31)"
method = { name = "feduv", code_length = 31, secrets = "seeded" }
[[variant]]
title = "softmax"
method = { name = "softmax" }
"""


def test_curves_of_three_populations_and_of_training(selfsame):
    """As FedUV's Figs. 3 and 4, on digits."""
    Path("mine/feduv-fig3-mnist-uv.toml").write_text(UV.rpartition("[[variant]]")[0])
    Path("mine/feduv-fig4-mnist-uv.toml").write_text(UV)
    for name in ("celeba", "voxceleb", "audiomnist"):
        Path(f"mine/feduv-fig4-{name}.toml").write_text(FAR.format(name.replace("voxceleb", "voxceleb_uv")))
    code, _, err = selfsame("paper", "feduv", "--recipes", "mine", "--out", "p", "--quiet")
    assert code == 0, err
    panes = drawn("p/figure-4.json")["panes"]
    assert [pane["title"] for pane in panes] == ["training data", "test data", "new users"]
    for pane in panes:
        assert (pane["x"], pane["y"], pane["log"]) == ("FPR (%)", "TPR (%)", True)
        assert [line["title"] for line in pane["lines"] if line["from"] == "ours"] == ["FedUV(31)", "softmax"]
        assert {line["title"] for line in pane["lines"] if line["from"] == "control"} == {
            "untrained network", "fixed vectors",
        }  # fmt: skip
        for line in pane["lines"]:
            rising = zip(line["y"], line["y"][1:], strict=False)
            assert line["from"] == "said" or (all(a <= b for a, b in rising) and line["y"][-1] == 100)
    (pane,) = drawn("p/figure-3.json")["panes"]
    titles = [line["title"] for line in pane["lines"] if line["from"] == "ours"]
    assert titles == ["FedUV(31)", "FedUV(31), training"]
    plain = json.loads(Path("p/figure-4.json").read_text())
    assert {name: (Path("p") / name).read_bytes() for name in exhibit_files(plain)} == exhibit_files(plain)


FDML = """
seeds = [0, 1]
[data]
name = "digits"
turns = 2
[method]
name = "fdml"
[run]
rounds = 4
eval_every = 4
device = "cpu"
[cohort]
sampling = "all"
[local]
batch = 4
lr = 1.0
[server]
optimiser = "adam"
lr = 1e-3
[paper]
where = "FDML, Table I"
portions = [3, 2, 2, 2]
[[variant]]
title = "FDML"
paper = { vii_c = 80.88 }
[[variant]]
title = "FDML, exceptions"
"""


def check_intervals(part, text):
    """14 people were trained with and 6 were not, of whom there are too few."""
    drawn = [
        json.loads(Path(f"p/fdml-touchauth/01-fdml{end}/exhibit.json").read_text())["found"]["drawn 200 seen"]
        for end in ("", "-seed1")
    ]
    assert drawn[0]["who"] == drawn[1]["who"] and drawn[0]["figures"] != drawn[1]["figures"]
    mean = 50 * sum(np.array(one["figures"]["eer_seen"]) for one in drawn)
    ends = np.quantile(mean, [0.025, 0.975])
    variants = {one["title"]: one["figures"] for one in part["variants"]}
    found = variants["FDML"]["eer_seen"]
    assert found["interval"]["mean"] == pytest.approx(ends) and len(found["interval"]["seeds"]) == 2
    value = f"{found['measured']:.1f} ± {found['half_range']:.1f} [{ends[0]:.1f}, {ends[1]:.1f}]"
    assert f"| FDML | {value} | " in text and text.count("drawn again 200 times") == 1
    assert all(one["eer_seen"]["interval"] for one in variants.values())
    assert all(one[key]["interval"] is None for one in variants.values() for key in ("eer", "vii_c"))
    said = sorted(remark for remark in part["remarks"] if remark.startswith("no interval by person"))  # each once
    why = "6 people have genuine trials, 10 are needed"
    assert said == [f"no interval by person, accuracy (VII-C): {why}", f"no interval by person, new: {why}"]


def test_the_accuracy_of_fdml_is_measured_on_the_runs(selfsame, monkeypatch):
    Path("mine/fdml-touchauth.toml").write_text(FDML)
    Path("mine/fdml-cameraauth.toml").write_text(FAR.format("imagefolder"))
    words = ("paper", "fdml", "--table", "i", "--recipes", "mine", "--out", "p", "--path", "empty", "--quiet")
    code, _, err = selfsame(*words, "--share", "0.5")
    assert code == 0 and "not run: fdml-cameraauth: empty/lfw: no such folder" in err
    plain = json.loads(Path("p/table-i.json").read_text())
    variants = {one["title"]: one for one in plain["parts"][0]["variants"]}
    assert list(variants) == ["FDML", "untrained network", "fixed vectors"]  # the exceptions are Table II's
    assert variants["FDML"]["rounds"] == 2 and plain["command"].endswith(
        "--table I --path DATA --recipes mine --share 0.5"
    )
    assert list(variants["FDML"]["figures"]) == ["vii_c", "eer_seen", "eer"]
    for title, folder in (("FDML", "01-fdml"), ("fixed vectors", "control-fixed")):
        found = variants[title]["figures"]["vii_c"]
        runs = [open_run(Path("p/fdml-touchauth") / (folder + end)) for end in ("", "-seed1")]
        each = [100 * drawn_accuracies(run, Portions(3, 2, 2, 2)).mean() for run in runs]
        assert found["values"] == pytest.approx(each) and found["measured"] == pytest.approx(sum(each) / 2)
    less = variants["FDML"]["figures"]["vii_c"]["measured"] - 80.88
    assert f"| FDML | accuracy (VII-C) % | 80.88 | {less + 80.88:.1f} ± " in Path("p/table-i.md").read_text()
    remade(Path("p"), "table-i")
    check_intervals(plain["parts"][0], Path("p/table-i.md").read_text())
    with monkeypatch.context() as patch:
        for name in ("open_run", "load_run"):
            patch.setattr(f"selfsame.runs.paper_measures.{name}", lambda *_, **__: pytest.fail("measured again"))
        assert selfsame(*words, "--share", "0.5")[0] == 0
        assert json.loads(Path("p/table-i.json").read_text()) == plain
        assert selfsame(*words, "--share", "0.5", "--bootstrap", "0")[0] == 0
    none = json.loads(Path("p/table-i.json").read_text())
    assert none["command"].endswith(" --bootstrap 0") and "In brackets" not in Path("p/table-i.md").read_text()
    assert all(one["interval"] is None for each in none["parts"][0]["variants"] for one in each["figures"].values())
    code, _, err = selfsame(*words, "--share", "0.25")
    assert code == 2 and "holds a run of another recipe" in err


def test_the_enclave_is_timed(selfsame, monkeypatch):
    monkeypatch.setattr("selfsame.config.exhibits.ENCLAVE_SECONDS", {3: 0.48, 5: 2.19})
    words = ("paper", "fdml", "--table", "V", "--out", "p", "--quiet")
    code, out, err = selfsame(*words)
    assert code == 0, err
    text, plain = Path("p/table-v.md").read_text(), json.loads(Path("p/table-v.json").read_text())
    assert text == exhibit_markdown(plain) and "| 3 | 0.48 |" in text and "--path" not in plain["command"]
    assert [one["participants"] for one in plain["timings"]["rows"]] == [3, 5]
    assert selfsame(*words) == (code, out, err)  # an earlier call's seconds


@pytest.mark.parametrize("damage", ["[1,2]", "{", '{"format": 3, "file": "table-v", "timings": {"rows": [1]}}'])
def test_a_damaged_page_is_timed_anew(damage, selfsame, monkeypatch):
    monkeypatch.setattr("selfsame.config.exhibits.ENCLAVE_SECONDS", {3: 0.48})
    Path("p").mkdir()
    Path("p/table-v.json").write_text(damage)
    code, _, err = selfsame("paper", "fdml", "--table", "V", "--out", "p", "--quiet")
    assert (code, err) == (0, "") and "| 3 | 0.48 |" in Path("p/table-v.md").read_text()


def test_only_names_variants_of_any_recipe(selfsame):
    """One that a text does not fit is left alone; a text that fits none is refused."""
    for name, title in (("cifar10", "ResNet-8"), ("cifar100", "ResNet-56")):
        text = SMALL.replace("seeds = [0, 1]", "").partition("[[variant]]")[0]
        text += f'[[variant]]\ntitle = "{title}"\nmethod = {{ name = "fixed" }}\n'
        Path(f"mine/fedaws-table1-{name}.toml").write_text(text)
    words = ("paper", "fedaws", "--table", "1", "--recipes", "mine", "--out", "p", "--quiet", "--only")
    code, _, err = selfsame(*words, "ResNet-56")
    assert code == 0, err
    command = json.loads(Path("p/table-1.json").read_text())["command"]
    assert command == "selfsame paper fedaws --table 1 --path DATA --recipes mine --only ResNet-56"
    parts = json.loads(Path("p/table-1.json").read_text())["parts"]
    ended = {one["title"]: one["ended"] for part in parts for one in part["variants"]}
    assert ended == {"ResNet-8": [False], "ResNet-56": [True], "untrained network": [False]}
    code, _, err = selfsame(*words, "ResNet-9")
    assert code == 2 and "--only ResNet-9: no variant has this in its title; there are: ResNet-8; " in err


class Stopped:
    """Somebody who stops the run before its first round."""

    code = 130

    def asked(self):
        return True


def test_a_stopped_command_leaves_the_page_so_far(selfsame, monkeypatch):
    """After each run and when it is stopped; the same command goes on and measures the ended run no second time."""
    whole, begun = progress.train_and_keep, []

    def stopping(run, *words, **more):
        begun.append(run)
        if len(begun) == 1:
            return whole(run, *words, **more)
        page = json.loads(Path("p/table-4.json").read_text())  # before the second run
        assert page["parts"][0]["variants"][0]["ended"] == [True, False]
        patch.setattr("selfsame.runs.stopping.stoppable", lambda *_, **__: nullcontext(Stopped()))
        return whole(run, *words, **more)

    Path("mine/fedhide-cifar100.toml").write_text(
        SMALL.replace("rounds = 2", "rounds = 3").replace("turns = 1", "turns = 2")
    )
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", "empty", "--out", "p", "--quiet")
    with monkeypatch.context() as patch:
        patch.setattr(progress, "train_and_keep", stopping)
        code, out, err = selfsame(*words)
    assert code == 130 and out == "" and "page so far: p/table-4.md" in err
    assert "stopped after round 0 of 3; checkpoint written, the same command goes on" in err and "resume" not in err
    remade(Path("p"), "table-4", "0; not run: 1")
    (part,) = json.loads(Path("p/table-4.json").read_text())["parts"]
    assert part["variants"][0]["figures"]["p@1"]["interval"]["mean"]
    assert [one for one in part["remarks"] if "lacks" in one] == [
        "Of 2 ended runs this page lacks intervals, curves or accuracies yet."  # the untrained network's
    ]
    kept = Path("p/fedhide-cifar100/01-fedhide/exhibit.json")
    before = kept.stat().st_mtime_ns
    code, _, err = selfsame(*words)
    assert code == 0, err
    assert kept.stat().st_mtime_ns == before
    assert all(all(one["ended"]) for one in json.loads(Path("p/table-4.json").read_text())["parts"][0]["variants"])


def test_runs_that_came_without_their_checkpoints(selfsame):
    """Of another machine, say: they are shown, and the page tells how what was set there was chosen."""
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--path", "empty", "--out", "p", "--quiet")
    words += ("--set", "local.lr=0.02", "--chosen", "on another day's images")
    code, _, err = selfsame(*words)
    assert code == 0, err
    text = Path("p/table-4.md").read_text()
    assert "local.lr=0.02. How these were chosen: on another day's images." in text
    assert """--chosen 'on another day'"'"'s images'""" in text  # of the command
    for place in Path("p/fedhide-cifar100").glob("*/checkpoint"):
        shutil.rmtree(place)
    code, _, err = selfsame(*words)
    assert code == 0 and Path("p/table-4.md").read_text() == text, err
    for place in Path("p/fedhide-cifar100").glob("*/exhibit.json"):
        place.unlink()
    code, _, err = selfsame(*words)
    assert code == 0, err
    assert "no interval by person, seen: 01-fedhide: has no checkpoint" in Path("p/table-4.md").read_text()


def test_runs_at_a_time_are_measured_as_they_end(selfsame, forked, monkeypatch):
    """One that cannot be measured then, as on a full GPU, is told of and measured in the end; the others go on."""
    Path("mine/fedhide-cifar100.toml").write_text(SMALL.replace("turns = 1", "turns = 2"))
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--out", "p", "--quiet", "--only", "fixed")
    seen, refused, opened, so_far = [], [], PaperMeasures._opened, Reprint.so_far

    def noted(self, job=None, federation=None):
        found = so_far(self, job, federation)
        seen.append(next(iter(found.values())))
        return found

    def full(self, job):
        if not (seen or refused):
            refused.append(job)
            raise RuntimeError("out of memory")
        return opened(self, job)

    monkeypatch.setattr(Reprint, "so_far", noted)
    monkeypatch.setattr(PaperMeasures, "_opened", full)
    code, _, err = selfsame(*words, "--jobs", 2)
    assert code == 0 and len(seen) == 2
    assert err.count(": not measured yet, tried again in the end: out of memory\n") == 1
    (first,), (second,), (last,) = (one["parts"] for one in (*seen, json.loads(Path("p/table-4.json").read_text())))
    assert [sum(one["variants"][1]["ended"]) for one in (first, second, last)] == [1, 2, 2]
    assert "Of 1 ended runs this page lacks intervals, curves or accuracies yet." in first["remarks"]
    assert "Of 1 ended runs this page lacks intervals, curves or accuracies yet." in second["remarks"]
    assert last["variants"][1]["figures"]["p@1"]["interval"] and not [one for one in last["remarks"] if "lacks" in one]


def test_data_are_looked_at_once_for_all_runs_of_a_network(selfsame, forked, monkeypatch):
    """Before, each was made ready, and measured, with a fingerprint of its own: seconds on a GPU at work."""
    taken, take = [], Fingerprint.of
    monkeypatch.setattr(Fingerprint, "of", lambda federation: taken.append(federation) or take(federation))
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--out", "p", "--quiet", "--only", "fixed")
    assert selfsame(*words, "--jobs", "2")[0] == 0
    assert len(list(Path("p").glob("*/*fixed*/exhibit.json"))) == 2 and len(taken) == 1


def test_what_is_damaged_of_an_ended_run_is_said_before_others_are_trained(selfsame, monkeypatch):
    """Before, it ended the command after the first run, which took however long."""
    Path("mine/fedhide-cifar100.toml").write_text(SMALL.replace("turns = 1", "turns = 2"))
    words = ("paper", "fedhide", "--table", "4", "--recipes", "mine", "--out", "p", "--quiet")
    assert selfsame(*words, "--only", "fixed")[0] == 0
    (kept,) = list(Path("p").glob("*/*fixed/exhibit.json"))
    kept.write_text("{")
    monkeypatch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained"))
    code, out, err = selfsame(*words)
    assert code == 2 and out == "" and str(kept) in err and err.count("\n") == 1


def test_where_nothing_can_be_run_the_page_has_the_papers_figures(selfsame):
    rows = (
        '[[quoted]]\ntitle = "SLEEC"\npaper = { "p@1" = 70.5 }\n'
        '[run]\nrounds = 30\n[paper]\nwhere = "FedAwS, Table 1"\n[[variant]]\ntitle = "A"\npaper = { "p@1" = 65.12 }\n'
        '[[variant]]\ntitle = "B"\n'
    )
    for name in ("cifar10", "cifar100"):
        Path(f"mine/fedaws-table1-{name}.toml").write_text("seeds = [0, 1]\n" + FAR.format(name) + rows)
    code, _, _ = selfsame("paper", "fedaws", "--table", "1", "--recipes", "mine", "--path", "empty", "--quiet")
    text = Path("runs/paper-fedaws/table-1.md").read_text()
    row = "| A | P@1 % | 65.12 | – | – | 30 | not run: 0, 1 |"
    assert code == 1 and text.count(row) == 2
    words = ("paper", "fedaws", "--table", "1", "--recipes", "mine", "--path", "empty", "--quiet", "--out", "q")
    assert selfsame(*words, "--rounds", 7)[0] == 1 and row in Path("q/table-1.md").read_text()  # not "7 of 30"
    assert text.count("| SLEEC | P@1 % | 70.5 | – | – | – | quoted |") == 2
    assert "| B |" not in text and "control" not in text and "Difference: measured less paper." in text


def test_nothing_can_be_run(selfsame):
    for name in ("fedaws-table1-cifar10", "fedaws-table1-cifar100"):
        Path(f"mine/{name}.toml").write_text(FAR.format(name.rpartition("-")[2]))
    code, out, _ = selfsame("paper", "fedaws", "--table", "1", "--recipes", "mine", "--path", "empty", "--quiet")
    assert code == 1 and out == "page: runs/paper-fedaws/table-1.md, figures: runs/paper-fedaws/table-1.json\n"
    text = Path("runs/paper-fedaws/table-1.md").read_text()
    assert text.count("wanted: ") == 2 and "## Not run" in text
    assert json.loads(Path("runs/paper-fedaws/table-1.json").read_text())["parts"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nosuch",), "unknown paper 'nosuch'"),
        (("fedhyde",), "did you mean 'fedhide'"),
        (("fedhide", "--table", "9"), "--table 9: fedhide has no recipe for it; there are: --table 2, --table 3"),
        (("fedhide", "--figure", "9"), "--figure 9: fedhide has no recipe"),
        (("fedhide", "--share", "1.5"), "--share 1.5: expected a number above 0 and up to 1"),
        (("fedhide", "--share", "0.5", "--rounds", "7"), "no --rounds beside it"),
        (("fedhide", "--recipes", "mine", "--bootstrap", "-1"), "--bootstrap: must be at least 0, got -1"),
        (("fedhide", "--recipes", "mine", "--chosen", "by hand"), "--chosen: nothing is set here"),
        (("nosuch.json",), "nosuch.json: No such file"),
        (("mine/other.json",), "mine/other.json: not the JSON of a page of `selfsame paper` (formats 2 to 4)"),
        (("mine/other.json", "--table", "4"), "made anew from its JSON alone"),
        (
            ("fedhide", "--recipes", "empty"),
            "--recipes empty: expected fedhide-cifar100.toml or fedhide-voxceleb1.toml",
        ),
    ],
)
def test_bad_input_is_one_line(words, said, selfsame):
    Path("mine/other.json").write_text('{"format": 1}')
    code, out, err = selfsame("paper", *words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert not Path("runs").exists()


def test_a_page_is_made_anew_from_its_json(selfsame):
    """Also from one of an earlier version, without data and runs."""
    kept = Path(__file__).parents[2] / "docs" / "results" / "papers" / "feduv" / "figure-4.json"
    plain = json.loads(kept.read_text(encoding="utf-8"))
    for part in plain["parts"]:
        part.pop("replicates")
        part["drawing"]["panes"] = [{**pane, "lines": pane["lines"][:1]} for pane in part["drawing"]["panes"][:1]]
        for variant in part["variants"]:
            for figure in variant["figures"].values():
                figure.pop("interval")
    Path("figure-4.json").write_text(json.dumps({**plain, "format": 2}))
    assert selfsame("paper", "figure-4.json") == (0, "page: figure-4.md\n", "")
    now, text = json.loads(Path("figure-4.json").read_text()), Path("figure-4.md").read_text()
    assert now["format"] == 4 and "| softmax | 93.8 ± 0.9 | 2.2 ± 0.2 |" in text and "In brackets" not in text
    assert text == exhibit_markdown(now)
    Path("figure-4.json").write_text(json.dumps({**plain, "format": 2, "parts": [{"recipe": "x"}]}))
    code, out, err = selfsame("paper", "figure-4.json")
    assert (code, out, err) == (2, "", "selfsame: figure-4.json: parts of the page are missing\n")
    now["parts"][0]["drawing"]["file"] = "../elsewhere.svg"
    Path("figure-4.json").write_text(json.dumps(now))
    code, _, err = selfsame("paper", "figure-4.json")
    assert code == 2 and "names a file of another folder: ../elsewhere.svg" in err
    assert Path("figure-4.md").read_text() == text and not Path("../elsewhere.svg").exists()


def test_as_many_replicates_as_the_help_says():
    assert inspect.signature(paper).parameters["bootstrap"].default == REPLICATES


def test_the_oracles_of_fedaws_are_quoted():
    """Its Tables 3 and 4."""
    printed = {
        "table3-amazoncat": {"SLEEC": [90.5, 76.3, 61.5]},
        "table3-amazon670k": {"SLEEC": [35.1, 31.3, 28.6]},
        "table3-wikilshtc": {"SLEEC": [54.8, 33.4, 23.9]},
        "table4-amazoncat": {"Baseline-1": [3.4, 3.2, 3.1], "Baseline-2": [64.1, 46.8, 32.6]},
    }
    for name, rows in printed.items():
        found = read_experiment(Path(__file__).parents[2] / "recipes" / f"fedaws-{name}.toml").quoted
        assert {one.title: [value for value, _ in one.paper.figures.values()] for one in found} == rows
        assert {tuple(one.paper.figures) for one in found} == {("p@1", "p@3", "p@5")}


def test_a_quoted_row_stands_before_the_controls(selfsame):
    quoted = '[[quoted]]\ntitle = "FedHide of others"\npaper = { "p@1" = 77.7 }\n'
    Path("mine/fedhide-cifar100.toml").write_text(SMALL.replace("seeds = [0, 1]", "") + quoted)
    words = ("paper", "fedhide", "--recipes", "mine", "--out", "p", "--bootstrap", "0", "--only", "fixed", "--quiet")
    code, out, err = selfsame(*words, "--table", "4")
    assert code == 0, err
    (part,) = json.loads(Path("p/table-4.json").read_text())["parts"]
    titles = [one["title"] for one in part["variants"]]
    assert titles == ["FedHide(0.5)", "fixed", "FedHide of others", "untrained network", "no negative term"]
    assert "| FedHide of others | P@1 % | 77.7 | – | – | – | quoted |" in Path("p/table-4.md").read_text()
    assert "FedHide of others" in out and not [one for one in part["remarks"] if "of others" in one]


@pytest.mark.parametrize("name", PAPERS)
def test_every_exhibit_has_its_recipes(name, tmp_path):
    for exhibit in find_exhibits(name):
        for recipe in exhibit.recipes:
            usual = recipe_file(Path(__file__).parents[2] / "recipes", recipe)
            assert recipe_file(tmp_path, recipe).samefile(usual)  # a folder of other recipes
            experiment = read_experiment(usual)
            for variant in experiment.variants:  # how settings were chosen is said of each, as a sentence goes on
                words = variant.paper.chosen
                assert words and not words.endswith("."), (recipe, variant.title)
            where = {variant.paper.where for variant in experiment.variants}
            number = "4" if exhibit.number.startswith("S") else exhibit.number  # the supplement shows runs of Table 4
            assert any(re.search(rf"(Tables?|Fig\.) .*{number}", one) for one in where), (recipe, where)
            shown = {key for variant in experiment.variants for key in variant.paper.figures}
            assert not exhibit.figures or not shown or shown & set(exhibit.figures)
    with pytest.raises(SelfsameError):
        find_exhibits(name, "99")
