"""`selfsame paper fedhide --table 2`: a small whole run on digits, lines from elsewhere, and what is refused."""

import json
import os
import signal
import statistics
from pathlib import Path

import numpy as np
import pytest
import typer
from PIL import Image

from selfsame.commands import paper_pictures
from selfsame.config.exhibits import find_exhibits
from selfsame.config.picture_attacks import PictureSettings, cases, picture_settings
from selfsame.report.exhibit_page import exhibit_files
from selfsame.report.picture_cases import sound_cases
from selfsame.report.picture_page import pictures_plain
from selfsame.runs import inversions
from selfsame.runs.inversions import Inversions

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "bench" / "kept" / "inversion-cifar100.jsonl"
SET = (
    "data=digits", "standardise=false", "images=2", "iterations=2", "cohort=4", "sizes=[1, 2]", "sides=[0, 33]",
)  # fmt: skip
SMALL = ("paper", "fedhide", "--table", "2", "--out", "p", "--quiet", *(word for one in SET for word in ("--set", one)))
ONLY = ("--only", "w/o perturbation", "--only", "FedHide (0.01, 5)", "--only", "any", "--only", "crowd")


def lpips(folder):
    """Random numbers in the layout of the published file, with few channels."""
    draw, depth, found = np.random.default_rng(0), 3, {}
    for place, side in enumerate((11, 5, 3, 3, 3)):
        found[f"conv{place}_weight"] = (draw.normal(size=(4, depth, side, side)) / side).astype(np.float32)
        found[f"conv{place}_bias"] = (0.3 * draw.normal(size=4)).astype(np.float32)
        found[f"lin{place}_weight"] = draw.uniform(size=4).astype(np.float32)
        depth = 4
    np.savez(folder / "lpips.npz", **found)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a whole small run, and what it printed."""
    from typer.testing import CliRunner

    from selfsame.cli import app

    folder = tmp_path_factory.mktemp("pictures")
    lpips(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = CliRunner().invoke(app, [*SMALL, "--rounds", "2", *ONLY, "--lpips", "lpips.npz"])
    assert result.exit_code == 0, result.output
    return folder, result.stdout


@pytest.fixture
def here(whole, monkeypatch, tmp_path):
    """A copy of what the run left but for its networks, and the folder with weights of LPIPS."""
    (tmp_path / "p").mkdir()
    for file in [*whole[0].glob("p/table-2*"), whole[0] / "lpips.npz"]:
        if file.is_file():
            (tmp_path / file.relative_to(whole[0])).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def first_seed():
    """The kept lines of the seed that is whole."""
    return [line for line in KEPT.read_text().splitlines(keepends=True) if json.loads(line)["key"]["seed"] == 0]


def lines(file="p/table-2.jsonl"):
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def page(folder="p"):
    """The page's JSON, from which all of the page comes."""
    plain = json.loads(Path(folder, "table-2.json").read_text())
    for name, content in exhibit_files(plain).items():
        assert Path(folder, name).read_bytes() == content, name
    return plain


def nothing(patch):
    """Whoever attacks or trains fails."""
    patch.setattr(inversions, "invert", lambda *_, **__: pytest.fail("attacked again"))
    patch.setattr("selfsame.runs.loop.carry_on", lambda *_, **__: pytest.fail("trained again"))


