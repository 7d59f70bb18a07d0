"""Pages of results that are written by hand say what the kept figures say."""

import argparse
import json
import statistics
from decimal import ROUND_HALF_UP, Decimal
from itertools import product
from pathlib import Path

import pytest

from selfsame.config.experiment import read_experiment
from selfsame.config.recipe import differences
from selfsame.privacy.accountant import Exchange, Laplace, composed_epsilon

ROOT = Path(__file__).resolve().parents[1]
RESULTS, KEPT = ROOT / "docs" / "results", ROOT / "bench" / "kept"


@pytest.fixture
def page_of_frontier(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    return __import__("frontier_page")


def test_the_frontier_is_what_its_rows_say(page_of_frontier):
    found = page_of_frontier.rows([RESULTS / "frontier.json"])
    table = page_of_frontier.table(found, "enclave", "clear")
    assert len(table.splitlines()) > 28 and table in (RESULTS / "frontier.md").read_text(encoding="utf-8")


def test_what_was_found_of_pictures_is_what_the_kept_cases_say():
    text = (RESULTS / "inversion.md").read_text(encoding="utf-8")
    rows = [line for line in text.split("## Full size")[1].splitlines() if line.startswith("|")]
    cases = {}
    for line in (KEPT / "inversion-cifar100.jsonl").read_text().splitlines():
        key, found = json.loads(line)["key"], json.loads(line)["found"]["found"]
        cases.setdefault((key["network"], key["method"], key["attacker"], key["size"]), []).append(found)
    assert len(cases) == 36
    for (network, method, attacker, size), some in cases.items():
        means = [
            statistics.fmean(statistics.fmean(one[name]) for one in some) for name in ("lpips 0", "lpips 64", "psnr")
        ]
        values = [value for one in some for value in one["lpips 0"]]
        said = f"{means[0]:.2f} / {means[1]:.2f} / {means[2]:.1f}"
        count = f"{sum(value < 0.1 for value in values)} of {len(values)}"
        name = "any of the table" if method == "any method" else method
        plain = [row.replace("*", "") for row in rows if name in row and (attacker == "shared" or network in row)]
        assert any(f"| {said} | {count} |" in row for row in plain), (network, method, attacker, size, said, count)
    hidden = [cases["trained", f"FedHide ({alpha}, {k})", "shared", 1] for alpha in ("0.1", "0.01") for k in (1, 5)]
    values = [value for some in hidden for one in some for value in one["lpips 0"]]
    assert (sum(value < 0.1 for value in values), len(values)) == (1, 32) and "finds one of 32 pictures" in text


@pytest.mark.parametrize("which", ["delicious", "bibtex", "corel5k"])
def test_tables_3_and_4_of_fedaws_are_what_the_kept_runs_say(which, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr("sys.argv", ["labels", "table", str(KEPT / "labels.jsonl"), "--which", which])
    __import__("labels").main()
    methods, curve, *lengths = capsys.readouterr().out.strip().split("\n\n")
    text = (RESULTS / "extreme.md").read_text(encoding="utf-8")
    assert methods in text and len(methods.splitlines()) == 6
    assert all(table in text for table in lengths) and len(lengths) == (1 if which == "corel5k" else 2)
    place = {"delicious": 2, "bibtex": 3, "corel5k": 4}[which]
    page = text.split("| k | lambda |")[1].splitlines()[2:]
    for line, row in zip(curve.splitlines()[2:], page, strict=False):
        k, weight, *figures = (cell.strip() for cell in line.strip("|").split("|"))
        said = [cell.strip() for cell in row.strip("|").split("|")]
        assert said[:2] == [k, weight] and said[place] == " / ".join(figures[:3])


def test_table_1_of_fedaws_is_what_the_kept_runs_and_its_page_say():
    """Every figure of the choice, the recipe that takes it over, and the table with three seeds."""
    lines = [json.loads(line) for line in (KEPT / "table1-cifar100.jsonl").read_text().splitlines()]
    text = (RESULTS / "fedaws-table1.md").read_text(encoding="utf-8").split("## 50,000 rounds")[0]
    assert f"has all {len(lines)};" in text
    norms = [line for line in lines if (line["standardise"], line["groups"]) != (True, 2)]
    short = [("fixed", None), ("fedaws", 0.1), ("fedaws", 1), ("fedaws", 10), ("softmax", None)]
    best, tried = {}, {}
    for rounds, count, columns in (
        (4000, 10, short),
        (10000, 6, [("fixed", None), ("fedaws", 0.1), ("softmax", None)]),
    ):
        tried[rounds] = [line for line in lines if line not in norms and line["rounds"] == rounds]
        for name in ("fixed", "fedaws", "softmax"):
            some = [line for line in tried[rounds] if line["method"] == name]
            assert len(some) == count
            best[rounds, name] = max(some, key=lambda line: line["p@1"])
        decays = {2.5e-4: "2.5e-4", 5e-4: "5e-4", 1e-3: "1e-3"}
        for rate, decay in sorted({(line["lr"], line["weight_decay"]) for line in tried[rounds]}):
            cells = []
            for column in columns:
                here = [line for line in tried[rounds] if (line["lr"], line["weight_decay"]) == (rate, decay)
                        and (line["method"], line.get("lambda")) == column]  # fmt: skip
                figure = f"{100 * here[0]['p@1']:.1f}" if here else ""
                cells.append(f"**{figure}**" if here and here[0] in best.values() else figure)
            row = f"| {rate:g}, {decays[decay]} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |")
            assert row in text, row
    for variant in read_experiment(ROOT / "recipes" / "fedaws-table1-cifar100.toml").variants:
        if (order := variant.recipe).method.name in ("fixed", "fedaws", "softmax"):
            assert "4,000" not in variant.paper.chosen.partition("lambda")[0]
            chosen = best[10000, order.method.name]
            assert (order.local.lr, order.server.weight_decay) == (chosen["lr"], chosen["weight_decay"])
            assert order.method.options.get("spread_weight") == chosen.get("lambda")
    for title, name in {"fixed": "fixed", "FedAwS": "fedaws", "softmax": "softmax"}.items():
        shown = {(line["standardise"], line["groups"]): line["p@1"] for line in norms if line["method"] == name}
        wanted = {"method": name, "lr": 0.1, "weight_decay": 0.001, **({"lambda": 0.1} if name == "fedaws" else {})}
        same = next(line["p@1"] for line in tried[4000] if wanted.items() <= line.items())
        figures = [shown[False, 8], shown[True, 8], same]
        assert f"| {title} | {' | '.join(f'{100 * figure:.1f}' for figure in figures)} |" in text
    page = _page("fedaws/table-1", "fedaws-table1-cifar100")
    titles = {"Baseline-1": "Baseline-1 (positives alone; 1,000 rounds)", "Baseline-2": "Baseline-2 (fixed)",
              "FedAwS": "FedAwS", "softmax": "softmax (oracle)"}  # fmt: skip
    for name, title in titles.items():
        cells = []
        for net in ("ResNet-32", "ResNet-56"):
            found = page[f"{name}, {net}"]["p@1"]
            assert len(found["values"]) == 3
            said = f"{found['measured']:.1f} ± {found['half_range']:.1f}"
            cells += [f"{found['paper']:.1f}", said, f"{found['difference']:+.1f}"]
        assert f"| {title} | {' | '.join(cells)} |" in text, cells
    bare, whole, start = ([page[f"{words}FedAwS, {net}"]["p@1"] for net in ("ResNet-32", "ResNet-56")]
                          for words in ("no negative term, as in ", "", "untrained network, as in "))  # fmt: skip
    row = " | – | ".join(f"– | {one['measured']:.1f} ± {one['half_range']:.1f}" for one in bare)
    assert f"| FedAwS without its spread term, the control | {row} | – |" in text
    worth = {round(one["measured"] - other["measured"]) for one, other in zip(whole, bare, strict=True)}
    left = [round(one["measured"] - other["measured"]) for one, other in zip(bare, start, strict=True)]
    assert worth == {56} and "**The spread term is worth 56 points here**" in text
    assert "what is left is {} to {} points more than the untrained".format(*left) in text
    said = "FedAwS {:.1f} % (paper 69.6), softmax {:.1f} % (70.0)"
    found = [page[f"{name}, ResNet-56"]["p@1"]["measured"] for name in ("FedAwS", "softmax")]
    assert said.format(*found) in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("which", ["delicious", "bibtex", "corel5k"])
def test_recipes_of_labels_have_the_settings_that_rows_set_apart_chose(which, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    labels = __import__("labels")
    args = argparse.Namespace(which=which, rounds=300, device="cpu", file=KEPT / "labels.jsonl")
    here = {"run.eval_every", "run.compile"}
    for table in (3, 4):
        for variant in read_experiment(ROOT / "recipes" / f"fedaws-table{table}-{which}.toml").variants:
            name = variant.title if table == 3 else "FedAwS"
            method = {"name": variant.recipe.method.name, **variant.recipe.method.options}
            assert table == 4 or method == labels.METHODS[name]
            wanted = labels.recipe(args, method, labels.SETTINGS[labels.chosen(args, name)], variant.recipe.run.seed)
            assert not set(differences(wanted, variant.recipe)) - here, (table, variant.title)


def test_fedmetrics_table_2_is_what_the_kept_runs_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr("sys.argv", ["fedmetric", "table", str(KEPT / "fedmetric-mnist.jsonl")])
    __import__("fedmetric").main()
    rows = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()[2:]]
    assert {row[6] for row in rows} == {"600", "10,000"} and all(row[7] == "3" for row in rows)
    page = (RESULTS / "fedmetric.md").read_text(encoding="utf-8").replace("*", "")
    assert all(row[3] in page for row in rows)


def test_what_is_said_of_fedmetrics_table_2_is_on_its_page():
    page = json.loads((RESULTS / "papers/fedmetric/table-2.json").read_text(encoding="utf-8"))
    (part,) = (part for part in page["parts"] if part["recipe"] == "fedmetric-table2-mnist")
    mean = {one["title"]: one["figures"]["one_class_auroc"]["measured"] for one in part["variants"]}
    said = (RESULTS / "mnist.md").read_text(encoding="utf-8")
    assert "FedAwS and FedUV exceed the paper's columns" in said and mean["FedAwS"] > 99.6 and mean["FedUV"] > 99.7
    readings = ("pos", "pos+neg(proxy)", "pos+neg(true)")
    assert all(abs(mean[name] - paper) < 0.2 for name, paper in zip(readings, (99.4, 99.6, 99.6), strict=True))
    assert all((mean[f"{name}, as printed"] or 0) < 60 for name in readings)  # None: diverged
    assert "the control, are ahead of FedMetric" in said and mean["fixed vectors"] > max(map(mean.get, readings))


def test_fedmetrics_curves_are_what_the_kept_runs_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    file = str(KEPT / "fedmetric-mnist.jsonl")
    monkeypatch.setattr("sys.argv", ["fedmetric_figures", "table", file, "--data", "mnist", "--rounds", "900"])
    __import__("fedmetric_figures").main()
    table = capsys.readouterr().out.strip()
    assert len(table.splitlines()) == 21 and table in (RESULTS / "fedmetric.md").read_text(encoding="utf-8")


def test_faces_of_six_methods_are_what_the_kept_runs_say():
    text = (RESULTS / "pretrained.md").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (KEPT / "adapt-lfw.jsonl").read_text().splitlines()]
    runs = {(key["method"], key["kind"], key["seed"], key["fold"]): line for line in lines
            if (key := line["key"])["phase"] == "measure"}  # fmt: skip
    for method, (kind, learns) in product(
        ("FDML", "FedCrowd", "softmax", "FedHide", "FedAwS", "FedUV"),
        (("all", "all"), ("adapters", "adapters of rank 3")),
    ):
        some = [[runs[method, kind, seed, fold] for fold in (1, 2, 3, 4)] for seed in (0, 1, 2)]
        after = [100 * statistics.fmean(run["after"]["value"] for run in seed) for seed in some]
        every = [run for seed in some for run in seed]
        before, away, left = (
            100 * statistics.fmean(value)
            for value in (
                [run["before"]["value"] for run in every],
                [run["away"]["before"]["value"] for run in every],
                [run["away"]["after"]["value"] for run in every],
            )
        )
        below = sum(run["change"]["high"] < 0 for run in every)
        spread = f"{statistics.fmean(after):.2f} [{min(after):.2f}, {max(after):.2f}]"
        row = f"| {method} | {learns} | {before:.2f} | {spread} | {below} of 12 | {away:.2f} | {left:.2f} |"
        assert row in text, row


