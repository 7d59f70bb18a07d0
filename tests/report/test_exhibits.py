"""A paper's figures: lines are means of seeds, the paper's points lie beside, and what is drawn is the JSON's."""

import json
import re
import shutil
import xml.etree.ElementTree as ET
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from selfsame.config.exhibits import PAPERS, Pane
from selfsame.config.experiment import Paper, Variant, read_experiment
from selfsame.config.recipe import from_mapping
from selfsame.report.beside import Row
from selfsame.report.exhibit_figures import digest, draw_exhibit, exhibit_svg
from selfsame.report.exhibit_lines import drawing
from selfsame.report.exhibit_page import MARK, _pictured, exhibit_files
from selfsame.report.view import Picture, RunView

RECIPES = Path(__file__).parents[2] / "recipes"
DOCS = Path(__file__).parents[2] / "docs"


@cache
def shipped(name):
    return read_experiment(RECIPES / f"{name}.toml").variants


def row(title, *views, method=None, paper=None, number=1, **changes):
    tables = {"run": {"rounds": 30}, "method": method or {"name": "fedhide"}}
    about = Paper(paper or {}, "a table")
    return Row(Variant(number, title, from_mapping(tables), tuple(range(len(views))), about, 30, **changes), views)


def seen(value=0.5, history=(), **changes):
    return RunView("x", "fedhide", history=list(history), final={"p@1": value, "one_class_auroc": value}, **changes)


def history(*values, key="p@1"):
    return [{"round": 10 * (n + 1), "loss": 1.0, key: value} for n, value in enumerate(values)]


def lines_of(pane, rows):
    found = drawing([pane], rows, "f.svg", "what")
    return {(line["title"], line["from"]): line for line in found["panes"][0]["lines"]}


ROUNDS = Pane("rounds", "", "", "Round", "Accuracy (%)", ("p@1", "train_p@1"))


def test_over_rounds_each_point_is_the_mean_of_its_seeds():
    runs = [(0.1, 0.4, 0.9), (0.3, 0.5, 0.8)]
    views = [seen(history=history(*values)) for values in runs]
    longer = seen(history=[*history(0.2, 0.6, 0.7), {"round": 40, "loss": 1.0, "p@1": 1.0}])
    diverged = seen(history=history(1.0, 1.0, 1.0), warnings=[{"kind": "diverged"}])
    rows = [
        row("A", *views, longer, diverged, None, paper={"p@1": (90.0, None)}),
        row("B", seen(history=history(0.5, 0.5, key="train_p@1")), number=2),
        row("untrained", seen(0.25), number=3, control="untrained network", untrained=True),
    ]
    found = lines_of(ROUNDS, rows)
    three = [(0.1, 0.3, 0.2), (0.4, 0.5, 0.6), (0.9, 0.8, 0.7)]
    line = found["A", "ours"]
    assert line["x"] == [10, 20, 30]  # the rounds that all have
    assert line["y"] == pytest.approx([100 * sum(at) / 3 for at in three])
    assert line["low"] == pytest.approx([100 * min(at) for at in three])
    assert line["high"] == pytest.approx([100 * max(at) for at in three])
    assert found["A", "paper"]["x"] == [30] and found["A", "paper"]["y"] == [90]
    assert found["B, training", "ours"]["thin"] and found["B, training", "ours"]["low"] == []
    assert found["untrained", "control"]["level"] and found["untrained", "control"]["y"] == [25]


@pytest.mark.parametrize(("rounds", "log"), [(300, False), (301, True)])
def test_rounds_are_drawn_by_their_ratio_where_the_paper_has_ten_times_as_many(rounds, log):
    """Else our line would stand against the left edge."""
    rows = [row("A", seen(history=history(0.1, 0.4, 0.9)), paper={"p@1": (90.0, None)})]
    rows[0] = replace(rows[0], variant=replace(rows[0].variant, paper=replace(rows[0].variant.paper, rounds=rounds)))
    rows.append(row("untrained", seen(0.25), number=2, control="untrained network", untrained=True))
    (pane,) = drawing([ROUNDS], rows, "f.svg", "what")["panes"]
    assert max(x for line in pane["lines"] for x in line["x"]) == rounds and pane["log"] is log