def test_a_small_run_from_beginning_to_end(whole, here, call, monkeypatch):
    told, plain = lines(), page()
    who = [tuple(line["key"][name] for name in ("network", "method", "attacker", "size")) for line in told]
    hide, crowd = "FedHide (0.01, 5)", "FedCrowd, quadratic"
    assert who == [
        ("untrained", "w/o perturbation", "shared", 1), ("untrained", hide, "shared", 1),
        ("untrained", "any method", "read", 1), ("untrained", "any method", "read", 2),
        ("untrained", crowd, "read", 1),
        ("trained", "w/o perturbation", "shared", 1), ("trained", hide, "shared", 1),
        ("trained", hide, "read", 1), ("trained", hide, "read", 2), ("trained", crowd, "read", 1),
    ]  # fmt: skip
    assert plain["command"] == (
        "selfsame paper fedhide --table 2 --lpips FILE --only 'w/o perturbation' --only 'FedHide (0.01, 5)' "
        "--only any --only crowd --set data=digits --set standardise=false --rounds 2 --set cohort=4 --set images=2 "
        "--set iterations=2 --set 'sizes=[1, 2]' --set 'sides=[0, 33]'"
    )
    text = Path("p/table-2.md").read_text()
    for line in told:
        key, found = line["key"], line["found"]
        cells = []
        for measure, digits in (("lpips 0", 2), ("lpips 33", 2), ("psnr", 1)):
            values = found["found"][measure]
            mean = sum(values) / 2
            cells.append(f"{mean:.{digits}f} ± {(sum((v - mean) ** 2 for v in values) / 2) ** 0.5:.{digits}f}")
        cells.append(f"{sum(v < 0.1 for v in found['found']['lpips 0'])} of 2")
        row = " | ".join(cells)
        if key["attacker"] == "shared":
            right = f" | {100 * found['p@1']:.1f} |" if key["network"] == "trained" else " |"
            assert f"| {key['method']} | {row}{right}" in text
        else:
            right = f", P@1 {100 * found['p@1']:.1f} %" if key["network"] == "trained" else ""
            assert f"| {key['network']}{right} | {key['method']} | {key['size']} | {row} |" in text
    assert "Paper" not in text and "Difference" not in text  # these are not its pictures
    networks = [json.loads(line) for line in (whole[0] / "p/table-2-networks/networks.jsonl").read_text().splitlines()]
    assert {one["key"]["method"]: one["p@1"] for one in networks} == {
        line["key"]["method"]: line["found"]["p@1"] for line in told if line["key"]["network"] == "trained"
    }
    for one in networks:
        (run,) = [f for f in (whole[0] / "p/table-2-networks").glob("*/metrics.jsonl")
                  if f.parent.name.endswith(inversions._digest(one["key"]))]  # fmt: skip
        assert json.loads(run.read_text().splitlines()[-1])["p@1"] == one["p@1"]
    assert "Not run yet: FedGN (0.01), " in text and str(whole[0]) not in text + json.dumps(plain)
    with Image.open("p/table-2.png") as drawn:
        assert drawn.size[1] == 14 + 8 + 8 * 68  # originals, then seven rows
    with monkeypatch.context() as patch:
        nothing(patch)
        code, out, err = call(*SMALL, "--rounds", 2, *ONLY, "--lpips", "lpips.npz")
    assert (code, err) == (0, "") and page() == plain
    assert out.replace(", pictures: p/table-2.png", "") == whole[1].replace(", pictures: p/table-2.png", "")


def test_a_case_that_is_gone_is_attacked_again_and_finds_the_same(here, call):
    before = lines()
    gone = [one for one in before if one["key"]["network"] == "untrained"][2:4]
    Path("p/table-2.jsonl").write_text("".join(json.dumps(one) + "\n" for one in before if one not in gone))
    code, _, err = call(*SMALL, "--rounds", 2, *ONLY, "--lpips", "lpips.npz")
    assert (code, err) == (0, "")
    again = lines()[-2:]
    for one, other in zip(gone, again, strict=True):
        assert one["key"] == other["key"]
        for name in ("found", "unrelated", "chance", "blank"):
            for measure, values in one["found"][name].items():
                assert other["found"][name][measure] == pytest.approx(values)


def test_figures_are_of_the_pictures_that_were_kept(whole):
    """PSNR of originals and finds of one device, in bytes, against the lines'."""
    for line in lines(whole[0] / "p/table-2.jsonl"):
        both = np.load(inversions.picture_file(whole[0] / "p/table-2-pictures", line["key"])) / 255
        assert both.shape == (2, 2, 1, 8, 8)
        for first, other, psnr in zip(*both, line["found"]["found"]["psnr"], strict=True):
            gaps = [(a - b) ** 2 for a, b in zip(first.flatten(), other.flatten(), strict=True)]
            assert -10 * np.log10(sum(gaps) / 64) == pytest.approx(psnr, abs=0.05)


