"""The page of FedHide's Table 2: figures again by plain loops over the kept lines, and the paper's."""

import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfsame.config.picture_attacks import PictureSettings
from selfsame.errors import SelfsameError
from selfsame.report.picture_cases import attacks_left, known_by, sound_cases
from selfsame.report.picture_grid import drawn_grid, read_pictures
from selfsame.report.picture_page import joined_pictures, picture_lines, pictures_plain

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "papers/fedhide/table-2.md").read_text(encoding="utf-8")
LINES = [json.loads(one) for one in (ROOT / "bench/kept/inversion-cifar100.jsonl").read_text().splitlines()]
MEASURES = {"lpips 0": 2, "lpips 64": 2, "psnr": 1}
HIDE = "FedHide (0.01, 5)"


def spread_words(values, digits):
    mean = math.fsum(values) / len(values)
    return f"{mean:.{digits}f} ± {math.sqrt(math.fsum((v - mean) ** 2 for v in values) / len(values)):.{digits}f}"


def papers():
    """The paper's figures as the page on the protocol has them: (untrained, trained) by row."""
    text = (RESULTS / "inversion.md").read_text(encoding="utf-8").split("## Full size")[1]
    rows = re.findall(r"(?m)^\| (.+?) \| (\d\.\d\d ± \d\.\d\d) \| .*? \| (\d\.\d\d ± \d\.\d\d) \|", text)
    return {title: dict(zip(("untrained", "trained"), both)) for title, *both in rows}


def section(network):
    return PAGE.split(f"## {network.capitalize()} network")[1].split("\n## ")[0]


@pytest.mark.parametrize("network", ["untrained", "trained"])
def test_each_row_of_the_papers_attacker(network):
    known, seen = papers(), 0
    assert len(known) == 13
    for line in LINES:
        key, found = line["key"], line["found"]
        if (key["network"], key["attacker"]) != (network, "shared"):
            continue
        paper, cells = known[key["method"]][network], []
        for measure, digits in MEASURES.items():
            values = found["found"][measure]
            cells.append(spread_words(values, digits))
            if measure != "psnr":
                less = math.fsum(values) / len(values) - float(paper.split(" ± ")[0])
                cells.append(f"{less:+.2f}")
        cells.append(f"{sum(value < 0.1 for value in found['found']['lpips 0'])} of 4")
        cells += [f"{100 * found['p@1']:.1f}"] if network == "trained" else []
        assert f"| {key['method']} | {paper} | {' | '.join(cells)} |\n" in section(network)
        for name in ("unrelated", "blank"):  # the same beside every row
            told = [spread_words(found[name][measure], digits) for measure, digits in MEASURES.items()]
            row = f"| {name} (control) | – | {told[0]} | – | {told[1]} | – | {told[2]} | – |"
            assert row in section(network)
        seen += 1
    assert seen == 13


def test_each_row_of_ours():
    text, seen = PAGE.split("## The prototype read off the update")[1], 0
    for line in LINES:
        key, found = line["key"], line["found"]
        if key["attacker"] != "read":
            continue
        cells = [spread_words(found["found"][measure], digits) for measure, digits in MEASURES.items()]
        cells.append(f"{sum(value < 0.1 for value in found['found']['lpips 0'])} of 4")
        for name in ("chance", "blank"):
            cells += [spread_words(found[name][measure], digits) for measure, digits in MEASURES.items()]
        where = key["network"] + (f", P@1 {100 * found['p@1']:.1f} %" if key["network"] == "trained" else "")
        assert f"| {where} | {key['method']} | {key['size']} | {' | '.join(cells)} |\n" in text
        seen += 1
    assert seen == 10


def test_what_a_reader_must_know_is_said():
    for words in (
        "**LPIPS cannot be held to the paper's: it grows with the side of the pictures, which the paper does not give",
        "Four pictures and one seed: differences within ± say nothing.",
        "trained for 2,000 rounds (paper: 100,000) of 20 clients (paper: 10)",
        "with the answer at hand",
        "Run with selfsame 0.1.0, torch 2.11.0+cu130, gpu NVIDIA H200",
        f"36 attacks took {min(line['found']['seconds'] for line in LINES):.1f} to ",
        "--table 2 --path DATA --lpips FILE",
    ):
        assert words in PAGE, words
    assert "Not run yet" not in PAGE


def plain(lines, **changed):
    settings = PictureSettings(**changed)
    found, wrong, others = sound_cases(lines, settings)
    assert not wrong
    return pictures_plain(settings, found), others


def with_seed(line, seed, more):
    """A line of another seed, whose every figure is larger by so much."""
    out = copy.deepcopy(line)
    out["key"]["seed"] = seed
    for name in ("found", "unrelated", "chance", "blank"):
        out["found"][name] = {key: [one + more for one in values] for key, values in out["found"][name].items()}
    return out