def test_over_a_value_of_the_recipe():
    """As FedAwS's Table 4: numbers in order, then what has none; several figures are several lines."""
    pane = Pane("over", "", "^k", "k", "Precision (%)", ("p@1", "one_class_auroc"), "method.neighbours", "all")
    rows = [
        row("k = all", seen(0.4), method={"name": "fedaws", "spread": "full"}, paper={"p@1": (87.7, None)}),
        row("k = 100", seen(0.9), seen(0.7), method={"name": "fedaws", "neighbours": 100}, number=2),
        row("k = 10", None, method={"name": "fedaws", "neighbours": 10}, paper={"p@1": (26.3, None)}, number=3),
        row("other", seen(0.1), method={"name": "fedaws", "neighbours": 3}, number=4),
        row("fixed", seen(0.3), method={"name": "fixed"}, number=5, control="fixed vectors"),
    ]
    found = drawing([pane], rows, "f.svg", "what")["panes"][0]
    assert found["ticks"] == ["10", "100", "all"] and not found["log"]
    by = {(line["title"], line["from"]): line for line in found["lines"]}
    assert by["P@1", "ours"]["x"] == [1, 2] and by["P@1", "ours"]["y"] == pytest.approx([80, 40])
    assert by["P@1", "ours"]["low"] == pytest.approx([70, 40])
    assert by["P@1", "paper"]["x"] == [0, 2] and by["P@1", "paper"]["y"] == [26.3, 87.7]
    assert by["one-class AUROC", "ours"]["x"] == [1, 2] and by["fixed", "control"]["y"] == [30]


def test_a_grid_is_one_line_and_the_method_without_the_option_stands_at_zero():
    pane = Pane("over", "", "", "lambda", "AUROC (%)", ("one_class_auroc",), "method.negative_weight", "0")
    rows = [row("pos", seen(0.9), method={"name": "fedmetric-pos"}, paper={"one_class_auroc": (94.0, None)})]
    for number, weight in enumerate((1.0, 0.1)):  # in any order
        method = {"name": "fedmetric", "negative_weight": weight}
        rows.append(row(f"proxy, negative_weight {weight}", seen(weight / 2), method=method, number=2 + number))
    found = lines_of(pane, rows)
    assert found["proxy", "ours"]["x"] == [0.1, 1.0] and found["proxy", "ours"]["y"] == pytest.approx([5, 50])
    assert found["pos", "ours"]["x"] == found["pos", "paper"]["x"] == [0]


def test_a_curve_is_the_mean_over_seeds_and_the_papers_words_are_a_point():
    pane = Pane("roc", "new users", "", "FPR (%)", "TPR (%)", key="unseen impostors", said=((10.0, 80.0, "above"),))
    curves = [([0.01, 0.1, 1.0], [0.2, 0.6, 1.0]), ([0.01, 0.1, 1.0], [0.4, 0.8, 1.0])]
    found = lines_of(pane, [row("FedUV(127)", *(seen(roc={"unseen impostors": one}) for one in curves))])
    line = found["FedUV(127)", "ours"]
    assert line["x"] == pytest.approx([1, 10, 100]) and line["y"] == pytest.approx([30, 70, 100])
    assert found["above", "said"]["x"] == [10]
    assert drawing([pane], [row("FedUV(127)", seen())], "f.svg", "") is None


def test_one_figure_against_another():
    pane = Pane("plane", "", "", "Leakage", "Accuracy", ("leak", "p@1"))
    views = [RunView("x", "fedhide", final={"leak": leak, "p@1": right}) for leak, right in ((0.1, 0.5), (0.3, 0.7))]
    paper = {"leak": (9.6, None), "p@1": (58.0, None)}
    found = lines_of(pane, [row("FedHide(0.1, 5)", *views, paper=paper), row("FedHide(0.1, 10)", None, paper=paper)])
    assert found["FedHide", "ours"]["x"] == pytest.approx([20]) and found["FedHide", "ours"]["y"] == pytest.approx([60])
    assert found["FedHide", "paper"]["x"] == [9.6, 9.6]  # points that lie upon each other are two


def picture(samples=6):
    places = [(float(n), float(n % 3)) for n in range(samples)]
    unseen = [n == 5 for n in range(samples)]
    return Picture(places, [n % 2 for n in range(samples)], unseen, [(0.0, 1.0), (2.0, 1.0)], [(1.0, 1.5), (1.1, 1.4)])