def test_without_lpips_there_is_psnr_alone_and_with_it_such_a_case_is_no_finished_one(here, call, monkeypatch):
    told = lines()
    for line in told:
        for name in ("found", "unrelated", "chance", "blank"):
            line["found"][name] = {"psnr": line["found"][name]["psnr"]}
    Path("p/table-2.jsonl").write_text("".join(json.dumps(one) + "\n" for one in told))
    with monkeypatch.context() as patch:
        nothing(patch)
        code, _, err = call(*SMALL, "--rounds", 2, *ONLY)
        assert (code, err) == (0, "")
    text = Path("p/table-2.md").read_text()
    assert "Without LPIPS, which wants its published weights" in text and "| Method | PSNR | Found |" in text
    assert "--lpips" not in page()["command"] and "| – |" in text
    code, _, err = call(*SMALL, "--rounds", 2, "--only", "any", "--lpips", "lpips.npz")
    assert (code, err) == (0, "") and len(lines()) == len(told) + 2
    assert [len(case["found"]) for case in page()["pictures"]["cases"] if case["method"] == "any method"] == [3, 3]


BROKEN = [
    ("[1, 2]\n", ""),
    ("[" * 100_000 + "\n", ""),
    ('{"key": {"network": "untr', ""),
    ("\xff\xfe\n", ""),
    (lambda one: one.update(found=7), "nothing was found"),
    (lambda one: one["found"]["found"].pop("psnr"), "without PSNR"),
    (lambda one: one["found"]["blank"].update(psnr=[1.0]), "expected 2 numbers for each measure"),
    (lambda one: one["found"]["found"].update(psnr=[1.0, float("nan")]), "expected 2 numbers for each measure"),
    (lambda one: one["found"]["found"].update(psnr=["| x |", True]), "expected 2 numbers for each measure"),
    (lambda one: one["found"]["chance"].pop("lpips 0"), "its figures have other measures each"),
    (lambda one: one["found"].update({"p@1": 49}), "no P@1 or seconds that can be"),
    (lambda one: one["found"].update(seconds=None), "no P@1 or seconds that can be"),
    (lambda one: one["found"].update(mismatch="<script>"), "no mismatch that can be"),
    (lambda one: one["found"].update(torch=["x"]), "is not said in words and numbers"),
]


@pytest.mark.parametrize(("damage", "said"), BROKEN)
def test_a_broken_line_is_passed_over(damage, said, here, call):
    """Its case is attacked again where it is asked for, and the others stay as they are."""
    first, *rest = lines()
    text = "".join(json.dumps(one) + "\n" for one in rest)
    if isinstance(damage, str):
        Path("p/table-2.jsonl").write_bytes(text.encode() + damage.encode("latin-1"))
    else:
        damage(first)
        Path("p/table-2.jsonl").write_text(json.dumps(first) + "\n" + text)
    words = (*SMALL, "--rounds", 2, "--lpips", "lpips.npz", "--only")
    code, _, err = call(*words, "crowd")
    assert code == 0 and len(page()["pictures"]["cases"]) == len(rest)
    first = "p/table-2.jsonl: 1 lines are no finished attacks; the first: untrained, w/o perturbation, shared, 1, 0: "
    assert (err.startswith(first) and said in err and err.count("\n") == 1) if said else err == ""
    if damage == BROKEN[2][0] or said == "nothing was found":
        code, _, _ = call(*SMALL, "--rounds", 0, "--lpips", "lpips.npz", "--only", "w/o")
        assert code == 0 and [one for one in page()["pictures"]["cases"] if one["method"] == "w/o perturbation"]


def test_lines_of_other_settings_are_told_of_and_left_alone(here, call, monkeypatch):
    before = Path("p/table-2.jsonl").read_bytes()
    nothing(monkeypatch)
    words = [word if word != "iterations=2" else "iterations=3" for word in SMALL]
    patient = [("data=cifar100" if word == "data=digits" else word) for word in words]
    Path("empty").mkdir()
    code, _, err = call(*patient, "--path", "empty")
    assert code == 1 and "p/table-2.jsonl: 10 lines are of other settings\n" in err
    assert "p/table-2.md: stays; it tells of attacks, and this command has none to tell of" in err
    assert Path("p/table-2.jsonl").read_bytes() == before and page()["pictures"]["settings"]["iterations"] == 2


