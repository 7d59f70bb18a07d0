"""The report never breaks, never lets words become markup, and never hides what an attacker gets."""

import dataclasses
import functools
import html
import io
import json
import math
import os
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.console import Console

from selfsame.report import figures
from selfsame.report.figures import project
from selfsame.report.html import training_page, write_report
from selfsame.report.page import environment
from selfsame.report.style import clean, looks, svg
from selfsame.report.table import results_table
from selfsame.report.view import Picture, RunView, series
from selfsame.report.words import REMEDIES, SIGHTS, fact_words, finding_words, sight_words

ROC = {"unseen": ([0.0, 0.01, 0.1, 1.0], [0.0, 0.5, 0.9, 1.0]), "seen": ([0.0, 0.02, 1.0], [0.0, 0.9, 1.0])}
NAN = math.nan
COLLAPSED = {"kind": "collapsed", "alike": 0.98765, "p@1": 0.0714, "classes": 14, "method": "fedhide"}
DIVERGED = {"kind": "diverged", "first": 10, "round": 20, "local_lr": 0.1, "server_lr": 1.0}


def a_view(title="FedHide(alpha=0.01, K=10)", method="fedhide", **changes):
    rng = np.random.default_rng(0)
    emb, truth = rng.normal(size=(30, 8)), rng.normal(size=(3, 8))
    view = RunView(
        title=title,
        method=method,
        history=[{"round": r, "loss": 3.0 / (r + 1), "p@1": 0.2 * r} for r in range(5)],
        final={"p@1": 0.941, "auroc": 0.98, "eer": 0.047, "leak": 0.09, "recovered": 1.0},
        left=[("network update", "server"), ("proxy", "public")],
        wire=[("prototype", "stays", "device", "the truth"), ("proxy", "up", "public", "what stands for it")],
        seconds=12.34,
        roc=ROC,
        picture=project(emb, truth, truth / 2, np.arange(30) % 5, np.arange(30) % 5 > 2),
        recipe='[method]\nname = "fedhide"\n',
        facts={"data": "digits", "seed": "0"},
    )
    return dataclasses.replace(view, **changes)


def silent(title="FedUV", method="feduv", **changes):
    """A run that shares nothing but its network update."""
    final = {"p@1": 0.87, "auroc": 0.9, "eer": 0.1, "leak": None, "recovered": None}
    wire = [("network update", "up", "server", "the network"), ("codeword", "stays", "device", "the secret")]
    return a_view(title, method, **{"final": final, "left": [("network update", "server")], "wire": wire, **changes})