def test_the_space_has_test_samples_prototypes_and_proxies_of_every_seed_that_ended():
    rows = [row("FedHide(0.1, 5)", None, replace(seen(), picture=picture()), replace(seen(), picture=picture(4)))]
    pane, last = drawing([Pane("space")], rows, "f.svg", "what")["panes"]
    assert (pane["title"], last["title"]) == ("FedHide(0.1, 5), seed 1", "FedHide(0.1, 5), seed 2")
    assert len(last["samples"]) == 4
    assert len(pane["samples"]) == 5 and pane["truth"] == [[0, 1], [2, 1]] and pane["proxy"] == [[1, 1.5], [1.1, 1.4]]


def test_a_page_says_what_its_pictures_are_of():
    views = [
        replace(seen(), picture=replace(picture(), how="tsne", metric=metric)) for metric in ("cosine", "euclidean")
    ]
    rows = [row(title, view, number=n) for n, (title, view) in enumerate(zip("AB", views, strict=True))]
    part = {"drawing": drawing([Pane("space")], rows, "f.svg", "what")}
    assert _pictured(part) == [
        "Pictures have 2 classes and 5 test samples, t-SNE by cosine, as in the paper; 2 classes and 5 test samples, "
        "t-SNE by Euclidean distance, the paper's by cosine. The paper does not say how many samples it shows, nor how "
        "t-SNE was begun."
    ]
    assert _pictured({"drawing": None}) == _pictured({"drawing": {"panes": [{"kind": "lines"}]}}) == []


def whole():
    """A drawing with every kind of pane."""
    views = [replace(seen(right, history(0.1, right), roc={"p": ([0.1, 1.0], [right, 1.0])}), picture=picture())
             for right in (0.4, 0.6)]  # fmt: skip
    for view in views:
        view.final["leak"] = 0.2
    rows = [
        row("FedHide(1)", *views, paper={"p@1": (58.0, None), "leak": (9.6, None)}),
        row("FedHide(2)", *views, number=2),
        row("fixed & <fast>", *views, number=3, control="fixed vectors"),
        row("untrained", views[0], number=4, control="untrained network", untrained=True),
    ]
    panes = [
        ROUNDS,
        Pane("roc", "ROC", "", "FPR", "TPR", key="p", said=((10.0, 80.0, "the paper says"),)),
        Pane("plane", "", "", "Leakage", "Accuracy", ("leak", "p@1")),
        Pane("over", "", "", "k", "P@1", ("p@1",), "method.neighbours", "all"),
        Pane("space"),
    ]
    return drawing(panes, rows, "f.svg", "every kind")


def test_what_is_drawn_is_what_the_numbers_say():
    found = json.loads(json.dumps(whole()))
    figure = draw_exhibit(found)
    assert len(figure.axes) == len(found["panes"]) == 8  # two of the space for each variant
    for pane, ax in zip(found["panes"], figure.axes, strict=True):
        assert ax.get_title(loc="left") == pane["title"]
        drawn = [(list(map(float, line.get_xdata())), list(map(float, line.get_ydata()))) for line in ax.lines]
        for line in pane.get("lines", ()):
            if not line.get("level"):
                assert (list(map(float, line["x"])), list(map(float, line["y"]))) in drawn, line["title"]
            else:
                assert any(y == [line["y"][0]] * 2 for _, y in drawn)
        if pane["kind"] == "space":
            spots = sorted(map(tuple, (spot for some in ax.collections for spot in some.get_offsets().tolist())))
            assert spots == sorted(map(tuple, (*pane["samples"], *pane["truth"], *pane["proxy"])))
            ((across, up),) = drawn  # one path: every prototype to its proxy, then a gap
            assert list(zip(across, up, strict=True))[0::3] == list(map(tuple, pane["truth"]))
            assert list(zip(across, up, strict=True))[1::3] == list(map(tuple, pane["proxy"]))
    titles = {text.get_text() for text in figure.legends[0].get_texts()}
    assert {
        "FedHide(1)",
        "untrained (control, ours)",
        "hollow: the paper's",
        "the paper says",
        "shared proxy",
    } <= titles


@pytest.mark.parametrize("title", ["A", "FedUV(127) with negatives, lambda 0.1, a fifth joins half-way, training"])
def test_a_long_title_makes_a_figure_wider(title):
    """Before, the legend of a single pane was cut off at both sides."""
    line = {"title": title, "from": "ours", "x": [1, 2], "y": [1.0, 2.0], "low": [], "high": []}
    pane = {"kind": "lines", "title": "", "x": "Round", "y": "Accuracy (%)", "lines": [line]}
    figure = draw_exhibit({"panes": [pane]})
    figure.draw_without_rendering()
    (legend,) = figure.legends
    box, whole = legend.get_window_extent(), figure.bbox
    assert whole.x0 <= box.x0 and box.x1 <= whole.x1
    assert (figure.get_figwidth() > 4.0) == (len(title) > 1)