def test_lines_of_the_paper_make_its_page_without_data_or_attack(call, monkeypatch, tmp_path):
    """The page in the manual, byte for byte."""
    monkeypatch.chdir(tmp_path)
    nothing(monkeypatch)
    monkeypatch.setattr("selfsame.data.load", lambda *_: pytest.fail("data are not needed"))
    Path("p").mkdir()
    Path("p/table-2.jsonl").write_text("".join(first_seed()))
    code, out, err = call("paper", "fedhide", "--table", 2, "--out", "p")
    assert (code, err) == (0, "") and max(map(len, out.split("The paper's attacker")[0].splitlines())) <= 80
    text = Path("p/table-2.md").read_text()
    Path("p/table-2.md").unlink()
    code, out, err = call("paper", "p/table-2.json")
    assert (code, out, err) == (0, "page: p/table-2.md\n", "") and page()["paper"] == "fedhide"
    assert Path("p/table-2.md").read_text() == text

    ours = ROOT / "docs/results/papers/fedhide"  # the page of all seeds, with what is left of two of them
    kept = [json.loads(line) for line in KEPT.read_text().splitlines()]
    settings = PictureSettings(seeds=(0, 1, 2))
    found, wrong, others = sound_cases(kept, settings)
    assert json.loads((ours / "table-2.json").read_text())["pictures"] == pictures_plain(settings, found)
    assert (wrong, others) == ([], 0)
    Path("p/table-2.json").write_bytes((ours / "table-2.json").read_bytes())
    assert call("paper", "p/table-2.json")[0] == 0
    assert Path("p/table-2.md").read_bytes() == (ours / "table-2.md").read_bytes()


