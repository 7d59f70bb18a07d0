"""The page of FedHide's Table 2: figures again by plain loops over the kept lines, and the paper's."""

import copy
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from selfsame.config.picture_attacks import ANY, OTHERS, TABLE, PictureSettings, cases
from selfsame.errors import SelfsameError
from selfsame.report.picture_cases import attacks_left, known_by, sound_cases
from selfsame.report.picture_grid import drawn_grid, read_pictures
from selfsame.report.picture_page import joined_pictures, picture_lines, pictures_plain

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
PAGE = (RESULTS / "papers/fedhide/table-2.md").read_text(encoding="utf-8")
KEPT = [json.loads(one) for one in (ROOT / "bench/kept/inversion-cifar100.jsonl").read_text().splitlines()]
LINES = [line for line in KEPT if line["key"]["seed"] == 0]  # the seed that is whole
MEASURES = {"lpips 0": 2, "lpips 64": 2, "psnr": 1}
HIDE = "FedHide (0.01, 5)"


def over_seeds(some, digits):
    """The mean of each seed's mean, and half the range of these where there are several."""
    means = [math.fsum(values) / len(values) for values in some]
    spread = f" ± {(max(means) - min(means)) / 2:.{digits}f}" if len(means) > 1 else ""
    return f"{math.fsum(means) / len(means):.{digits}f}{spread}"


def by_seed(**wanted):
    """The kept cases of this, in the order of their seeds."""
    lines = [line for line in KEPT if all(line["key"][name] == value for name, value in wanted.items())]
    return sorted(lines, key=lambda line: line["key"]["seed"])


def counted(some):
    values = [value for line in some for value in line["found"]["found"]["lpips 0"]]
    return f"{sum(value < 0.1 for value in values)} of {len(values)}"


def right_of(some):
    return 100 * math.fsum(line["found"]["p@1"] for line in some) / len(some)


def seeds_of(some):
    return ", ".join(str(line["key"]["seed"]) for line in some)


def papers():
    """The paper's figures as the page on the protocol has them: (untrained, trained) by row."""
    text = (RESULTS / "inversion.md").read_text(encoding="utf-8").split("## Full size")[1]
    rows = re.findall(r"(?m)^\| (.+?) \| (\d\.\d\d ± \d\.\d\d) \| .*? \| (\d\.\d\d ± \d\.\d\d) \|", text)
    return {title: dict(zip(("untrained", "trained"), both)) for title, *both in rows}


def section(network):
    return PAGE.split(f"## {network.capitalize()} network")[1].split("\n## ")[0]


@pytest.mark.parametrize("network", ["untrained", "trained"])
def test_each_row_of_the_papers_attacker(network):
    known, every = papers(), {}
    assert len(known) == 13
    for method, both in known.items():
        some, paper = by_seed(network=network, attacker="shared", method=method), both[network]
        assert len(some) == len({line["key"]["seed"] for line in some}) >= (3 if network == "untrained" else 2)
        every |= {line["key"]["seed"]: line for line in some}
        cells = []
        for measure, digits in MEASURES.items():
            values = [line["found"]["found"][measure] for line in some]
            cells.append(over_seeds(values, digits))
            if measure != "psnr":
                mean = math.fsum(math.fsum(one) / 4 for one in values) / len(values)
                cells.append(f"{mean - float(paper.split(' ± ')[0]):+.2f}")
        cells.append(counted(some))
        cells += [f"{right_of(some):.1f}"] if network == "trained" else []
        assert f"| {method} | {paper} | {' | '.join(cells)} | {seeds_of(some)} |\n" in section(network)
    for name in ("unrelated", "blank"):  # of a seed the same beside every row
        told = [over_seeds([every[seed]["found"][name][measure] for seed in sorted(every)], digits)
                for measure, digits in MEASURES.items()]  # fmt: skip
        row = f"| {name} (control) | – | {told[0]} | – | {told[1]} | – | {told[2]} | – |"
        assert row + (" – |" if network == "trained" else "") + " 0, 1, 2 |" in section(network)


def test_each_row_of_ours():
    text, rows = PAGE.split("## The prototype read off the update")[1], set()
    for line in KEPT:
        key = {name: line["key"][name] for name in ("network", "attacker", "method", "size")}
        if key["attacker"] != "read" or tuple(key.values()) in rows:
            continue
        rows.add(tuple(key.values()))
        some = by_seed(**key)
        cells = [over_seeds([one["found"]["found"][name] for one in some], digits) for name, digits in MEASURES.items()]
        cells.append(counted(some))
        for what in ("chance", "blank"):
            cells += [
                over_seeds([one["found"][what][name] for one in some], digits) for name, digits in MEASURES.items()
            ]
        where = key["network"] + (f", P@1 {right_of(some):.1f} %" if key["network"] == "trained" else "")
        assert f"| {where} | {key['method']} | {key['size']} | {' | '.join(cells)} | {seeds_of(some)} |\n" in text
    assert len(rows) == 10


def test_what_a_reader_must_know_is_said():
    seconds = [line["found"]["seconds"] for line in KEPT]
    for words in (
        "**LPIPS cannot be held to the paper's: it grows with the side of the pictures, which the paper does not give",
        "Four pictures and three seeds: differences within ± say nothing. ± is half the range over seeds; a figure of",
        "trained for 2,000 rounds (paper: 100,000) of 20 clients (paper: 10)",
        "with the answer at hand",
        "Run with selfsame 0.1.0, torch 2.11.0+cu130, gpu NVIDIA H200",
        f"{len(KEPT)} attacks took {min(seconds):.1f} to {max(seconds):.0f} s each",
        "--table 2 --path DATA --lpips FILE --set 'seeds=[0, 1, 2]'",
    ):
        assert words in PAGE, words


def test_attacks_that_have_not_been_made_are_told_with_their_seeds():
    known = {known_by({**line["key"], **line["found"]}) for line in KEPT}
    left = [key for key in cases(PictureSettings(seeds=(0, 1, 2))) if known_by(key) not in known]
    (said,) = re.findall(r"Not run yet: (.*)\.\n", PAGE)
    told = set()
    for segment in said.split("; "):
        titles, network, how, some = re.fullmatch(r"(.+) \((\w+), (.+), seeds? ([\d, ]+)\)", segment).groups()
        named = [title for title in (ANY, *TABLE, *OTHERS) if f", {title}, " in f", {titles}, "]
        assert ", ".join(sorted(named, key=titles.index)) == titles
        told |= {(network, title, how, int(seed)) for title in named for seed in some.split(", ")}
    words = {"shared": "proxy taken"}
    assert told == {
        (key["network"], key["method"], words.get(key["attacker"], f"read, n = {key['size']}"), key["seed"])
        for key in left
    }
    assert len(left) == 108 - len(KEPT) and min(key["seed"] for key in left) == 1


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
    assert others == 0 and "Four pictures and three seeds" in text and "± is half the range over seeds; " in text
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