def test_panes_without_a_line_in_common_have_legends_of_their_own():
    panes = [Pane("rounds", "", f"^{name}", "Round", "%", ("p@1",)) for name in "AB"]
    rows = [row(name, seen(history=history(0.1, 0.5)), number=n) for n, name in enumerate("AB")]
    figure = draw_exhibit(drawing(panes, rows, "f.svg", ""))
    assert not figure.legends
    assert [[text.get_text() for text in ax.get_legend().get_texts()] for ax in figure.axes] == [["A"], ["B"]]


def test_an_svg_names_its_numbers_and_comes_out_the_same():
    found = whole()
    text = exhibit_svg(found)
    assert text == exhibit_svg(json.loads(json.dumps(found)))
    root = ET.fromstring(text)
    said = " ".join(element.text or "" for element in root.iter())
    assert digest(found) in said and "fixed & <fast> (control, ours)" in said
    assert digest(found) != digest({**found, "what": "other"})


@pytest.mark.parametrize("paper", PAPERS)
def test_every_pane_has_its_variants_in_the_recipes(paper):
    for exhibit in PAPERS[paper]:
        for name in exhibit.recipes:
            variants = shipped(name)
            assert any(exhibit.shows(one.title) for one in variants)
            for pane in exhibit.panes:
                titles = [one.title for one in variants if exhibit.shows(one.title)]
                assert any(re.search(pane.variants, title) for title in titles), (exhibit.name, pane.title)


def axis(paper, number, kind, name):
    """What a pane over a value shows of the shipped recipe, were every run right by half."""
    (exhibit,) = [one for one in PAPERS[paper] if (one.kind, one.number) == (kind, number)]
    variants = shipped(name)
    rows = [
        Row(one, tuple(RunView("x", "m", final=dict.fromkeys(FIGURED, 0.5)) for _ in one.seeds)) for one in variants
    ]
    return drawing(exhibit.panes, rows, "f.svg", "")["panes"]


FIGURED = ("p@1", "p@3", "p@5", "one_class_auroc")


def test_the_axes_are_the_papers():
    by_k, by_lambda = axis("fedaws", "4", "table", "fedaws-table4-amazoncat")
    assert by_k["ticks"] == ["10", "100", "500", "all"] and by_lambda["log"]
    paper = {line["title"]: line["y"] for line in by_k["lines"] if line["from"] == "paper"}
    assert paper == {"P@1": [26.3, 92.1, 86.9, 87.7], "P@3": [21.5, 70.8, 66.1, 69.7], "P@5": [18.2, 58.7, 49.3, 52.2]}
    (ours,) = [line for line in by_lambda["lines"] if (line["title"], line["from"]) == ("P@1", "ours")]
    assert ours["x"] == [1, 10, 100]
    (fig2,) = axis("fedmetric", "2", "figure", "fedmetric-fig2-cifar10")
    printed = {line["title"]: line["x"] for line in fig2["lines"] if line["from"] == "ours"}
    assert printed["proxy, as printed"] == pytest.approx([n / 10 for n in range(1, 11)])
    assert printed["pos, as printed"] == [0] and fig2["x"] == "lambda"
    (fig3,) = axis("fedmetric", "3", "figure", "fedmetric-fig3-cifar10")
    assert {line["title"]: line["x"] for line in fig3["lines"]}["proxy"] == [0.5, 1, 1.5, 2, 3]


MADE = {*(f"fdml/table-{number}.md" for number in ("i", "ii", "iii", "v")), "feduv/figure-4.md"}


def made_pages():
    """The pages in the manual that the command made."""
    found = [page for page in sorted(DOCS.rglob("*.md")) if MARK in page.read_text(encoding="utf-8")]
    assert {page.relative_to(DOCS / "results" / "papers").as_posix() for page in found} >= MADE
    return found