def test_fdml_on_touch_is_what_its_pages_say():
    """Tables I to III, all at the paper's rounds."""
    pages = {}
    for number in ("i", "ii", "iii"):
        page = json.loads((RESULTS / "papers" / "fdml" / f"table-{number}.json").read_text(encoding="utf-8"))
        (part,) = (part for part in page["parts"] if part["recipe"] == "fdml-touchauth")
        pages[number] = {one["title"]: one for one in part["variants"]}
        assert all(one["rounds"] == one["recipe_rounds"] for one in pages[number].values() if not one["control"])
    text = (RESULTS / "fdml.md").read_text(encoding="utf-8")

    def figure(number, title):
        return pages[number][title]["figures"]["vii_c"]

    def paper(one):
        return "–" if one["paper"] is None else f"{one['paper']:.1f}"

    rows = {
        "FDML": ("i", "FDML"),
        "FL, lr 0.1": ("i", "FL, lr 0.1"),
        "FL, lr 0.01": ("i", "FL, lr 0.01"),
        "fixed vectors, the control": ("i", "fixed vectors"),
        "untrained, the control": ("i", "untrained network"),
    }
    for how in ("uc", "as"):
        for share in (0.2, 0.4, 0.6):
            rows[f"exceptions {share}, {how.upper()}"] = ("ii", f"FDML, exceptions, dropout {share}, strategy {how}")
    rows |= {f"rate_p {share}": ("iii", f"FDML, rate_p, response {share}") for share in (0.8, 0.6)}
    for said, where in rows.items():
        row = f"| {said} | {_cell(figure(*where))} | {paper(figure(*where))} |"
        assert row in text, row
    for said, titles in {
        "–": ("FDML", "FDML, rate_p, response 0.8", "FDML, rate_p, response 0.6"),
        "8": [f"FDML, epsilon 8, response {share}" for share in (1.0, 0.8, 0.6)],
        "4": [f"FDML, epsilon 4, response {share}" for share in (1.0, 0.8, 0.6)],
    }.items():
        composed = {"–": "–", "8": "5.6e7", "4": "2.5e7"}[said]
        cells = [cell for title in titles for cell in (_cell(figure("iii", title)), paper(figure("iii", title)))]
        assert f"| {said} | {composed} | {' | '.join(cells)} |" in text, cells
    whole = {title: one["figures"]["vii_c"]["measured"] for title, one in pages["i"].items()}
    behind = {title: whole["FDML"] - value for title, value in whole.items()}
    assert f"{behind['FL, lr 0.1']:.1f} points ahead of FL-traditional at 0.1" in text
    assert f"{behind['FL, lr 0.01']:.1f} points behind FDML" in text
    assert f"{behind['fixed vectors']:.1f} points of FDML's" in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "FDML {:.1f} % (paper 80.9), FL {:.1f} % (71.4)".format(whole["FDML"], whole["FL, lr 0.1"]) in readme
    assert f"| fixed vectors {whole['fixed vectors']:.1f} % |" in readme
    again, fixed = (_cell(figure("iii", title)) for title in ("FDML", "fixed vectors"))
    assert f"has {again} for FDML and {fixed} for fixed vectors" in text and f"stay have** ({fixed})" in text
    assert _cell(figure("ii", "fixed vectors")) == fixed
    loss = {title: figure("iii", "FDML")["measured"] - figure(*where)["measured"] for title, where in rows.items()}
    lost = [loss[f"exceptions {share}, UC"] for share in (0.2, 0.4, 0.6)]
    late = [loss[f"rate_p {share}"] for share in (0.8, 0.6)]
    assert f"UC loses {min(lost):.1f} to {max(lost):.1f} points" in text
    assert f"rate_p {min(late):.1f} to {max(late):.1f}, beside the" in text
    costs = [
        figure("iii", f"FDML{beside}")["measured"]
        - figure("iii", f"FDML, epsilon {noise}, response {share}")["measured"]
        for share, beside in ((1.0, ""), (0.8, ", rate_p, response 0.8"), (0.6, ", rate_p, response 0.6"))
        for noise in (8, 4)
    ]
    assert f"**Noise costs {min(costs):.1f} to {max(costs):.1f} points" in text
    assert sum(eight > four for eight, four in zip(costs[::2], costs[1::2], strict=True)) == 2  # of three columns


def test_what_the_noise_of_fdml_composes_to_on_touch():
    pytest.importorskip("dp_accounting")
    text = (RESULTS / "fdml.md").read_text(encoding="utf-8")
    for epsilon in (8, 4):
        (variant,) = (one for one in read_experiment(ROOT / "recipes" / "fdml-touchauth.toml").variants
                      if one.title == f"FDML, epsilon {epsilon}, response 1.0")  # fmt: skip
        order = variant.recipe
        options = order.method.options
        noise = Laplace(options["clip"], options["scale"], options["drop"])
        found = composed_epsilon(noise, Exchange(order.local.batch, order.net.width), order.run.rounds, 1e-5)
        digits, _, power = f"{found:.1e}".partition("e+")
        assert f"| {epsilon} | {digits}e{int(power)} |" in text


def test_places_of_the_eyes_are_what_the_kept_cases_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    asked = [str(KEPT / "zero-shot-lfw.jsonl"), "--face", "kept", "--only", "looked-for"]
    monkeypatch.setattr("sys.argv", ["zero_shot", *asked])
    __import__("zero_shot").main()
    table = capsys.readouterr().out.strip()
    assert len(table.splitlines()) == 14 and table in (RESULTS / "pretrained.md").read_text(encoding="utf-8")


ADAPTED = "--data lfw --warm --rank 3 --server adam --augment flip=true crop=2 --people least=2 test=0 --folds 1-10"


@pytest.mark.parametrize(
    ("name", "net", "rows"), [("crop", (), 13), ("eyes", ("--net", "crop=0", "eyes=[23,26,40,26]"), 12)]
)
def test_adapted_faces_are_what_the_kept_runs_say(name, net, rows, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    file = str(KEPT / f"adapt-lfw-{name}.jsonl")
    asked = ["table", file, *ADAPTED.split(), *net, "--kinds", "all,adapters"]
    monkeypatch.setattr("sys.argv", ["adapt", *asked])
    __import__("adapt").main()
    table = capsys.readouterr().out.strip()
    assert len(table.splitlines()) == 2 + rows and table in (RESULTS / "pretrained.md").read_text(encoding="utf-8")


def test_rates_of_faces_that_cannot_be_aligned_are_what_the_kept_runs_say():
    lines = [json.loads(line) for line in (KEPT / "adapt-lfw-crop.jsonl").read_text().splitlines()]
    found = {
        (key["method"], key["kind"], key["lr"]): 100 * line["after"]["value"]
        for line in lines
        if (key := line["key"])["phase"] == "choose"
    }
    text = (RESULTS / "pretrained.md").read_text(encoding="utf-8")
    rates = {"all": (3e-6, 1e-5, 3e-5, 1e-4), "adapters": (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)}
    for method in ("FedCrowd", "FedAwS", "FedUV", "FedHide", "FDML", "softmax"):
        cells = []
        for kind, tried in rates.items():
            values = [found.pop((method, kind, rate)) for rate in tried]
            cells += [f"**{value:.2f}**" if value == min(values) else f"{value:.2f}" for value in values]
            measured = {
                line["lr"]
                for line in lines
                if (key := line["key"])["phase"] == "measure" and (key["method"], key["kind"]) == (method, kind)
            }
            assert measured == {tried[values.index(min(values))]}  # every run had the rate that is best here
        assert f"| {method} | {' | '.join(cells)} |" in text
    assert not found


def test_faces_by_an_earlier_choice_are_what_the_kept_runs_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    asked = ["table", str(KEPT / "adapt-lfw-crop-first.jsonl"), *ADAPTED.split(), "--kinds", "adapters"]
    monkeypatch.setattr("sys.argv", ["adapt", *asked])
    __import__("adapt").main()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()[2:]]
    crowd, summed, softmax = (row[4] for row in rows)
    said = f"FedCrowd {crowd}, as masked sums {summed}, softmax {softmax}."
    assert said in (RESULTS / "pretrained.md").read_text(encoding="utf-8")


