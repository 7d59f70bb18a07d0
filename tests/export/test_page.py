"""The web page of a model: what is written, what is refused, and its rules against Python's own."""

import dataclasses
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from page_models import RATE, picture_cohort, picture_model, seen, sound_model, tone, write_sounds

from selfsame.commands.export import export
from selfsame.device import rules, thresholds
from selfsame.device.card import Card, score, template
from selfsame.device.embedder import OnnxEmbedder
from selfsame.device.model_file import read_card
from selfsame.device.samples import read_samples
from selfsame.device.strangers import find
from selfsame.device.verifier import Verifier
from selfsame.errors import SelfsameError
from selfsame.export import webpage
from selfsame.export.webpage import PINS, SCRIPT, WASM, check_place, page_files, read_runtime, write_page

ROOT = Path(__file__).parents[2]
SOURCES = Path(webpage.__file__).with_name("web")
FAKE = {SCRIPT: b"export const env = {};", WASM: b"\0asm"}


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """An installed package that looks like the pinned one."""
    monkeypatch.setattr(webpage, "PINS", {name: hashlib.sha256(data).hexdigest() for name, data in FAKE.items()})
    folder = tmp_path / "node_modules" / "onnxruntime-web"
    (folder / "dist").mkdir(parents=True)
    for name, data in FAKE.items():
        (folder / "dist" / name).write_bytes(data)
    (folder / "package.json").write_text(json.dumps({"name": "onnxruntime-web", "version": webpage.RUNTIME_VERSION}))
    return folder


# What is written


def test_a_page_of_a_model_file(tmp_path, runtime, capsys):
    file = tmp_path / "net.onnx"
    file.write_bytes(picture_model())
    export(file, web=tmp_path / "page", runtime=runtime)
    said = capsys.readouterr().out
    assert "http.server" in said and str(tmp_path / "page") in said
    names = {path.name for path in (tmp_path / "page").iterdir()}
    sources = {path.name for path in SOURCES.iterdir()}
    assert names == sources | {"model.onnx", "card.json", "manifest.json", SCRIPT, WASM}
    assert {"index.html", "app.js", "style.css", "sw.js"} <= names
    export(file, web=tmp_path / "page", runtime=runtime)  # again, over itself


def test_the_manifest_names_every_file_and_its_digest():
    files = page_files(picture_model(), "net.onnx", FAKE)
    manifest = json.loads(files["manifest.json"])
    assert manifest["files"] == {
        name: hashlib.sha256(data).hexdigest() for name, data in files.items() if name not in ("manifest.json", "sw.js")
    }
    assert hashlib.sha256(files["manifest.json"]).hexdigest() in files["sw.js"].decode()
    assert b"@VERSION@" not in files["sw.js"]


def test_the_card_in_the_page_is_the_models():
    model = picture_model(cohort=picture_cohort())
    files = page_files(model, "net.onnx", FAKE)
    assert files["model.onnx"] == model
    assert files["card.json"] in model
    assert Card.from_json(files["card.json"].decode()) == read_card(model, "net.onnx")
    assert json.loads(files["manifest.json"])["digest"] == read_card(model, "net.onnx").digest


def test_the_page_travels_with_the_package():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["selfsame"]
    assert "export/web/*" in told
    assert all(path.is_file() for path in SOURCES.iterdir())


def test_the_page_itself_comes_last(tmp_path, monkeypatch):
    order = []
    monkeypatch.setattr(webpage, "write", lambda path, data: order.append(path.name))
    write_page(tmp_path, page_files(picture_model(), "net.onnx", FAKE))
    assert set(order[-2:]) == {"sw.js", "manifest.json"}
    assert order.index("index.html") > order.index("model.onnx")


def test_nothing_of_the_page_is_elsewhere():
    """No address in any of our files, one policy, no script or style within the page."""
    for file in SOURCES.iterdir():
        assert not re.search(r"https?://|//[a-z]+\.", file.read_text()), file.name
    html = (SOURCES / "index.html").read_text()
    policy = re.search(r'http-equiv="Content-Security-Policy"\s+content="([^"]+)"', html).group(1)
    rules_of = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert rules_of["default-src"] == "'none'" and rules_of["connect-src"] == "'self'"
    assert rules_of["script-src"] == "'self' 'wasm-unsafe-eval'" and "unsafe-inline" not in policy
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", html)
    assert re.findall(r"<script[^>]*>", html) == ['<script type="module" src="./app.js">']
    assert "connect-src 'none'" in (SOURCES / "app.js").read_text()  # once all is loaded