def test_without_data_the_page_has_the_papers_figures_and_what_is_wanted(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    answer = call("paper", "fedhide", "--table", 2, "--out", "p", "--path", tmp_path / "empty")
    assert answer[0] == 1 and "not run: cifar100: " in answer[2]
    text, plain = Path("p/table-2.md").read_text(), page()
    assert "table-2 (36 runs on cifar100): DATA: train.bin not found; wanted: train.bin and test.bin" in text
    assert "| FedGN (0.01) | 0.54 ± 0.08 | – | – |" in text and str(tmp_path) not in text + json.dumps(plain)
    assert "Not run yet" not in text and sorted(map(str, Path("p").iterdir())) == ["p/table-2.json", "p/table-2.md"]


def test_seeds_have_networks_attacks_and_a_mean(here, call):
    words = (*SMALL, "--rounds", 0, "--set", "seeds=[0, 1]", "--set", "read=", "--only", "w/o", "--lpips", "lpips.npz")
    code, _, err = call(*words, "--chosen", "by lot")
    assert code == 0, err
    told = [one for one in lines() if one["key"]["method"] == "w/o perturbation" and one["key"]["rounds"] == 0]
    assert [one["key"]["seed"] for one in told] == [0, 1]
    means = [statistics.fmean(one["found"]["found"]["psnr"]) for one in told]
    assert f" {sum(means) / 2:.1f} ± {abs(means[0] - means[1]) / 2:.1f} | " in Path("p/table-2.md").read_text()
    assert told[0]["found"]["found"] != told[1]["found"]["found"]
    assert "How these were chosen: by lot." in Path("p/table-2.md").read_text()
    assert page()["command"].endswith("--chosen 'by lot'")


def test_somebody_stops_it_and_the_same_command_goes_on(here, call, monkeypatch):
    Path("p/table-2.jsonl").unlink()
    words, whole, begun = (*SMALL, "--rounds", 0, "--set", "read=", "--only", "FedGN"), Inversions.case, []

    def stopped(self, key):
        begun.append(key)
        if len(begun) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)  # as `timeout` does
        return whole(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(Inversions, "case", stopped)
        code, out, err = call(*[word for word in words if word != "--quiet"])
    assert code == 143 and out == "" and len(begun) == 2
    assert "untrained, FedGN (0.01), proxy taken, seed 0: " in err
    assert "selfsame: stopping; finished attacks are kept" in err
    assert err.endswith("page so far: p/table-2.md\nselfsame: stopped; the same command goes on\n")
    assert [one["method"] for one in page()["pictures"]["cases"]] == ["FedGN (0.01)"]
    code, _, err = call(*words)
    assert (code, err) == (0, "")
    assert [one["key"]["method"] for one in lines()] == ["FedGN (0.01)", "FedGN (0.05)", "FedGN (0.1)"]


def test_a_training_that_is_stopped_goes_on(here, call, monkeypatch):
    words = (*SMALL, "--rounds", 3, "--only", "FedCS (0.9)")

    def stopped(run, *_, **__):
        raise typer.Exit(130)

    with monkeypatch.context() as patch:
        patch.setattr(paper_pictures, "train_and_keep", stopped)
        code, _, _ = call(*words)
    assert code == 130 and not [one for one in lines() if one["key"]["rounds"] == 3]
    assert call(*words)[0] == 0
    assert [(one["key"]["network"], one["key"]["rounds"]) for one in lines()[10:]] == [("untrained", 0), ("trained", 3)]


def test_an_attack_that_fails_is_told_and_the_others_are_made(here, call, monkeypatch):
    Path("p/table-2.jsonl").unlink()
    whole = Inversions.case

    def full(self, key):
        if key["method"] == "FedGN (0.05)":
            raise RuntimeError("out of memory")
        return whole(self, key)

    monkeypatch.setattr(Inversions, "case", full)
    code, _, err = call(*SMALL, "--rounds", 0, "--set", "read=", "--only", "FedGN")
    assert code == 1 and "RuntimeError: out of memory" in err and "1 of 3 runs failed" in err
    assert [one["method"] for one in page()["pictures"]["cases"]] == ["FedGN (0.01)", "FedGN (0.1)"]


def test_several_processes_share_the_attacks(here, call):
    Path("p/table-2.jsonl").unlink()
    code, out, err = call(*SMALL, "--rounds", 0, "--set", "read=", "--only", "FedGN", "--jobs", 2, "--device", "cpu")
    assert code == 0, err
    assert sorted(one["key"]["method"] for one in lines()) == ["FedGN (0.01)", "FedGN (0.05)", "FedGN (0.1)"]
    assert len(page()["pictures"]["cases"]) == 3 and "page: p/table-2.md" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--set", "nosuch=1"), "the attack on pictures has no 'nosuch'"),
        (("--set", "iterations=many"), "--set iterations: expected a whole number, got 'many'"),
        (("--set", "iterations=0"), "--set iterations: must be at least 1, got 0"),
        (("--set", "seeds=[]"), "--set seeds: expected one or more whole numbers, each once, got []"),
        (("--set", "sizes=[1, 1]"), "--set sizes: expected one or more whole numbers, each once"),
        (("--set", "sizes=[9]"), "--set sizes: 14 clients are too few for groups of 9"),
        (("--set", "images=sea"), "no class of digits is called 'sea'"),
        (("--set", "images=99"), "--set images: digits has 14 clients"),
        (("--set", "read=nosuch"), "--set read: expected all or some of w/o perturbation; "),
        (("--set", "weights=odd"), "weights must be one of equal, linear, layers"),
        (("--set", "data=nosuch"), "unknown data set 'nosuch'"),
        (("--set", "net=nosuch"), "nosuch"),
        (("--set", "sides=[7]", "--lpips", "lpips.npz"), "LPIPS: needs pictures of side 31 or more, got 7"),
        (("--lpips", "nosuch.npz"), "nosuch.npz: no such file"),
        (("--lpips", "p"), "p: no weights of LPIPS"),
        (("--only", "nosuch"), "--only nosuch: no row has this in its title; there are: w/o perturbation; "),
        (("--rounds", "-1"), "must be at least 0, got -1"),
        (("--device", "tpu"), "run.device: 'tpu' is not a device"),
        (("--path", "nowhere"), "--path nowhere: no such folder"),
        (("--figure", "3"), "--table 2: attacks on pictures have no recipe"),
        (("--recipes", "p"), "--table 2: attacks on pictures have no recipe"),
        (("--share", "0.5"), "--table 2: attacks on pictures have no recipe"),
        (("--bootstrap", "0"), "--table 2: attacks on pictures have no recipe"),
    ],
)
def test_bad_input_is_one_line_and_changes_nothing(words, said, here, call):
    before = {file: file.read_bytes() for file in Path("p").iterdir()}
    code, out, err = call(*SMALL, "--set", "iterations=3", *words)
    assert code == 2 and out == "" and said in err and err.count("\n") == 1
    assert {file: file.read_bytes() for file in Path("p").iterdir()} == before