def test_over_seeds_the_mean_and_half_the_range():
    more = [with_seed(line, 1, 0.3) for line in LINES if line["key"]["method"] == HIDE]
    more += [with_seed(line, 2, 0.1) for line in LINES if line["key"]["method"] == HIDE]
    pictures, others = plain([*LINES, *more], seeds=(0, 1, 2))
    text = "\n".join(picture_lines(pictures))
    assert others == 0 and "Four pictures and three seeds" in text and "± is half the range over seeds." in text
    for line in LINES:
        values = line["found"]["found"]["lpips 64"]
        mean = math.fsum(values) / 4
        title = line["key"]["method"]
        if (line["key"]["attacker"], title) == ("shared", HIDE):
            assert f"| {mean + 0.4 / 3:.2f} ± 0.15 |" in text  # means m, m + 0.3 and m + 0.1
            count = sum(v + m < 0.1 for v in line["found"]["found"]["lpips 0"] for m in (0, 0.3, 0.1))
            assert f"| {count} of 12 |" in text
        elif line["key"]["attacker"] == "shared":  # of one seed there is no range
            assert re.search(rf"\| {re.escape(title)} \| [^|]+ \| [^|±]+ \| [^|]+ \| {mean:.2f} \| ", text), title
    left = {known_by(case) for case in attacks_left(pictures)}
    assert len(left) == 2 * (36 - len([line for line in LINES if line["key"]["method"] == HIDE]))
    assert "Not run yet: w/o perturbation, FedGN (0.01), " in text


def test_lines_of_other_settings_are_no_cases():
    changed = {
        "iterations": 7, "rounds": 5, "standardise": False, "data": "digits", "net": "resnet8", "batch": 2,
        "variation": 0.02, "images": "sea", "seed": 3, "cohort": 10, "step": 1.0, "nosuch": 1, "size": 3,
        "method": "nosuch", "network": "other", "attacker": "nobody", "weights": "linear",
    }  # fmt: skip
    trained = next(line for line in LINES if line["key"]["network"] == "trained")
    for name, value in changed.items():
        other = copy.deepcopy(trained)
        other["key"][name] = value
        pictures, others = plain([other])
        assert (pictures["cases"], others) == ([], 1), name
    assert plain([trained, trained])[0]["cases"] == plain([trained])[0]["cases"]


def test_of_two_lines_of_a_case_the_one_with_lpips_counts():
    poor = copy.deepcopy(LINES[0])
    for name in ("found", "unrelated", "chance", "blank"):
        poor["found"][name] = {"psnr": [0.0] * 4}
    (case,) = plain([poor, LINES[0]])[0]["cases"]
    assert case["found"] == LINES[0]["found"]["found"]
    assert plain([LINES[0], poor])[0]["cases"] == [case]


def test_pages_of_other_seeds_and_readers_are_joined():
    one, _ = plain(LINES)
    more = [with_seed(line, 1, 0.1) for line in LINES]
    two, _ = plain(more, seeds=(1,), read="all", sizes=(1, 2))
    found = joined_pictures(one, two)
    assert found["settings"]["seeds"] == [0, 1] and found["settings"]["sizes"] == [1, 2, 4, 16]
    assert {known_by(case) for case in found["cases"]} == {known_by(case) for p in (one, two) for case in p["cases"]}
    assert joined_pictures(one, {}) == one == joined_pictures({}, one)
    assert joined_pictures(one, plain([with_seed(LINES[0], 0, 9.0)])[0]) == one  # the first one's stay
    with pytest.raises(SelfsameError, match="were attacked with another rounds, cohort each"):
        joined_pictures(one, plain([], rounds=9, cohort=10)[0])


def test_the_drawing_has_each_picture_at_its_place(tmp_path):
    draw = np.random.default_rng(0)
    first, found = draw.integers(0, 256, (2, 2, 3, 4, 4), dtype=np.uint8)
    (tmp_path / "a.png").write_bytes(drawn_grid({"original": [first, first], "x": [None, found]}, ("one", "two")))
    with Image.open(tmp_path / "a.png") as drawn:
        pixels = np.asarray(drawn.convert("RGB"))
    left, part, top = 4 + 7 * len("original"), 2 * 68 + 12, 22
    for row, (place, some) in enumerate([(0, first), (1, found)]):
        for number, one in enumerate(some):
            at = left + place * part + number * 68
            shown = pixels[top + row * 68 : top + row * 68 + 64, at : at + 64]
            for i in range(4):
                for j in range(4):
                    assert (shown[16 * i : 16 * i + 16, 16 * j : 16 * j + 16] == one[:, i, j]).all()
    assert (pixels[top + 68 : top + 132, left : left + 2 * 68] == 255).all()  # nothing was found there


@pytest.mark.parametrize("shape", [(2, 2, 3, 4), (3, 2, 3, 4, 4), (2, 2, 2, 4, 4), (2, 0, 3, 4, 4)])
def test_pictures_that_are_none(shape, tmp_path):
    np.save(tmp_path / "a.npy", np.zeros(shape, np.uint8))
    assert read_pictures(tmp_path / "a.npy") is None
    np.save(tmp_path / "b.npy", np.zeros((2, 1, 3, 4, 4)))
    (tmp_path / "c.npy").write_bytes(b"nothing")
    assert [read_pictures(tmp_path / name) for name in ("b.npy", "c.npy", "nosuch.npy")] == [None] * 3