def test_every_control_has_a_name():
    html = (SOURCES / "index.html").read_text()
    assert 'lang="en"' in html and 'name="viewport"' in html
    for control in re.finditer(r"<(input|select)\b[^>]*>", html):
        before = html[: control.start()]
        assert before.rfind("<label") > before.rfind("</label>"), control.group()
    assert 'id="decision" role="status" aria-live="assertive"' in html and 'role="meter" aria-label' in html
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    used = set(re.findall(r'\$\("([a-z-]+)"\)', (SOURCES / "app.js").read_text()))
    assert used <= set(ids)


# What is refused


def test_without_the_runtime_one_line_says_what_to_type(tmp_path):
    with pytest.raises(SelfsameError, match=r"type: npm install onnxruntime-web@\d+\.\d+\.\d+$"):
        read_runtime(tmp_path / "node_modules" / "onnxruntime-web")


def test_another_version_or_changed_files_are_refused(runtime):
    assert read_runtime(runtime) == FAKE
    (runtime / "dist" / WASM).write_bytes(b"\0asm!")
    with pytest.raises(SelfsameError, match=r"changed.*npm install"):
        read_runtime(runtime)
    (runtime / "dist" / WASM).unlink()
    with pytest.raises(SelfsameError, match=r"No such file.*npm install"):
        read_runtime(runtime)
    (runtime / "package.json").write_text('{"name": "onnxruntime-web", "version": "1.2.3"}')
    with pytest.raises(SelfsameError, match=r"onnxruntime-web 1\.2\.3, the page takes .*npm install"):
        read_runtime(runtime)
    (runtime / "package.json").write_text("[")
    with pytest.raises(SelfsameError, match="no onnxruntime-web there"):
        read_runtime(runtime)


def test_pins_are_digests():
    makefile = (ROOT / "Makefile").read_text()
    assert f"onnxruntime-web@{webpage.RUNTIME_VERSION}\n" in makefile
    assert set(PINS) == {SCRIPT, WASM}
    assert all(re.fullmatch("[0-9a-f]{64}", pin) for pin in PINS.values())


def test_a_folder_with_other_files_is_left_alone(tmp_path, runtime):
    (tmp_path / "mine").mkdir()
    check_place(tmp_path / "mine")  # empty
    (tmp_path / "mine" / "index.html").write_text("my own")
    file = tmp_path / "net.onnx"
    file.write_bytes(picture_model())
    with pytest.raises(SelfsameError, match="not a page of selfsame"):
        export(file, web=tmp_path / "mine", runtime=runtime)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["index.html"]
    with pytest.raises(SelfsameError, match="is a file"):
        check_place(file)


def test_options_that_do_not_go_together(tmp_path, runtime):
    file = tmp_path / "net.onnx"
    file.write_bytes(picture_model())
    with pytest.raises(SelfsameError, match="is exported already"):
        export(file)
    with pytest.raises(SelfsameError, match="is exported already"):
        export(file, web=tmp_path / "page", runtime=runtime, int8=True)
    with pytest.raises(SelfsameError, match="goes with --web"):
        export(file, runtime=runtime)
    assert not (tmp_path / "page").exists()


def test_a_damaged_model_and_a_table_get_no_page(tmp_path):
    with pytest.raises(SelfsameError, match="damaged"):
        page_files(picture_model()[:-1], "net.onnx", FAKE)
    card = read_card(picture_model(), "net.onnx")
    assert webpage.is_shown(card) and webpage.is_shown(read_card(sound_model(), "net.onnx"))
    table = dataclasses.replace(card, dtype="float32", shape=(7,), low=-1.0, high=1.0)
    assert not webpage.is_shown(table)


# The rules in JavaScript against Python's