class Reader(HTMLParser):
    """Every tag, attribute and visible word of a page."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.attributes, self.words, self.ids = [], [], [], []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        self.ids += [value for key, value in attrs if key == "id"]

    def handle_data(self, data):
        self.words.append(data)


def words(source):
    return " ".join(" ".join(Reader(source).words).replace("\u00a0", " ").split())


# view


def test_a_view_survives_json():
    view = a_view()
    again = RunView.from_dict(json.loads(json.dumps(view.to_dict(), allow_nan=False)))
    assert again == view


def test_json_holds_no_nan():
    view = a_view(history=[{"round": 0, "loss": NAN}], final={"p@1": math.inf}, seconds=NAN, picture=None)
    again = RunView.from_dict(json.loads(json.dumps(view.to_dict(), allow_nan=False)))
    assert again.final["p@1"] is None and math.isnan(again.seconds) and again.diverged


def test_series_skips_what_is_missing_or_not_finite():
    history = [
        {"round": 0, "p@1": 0.1},
        {"round": 1},
        {"round": 2, "p@1": NAN},
        {"round": 3, "p@1": None},
        {"round": 4, "p@1": 1},
    ]
    assert series(history, "p@1") == ([0.0, 4.0], [0.1, 1.0])


@pytest.mark.parametrize(
    ("changes", "collapsed"),
    [
        ({}, False),
        ({"warnings": [COLLAPSED]}, True),
        ({"warnings": [{"kind": "said", "words": "it has not collapsed"}]}, False),
        ({"warnings": [{"kind": "refused", "count": 3}]}, False),
    ],
)
def test_collapse(changes, collapsed):
    assert a_view(**changes).collapsed is collapsed


def test_what_is_not_measured_is_not_zero():
    unmeasured = a_view(final={"p@1": 0.9})
    sealed = silent(wire=[("embedding", "up", "enclave", "sealed")], left=[("embedding", "enclave")])
    assert unmeasured.exposed() == (None, None)
    assert silent().exposed() == sealed.exposed() == (0.0, 0.0)
    assert dataclasses.replace(sealed, wire=[]).exposed() == (0.0, 0.0)
    assert dataclasses.replace(unmeasured, wire=[]).exposed() == (None, None)


EARLIER = {
    "title": "FDML",
    "method": "fdml",
    "picture": {"emb": [[0, 1]], "label": [0], "unseen": [False], "truth": [[1, 1]], "proxy": None, "how": "tsne"},
    "left": ["network update -> attested enclave", "proxy -> everyone"],
    "wire": [["codeword", "stays", "nobody: stays on the device", "a secret"], ["x", "up", "attested enclave", "y"]],
    "warnings": ["collapsed: all one", "diverged: loss or network", "3 client updates were refused"],
}


def test_views_of_earlier_versions_keep_their_meaning():
    view = RunView.from_dict(EARLIER)
    assert view.left == [("network update", "enclave"), ("proxy", "public")]
    assert [row[2] for row in view.wire] == ["device", "enclave"]
    assert view.picture == Picture([(0, 1)], [0], [False], [(1, 1)], how="tsne")
    assert [warning["kind"] for warning in view.warnings] == ["collapsed", "diverged", "said"]
    assert [finding_words(warning) for warning in view.warnings] == EARLIER["warnings"]
    assert view.collapsed and view.diverged and not view.shares_class_vector
    assert dataclasses.replace(view, wire=[]).shares_class_vector
    assert not RunView.from_dict({**EARLIER, "warnings": EARLIER["warnings"][2:]}).marks


@pytest.mark.parametrize(
    "wrong", [{"wire": [["x"]]}, {"left": [5]}, {"warnings": [{}]}, {"warnings": [5]}, {"nosuch": 1}]
)
def test_what_is_no_view_is_refused(wrong):
    with pytest.raises((ValueError, TypeError, KeyError)):
        RunView.from_dict({**EARLIER, **wrong})


# words


def test_findings_in_words():
    assert finding_words(COLLAPSED).startswith(
        "collapsed: samples of different classes have a mean cosine of 0.988, P@1 is 7.1 % and chance 7.1 %. Give"
    )
    assert finding_words({**COLLAPSED, "alike": None, "p@1": None}).startswith("collapsed: P@1 is 0.0 % and chance")
    causes = {
        "method": ({}, "fedhide pushes no classes apart: use"),
        "rate": ({"least": 0.5, "loss": 2.25, "local_lr": 0.1}, "rose from 0.5 to 2.25: lower local.lr (now 0.1)"),
        "rounds": ({"rounds": 600}, "600 rounds are too few: give it more (--rounds 1200)"),
        "weight": ({"weight": "negative_weight", "value": 10.0}, "Try another negative_weight (now 10): too little"),
    }
    for cause, (more, words) in causes.items():
        said = finding_words({**COLLAPSED, "cause": cause, **more})
        assert words in said and (cause == "method") == ("use fedaws" in said)
    said = finding_words(DIVERGED)
    assert "between rounds 10 and 20. Lower local.lr (now 0.1) or server.lr (now 1.0)" in said
    assert finding_words({"kind": "refused", "count": 3}) == (
        "3 client updates were refused because they were not finite"
    )
    assert finding_words({"kind": "said", "words": "so"}) == "so"


@pytest.mark.parametrize("sight", SIGHTS)
def test_a_field_has_the_chip_of_its_sight(sight):
    chips = [
        (value, way)
        for way in ("up", "stays")
        for tag, key, value in Reader(page_of(wire=[("field", way, sight, "x")])).attributes
        if tag == "span" and key == "class" and value.startswith("sight")
    ]
    assert chips == [(f"sight {sight} leaves", "up"), (f"sight {sight}", "stays")]
    assert f'">{sight_words(sight)}</span>' in page_of(wire=[("field", "up", sight, "x")])


def page_of(**changes):
    return training_page([RunView("t", "fedhide", **changes)], "T")


def test_a_sight_that_nobody_knows_is_shown_as_it_is():
    assert '<span class="sight other leaves">the &lt;moon&gt;</span>' in page_of(wire=[("x", "up", "the <moon>", "")])


# table


def test_terminal_table_shows_per_cent_dashes_and_collapse():
    console = Console(width=140, record=True, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(results_table([a_view(), silent(warnings=[COLLAPSED]), a_view("[red]x[/red]", seconds=NAN)]))
    plain = console.export_text(clear=False)
    first = next(line for line in plain.splitlines() if "FedHide" in line)
    assert [cell for cell in first.split() if cell.replace(".", "").isdigit()] == [
        "94.1",
        "98.0",
        "4.7",
        "9.0",
        "100.0",
        "12.3",
    ]
    assert next(line for line in plain.splitlines() if "FedUV" in line).count("–") == 2
    assert plain.count("collapsed") == 1 and "[red]x[/red]" in plain
    assert "\x1b[1;31mcollapsed" in console.export_text(styles=True)


# figures


def test_pca_keeps_the_plane_it_is_given():
    rng = np.random.default_rng(1)
    flat = rng.normal(size=(40, 2)) * [5, 1]
    lift = np.linalg.qr(rng.normal(size=(7, 2)))[0].T
    picture = project(flat @ lift + 3, flat[:4] @ lift + 3, flat[4:8] @ lift + 3, np.zeros(40, int), np.zeros(40, bool))
    assert picture.proxy is not None
    points = np.array([*picture.emb, *picture.truth, *picture.proxy])
    wanted = np.array([*flat, *flat[:4], *flat[4:8]])
    gaps = lambda rows: np.linalg.norm(rows[:, None] - rows[None], axis=2)  # noqa: E731
    np.testing.assert_allclose(gaps(points), gaps(wanted), atol=1e-3)
    assert np.array(picture.emb)[:, 0].std() > np.array(picture.emb)[:, 1].std()


def test_project_drops_what_is_not_finite():
    emb = np.arange(80.0).reshape(20, 4)
    emb[3] = NAN
    truth = np.array([[1.0, 2, 3, 4], [NAN, 0, 0, 0]])
    picture = project(emb, truth, truth, np.arange(20), np.zeros(20, bool))
    assert picture.label == [0, 1, 2, *range(4, 20)]
    assert len(picture.emb) == len(picture.unseen) == 19
    assert len(picture.truth) == len(picture.proxy or []) == 1


@pytest.mark.parametrize("shape", [((0, 3), (0, 3)), ((1, 1), (1, 1)), ((0, 3), (2, 3)), ((4, 3), (0, 3))])
def test_small_pictures(shape):
    label = np.zeros(shape[0][0], int)
    picture = project(np.ones(shape[0]), np.zeros(shape[1]), None, label, label > 0)
    assert np.isfinite(np.array(picture.emb + picture.truth)).all()
    training_page([a_view(picture=picture)], "t")


def test_a_method_keeps_its_colour_and_runs_of_it_differ():
    both = looks([a_view("A"), silent(), a_view("B"), a_view("C", "mine"), a_view("D", "yours")])
    alone = looks([silent()])
    assert both[1] == alone[0] and both[0].colour == both[2].colour and both[0] != both[2]
    assert len({look.slot for look in both}) == 4
    assert len(looks([a_view(method=f"m{i}") for i in range(30)])) == 30


def test_leakage_plot_shows_both_figures():
    ax = figures.leakage([a_view(), silent()]).axes[0]
    markers = [(line.get_xdata()[0], line.get_ydata()[0], line.get_markerfacecolor() == "none") for line in ax.lines]
    assert sorted(markers) == sorted(
        [(100.0, 94.1, False), (9.0, 94.1, True), (0.0, 87.0, False), (0.0, 87.0, True)],
    )
    arrows = [(text.xyann[0], text.xy[0]) for text in ax.texts if text.arrow_patch is not None]
    assert arrows == [(9.0, 100.0)]
    assert {text.get_text() for text in ax.texts if text.get_text()} == {"FedHide(alpha=0.01, K=10)", "FedUV"}


def test_leakage_plot_leaves_out_what_was_not_measured():
    assert figures.leakage([a_view(final={"p@1": 0.9})]) is None
    assert figures.leakage([a_view(final={"leak": 0.9, "recovered": 1.0})]) is None
    only = figures.leakage([a_view(final={"p@1": 0.9, "leak": 0.3})])
    assert [line.get_xdata()[0] for line in only.axes[0].lines] == [30.0]


def test_the_report_says_what_others_could_name():
    seen = {"p@1": 0.595, "leak": 0.82, "recovered": 1.0, "p@1_shared": 0.1684}
    said = words(
        training_page([a_view("FedGN(0.3)", final=seen), a_view("FedAwS", final={**seen, "p@1_shared": 0.595})], "T")
    )
    assert "P@1 by what others see of a class: FedGN(0.3) 16.8 in place of 59.5 %." in said
    assert "by what others see" not in words(training_page([a_view()], "T"))


def test_space_pairs_prototypes_with_proxies_and_names_everybody():
    emb, who = [(0, 0), (1, 1), (0, 1)], ["ann", "bob", "ann"]
    picture = Picture(emb, [0, 9, 0], [False, True, False], [(1, 1), (2, 2)], [(3, 1), (4, 2)], who, ["ann", "cay"])
    drawn = figures.space(picture)
    assert [(group["kind"], group["who"], len(group["points"])) for group in drawn["groups"]] == [
        ("unseen", "bob (never seen in training)", 1),
        ("seen", "ann (seen in training)", 2),
        ("proxy", "shared proxy of ann", 1),
        ("proxy", "shared proxy of cay", 1),
        ("truth", "true prototype of ann", 1),
        ("truth", "true prototype of cay", 1),
    ]
    places = [point for group in drawn["groups"] for point in group["points"]]
    assert all(0 < x < drawn["side"] and 18 < y < drawn["side"] + 18 for x, y in places)
    assert len(drawn["pairs"]) == 2
    source = training_page([a_view(picture=picture)], "T")
    assert "<title>bob (never seen in training)</title>" in source and "<title>true prototype of cay</title>" in source


def test_tsne_keeps_neighbours_together_and_is_the_same_every_time():
    rng = np.random.default_rng(0)
    label = np.arange(60) % 3
    emb = 8 * np.eye(10)[label] + rng.normal(size=(60, 10))
    one, two = (project(emb, emb[:3], None, label, label > 1, how="tsne") for _ in range(2))
    assert one == two and one.how == "tsne"
    flat = np.array(one.emb)
    gap = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 1e9 * np.eye(60)
    assert (label[gap.argmin(1)] == label).all()
    assert project(emb[:3], emb[:3], None, label[:3], label[:3] > 1, how="tsne").how == "pca"


def test_tsne_by_cosine_knows_no_lengths():
    """Rows of three directions, of lengths from 1 to 1,000: by distance the short ones are together."""
    rng = np.random.default_rng(0)
    label = np.arange(60) % 3
    emb = np.geomspace(1, 1000, 60)[:, None] * (8 * np.eye(10)[label] + rng.normal(size=(60, 10)))

    def together(metric):
        picture = project(emb, emb[:0], None, label, label > 1, how="tsne", metric=metric)
        assert picture.metric == metric
        flat = np.array(picture.emb)
        gap = np.linalg.norm(flat[:, None] - flat[None], axis=2) + 1e9 * np.eye(60)
        return np.mean(label[gap.argmin(1)] == label)

    assert together("cosine") == 1 > together("euclidean")
    assert project(emb[:3], emb[:3], None, label[:3], label[:3] > 1, how="tsne", metric="cosine").metric == "euclidean"


def test_tsne_takes_samples_that_are_all_alike_but_a_few(recwarn):
    emb = np.zeros((20, 4))
    emb[17:] = np.eye(4)[:3]
    for rows in (emb, emb[4:]):
        label = np.arange(len(rows)) % 2
        drawn = project(rows, rows[:2], rows[:2], label, label > 0, how="tsne")
        assert drawn.how == "tsne" and np.isfinite(drawn.emb + drawn.truth + drawn.proxy).all()
        assert len(drawn.emb) == len(rows) and len(drawn.truth) == len(drawn.proxy) == 2
    assert project(0 * emb, emb[:0], None, np.zeros(20), np.zeros(20) > 0, how="tsne").how == "pca"
    assert not recwarn.list


def test_tsne_keeps_nearer_than_pca_who_is_near():
    rng = np.random.default_rng(1)
    label = np.arange(72) % 12
    emb = np.eye(12)[label] + 0.05 * rng.normal(size=(72, 12))

    def kept(picture):
        """How often the nearest of a point in the picture is of the same person."""
        nearest = [min((math.dist(a, b), j) for j, b in enumerate(picture) if j != i)[1] for i, a in enumerate(picture)]
        return np.mean([label[i] == label[j] for i, j in enumerate(nearest)])

    tsne, pca = (project(emb, emb[:0], None, label, label > 5, how=how).emb for how in ("tsne", "pca"))
    assert kept(tsne) == 1 > kept(pca)


def test_validation_is_drawn_beside():
    history = [{"round": r, "p@1": 0.5, "eer_seen": 0.2, "valid_eer": 0.3, "valid_p@1": 0.4} for r in range(3)]
    lines = figures.curves([a_view(history=history)], "eer_seen", "EER (%)", 100, "valid_eer").axes[0].lines
    assert [line.get_ydata()[0] for line in lines] == [20.0, 30.0]
    assert "Thin: validation samples." in words(training_page([a_view(history=history)], "T"))
    assert "validation" not in words(training_page([a_view()], "T"))


def test_the_worst_tenth_is_marked_and_named():
    people = [(f"p{n}", False, (20 - n) / 20) for n in range(20)] + [("<new>", True, 0.25)]
    figure = figures.refused([([share for _, new, share in people if not new], 20, looks([a_view()])[0])])
    ends = [line for line in figure.axes[0].lines if tuple(line.get_xdata()) == (0, 10)]
    assert [line.get_ydata()[0] for line in ends] == [97.5]
    view = a_view(people=people)
    assert RunView.from_dict(json.loads(json.dumps(view.to_dict()))) == view
    said = words(training_page([view], "T"))
    assert "p0 (100 %), p1 (95 %)" in said and "p2 (90 %)" not in said and "<new> (25 %)" in said
    assert "seen in training 20 52.5 97.5 10" in said


def test_low_false_accept_panel_is_logarithmic_and_ends_are_kept():
    fpr = np.linspace(0, 1, 100_001)
    figure = figures.run_roc([a_view(roc={"unseen": (list(fpr), list(np.sqrt(fpr)))})], log=True)
    ax = figure.axes[0]
    curve = ax.lines[-1]
    assert ax.get_xscale() == "log" and ax.get_xlim()[0] <= 0.01
    assert len(curve.get_xdata()) < 1500 and curve.get_xdata()[-1] == 100
    assert len(svg(figure, "x", "y")) < 60_000


@pytest.mark.parametrize("top", [1e3, 1e8])
def test_a_log_axis_has_plain_labels(top):
    history = [{"round": 0, "loss": top}, {"round": 1, "loss": 2e-7 * top}]
    figure = figures.curves([a_view(history=history)], "loss", "Loss")
    assert figure.axes[0].get_yscale() == "log"
    labels = [label.strip() for label in Reader(svg(figure, "x", "y")).words if label.strip()]
    assert ("1000" if top == 1e3 else "10⁸") in labels and ("0.001" if top == 1e3 else "100") in labels
    assert not any("$" in label or "mathdefault" in label for label in labels)


def test_an_axis_of_one_decade_has_plain_labels():
    few = a_view(roc={"unseen": ([0.0, 0.2, 1.0], [0.0, 0.7, 1.0])})
    labels = "".join(Reader(svg(figures.run_roc([few], log=True), "x", "y")).words)
    assert "100" in labels and "$" not in labels and "math" not in labels


@pytest.mark.parametrize("rates", [(0.2, 1.0), (1.0, 1.0), (0.001, 1.0), (0.0, 0.0), (0.1, 0.3)])
def test_no_axis_of_p_at_1_goes_beyond_100(rates):
    view = a_view(history=[{"round": r, "p@1": rate} for r, rate in enumerate(rates)], final={"p@1": 1.0, "leak": 0.2})
    low, high = figures.curves([view], "p@1", "P@1 (%)", scale=100).axes[0].get_ylim()
    assert low <= 100 * min(rates) and 100 * max(rates) <= high <= 100
    assert figures.leakage([view]).axes[0].get_ylim()[1] <= 100


def test_svg_follows_the_theme_and_keeps_ids_apart():
    figure = figures.curves([a_view()], "loss", "Loss")
    one, two = svg(figure, "f1", "a"), svg(figure, "f2", "a")
    assert "var(--s0, #3190fd)" in one and "var(--ink" in one and " width=" not in one.split(">")[0]
    ids = Reader(one).ids
    assert ids and not set(ids) & set(Reader(two).ids)
    links = [v[1:] for _, k, v in Reader(one).attributes if k == "href"] + [
        v[5:-1] for _, k, v in Reader(one).attributes if k == "clip-path"
    ]
    assert links and set(links) <= set(ids)


def test_figures_leave_pyplot_and_its_settings_alone():
    code = (
        "import sys, matplotlib\n"
        "from selfsame.report.view import RunView\n"
        "import selfsame.report.html as h\n"
        "matplotlib.rcParams['font.size'] = 17; matplotlib.rcParams['text.usetex'] = True\n"
        "now = lambda: {k: matplotlib.rcParams[k] for k in matplotlib.rcParams if k != 'backend'}\n"
        "before = now()\n"
        "v = RunView('a', 'fedhide', history=[{'round': 0, 'loss': 1.0}, {'round': 1, 'loss': 2.0}])\n"
        "assert '<svg' in h.training_page([v], 't')\n"
        "assert now() == before and before['font.size'] == 17\n"
        "assert 'matplotlib.pyplot' not in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_the_report_does_not_load_matplotlib():
    code = "import sys, selfsame.report.html; print(*({'matplotlib', 'sklearn', 'torch', 'jinja2'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"


# page


def test_the_page_asks_nothing_of_the_network():
    source = training_page([a_view(), silent()], "Two methods on digits")
    assert source == training_page([a_view(), silent()], "Two methods on digits")
    reader = Reader(source)
    assert not {"script", "link", "iframe", "object", "embed", "form", "base"} & set(reader.tags)
    loads = [value for tag, key, value in reader.attributes if key in ("src", "href", "srcset", "data", "action")]
    assert loads and all(value.startswith(("#", "data:image/png;base64,")) for value in loads)
    assert not any(key.startswith("on") for _, key, _ in reader.attributes)
    css = environment().get_template("page.css").render()
    assert "http" not in css and "url(" not in css and "@import" not in css
    assert len(reader.ids) == len(set(reader.ids))


def lead(views):
    """The words of the headline."""
    inner = training_page(views, "T").partition('<div class="lead">')[2].partition("</div>")[0]
    return " ".join("".join(Reader(inner).words).replace("\u00a0", " ").split())


def test_headline_says_who_wins_and_who_leaks():
    said = lead([a_view(), silent()])
    assert said.startswith("Two runs were compared on digits, after 4 rounds.")
    assert "FedHide(alpha=0.01, K=10) tells the people it was trained with apart best" in said and "94.1 %" in said
    assert "FedUV shares no class vector" in said
    assert "looks private by the paper's measure (9 %), but an adaptive attacker recovers 100 %" in said


def test_headline_calls_near_results_level_and_ignores_the_collapsed():
    close = silent(final={"p@1": 0.938})
    best = a_view("Z", final={"p@1": 0.99}, warnings=[COLLAPSED])
    said = lead([a_view(), close, best])
    assert "and FedUV tell the people they were trained with apart best, level" in said and "Z did not train" in said
    assert "Z tells" not in said


def test_sections_of_a_full_report():
    views = [a_view(warnings=[{"kind": "said", "words": "low <b>batch</b>"}]), silent(warnings=[COLLAPSED])]
    source = training_page(views, "T")
    said = words(source)
    for heading in (
        "Results",
        "Warnings",
        "Accuracy against leakage",
        "Training",
        "Telling people apart",
        "Who sees what",
    ):
        assert f"<h2>{heading}</h2>" in source
    assert REMEDIES["collapsed"] in said and REMEDIES["gap"] in said and "low <b>batch</b>" in said
    assert finding_words(COLLAPSED) in said
    assert "The hollow marker is FedHide's measure (17)" in said and "the figure to rely on." in said
    assert "Runs with both markers at 0 share no class vector in the clear." in said
    assert 'name = "fedhide"' in said and "what stands for it" in said
    assert source.count("<figure>") == 1 + 2 + 3 + 2


@pytest.mark.parametrize(
    "views",
    [
        [],
        [RunView("bare", "fedhide")],
        [a_view(history=[])],
        [a_view(history=[{"round": 0, "loss": NAN, "p@1": NAN}, {"round": 1, "loss": math.inf}, {}])],
        [a_view(roc={}), silent(picture=None)],
        [a_view(roc={"unseen": ([0.0, NAN], [0.0, 1.0]), "seen": ([], [])})],
        [a_view(roc={"unseen": ([0.0, 0.0, 1.0], [0.0, 1.0, 1.0])})],
        [a_view(final={}), silent(final={"p@1": NAN, "eer": math.inf})],
        [a_view(final={"p@1": 0.0, "leak": 0.0, "recovered": 0.0})],
        [a_view(picture=Picture([], [], [], [], None))],
        [a_view(method=f"m{i}", title=f"{i}") for i in range(14)],
    ],
)
def test_missing_pieces_never_break_it(views, tmp_path):
    source = write_report(views, tmp_path / "r.html", "T").read_text(encoding="utf-8")
    assert source.endswith("</html>\n")
    said = words(source.split("</style>")[1])
    assert "nan" not in said.lower().replace("finance", "") and "None" not in said and " inf" not in said


def test_a_diverged_run_is_said():
    said = words(training_page([a_view(history=[{"round": 0, "loss": 1.0}, {"round": 1, "loss": NAN}])], "T"))
    assert REMEDIES["diverged"] in said and "did not train" in said
    said = words(training_page([a_view(warnings=[DIVERGED])], "T"))
    assert finding_words(DIVERGED) in said and said.count(REMEDIES["diverged"]) == 1 and "did not train" in said


HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "</style></svg><script>",
    "' onmouseover='x",
    "-->]]><b>",
    "$\\frac{1}{$ & $$",
    "\x00\x1b[31m\ud800\ufffe",
    "</pre></details>&lt;script&gt;",
]


def with_words(word):
    """Two runs that carry the word wherever a word can be."""
    view = a_view(
        title=word,
        method=word,
        left=[(word, word)],
        wire=[(word, word, word, word), ("proxy", "up", "server", "x")],
        warnings=[{"kind": "said", "words": word}, {"kind": word}, COLLAPSED],
        recipe=word + ".",
        facts={"data": word, word + "k": word},
        roc={},
    )
    return [view, silent(roc={}, picture=None)]


@functools.cache
def skeleton_of_plain_words():
    return skeleton(training_page(with_words("plain"), "plain"))


def skeleton(source):
    """The kinds of tags and attributes on a page: no word may add to them."""
    reader = Reader(source)
    return set(reader.tags), {(tag, key) for tag, key, _ in reader.attributes}


def check_words(bad):
    source = training_page(with_words(bad), bad)
    source.encode("utf-8")
    assert skeleton(source) == skeleton_of_plain_words()
    shown = " ".join("".join(" " if c in "\n\r\t" else clean(c) for c in bad).split())
    assert shown in " ".join(" ".join(Reader(source).words).split())


@pytest.mark.parametrize("bad", HOSTILE)
def test_hostile_words_never_become_markup(bad):
    check_words(bad)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(max_size=40))
def test_words_never_become_markup(bad):
    check_words(bad)


@given(st.text())
def test_escaped_words_hold_no_markup(bad):
    safe = environment().from_string("{{ word }}").render(word=bad)
    assert not set("<>\"'") & set(safe)
    assert html.unescape(safe).count("&") == bad.count("&")
    safe.encode("utf-8")


def test_writing_is_atomic(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    seen = {}
    replace = os.replace

    def spy(draft, target):
        seen.update(old=path.read_text(), folder=os.path.dirname(draft), whole=Path(draft).read_text(encoding="utf-8"))
        replace(draft, target)

    monkeypatch.setattr(os, "replace", spy)
    assert write_report([a_view(picture=None)], path, "T") == path
    assert (
        seen["old"] == "old" and seen["folder"] == str(tmp_path) and seen["whole"] == path.read_text(encoding="utf-8")
    )
    assert os.listdir(tmp_path) == ["report.html"]


def test_a_failed_write_leaves_the_old_report(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        write_report([silent(picture=None)], path, "T")
    assert path.read_text() == "old" and os.listdir(tmp_path) == ["report.html"]


def test_six_runs_stay_small(tmp_path):
    rng = np.random.default_rng(0)
    emb = rng.normal(size=(1500, 16))
    picture = project(emb, emb[:100], emb[100:200], np.arange(1500) % 100, np.zeros(1500, bool))
    fpr = np.sort(rng.random(50_000))
    views = [
        a_view(f"run {i}", f"m{i}", picture=picture, roc={"unseen": (list(fpr), list(fpr**0.3))}) for i in range(6)
    ]
    assert write_report(views, tmp_path / "r.html", "T").stat().st_size < 2_000_000


def test_facts_of_a_method_are_put_into_words_once():
    facts = {"exposure_ratio_log10": -38.54, "own_fact": 0.25}
    assert fact_words(facts) == {"exposure ratio (3.2)": "10^-38.5", "own_fact": "0.25"}