ALIGNED = [
    ("all layers, momentum, people with four pictures", "all", ("weights",)),
    ("all layers, Adam, pictures mirrored and shifted by two pixels, people with four", "all", ("augment", "server")),
    ("the same, everybody with two pictures (1,200 people in place of 440)", "all", ("augment", "people", "server")),
    ("the same, adapters of rank 3 (0.40 MB up)", "adapters", ("augment", "people", "server")),
]


@pytest.mark.parametrize(("what", "kind", "said"), ALIGNED)
def test_aligned_faces_set_apart_are_what_the_kept_runs_say(what, kind, said):
    lines = [json.loads(line) for line in (KEPT / "adapt-lfw-eyes.jsonl").read_text().splitlines()]
    text = (RESULTS / "pretrained.md").read_text(encoding="utf-8").replace("**", "")
    some = [
        line
        for line in lines
        if (key := line["key"])["phase"] == "choose" and key["kind"] == kind and "weights" in key
        if {"augment", "people", "server"} & set(key) == set(said) - {"weights"}
    ]
    best = {}
    for method in ("FedCrowd", "FDML", "FedHide", "softmax", "FedAwS"):
        found = [100 * line["after"]["value"] for line in some if line["key"]["method"] == method]
        best[method] = f"{min(found):.2f}" if len(found) >= 4 else ""
    before = {f"{100 * line['before']['value']:.2f}" for line in some if line["key"]["method"] != "FedUV"}
    row = " | ".join([what, *before, *best.values()])
    assert f"| {row} |".replace("  ", " ") in text.replace("  ", " "), row


def test_the_audit_of_cifar_100_is_what_the_kept_runs_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    files = [str(KEPT / f"{name}-cifar100.jsonl") for name in ("frontier", "audit")]
    monkeypatch.setattr("sys.argv", ["audit_page", *files, "--mode", "clear"])
    __import__("audit_page").main()
    table = capsys.readouterr().out.split("## cifar100\n\n")[1].strip()
    assert len(table.splitlines()) > 10 and table in (RESULTS / "audit.md").read_text(encoding="utf-8")


FURTHER = [
    ("audit-digits", "enclave", 4),
    ("audit-omniglot", "enclave", 4),
    ("audit-cifar100-resnet8", "enclave", 1),
    ("audit-cifar100-resnet8", "clear", 1),
]