def test_lpips_is_for_pictures_and_all_of_a_paper_has_none(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = call("paper", "fedhide", "--table", 4, "--lpips", "x.npz")
    assert code == 2 and "--lpips: judges pictures, which FedHide's Table 2 alone has" in err
    assert "Table 2" not in [one.name for one in find_exhibits("fedhide")]
    assert [one.pictures for one in find_exhibits("fedhide", "2")] == [True]


def test_pages_of_two_machines_are_joined(call, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    nothing(monkeypatch)
    told = first_seed()
    Path("empty").mkdir()
    for name, some in (("all", told), ("one", told[:20]), ("two", told[15:])):
        Path(name).mkdir()
        Path(name, "table-2.jsonl").write_text("".join(some))
        call("paper", "fedhide", "--table", 2, "--out", name, "--quiet", "--path", "empty")
    assert len(page("one")["pictures"]["cases"]) == 20 and page("one")["missing"]
    code, _, err = call("paper", "one/table-2.json", "--join", "two/table-2.json")
    assert (code, err) == (0, "")
    joined = page("one")
    assert joined["pictures"] == page("all")["pictures"] and joined["missing"] == []
    assert Path("one/table-2.md").read_text() == Path("all/table-2.md").read_text()

    other = page("two")
    other["pictures"]["settings"]["iterations"] = 7
    Path("two/table-2.json").write_text(json.dumps(other))
    code, _, err = call("paper", "one/table-2.json", "--join", "two/table-2.json")
    said = "selfsame: one/table-2.json and two/table-2.json: were attacked with another iterations each\n"
    assert (code, err) == (2, said) and page("one") == joined


@pytest.mark.parametrize(
    "damage",
    [
        lambda pictures: pictures.update(cases=[{}]),
        lambda pictures: pictures["settings"].update(nosuch=1),
        lambda pictures: pictures["settings"].update(seeds=[]),
        lambda pictures: pictures["cases"][0]["found"].update(psnr=["x"]),
        lambda pictures: pictures.pop("cases"),
    ],
)
def test_a_damaged_page_is_refused(damage, here, call):
    plain = page()
    damage(plain["pictures"])
    Path("p/table-2.json").write_text(json.dumps(plain))
    text = Path("p/table-2.md").read_text()
    code, out, err = call("paper", "p/table-2.json")
    assert (code, out) == (2, "") and err.startswith("selfsame: p/table-2.json: ") and err.count("\n") == 1
    assert Path("p/table-2.md").read_text() == text


def test_the_cases_are_those_that_were_kept():
    kept = [json.loads(line)["key"] for line in KEPT.read_text().splitlines()]
    wanted = list(cases(PictureSettings()))
    assert len(wanted) == len(first_seed()) == 36 and all(key in kept for key in wanted)
    more = list(cases(PictureSettings(seeds=(0, 1, 2))))
    assert all(key in more for key in kept) and len({json.dumps(key, sort_keys=True) for key in kept}) == len(kept)


def test_settings_are_typed_as_they_are_read():
    settings = picture_settings(["images=3", "sizes=[1]", "standardise=false", "read=all", "net=resnet8"], 7)
    typed = [text.removeprefix("--set ") for text in settings.changed() if text.startswith("--set")]
    assert picture_settings(typed, 7) == settings and "--rounds 7" in settings.changed()
    assert len(list(cases(settings))) == 2 * 13 + 1 + 13 + 2 * 2