def test_pages_of_the_manual_are_what_their_json_says(monkeypatch):
    """Figures are not drawn for it: they are known by the digest of their numbers."""
    monkeypatch.setattr("selfsame.report.exhibit_page.exhibit_svg", lambda _: b"")
    for page in made_pages():
        plain = json.loads(page.with_suffix(".json").read_text(encoding="utf-8"))
        assert plain["file"] == page.stem
        for name, content in exhibit_files(plain).items():
            kept = (page.parent / name).read_bytes()
            if name.endswith(".svg"):  # how coordinates are rounded is matplotlib's
                (drawn,) = [part["drawing"] for part in plain["parts"] if (part["drawing"] or {}).get("file") == name]
                assert digest(drawn).encode() in kept, name
            else:
                assert kept == content, name


def out_of_date(plain, recipes):
    """In what a page differs from the recipes that it was made from, as they are now; a page's own words aside."""
    (exhibit,) = [one for one in PAPERS[plain["paper"]] if one.name == plain["exhibit"]]
    out = []
    for part in plain["parts"]:
        named = re.search(r"--recipes recipes/(\S+)", plain["command"])
        own = recipes / (named[1] if named else "") / f"{part['recipe']}.toml"
        now = read_experiment(own if own.is_file() else recipes / own.name)  # as the command does
        shown = {one.title: one for one in (*now.rows, *now.quoted) if exhibit.shows(one.title) and not one.control}
        told = {one["title"]: one for one in part["variants"] if not one["control"]}
        out += [f"{title}: is not in both" for title in shown.keys() ^ told.keys()]
        for title in shown.keys() & told.keys():
            mine, page = shown[title], told[title]
            figures = {key: (one["paper"], one["paper_spread"]) for key, one in page["figures"].items()}
            reported = {key: mine.paper.figures.get(key, (None, None)) for key in figures}
            pairs = {
                "settings": (page["digest"], mine.digest),
                "seeds": (set(page["seeds"]), set(mine.seeds)),
                "figures": (figures, reported),
                "choice": (page["chosen"], mine.paper.chosen),
                "place": (page["reported_in"], mine.paper.where),
            }
            out += [f"{title}: {what}" for what, (one, other) in pairs.items() if one != other]
        out += [f"{one['title']}: settings" for one in part["variants"]
                if one["control"] and one["digest"] not in {each.digest for each in now.variants}]  # fmt: skip
    return out


def test_pages_of_the_manual_are_of_the_recipes_as_they_are():
    """A recipe that has changed since wants its page made anew, or one that says it is of other settings."""
    for page in made_pages():
        assert out_of_date(json.loads(page.with_suffix(".json").read_text(encoding="utf-8")), RECIPES) == []


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("rounds = 1000", "rounds = 2000", "settings"),
        ("lr = 0.03", "lr = 0.01", "settings"),
        ('name = "fedaws"', 'name = "fedaws", neighbours = 3', "settings"),
        ("seeds = [0, 1, 2]", "seeds = [0, 1]", "seeds"),
        ('chosen = "each', 'chosen = "not each', "choice"),
        ('where = "FedUV, Fig. 4"', 'where = "FedUV, Fig. 5"', "place"),
        ('title = "FedAwS"', 'title = "FedAwS, k = 10"', "is not in both"),
        ("[[variant]]", '[[quoted]]\ntitle = "x"\npaper = { eer = 3 }\n[[variant]]', "is not in both"),
        ("rounds = 0", "rounds = 0\neer = 4.5", "figures"),
        ("rounds = 0", "rounds = 0\nportions = [1, 1, 1, 1]", "settings"),
        ("seeds = [0, 1, 2]", "seeds = [2, 1, 0]", ""),
        ('path = "data"', 'path = "elsewhere"', ""),
        ("rounds = 1000", 'rounds = 1000\ndevice = "cpu"\ncompile = "off"', ""),
        ("width = 128", "width = 128  # as it was", ""),
        ("lr = 0.01", "lr = 0.010", ""),
    ],
)
def test_a_page_of_a_recipe_that_has_changed_is_noticed(before, after, what, tmp_path):
    name = "feduv-fig4-audiomnist.toml"
    text = (RECIPES / name).read_text(encoding="utf-8")
    assert before in text
    shutil.copytree(RECIPES, tmp_path, dirs_exist_ok=True)
    (tmp_path / name).write_text(text.replace(before, after, 1), encoding="utf-8")
    page = json.loads((DOCS / "results/papers/feduv/figure-4.json").read_text(encoding="utf-8"))
    found = out_of_date(page, tmp_path)
    assert bool(found) == bool(what) and any(one.endswith(what) for one in found) == bool(what)