@pytest.mark.parametrize(("name", "mode", "methods"), FURTHER)
def test_audits_of_further_methods_are_what_the_kept_runs_say(name, mode, methods, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr("sys.argv", ["audit_page", str(KEPT / f"{name}.jsonl"), "--mode", mode])
    __import__("audit_page").main()
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")][1:]
    text = (RESULTS / "audit.md").read_text(encoding="utf-8")
    assert len(rows) == methods and all(row in text for row in rows)


def test_choices_at_the_edge_of_the_frontiers_grids_are_counted(page_of_frontier):
    grids = __import__("frontier")
    chosen = [row for row in json.loads((RESULTS / "frontier.json").read_text()) if row["aggregation"] == "enclave"]
    edge = []
    for row in chosen:
        rates = sorted({rate for _, rate in grids.settings(row["data"], row["method"])})
        assert row["lr"] in rates
        if row["lr"] in (rates[0], rates[-1]):
            edge.append((row["data"], row["method"]))
    assert f"Of {len(chosen)} choices {len(edge)} lie at the edge" in (RESULTS / "frontier.md").read_text()


def test_what_the_frontier_says_of_sums_and_of_fedcrowd_is_in_its_rows():
    rows = json.loads((RESULTS / "frontier.json").read_text())
    eer = {(row["data"], row["method"], row["aggregation"]): 100 * row["eer"] for row in rows}
    pairs = {key[:2]: eer[key] - eer[*key[:2], "clear"] for key in eer if key[2] == "enclave" and key[0] != "cifar100"}
    text = " ".join((RESULTS / "frontier.md").read_text(encoding="utf-8").split())
    assert f"of the {len(pairs)} pairs of figures" in text
    assert f"ahead in {sum(value < 0 for value in pairs.values())}" in text
    softmax, hide, crowd = (pairs["omniglot", "softmax"], pairs["omniglot", "FedHide"], pairs["audiomnist", "FedCrowd"])
    assert {key for key, value in pairs.items() if value > 0.5} == {
        ("omniglot", "softmax"), ("omniglot", "FedHide"), ("audiomnist", "FedCrowd")
    }  # fmt: skip
    assert (
        f"softmax ({softmax:.1f}) and FedHide ({hide:.1f}) on characters, and FedCrowd on speakers ({crowd:.1f})"
        in text
    )


def test_sums_of_fedcrowds_updates_on_cifar_100_are_what_the_kept_runs_say():
    lines = [json.loads(line) for line in (KEPT / "frontier-cifar100.jsonl").read_text().splitlines()]
    runs = [x for x in lines if x["key"]["phase"] == "measure" and x["key"]["method"] == "FedCrowd, quadratic"]
    shares = [
        100 * statistics.fmean(f["identified"] for run in runs for f in run["findings"] if f["did"] == f"a sum of {n}")
        for n in (2, 4, 16)
    ]
    said = "a sum of 2, 4 and 16 updates {:.0f}, {:.0f} and {:.0f} %".format(*shares)
    assert len(runs) == 3 and said in (RESULTS / "frontier.md").read_text(encoding="utf-8")


def test_the_readmes_rows_of_the_frontier_are_in_its_rows():
    rows = {
        (row["data"], row["method"], row["aggregation"]): f"{100 * row['eer']:.1f} %"
        for row in json.loads((RESULTS / "frontier.json").read_text())
    }
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    crowd, softmax, feduv = (rows["omniglot", name, "enclave"] for name in ("FedCrowd", "softmax", "FedUV"))
    clear = rows["omniglot", "softmax", "clear"]
    assert f"FedCrowd {crowd}, softmax {softmax}, FedUV {feduv} |" in text
    assert f"{crowd} EER on unseen characters" in text and f"has {softmax} ({clear} in the clear)" in text
    page = (RESULTS / "unseen.md").read_text(encoding="utf-8")
    (fdml,) = (line.split(" | ") for line in page.splitlines() if line.startswith("| FDML, Adam"))
    (hide,) = (line.split(" | ") for line in page.splitlines() if line.startswith("| FedHide(0.1, 10)"))
    assert (fdml[4], hide[4], fdml[6]) == ("4.3", "7.2", "16.0")


def test_intervals_of_single_folds_are_as_wide_as_the_pages_say():
    """By person, on the 600 pairs of a fold: 4 to 5 points to either side at 15 to 20 %, 3.5 at 11 %."""
    lines = [json.loads(line) for line in (KEPT / "adapt-lfw.jsonl").read_text().splitlines()]
    found = [line[when] for line in lines if line["key"]["phase"] == "measure" for when in ("before", "after")]

    def half(low, high):
        some = [one for one in found if low <= 100 * one["value"] <= high]
        assert len(some) > 8
        return statistics.fmean(50 * (one["high"] - one["low"]) for one in some)

    assert 4.0 <= half(14.5, 20.5) <= 5.0
    assert round(half(10.5, 11.5), 1) in (3.5, 3.6)


def test_rates_of_writers_are_what_the_kept_runs_say():
    lines = [json.loads(line) for line in (KEPT / "feduv-writers.jsonl").read_text().splitlines()]
    tried = [line for line in lines if line["key"]["phase"] == "choose"]
    eer = {(line["key"]["method"], line["lr"]): 100 * line["eer"] for line in tried}
    best = {
        name: min((value, rate) for (method, rate), value in eer.items() if method == name)
        for name in ("softmax", "FedAwS")
    }
    assert best["softmax"][1] == 0.003 and best["FedAwS"][1] == 0.03
    said = [
        f"{value:.1f} %" for value in (eer["softmax", 0.1], best["softmax"][0], eer["FedAwS", 0.1], best["FedAwS"][0])
    ]
    text = " ".join((RESULTS / "writers.md").read_text(encoding="utf-8").split())
    assert (
        "{} by softmax at 0.1 and of {} at 0.003, its best; of {} by FedAwS at 0.1 and of {} at 0.03".format(*said)
        in text
    )


def test_two_trainings_of_fedaws_setting_differ_as_little_as_the_page_says():
    lines = [json.loads(line) for line in (KEPT / "labels.jsonl").read_text().splitlines()]
    first = {
        (key["which"], key["seed"]): line["p@1"]
        for line in lines
        if (key := line["key"])["phase"] == "measure" and key["method"] == "FedAwS"
    }
    again = {
        (key["which"], key["seed"]): line["p@1"]
        for line in lines
        if (key := line["key"])["phase"] == "curve" and key["k"] == key["lambda"] == 10
    }
    assert len(first) == 9 and first.keys() == again.keys()
    most = max(abs(again[key] - first[key]) for key in first)
    assert f"differ by up to {100 * most:.2f} points of P@1" in (RESULTS / "extreme.md").read_text(encoding="utf-8")


def test_the_published_face_encoder_is_what_the_kept_cases_say():
    text = (RESULTS / "pretrained.md").read_text(encoding="utf-8").replace("*", "")
    lines = [json.loads(line) for line in (KEPT / "zero-shot-lfw.jsonl").read_text().splitlines()]
    means = {}
    for line in (line for line in lines if "looked_for" not in line["key"]):
        option, how = next(iter(line["key"]["options"].items())), line["key"]["how"]
        mean, rate = 100 * statistics.fmean(line["eer_by_fold"]), line["eer"]
        whole, low, high = (100 * rate[name] for name in ("value", "low", "high"))
        end = f"| {mean:.2f} | {whole:.2f} [{low:.2f}, {high:.2f}] |"
        mirror = "mirror" in line["key"]["options"]
        begin = f"| `{option[0]} = {option[1]}`{', mirror images' * mirror} |"
        rows = [row for row in text.splitlines() if row.startswith(begin) and how in row.lower() and row.endswith(end)]
        assert len(rows) == 1, (begin, how, end)
        means[option[0] + " mirrored" * mirror, how] = mean
    assert len(means) == 6
    runs = [json.loads(line) for line in (KEPT / "adapt-lfw.jsonl").read_text().splitlines()]
    before = {
        run["key"]["fold"]: run["before"]["value"]
        for run in runs
        if run["key"]["phase"] == "measure" and run["key"]["method"] == "FedCrowd"
    }
    assert 100 * statistics.fmean(before.values()) == pytest.approx(means["crop", "cosine"], abs=1e-6)
    crowd = [json.loads(line) for line in (KEPT / "adapt-lfw-crop.jsonl").read_text().splitlines()]
    after = {
        (name, kind): 100 * statistics.fmean(
            run["after"]["value"] for run in crowd
            if (key := run["key"])["phase"] == "measure" and (key["method"], key["kind"]) == (name, kind)
        )
        for name, kind in (("FedCrowd", "all"), ("FedCrowd, sums", "all"))
    }  # fmt: skip
    own, cosine, best = means["crop", "euclidean"], means["crop", "cosine"], after["FedCrowd", "all"]
    gone, of_own = 100 * (1 - best / cosine), 100 * (1 - best / own)
    assert f"has {best:.2f}: {gone:.0f} % of the error gone, and {of_own:.0f} % of the {own:.2f}" in text
    summed = after["FedCrowd, sums", "all"]
    assert (
        f"{cosine:.2f} before, {summed:.2f} after, by FedCrowd with all layers, {100 * (1 - summed / cosine):.0f} %"
        in text
    )
    assert summed < own * 2 / 3 and f"it is {100 * (1 - summed / own):.0f} % less; a third would" in text


def test_where_an_untrained_network_puts_faces_is_what_the_kept_cases_say():
    lines = [json.loads(line) for line in (KEPT / "fedmetric-centres-lfw.jsonl").read_text().splitlines()]
    found = {(line["key"]["unit_length"], line["key"]["first"]): line for line in lines}
    text = " ".join((RESULTS / "fedmetric.md").read_text(encoding="utf-8").split())
    rates = (100 * found[True, how]["eer"] for how in ("as drawn", "mean", "all"))
    assert "has {:.1f} %, {:.1f} with the mean taken off and {:.1f} whitened".format(*rates) in text
    here = found[False, "as drawn"]
    assert f"| ratio | 0.58 | 0.67 | {here['between'] / here['within']:.2f} |" in text
    assert f"| – | 30.2 | {100 * here['eer']:.1f} |" in text and f"| 4.9 | 494 | {here['push']:.0f} |" in text
    assert f"98.3 % of 963 | {100 * here['at_work']:.1f} % of 546 |" in text


def test_the_oracle_of_labels_is_what_the_kept_fits_say():
    """The recipes have what fits on rows set apart chose; table, text and page have the fits on the test rows."""
    text = (RESULTS / "extreme.md").read_text(encoding="utf-8")
    lines = [json.loads(line) for line in (KEPT / "sleec.jsonl").read_text().splitlines()]
    for data, title, published in (
        ("delicious", "Delicious", "67.59"),
        ("bibtex", "bibtex", "65.08"),
        ("corel5k", "corel5k", ""),
    ):
        of = {phase: [line for line in lines if (line["key"]["phase"], line["key"]["data"]) == (phase, data)]
              for phase in ("choose", "measure")}  # fmt: skip
        some, tried = of["measure"], of["choose"]
        assert len(tried) == 14 and "14 settings per set" in text
        worth = [(statistics.fmean(figures), int(voters), line["key"]["options"])
                 for line in tried for voters, figures in line["voters"].items()]  # fmt: skip
        _, voters, best = max(worth, key=lambda one: one[:2])
        chosen = {**best, "voters": voters}
        (oracle,) = read_experiment(ROOT / "recipes" / f"fedaws-table3-{data}.toml").oracles
        assert oracle.recipe.method.name == "sleec" and oracle.recipe.method.options == chosen
        assert "14 settings" in oracle.paper.chosen
        assert [line["key"]["seed"] for line in some] == [0, 1, 2]
        assert all(line["key"]["options"] == chosen for line in some)
        p1, p3, p5 = (
            f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
            for values in zip(*(line["precision"] for line in some), strict=True)
        )
        settings = [f"{chosen['learners']} x {chosen['clusters']}"]
        settings += [f"{chosen[name]:g}" for name in ("rank", "neighbours", "steps", "ridge", "voters")]
        seconds = f"{statistics.fmean(line['cpu_seconds'] for line in some):.0f}"
        row = f"| {title} | {p1} | {published} | {p3} | {p5} | {' | '.join(settings)} | {seconds} |"
        assert row.replace("|  |", "| |") in text
        page = _page("fedaws/table-3", f"fedaws-table3-{data}")
        for place, key in enumerate(("p@1", "p@3", "p@5")):
            kept = [line["precision"][place] for line in some]
            assert page["SLEEC"][key]["values"] == pytest.approx(kept, abs=0.05)
        ahead = page["SLEEC"]["p@1"]["measured"] - page["FedAwS"]["p@1"]["measured"]
        assert f"{ahead:.1f} " in text.split("on the page SLEEC is ")[1].split("How much")[0]


def _spread(values):
    some = [100 * value for value in values]
    return f"{statistics.fmean(some):.1f} ± {(max(some) - min(some)) / 2:.1f}"


def _tuned_alike(lines, text):
    """FedUV's Fig. 4: a row of each method, three seeds each, at the best of eight rates; the control beside them."""

    def of(phase, name):
        return [line for line in lines if {"phase": phase, "method": name}.items() <= line["key"].items()]

    groups = ("training samples", "test samples", "unseen, enrolled")
    for name in ("softmax", "FedAwS", "FedUV(127)", "FedUV(255)", "FedUV(511)", "untrained"):
        tried, some = of("choose", name), of("measure", name)
        assert len(some) == 3
        cells = [_spread(line[group]["eer"] for line in some) for group in groups]
        cells += [_spread(line[group]["tpr"][21] for line in some) for group in groups[1:]]  # 1 + 60/3: FPR 0.01
        if name == "untrained":
            row = f"| untrained, the control | – | – | {' | '.join(cells)} |"
        else:
            best = min(tried, key=lambda line: line["eer"])
            assert len(tried) == 8 and {line["lr"] for line in some} == {best["lr"]}
            row = f"| {name} | {best['lr']:g} | {100 * best['eer']:.1f} | {' | '.join(cells)} |"
        assert row in text, row


def test_faces_tuned_alike_are_what_the_kept_runs_say():
    lines = [json.loads(line) for line in (KEPT / "feduv-lfw-long.jsonl").read_text().splitlines()]
    assert {line["key"]["rounds"] for line in lines if line["key"]["phase"] == "choose"} == {5000}
    text = (RESULTS / "writers.md").read_text(encoding="utf-8").split("### On faces")[1]
    _tuned_alike(lines, text)
    pairs = {
        name: 100
        * statistics.fmean(
            line["eer"] for line in lines if {"phase": "measure", "method": name}.items() <= line["key"].items()
        )
        for name in ("FedAwS", "FedUV(127)", "FedUV(255)", "FedUV(511)")
    }
    codes = [pairs[f"FedUV({length})"] for length in (127, 255, 511)]
    assert f"here {pairs['FedAwS']:.1f} and {min(codes):.1f} to {max(codes):.1f} %" in text
    words = {"uniform": "everybody weighs the same", "samples": "people weigh by their pictures"}
    longer = [json.loads(line) for line in (KEPT / "weights-lfw.jsonl").read_text().splitlines()]
    assert len(longer) == 3
    for line in longer:
        assert f"| {words[line['weights']]} | {line['lr']:g} | {100 * line['eer']:.1f} |" in text


def test_what_a_fifth_of_the_rounds_chose_on_faces_is_in_the_kept_runs():
    lines = [json.loads(line) for line in (KEPT / "feduv-lfw.jsonl").read_text().splitlines()]
    text = (RESULTS / "writers.md").read_text(encoding="utf-8").split("| rate after 1,000 rounds |")[1]
    for name in ("softmax", "FedAwS", "FedUV(127)", "FedUV(255)", "FedUV(511)"):
        tried, some = (
            [line for line in lines if {"phase": phase, "method": name}.items() <= line["key"].items()]
            for phase in ("choose", "measure")
        )
        best = min(tried, key=lambda line: line["eer"])
        assert len(tried) == 8 and {line["key"]["rounds"] for line in tried} == {1000}
        assert len(some) == 3 and {line["lr"] for line in some} == {best["lr"]}
        cells = [
            _spread(line[group]["eer"] for line in some)
            for group in ("training samples", "test samples", "unseen, enrolled")
        ]
        assert f"| {name} | {best['lr']:g} | {' | '.join(cells)} |" in text


def test_what_softmax_has_on_faces_in_other_runs_is_kept():
    lines = [json.loads(line) for line in (KEPT / "feduv-lfw-long.jsonl").read_text().splitlines()]
    wanted = {"phase": "measure", "method": "softmax"}.items()
    one = _spread(line["eer"] for line in lines if wanted <= line["key"].items())
    other = _page("feduv/figure-4", "feduv-fig4-lfw")["softmax"]["eer"]
    assert len(other["values"]) == 3
    said = f"{one} and {other['measured']:.1f} ± {other['half_range']:.1f}, where it has"
    assert said in (RESULTS / "unseen.md").read_text(encoding="utf-8")


def test_writers_tuned_alike_are_what_the_kept_runs_say():
    """FedUV's Figs. 3 and 4: every row of both tables."""
    lines = [json.loads(line) for line in (KEPT / "feduv-writers.jsonl").read_text().splitlines()]
    text = (RESULTS / "writers.md").read_text(encoding="utf-8")
    _tuned_alike(lines, text.split("### On faces")[0])

    def of(phase, name, **more):
        wanted = {"phase": phase, "method": name, **more}
        return [line for line in lines if wanted.items() <= line["key"].items()]

    for name, users in product(
        ("FedUV(127)", "FedUV(127), negatives"), ("everybody from the start", "a fifth joins half-way")
    ):
        some = [line["points"] for line in of("course", name, users=users)]
        assert len(some) == 3 and {points[4]["round"] for points in some} == {500}
        places = ((4, "test"), (-1, "test"), (-1, "training"))
        cells = [_spread(points[place][what] for points in some) for place, what in places]
        assert f"| {name} | {users} | {' | '.join(cells)} |" in text


@pytest.mark.parametrize("by", ["eer", "p@1"])
def test_smaller_weights_of_the_negative_term_are_what_the_kept_runs_say(by):
    """Rates by pairs of writers set apart, and by validation samples of those who train."""
    lines = [json.loads(line) for line in (KEPT / "feduv-writers-cpu.jsonl").read_text().splitlines()]
    text = (RESULTS / "writers.md").read_text(encoding="utf-8").split("### Smaller lambda")[1]
    early, ends, learnt = {}, {}, {}
    for weight in (0, 0.01, 0.1, 1):
        name = {0: "FedUV(127)", 1: "FedUV(127), negatives"}.get(weight, f"FedUV(127), negatives, lambda {weight:g}")
        tried = [line for line in lines if {"phase": "choose", "method": name}.items() <= line["key"].items()]
        best, cells = (max if by == "p@1" else min)(tried, key=lambda line: line[by]), []
        assert len(tried) == 8 and {line["key"]["rounds"] for line in tried} == {0}  # the recipe's
        for users in ("everybody from the start", "a fifth joins half-way"):
            wanted = {"phase": "course", "method": name, "users": users}
            some = [line for line in lines if wanted.items() <= line["key"].items()]
            some = [line for line in some if line["key"].get("by", "eer") == by]
            assert len(some) == 3 and {line["lr"] for line in some} == {best["lr"]}
            cells += [_spread(line["points"][-1][what] for line in some) for what in ("test", "training")]
            if users.startswith("everybody"):
                mean = [
                    statistics.fmean(100 * line["points"][-1][what] for line in some) for what in ("test", "training")
                ]
                ends[weight], learnt[weight] = mean
                assert {line["points"][4]["round"] for line in some} == {250}
                early[weight] = f"{statistics.fmean(100 * line['points'][4]['test'] for line in some):.1f}"
        assert f"| {weight:g} | {best['lr']:g} | {100 * best[by]:.1f} | {' | '.join(cells)} |" in text, cells
    assert f"by {ends[0.1] - ends[0]:.1f} points of test P@1" in text
    assert f"by {learnt[0.1] - learnt[0]:.1f} on training samples" in text
    assert f"test P@1 is {early[0]} without it, {early[0.1]} at 0.1" in text


def test_speakers_over_rounds_are_what_the_kept_runs_say():
    """FedUV's Fig. 3 on speakers: the best of eight rates each, three seeds."""
    lines = [json.loads(line) for line in (KEPT / "feduv-speakers.jsonl").read_text().splitlines()]
    text = (RESULTS / "writers.md").read_text(encoding="utf-8").split("**The same on speakers**")[1]
    for name, users in product(
        ("FedUV(127)", "FedUV(127), negatives"), ("everybody from the start", "a fifth joins half-way")
    ):
        tried = [line for line in lines if {"phase": "choose", "method": name}.items() <= line["key"].items()]
        wanted = {"phase": "course", "method": name, "users": users}
        some = [line for line in lines if wanted.items() <= line["key"].items()]
        assert len(tried) == 8 and len(some) == 3
        assert {line["lr"] for line in some} == {min(tried, key=lambda line: line["eer"])["lr"]}
        assert {line["points"][4]["round"] for line in some} == {250}
        places = ((4, "test"), (-1, "test"), (-1, "training"))
        cells = [_spread(line["points"][place][what] for line in some) for place, what in places]
        assert f"| {name} | {users} | {' | '.join(cells)} |" in text


LOSSES = {
    "supervised contrastive": "supervised contrastive, Adam",
    "semi-hard triplets": "semi-hard, Adam",
    "multi-similarity": "multi-similarity, Adam",
    "margin softmax over the enclave's class vectors": "margin softmax, Adam",
    "FedCrowd, Adam": "FedCrowd, Adam",
    "FedCrowd, momentum": "FedCrowd",
    "softmax, Adam": "softmax, Adam",
    "softmax, momentum": "softmax",
}


def _setting_in_words(line):
    """'0.01, unit length': the rate of a run and what its loss is set to."""
    own = [
        "unit length" * value if isinstance(value, bool) else f"{key.replace('_', ' ')} {value:g}"
        for key, value in line["options"].items()
        if key not in ("name", "kind")
    ]
    return ", ".join([f"{line['lr']:g}", *filter(None, own)])


@pytest.mark.parametrize("kept", ["joint-omniglot", "joint-lfw-long"])
def test_losses_that_see_the_round_are_what_the_kept_runs_say(kept):
    lines = [json.loads(line) for line in (KEPT / f"{kept}.jsonl").read_text().splitlines()]
    text = (RESULTS / "unseen.md").read_text(encoding="utf-8")
    changed = 0
    for title, name in LOSSES.items():
        tried = [line for line in lines if (line["key"]["phase"], line["key"]["method"]) == ("choose", name)]
        some = [line for line in lines if (line["key"]["phase"], line["key"]["method"]) == ("measure", name)]
        first = sorted((line for line in tried if line["key"]["rounds"] == 2500), key=lambda line: line["eer"])
        tried = [line for line in tried if line["key"]["rounds"] == 0]
        if first:  # the better half of the grid is tried again at full length
            assert len(first) == 8
            better = {line["key"]["setting"] for line in first[:4]}
            assert {line["key"]["setting"] for line in tried} == better and len(tried) == 4
            assert kept == "joint-omniglot"
        else:
            assert len(tried) == 8
        best = min((line for line in tried if line["eer"] is not None), key=lambda line: line["eer"])
        assert len(some) == 3
        assert {(line["lr"], json.dumps(line["options"])) for line in some} == {
            (best["lr"], json.dumps(best["options"]))
        }
        setting = _setting_in_words(best)
        changed += bool(first) and _setting_in_words(first[0]) != setting
        cells = [_spread(line[what] for line in some) for what in ("eer", "eer_seen", "p@1")]
        row = f"| {title} | {setting} | {100 * best['eer']:.1f} | {' | '.join(cells)} |"
        assert row in text, row
    some = [line for line in lines if (line["key"]["phase"], line["key"]["method"]) == ("measure", "untrained")]
    cells = [_spread(line[what] for line in some) for what in ("eer", "eer_seen", "p@1")]
    assert len(some) == 3 and f"| untrained, the control | – | – | {' | '.join(cells)} |" in text
    assert changed == (kept == "joint-omniglot")  # the triplets alone


def test_what_5000_rounds_choose_on_faces_is_in_the_kept_runs():
    """Every loss's setting by 1,000 rounds and by 5,000, and what is measured with either."""

    def read(*names):
        return [json.loads(line) for name in names for line in (KEPT / f"{name}.jsonl").read_text().splitlines()]

    def best(lines, name):
        tried = [one for one in lines if (one["key"]["phase"], one["key"]["method"]) == ("choose", name)]
        assert len(tried) == 8
        return min((one for one in tried if one["eer"] is not None), key=lambda one: one["eer"])

    def unseen(lines, name):
        """With the setting that was chosen; three seeds, or the first alone."""
        some = [one for one in lines if (one["key"]["phase"], one["key"]["method"]) == ("measure", name)]
        assert {_setting_in_words(one) for one in some} == {_setting_in_words(best(lines, name))}
        assert sorted(one["key"]["seed"] for one in some) == list(range(len(some)))
        return _spread(one["eer"] for one in some) if len(some) == 3 else f"{100 * some[0]['eer']:.1f} (seed 0)"

    text = (RESULTS / "unseen.md").read_text(encoding="utf-8").split("**What the length of the choice is worth.**")[1]
    long, short = read("joint-lfw-long"), read("joint-lfw", "joint-lfw-momentum")
    for title, name in LOSSES.items():
        cells = []
        for lines in (short, long):
            cells += [_setting_in_words(best(lines, name)), unseen(lines, name)]
        assert f"| {title} | {' | '.join(cells)} |" in text, cells
    crowd, first = ([100 * best(lines, LOSSES[title])["eer"] for lines in (long, short)]
                    for title in ("FedCrowd, Adam", "supervised contrastive"))  # fmt: skip
    behind = [one - other for one, other in zip(crowd, first, strict=True)]
    assert (
        "{:.1f} points behind supervised contrastive after 5,000 rounds, where it was {:.1f} behind".format(*behind)
        in text
    )


def _unseen(kept, name):
    lines = [json.loads(line) for line in (KEPT / f"{kept}.jsonl").read_text().splitlines()]
    wanted = {"phase": "measure", "method": name}
    return f"{100 * statistics.fmean(line['eer'] for line in lines if wanted.items() <= line['key'].items()):.1f} %"


def test_the_readmes_rows_of_tuned_methods_are_in_the_kept_runs():
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    names = ("supervised contrastive, Adam", "semi-hard, Adam", "FedCrowd, Adam", "softmax, Adam")
    found = [_unseen("joint-omniglot", name) for name in names]
    said = "supervised contrastive in the enclave {}, FDML's triplets {}, FedCrowd {}, softmax {} |"
    assert said.format(*found) in text
    faces = [_unseen("joint-lfw-long", name) for name in (*names[:3], "softmax")]
    assert said.format(*faces) in text
    lines = [json.loads(line) for line in (KEPT / "feduv-writers.jsonl").read_text().splitlines()]
    writers = {
        name: statistics.fmean(
            100 * line["unseen, enrolled"]["eer"]
            for line in lines
            if {"phase": "measure", "method": name}.items() <= line["key"].items()
        )
        for name in ("FedAwS", "softmax", "FedUV(511)")
    }
    assert ", ".join(f"{name} {value:.1f} %" for name, value in writers.items()) + " |" in text


def _page(name, recipe=""):
    page = json.loads((RESULTS / "papers" / f"{name}.json").read_text(encoding="utf-8"))
    parts = [part for part in page["parts"] if not recipe or part["recipe"] == recipe]
    return {one["title"]: one["figures"] for part in parts for one in part["variants"]}


def _cell(figure, interval=False):
    """'63.7 ± 1.9 [61.0, 66.0]', of three seeds."""
    assert len(figure["values"]) == 3 and None not in figure["values"]
    said = f"{figure['measured']:.1f} ± {figure['half_range']:.1f}"
    return said + (" [{:.1f}, {:.1f}]".format(*figure["interval"]["mean"]) if interval and figure["interval"] else "")


def test_what_is_said_of_all_17_rows_is_on_their_page():
    figures = _page("fedhide/table-4")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    fixed, without = (figures[title]["p@1"]["measured"] for title in ("fixed vectors", "no negative term"))
    assert f"no negatives {without:.1f} %, fixed vectors {fixed:.1f} %" in readme
    rows = {title: one for title, one in figures.items() if title.startswith("Fed")}
    assert len(rows) == 17 and all(len(one["p@1"]["values"]) == 3 for one in rows.values())
    right = [round(one["p@1"]["measured"], 1) for one in rows.values()]
    text = " ".join((RESULTS / "cifar100.md").read_text(encoding="utf-8").split())
    assert f"**All 17 rows have {min(right):.1f} to {max(right):.1f} % P@1**" in text
    assert f"settings, tuned alike, {min(right):.1f} to {max(right):.1f} %" in readme
    assert f"are among them, {fixed:.1f} %" in text and f"`negative_weight = 0` has {without:.1f} %" in text
    ahead = {title: one["p@1"]["measured"] - without for title, one in rows.items()}
    assert [title for title in ahead if ahead[title] > 0] == ["FedHide(0.01, 5)", "FedHide(0.01, 10)"]
    assert {round(ahead[title], 1) for title in ahead if ahead[title] > 0} == {0.3}
    behind = [-ahead[f"FedHide(0.1, {k})"] for k in (5, 10, 20)]
    assert f"alpha 0.1 is {min(behind):.1f} to {max(behind):.1f} behind" in text
    assert [one["recovered"]["measured"] for one in rows.values()] == pytest.approx([100] * 17)

    def leaks(*titles):
        return [rows[title]["leak"]["measured"] for title in titles]

    noise = leaks(*(f"FedGN(0.{n})" for n in range(1, 6)))
    assert "FedGN {:.0f}, {:.1f}, {:.0f}, {:.0f}, {:.0f} %".format(*noise) in text
    cosine = leaks(*(f"FedCS(0.{n})" for n in range(5, 0, -1)))
    assert "FedCS {:.0f}, {:.0f}, {:.0f}, {:.0f}, {:.0f} %".format(*cosine) in text
    for alpha in ("0.01", "0.1"):
        said = "{:.0f}, {:.0f} and {:.0f} %".format(*leaks(*(f"FedHide({alpha}, {k})" for k in (5, 10, 20))))
        assert said in text


def test_table_4_of_fedhide_has_what_the_kept_runs_chose():
    """Every row and control with the same two rates; a third where it was tried; the norm by two rows."""
    lines = [json.loads(line) for line in (KEPT / "table4-cifar100.jsonl").read_text().splitlines()]
    text = " ".join((RESULTS / "cifar100.md").read_text(encoding="utf-8").split())
    norm, rates = lines[:4], lines[4:]
    assert len(lines) == 46 and f"has all {len(lines)} runs" in text
    by = {(line["row"], line["groups"]): f"{100 * line['p@1']:.1f}" for line in norm}
    for title in ("FedAwS", "FedHide(0.01, 10)"):
        assert f"{title} ({by[title, 2]} and {by[title, 8]} %)" in text
    assert sum(float(by[key]) * (1 if key[1] == 8 else -1) for key in by) > 0
    (quick,) = (line for line in norm if (line["row"], line["groups"]) == ("FedHide(0.01, 10)", 8))
    said = f"has {100 * quick['p@1']:.1f} % of images set apart after 2,000 rounds of 20 clients, which took "
    assert f"{said}{quick['seconds']:.0f} s" in text
    file = ROOT / "recipes" / "tuned" / "fedhide-cifar100.toml"
    variants = {variant.title: variant.recipe for variant in read_experiment(file).variants}
    found = {(line["row"], line["server.lr"]): line["p@1"] for line in rates}
    for title, recipe in variants.items():
        assert found[title, 2.0] > found[title, 1.0] and (recipe.server.lr, recipe.net.options["groups"]) == (2.0, 8)
    ahead = [100 * (found[title, 2.0] - found[title, 1.0]) for title in variants]
    assert f"2 for all {len(ahead)}, by {min(ahead):.1f} to {max(ahead):.1f} points" in text
    assert list(variants)[:4] == [title for title, rate in found if rate == 4.0]
    least = [100 * (found[title, 2.0] - found[title, 4.0]) for title in list(variants)[:4]]
    assert f"is {min(least):.1f} to {max(least):.1f} points behind 2" in text
    again = [f"{100 * found[title, 2.0]:.1f}" for title in ("FedAwS", "FedHide(0.01, 10)")]
    assert f"run once more had {' and '.join(again)}" in text


def test_what_is_said_of_fedmetrics_figures_on_cifar10_is_on_their_pages():
    text = (RESULTS / "mnist.md").read_text(encoding="utf-8")

    def cell(figures, title):
        one = figures[title]["one_class_auroc"]
        assert len(one["values"]) == 3 and one["values"].count(None) <= 1
        return f"{one['measured']:.1f} ± {one['half_range']:.1f}{' *' * one['values'].count(None)}"

    fig2, fig3 = _page("fedmetric/figure-2"), _page("fedmetric/figure-3")
    at_first = cell(fig2, "pos, as printed")
    assert f"| 0 (*pos*) | {cell(fig2, 'pos')} | {cell(fig2, 'pos')} | {at_first} | {at_first} |" in text
    kinds = [f"{kind}{printed}" for printed in ("", ", as printed") for kind in ("proxy", "true")]
    for weight in (0.01, 0.03, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0):
        titles = [f"{kind}, negative_weight {weight}" for kind in kinds]
        row = " |".join(f" {cell(fig2, title)}" if title in fig2 else "" for title in titles)
        assert f"| {weight:g} |{row} |".replace("|  |", "| |") in text, (weight, row)
    controls = [cell(fig2, title) for title in ("untrained network", "fixed vectors")]
    assert "| controls: untrained, fixed vectors | {} | **{}** | | |".format(*controls) in text
    titles = ("s = 0", *(f"proxy, scale {s}" for s in (0.5, 1.0, 1.5, 2.0, 3.0)), "no negative term")
    assert f"| *proxy* | {' | '.join(cell(fig3, title) for title in titles)} |" in text
    titles = ("s = 0, as printed", *(f"proxy, as printed, scale {s}" for s in (0.5, 1.0, 1.5, 2.0, 3.0)))
    assert f"| *proxy*, as printed | {' | '.join(cell(fig3, title) for title in titles)} | |" in text
    (part,) = json.loads((RESULTS / "papers/fedmetric/figure-2.json").read_text(encoding="utf-8"))["parts"]
    ran = [one for one in part["variants"] if "as printed" in one["title"] and all(one["ended"])]
    assert len(ran) == 21 and all(all(one["collapsed"]) for one in ran if not any(one["diverged"]))  # "at chance"
    assert all(49 < one["figures"]["one_class_auroc"]["measured"] < 51 for one in ran)
    learnt = [one["figures"]["one_class_auroc"]["measured"] for one in part["variants"] if not one["control"]]
    assert round(fig2["fixed vectors"]["one_class_auroc"]["measured"] - max(one or 0 for one in learnt)) == 8


def test_what_fedmetric_and_deepsvdd_have_on_cifar10_is_what_the_kept_runs_say():
    lines = [json.loads(line) for line in (KEPT / "fedmetric-cifar10.jsonl").read_text().splitlines()]
    text = (RESULTS / "mnist.md").read_text(encoding="utf-8")
    plain = text.replace("**", "").replace("| | | | ", "| ")  # without the rates that these did not try
    fig2 = _page("fedmetric/figure-2")

    def of(phase, **key):
        wanted = {"phase": phase, "rounds": 2000, **key}
        return [line for line in lines if wanted.items() <= line["key"].items()]

    def row(title, paper, rates, best, **key):
        tried = [of("choose", **key, **{"local.lr": rate}) for rate in rates]
        values = [one["one_class_auroc"] for (one,) in tried]
        assert max(value for value in values if value is not None) == values[rates.index(best)]
        cells = ["diverged" if value is None else f"{100 * value:.1f}" for value in values]
        return f"| {title} | {paper} | {' | '.join(cells)} |"

    spread = {}
    for name, paper, best in (("pos", 94.0, 0.01), ("pos+neg(proxy)", 94.2, 0.03), ("pos+neg(true)", 94.4, 0.03)):
        said = row(name, paper, (0.003, 0.01, 0.03, 0.1), best, variant=name)
        some = of("measure", variant=name)
        spread[name] = _spread(line["one_class_auroc"] for line in some)
        rates = {line["key"]["local.lr"] for line in some}
        if rates == {best}:
            shown = spread[name]
        else:  # the rate of Fig. 2, whose run this is
            one = fig2["true, negative_weight 0.1"]["one_class_auroc"]
            shown = f"{one['measured']:.1f} ± {one['half_range']:.1f}"
            assert f"*true* would have {min(rates):g} ({spread[name]} on the test)" in text
        assert len(some) == 3 and f"{said} {best} | {shown} |" in plain
    rates = (0.0001, 0.0003, 0.001, 0.003)
    for width, best in ((64, 0.001), (32, 0.0003)):
        said = row(f"DeepSVDD, {width}-d", 64.8, rates, best, variant="DeepSVDD", **{"net.width": width})
        assert said in text.replace("**", "")
    chosen, other = (
        _spread(line["one_class_auroc"] for line in of("measure", variant="DeepSVDD", **{"local.lr": rate}))
        for rate in (0.001, 0.0001)
    )
    assert f"| 0.001 | {chosen} |" in text and f"DeepSVDD 0.0001 ({other})" in text


def test_fdml_on_faces_is_what_its_pages_say():
    text = (RESULTS / "fdml.md").read_text(encoding="utf-8").split("## CameraAuth on LFW")[1].split("## Theorem")[0]
    found = {}
    for number in ("i", "ii", "iv"):
        page = json.loads((RESULTS / "papers" / "fdml" / f"table-{number}.json").read_text(encoding="utf-8"))
        (part,) = (part for part in page["parts"] if part["recipe"] == "fdml-cameraauth")
        assert all(one["rounds"] == one["recipe_rounds"] or one["control"] for one in part["variants"])
        found |= {one["title"]: one for one in part["variants"]}

    def cells(title, *keys, seeds=3):
        figures = found[title]["figures"]
        assert sum(value is not None for value in figures["vii_c"]["values"]) == seeds
        return [f"{figures[key]['measured']:.1f} ± {figures[key]['half_range']:.1f}" for key in keys]

    def paper(title):
        """As people round: 76.55 to 76.6."""
        value = found[title]["figures"]["vii_c"]["paper"]
        return "–" if value is None else str(Decimal(str(value)).quantize(Decimal("0.1"), ROUND_HALF_UP))

    rows = {
        "FDML": "FDML",
        "FL, lr 0.01": "FL, lr 0.01",
        "FDML, blocks start as shortcuts": "FDML, blocks start as shortcuts",
        "FL, blocks start as shortcuts, lr 0.1": "FL, lr 0.1, blocks start as shortcuts",
        "FL, blocks start as shortcuts, lr 0.01": "FL, lr 0.01, blocks start as shortcuts",
        "FL, lr 0.1": "FL, lr 0.1 (two seeds; the third diverged)",
        "fixed vectors, as in FDML": "fixed vectors, the control",
        "fixed vectors, as in FDML, blocks start as shortcuts": "fixed vectors, blocks start as shortcuts",
        "untrained network, as in FDML": "untrained, the control",
        **{f"FDML, exceptions, dropout {p}, strategy uc": f"exceptions {p}, UC" for p in (0.2, 0.4, 0.6)},
        **{f"FDML, rate_p, response {p}": f"rate_p {p}" for p in (0.8, 0.6)},
    }
    for title, said in rows.items():
        accuracy, seen, new = cells(title, "vii_c", "eer_seen", "eer", seeds=3 - (title == "FL, lr 0.1"))
        row = f"| {said} | {found[title]['rounds']:,} | {accuracy} | {paper(title)} | {seen} | {new} |"
        assert row in text, row
    for how in (0.2, 0.4, 0.6):
        assert cells(f"FDML, exceptions, dropout {how}, strategy as", "vii_c") == ["57.0 ± 0.9"]
    for epsilon in (1, 0.5, 0.25):
        both = [
            f"{cells(title, 'vii_c')[0]} | {paper(title)}"
            for title in (f"FDML, epsilon {epsilon}, response {p}" for p in (1.0, 0.8, 0.6))
        ]
        assert f" | {' | '.join(both)} |" in text, both
    for sigma in (0.01665, 0.00263, 0.000682, 0.000202):
        row = cells(f"FDML, Gaussian, scale {sigma:g}", "vii_c", "eer_seen", "eer")
        assert any(
            line.startswith(f"| {sigma:g} |") and line.endswith(f"| {' | '.join(row)} |") for line in text.split("\n")
        )


def test_what_is_said_of_the_controls_of_labels_is_on_their_pages():
    table3, table4 = (
        json.loads((RESULTS / "papers" / "fedaws" / f"table-{n}.json").read_text(encoding="utf-8")) for n in (3, 4)
    )

    def across(page, title):
        found = [
            {one["title"]: one["figures"]["p@1"]["measured"] for one in part["variants"]} for part in page["parts"]
        ]
        assert [part["recipe"].rpartition("-")[2] for part in page["parts"]] == ["delicious", "bibtex", "corel5k"]
        return [f"{one[title]:.1f}" for one in found]

    text = (RESULTS / "extreme.md").read_text(encoding="utf-8")
    assert "{}, {} and {} % P@1 on the three sets".format(*across(table3, "untrained network")) in text
    pair = [*across(table4, "no negative term"), *across(table4, "k = 10, lambda = 10")]
    assert "without its spread term has {}, {} and {} %, with it {}, {} and {}:".format(*pair) in text


def test_table_1_on_a_tenth_of_cifar10_is_what_the_kept_runs_say():
    """Six settings of each method and network: the recipe has the best, the text all of them and the page's figures."""
    lines = [json.loads(line) for line in (KEPT / "table1-cifar10.jsonl").read_text().splitlines()]
    text = (RESULTS / "mnist.md").read_text(encoding="utf-8").split("# CIFAR-10, FedAwS's Table 1")[1]
    page = _page("fedaws/table-1", "fedaws-table1-cifar10")
    variants = read_experiment(ROOT / "recipes" / "tuned" / "fedaws-table1-cifar10.toml").variants
    assert len(lines) == 48 and {line["rounds"] for line in lines} == {2000}
    tuned = [variant for variant in variants if not variant.title.startswith("Baseline-1")]
    for variant in tuned:
        key = "spread_weight" if variant.title.startswith("FedAwS") else "server.weight_decay"
        tried = {(one["local.lr"], one[key]): one["p@1"] for one in lines if one["row"] == variant.title}
        assert len(tried) == 6
        best = max(tried, key=tried.get)
        of = variant.recipe.method.options if key == "spread_weight" else {key: variant.recipe.server.weight_decay}
        assert (variant.recipe.local.lr, of[key]) == best, variant.title
        cells = [f"**{100 * tried[at]:.1f}**" if at == best else f"{100 * tried[at]:.1f}" for at in sorted(tried)]
        assert f"| {variant.title} | {' | '.join(cells)} |" in text, (variant.title, cells)
    assert len(tuned) == 8
    titles = {"Baseline-1": "Baseline-1 (positives alone)", "Baseline-2": "Baseline-2 (fixed)", "FedAwS": "FedAwS",
              "without the spread term": "without the spread term (control)", "softmax": "softmax (oracle)",
              "untrained network, as in FedAwS": "untrained (control)"}  # fmt: skip
    for name, title in titles.items():
        cells = []
        for net in ("ResNet-8", "ResNet-32"):
            one = page[f"{name}, {net}"]["p@1"]
            cells += ["–" if one["paper"] is None else f"{one['paper']:.1f}", _cell(one, interval=True)]
        assert f"| {title} | {' | '.join(cells)} |" in text, (title, cells)

    def mean(name, net):
        return page[f"{name}, {net}"]["p@1"]["measured"]

    gains = [mean("FedAwS", net) - mean("without the spread term", net) for net in ("ResNet-8", "ResNet-32")]
    assert "worth {:.1f} points with ResNet-8 and {:.1f} with ResNet-32".format(*gains) in text
    ahead = [mean("FedAwS", "ResNet-32") - mean(name, "ResNet-32") for name in ("softmax", "Baseline-2")]
    assert "ahead of softmax by {:.1f} points and of fixed vectors by {:.1f}".format(*ahead) in text


@pytest.mark.parametrize(("recipe", "data"), [("fedmetric-table2-mnist", "mnist"),
                                              ("tuned/fedmetric-table2-cifar10", "cifar10")])  # fmt: skip
def test_table_2_has_what_the_kept_runs_chose(recipe, data):
    """FedAwS, FedUV and fixed vectors: six rates, or four with each of two k, at the rounds that are shown."""
    lines = [json.loads(line) for line in (KEPT / "table2-others.jsonl").read_text().splitlines()]
    text = (RESULTS / "mnist.md").read_text(encoding="utf-8")
    page, digits = _page("fedmetric/table-2", f"fedmetric-table2-{data}"), 2 if data == "mnist" else 1
    for variant in read_experiment(ROOT / "recipes" / f"{recipe}.toml").variants:
        tried = [one for one in lines if (one["data"], one["row"]) == (data, variant.title)]
        if variant.title not in ("FedAwS", "FedUV", "fixed vectors"):
            assert not tried
            continue
        assert len(tried) == (8 if variant.title == "FedAwS" else 6)
        assert {one["rounds"] for one in tried} == {variant.recipe.run.rounds}
        best = max(tried, key=lambda one: one["one_class_auroc"])
        assert variant.recipe.local.lr == best["local.lr"]
        assert variant.recipe.method.options.get("neighbours") == best.get("neighbours")
        for k in {one.get("neighbours") for one in tried}:
            of = {one["local.lr"]: one for one in tried if one.get("neighbours") == k}
            shown = [f"{100 * one['one_class_auroc']:.{digits}f}" for _, one in sorted(of.items())]
            cells = [f"**{said}**" if of[rate] is best else said for rate, said in zip(sorted(of), shown, strict=True)]
            name = variant.title if k is None else f"FedAwS, k = {k}"
            rows = [row for row in text.splitlines() if row.startswith(f"| {name}") and " | ".join(cells) in row]
            assert rows, (name, cells)
            if data == "cifar10" and of.get(best["local.lr"]) is best:
                assert rows[0].endswith(f"| {best['local.lr']:g} | {_cell(page[variant.title]['one_class_auroc'])} |")
    if data == "cifar10":
        for name in ("pos", "pos+neg(proxy)", "pos+neg(true)", "DeepSVDD"):
            assert f"| {_cell(page[name]['one_class_auroc'])} |" in text
        assert f"| – | {_cell(page['untrained network']['one_class_auroc'])} |" in text


def test_fig_4_of_feduv_has_the_rates_that_people_set_apart_chose_and_its_page_says():
    """Writers and speakers, at the rounds that are shown."""
    lines = [json.loads(line) for line in (KEPT / "feduv-fig4.jsonl").read_text().splitlines()]
    for line in (KEPT / "feduv-lfw-long.jsonl").read_text().splitlines():  # chosen by a script, in its own words
        if (one := json.loads(line))["key"]["phase"] == "choose":
            lines.append({"data": "lfw", "row": one["key"]["method"], "rounds": 5000, **one})
    text = (RESULTS / "writers.md").read_text(encoding="utf-8").split("### Rates chosen at the length")[1]
    text = text.split("## Fig. 3,")[0]
    for recipe, data in (
        ("tuned/feduv-fig4-mnist-uv", "mnist_uv"),
        ("feduv-fig4-audiomnist", "audiomnist"),
        ("feduv-fig4-lfw", "lfw"),
    ):
        page = _page("feduv/figure-4", recipe.rpartition("/")[2])
        for variant in read_experiment(ROOT / "recipes" / f"{recipe}.toml").variants:
            tried = [one for one in lines if (one["data"], one["row"]) == (data, variant.title)]
            assert len({one["lr"] for one in tried}) == len(tried) == 8
            assert {one["rounds"] for one in tried} == {variant.recipe.run.rounds}
            best = min(tried, key=lambda one: one["eer"])
            assert variant.recipe.local.lr == best["lr"]
            figures, title = page[variant.title], variant.title + (", the control" if variant.control else "")
            cells = [f"{best['lr']:g}", f"{100 * best['eer']:.1f}", _cell(figures["p@1"]), _cell(figures["eer_seen"])]
            row = f"| {title} | {' | '.join(cells)} | {_cell(figures['eer'], interval=True)} |"
            assert row in text, row
        start = page["untrained network"]
        cells = [_cell(start["p@1"]), _cell(start["eer_seen"]), _cell(start["eer"], interval=True)]
        assert f"| untrained, the control | – | – | {' | '.join(cells)} |" in text, cells
    earlier = [json.loads(line) for line in (KEPT / "feduv-writers.jsonl").read_text().splitlines()]

    def before(name, what):
        wanted = {"phase": "measure", "method": name}
        some = [100 * line[what] for line in earlier if wanted.items() <= line["key"].items()]
        return f"{statistics.fmean(some):.1f}"

    codes = [f"FedUV({length})" for length in (127, 255, 511)]
    page = _page("feduv/figure-4", "feduv-fig4-mnist-uv")
    for what, said in (
        ("eer", "falls from {}, {} and {} to {}, {} and {} %"),
        ("p@1", "from {}, {} and {} to {}, {} and {}."),
    ):
        now = [f"{page[name][what]['measured']:.1f}" for name in codes]
        assert said.format(*(before(name, what) for name in codes), *now) in text


def test_what_negatives_do_on_characters_is_what_the_kept_runs_say():
    """FedHide with and without them, chosen at 2,500 rounds and measured after 8,000, and FedCrowd beside it."""
    lines = [json.loads(line) for line in (KEPT / "frontier-omniglot.jsonl").read_text().splitlines()]
    text = (RESULTS / "unseen.md").read_text(encoding="utf-8")
    titles = {"FedHide": "FedHide (0.01, 5), negative weight 10", "FedHide, no negatives": "the same without negatives",
              "FedCrowd": "FedCrowd, for comparison"}  # fmt: skip
    best = {}
    for name, title in titles.items():
        tried = [one for one in lines if (one["key"]["phase"], one["key"]["method"]) == ("choose", name)]
        some = [one for one in lines if (one["key"]["phase"], one["key"]["method"]) == ("measure", name)]
        best[name] = min(tried, key=lambda one: one["eer"])
        assert len(tried) == 8 and len(some) == 3 and {one["key"]["rounds"] for one in tried} == {2500}
        assert all((one["lr"], one["options"]) == (best[name]["lr"], best[name]["options"]) for one in some)
        cells = [f"{best[name]['lr']:g}", *(_spread(one[what] for one in some) for what in ("eer", "p@1"))]
        assert f"| {title} | {' | '.join(cells)} |" in text, cells
    pair = [f"{100 * best[name]['eer']:.1f} %" for name in ("FedHide", "FedHide, no negatives")]
    assert f"| characters, after 2,500 rounds | {' | '.join(pair)} |" in text
    weights = {one["options"]["prototype_weight"]: one["eer"] for one in lines
               if (one["key"]["phase"], one["key"]["method"], one["lr"]) == ("choose", "FedCrowd", 0.1)}  # fmt: skip
    assert f"by a tenth of a point ({100 * weights[0.0]:.1f} against {100 * weights[1.0]:.1f} %)" in text
    ran = [one for one in lines if one["key"]["phase"] == "measure"]
    crowd, hide = (
        _spread(one["eer"] for one in ran if one["key"]["method"] == name) for name in ("FedCrowd", "FedHide")
    )
    assert f"are the same, {crowd} and {hide} %" in (RESULTS / "frontier.md").read_text(encoding="utf-8")


def test_weights_of_the_negative_term_are_what_the_kept_runs_say(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    monkeypatch.setattr("sys.argv", ["negatives", "table", str(KEPT / "feduv-negatives.jsonl")])
    __import__("negatives").main()
    rows = capsys.readouterr().out.strip().splitlines()[2:]
    text = (RESULTS / "writers.md").read_text(encoding="utf-8")
    assert len(rows) == 3 and all(row in text and row.count("±") == 3 for row in rows)


CARRIED = {
    "pos": "pos, the reading of MNIST",
    "pos, all centres first": "all centres first",
    "pos, all centres first, whitened": "all centres first, ",  # the last layer's start, which differs
    "proxy, all centres first, whitened": "the same with negatives",
    "fixed": "fixed vectors",
}


@pytest.mark.parametrize(("data", "begin"), [("omniglot", "On the 659 unseen characters"), ("lfw", "**Faces**")])
def test_how_fedmetric_carries_over_is_what_the_kept_runs_say(data, begin):
    """Three seeds of every row that was measured."""
    lines = [json.loads(line) for line in (KEPT / f"fedmetric-{data}.jsonl").read_text().splitlines()]
    text = (RESULTS / "fedmetric.md").read_text(encoding="utf-8")
    rows = [row.replace("**", "") for row in text.split(begin)[1].split("```")[0].splitlines()]
    assert f"bench/kept/fedmetric-{data}.jsonl" in text
    found = 0
    for name, title in CARRIED.items():
        some = [line for line in lines if (line["key"]["phase"], line["key"].get("method")) == ("measure", name)]
        if not some:
            continue
        by_seed = sorted(some, key=lambda line: line["key"]["seed"])
        assert [line["key"]["seed"] for line in by_seed] == [0, 1, 2]
        cells = [", ".join(f"{100 * line[figure]:.1f}" for line in by_seed) for figure in ("eer", "p@1")]
        assert any(row.startswith(f"| {title}") and row.endswith(f"| {' | '.join(cells)} |") for row in rows), (
            name,
            cells,
        )
        found += 1
    assert found == (5 if data == "omniglot" else 4)
    for first, title in (("as drawn", "untrained"), ("all", "untrained, whitened")) if data == "omniglot" else ():
        wanted = {"phase": "centres", "unit_length": True, "first": first}
        some = sorted(
            (one for one in lines if wanted.items() <= one["key"].items()), key=lambda one: one["key"]["seed"]
        )
        cells = [", ".join(f"{100 * line[figure]:.1f}" for line in some) for figure in ("eer", "p@1")]
        assert len(some) == 3 and f"| {title} | {' | '.join(cells)} |" in rows


def test_fig_4_of_feduv_on_faces_has_the_options_that_the_script_chose_with():
    lines = [json.loads(line) for line in (KEPT / "feduv-lfw-long.jsonl").read_text().splitlines()]
    for variant in read_experiment(ROOT / "recipes" / "feduv-fig4-lfw.toml").variants:
        if not variant.control:
            wanted = {"phase": "choose", "method": variant.title}.items()
            asked = [line["options"] for line in lines if wanted <= line["key"].items()]
            assert asked == [{"name": variant.recipe.method.name, **variant.recipe.method.options}] * 8


def test_feduvs_fig_3_has_what_the_kept_runs_chose_and_its_page_says():
    lines = [json.loads(line) for line in (KEPT / "feduv-fig3.jsonl").read_text().splitlines()]
    text, page = (RESULTS / "writers.md").read_text(encoding="utf-8"), _page("feduv/figure-3")
    tried = {(line["row"], line["lr"]): line["p@1"] for line in lines}
    assert len(tried) == len(lines) == 16
    negatives = "FedUV(127) with negatives, lambda "
    rows = {"FedUV(127)": "0", **{f"{negatives}{weight}": weight for weight in ("0.01", "0.1", "1")},
            "fixed vectors": "fixed vectors, the control"}  # fmt: skip
    best = {row: max((key for key in tried if key[0] == row), key=lambda key: tried[key])[1] for row in rows}

    def cell(title):
        one = page.get(title, {}).get("p@1")
        if one is None:
            return ""
        assert len(one["values"]) == 3
        return f"{one['measured']:.1f} ± {one['half_range']:.1f}"

    for row, name in rows.items():
        cells = []
        for rate in (0.1, 0.3, 1.0, 3.0):
            figure = f"{100 * tried[row, rate]:.1f}" if (row, rate) in tried else ""
            cells.append(f"**{figure}**" if best[row] == rate else figure)
        cells += [cell(row), cell(f"{row}, a fifth joins half-way")]
        assert f"| {name} | {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") in text
    recipe = ROOT / "recipes" / "tuned" / "feduv-fig3-mnist-uv.toml"
    variants = read_experiment(recipe).variants
    for variant in variants:
        assert variant.recipe.local.lr == best[variant.title.removesuffix(", a fifth joins half-way")]
    late = [variant.title for variant in variants if variant.recipe.cohort.late]
    assert len(late) == 2 and all(page[title]["p@1"] != page[title.split(", a fifth")[0]]["p@1"] for title in late)
    assert f"best as well, with {100 * tried[f'{negatives}1', 1.0]:.1f} %" in text