@pytest.fixture(scope="module")
def js(tmp_path_factory):
    """Evaluates expressions over the page's own modules in Node: js(expression, given) for each of some cases."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node is not installed (node): the page's rules are not compared with Python's")
    folder = tmp_path_factory.mktemp("js")
    for name in ("rules.js", "samples.js", "model.js"):
        shutil.copy(SOURCES / name, folder)
    (folder / "package.json").write_text('{"type": "module"}')

    def run(expression, cases):
        (folder / "cases.json").write_text(json.dumps(cases))
        (folder / "main.js").write_text(
            'import * as rules from "./rules.js"; import * as samples from "./samples.js";'
            'import * as model from "./model.js"; import { readFileSync } from "node:fs";'
            'const cases = JSON.parse(readFileSync("cases.json", "utf8"));'
            f"const one = async (given) => {expression};"
            "const out = []; for (const given of cases) try { out.push(await one(given)); }"
            "catch (error) { if (!(error instanceof rules.Refused)) throw error; "
            "out.push({ refused: error.message }); }"
            "console.log(JSON.stringify(out, (_, x) => (ArrayBuffer.isView(x) ? Array.from(x) : x)));"
        )
        done = subprocess.run([node, "main.js"], cwd=folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def cohort():
    return picture_cohort()


def plain(strangers):
    return None if strangers is None else dataclasses.asdict(strangers)


def test_rates_and_chances(js):
    rates = [0.0, 0.1, 0.5, 0.75, 0.9, 0.95, 0.99, 1 / 3, 0.123456789123, 1.0]
    got = js("rules.exactRate(given).map(String)", rates)
    want = [thresholds.exact_rate("q", rate) for rate in rates]
    assert got == [[str(one.numerator), str(one.denominator)] for one in want]
    cases = [(k, n, q) for n in (1, 5, 20, 60) for k in (1, n // 2 + 1, n) for q in (0.0, 0.5, 0.9, 0.99)]
    got = js("rules.keptChance(...given)", cases)
    assert got == pytest.approx([thresholds.kept_chance(*case) for case in cases], abs=1e-10)
    cases = [(0, 1), (1, 1), (0, 10), (1, 10), (3, 7), (10, 10), (50, 100)]
    got = js("rules.shareInterval(...given)", cases)
    for one, case in zip(got, cases):
        assert one == pytest.approx(thresholds.share_interval(*case), abs=1e-9)


def test_populations_and_bounds(js, cohort):
    together = [plain(one) for one in cohort]
    sizes = [0, 1, 2, 3, 4, 5, 8, 15, 100]
    got = js("rules.find(given[0], 'enrolled', given[1]) ?? null", [(together, size) for size in sizes])
    want = [plain(find(cohort, "enrolled", size)) for size in sizes]
    assert got == json.loads(json.dumps(want))
    assert js("rules.find(given, 'trained', 0) ?? null", [together]) == [None]
    one = cohort[0]
    edges = [*one.pooled, *one.low, *one.high]
    at = sorted({-1.0, 1.0, *edges, *(x + 1e-9 for x in edges), *np.linspace(-0.5, 1, 40).tolist()})
    got = js("rules.letIn(...given)", [(plain(one), x) for x in at])
    for found, x in zip(got, at):
        share = one.let_in(x)
        shares = [found["value"], found["low"], found["high"]]
        assert shares == pytest.approx([share.value, share.low, share.high], rel=1e-12)
    asked = [(fpr, sure) for fpr in (1e-9, *one.rate, 0.011, 0.26) for sure in (0.4, 0.8, 0.95, 0.99)]
    found = js("rules.bound(...given)", [(plain(one), *case) for case in asked])
    assert ["refused" if "refused" in each else each for each in found] == [bound_of(one, *case) for case in asked]


def bound_of(strangers, fpr, confidence):
    try:
        return list(strangers.bound(fpr, confidence))
    except SelfsameError:
        return "refused"


@pytest.mark.parametrize("place,kind", [("unit", "cosine"), ("unit", "distance"), ("as-is", "squared-distance")])
def test_templates_and_scores(js, place, kind):
    card = dataclasses.replace(read_card(picture_model(), "net"), place=place, score=kind)
    emb_SD = np.random.default_rng(3).normal(size=(6, 16)).astype(np.float32)
    mean_D = template(card, emb_SD[:4])
    want = [float(score(card, one[None], mean_D)[0]) for one in emb_SD]
    told = {"place": place, "score": kind}
    expression = "given[1].map((one) => rules.score(given[0], one, rules.template(given[0], given[1].slice(0, 4))))"
    assert js(expression, [(told, emb_SD.tolist())])[0] == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize(
    "rule", [rules.Rule(), rules.Rule(tpr=0.5), rules.Rule("fpr", fpr=0.01), rules.Rule("fpr", fpr=0.1)]
)
def test_an_enrolment_is_pythons(js, cohort, rule):
    model = OnnxEmbedder(picture_model(cohort=cohort), "net")
    cases = [seen(1, 10), seen(1, 3), seen(2, 25, 90), seen(3, 2)]
    cases += [np.concatenate([seen(1, 5), seen(2, 5)]), np.concatenate([seen(n, 1) for n in range(12)])]
    given = {"name": rule.name, "tpr": rule.tpr, "fpr": rule.fpr}
    told = json.loads(model.card.to_json())
    got = js("rules.enrol(...given)", [(told, model.embed(raw).tolist(), given) for raw in cases])
    refused = 0
    for raw, found in zip(cases, got):
        try:
            done, want = Verifier(model, None).prepare(list(raw), rule)
        except SelfsameError:
            assert "refused" in found
            refused += 1
            continue
        assert found["threshold"] == pytest.approx(want.threshold, abs=1e-5)
        assert found["scores"] == pytest.approx(want.scores, abs=1e-5)
        assert found["template"] == pytest.approx(want.template_D.tolist(), abs=1e-5)
        assert found["madeFrom"] == want.made_from and len(found["doubts"]) == len(done.doubts)
        let_in, own = done.expected.let_in, done.expected.refused
        assert found["expected"]["letIn"]["value"] == pytest.approx(let_in.value, rel=1e-2)
        assert found["expected"]["refused"]["high"] == pytest.approx(own.high, abs=1e-6)
    assert refused >= 1


def test_pictures_are_resized_as_pillow_does(js, tmp_path):
    rng, cases, wanted = np.random.default_rng(5), [], []
    for channels, (width, height) in [(3, (40, 31)), (1, (40, 31)), (3, (11, 9)), (1, (24, 100)), (3, (24, 24))]:
        pixels = rng.integers(0, 256, (height, width, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / "one.png")
        card = read_card(picture_model(channels), "net")
        wanted.append(read_samples([tmp_path / "one.png"], card, resize=True)[0].ravel().tolist())
        rgba = np.concatenate([pixels, np.full((height, width, 1), 255, np.uint8)], 2).reshape(-1)
        cases.append(({"shape": list(card.shape)}, rgba.tolist(), width, height))
    assert js("samples.fromPixels(...given)", cases) == wanted


def test_recordings_are_cut_as_python_does(js, tmp_path):
    card = read_card(sound_model(), "net")
    told = json.loads(card.to_json())
    read = "((w) => samples.fromSound(given[0], w.pcm, w.rate))(samples.readWav(Uint8Array.from(given[1]).buffer))"
    folders = [write_sounds(tmp_path / str(seconds), 1, 1, seconds) for seconds in (0.2, 0.5, 0.87, 1.3)]
    whole = [(folder / "00.wav").read_bytes() for folder in folders]
    broken = [whole[0][:-9], whole[0][:30], b"RIFX" + whole[0][4:]]
    got = js(read, [(told, list(data)) for data in (*whole, *broken)])
    assert got[:4] == [read_samples([folder], card)[0][0].tolist() for folder in folders]
    assert all("refused" in one for one in got[4:])
    short, flat = next(tone(1, 1, 0.05)).tolist(), [7] * RATE
    cases = [(told, short, RATE), (told, flat, RATE), (told, next(tone(1, 1)).tolist(), 44100)]
    assert all("refused" in one for one in js("samples.fromSound(...given)", cases))


def test_which_kind_of_samples(js):
    models = (picture_model(), picture_model(1), picture_model(1, 8, "digits"), sound_model())
    cards = [json.loads(read_card(model, "net").to_json()) for model in models]
    table = {**cards[0], "dtype": "float32", "shape": [7]}
    kinds = js("samples.kindOf(given)", [*cards, table])
    assert kinds == ["picture", "picture", "drawing", "recording", ""]


def test_a_drawing_fills_the_picture(js):
    """Ink anywhere, of any size, becomes the same digit."""
    ink = np.zeros((64, 64), np.uint8)
    ink[10:42, 20:24] = 255
    moved = np.zeros((64, 64), np.uint8)
    moved[30:62, 3:7] = 255
    told = {"shape": [1, 8, 8]}
    cases = [(told, x.ravel().tolist()) for x in (ink, moved, 0 * ink)]
    one, two, none = js("samples.fromInk(given[0], given[1], 64)", cases)
    assert one == two and "refused" in none
    grid = np.array(one).reshape(8, 8)
    assert (grid[:, 3:5] > 60).all() and (grid[:, :2] == 0).all() and (grid[:, 6:] == 0).all()


def test_a_changed_model_is_refused_by_the_page(js, cohort):
    model = picture_model(cohort=cohort)
    card = page_files(model, "net", FAKE)["card.json"].decode()
    other = model[:-40] + bytes([model[-40] ^ 1]) + model[-39:]
    forged = picture_model()
    check = "(await model.checkModel(Uint8Array.from(given[0]), given[1])).digest"
    cases = [(list(model), card), (list(other), card), (list(forged), card), ([1, 2, 3], card)]
    fine, *rest = js(check, cases)
    assert fine == read_card(model, "net").digest
    assert all("has been changed" in one["refused"] for one in rest)
