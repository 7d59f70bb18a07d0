"""The page in headless Chromium: enrolled, accepted, refused, deleted; nothing leaves it.

Needs Chromium, Node, and the npm packages onnxruntime-web (of the pinned version) and playwright-core, in node_modules
here or in the folder that SELFSAME_WEB_PACKAGES names.
"""

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from page_models import picture_cohort, picture_model, sound_model, write_pictures, write_sounds, write_video

from selfsame.device.embedder import OnnxEmbedder
from selfsame.device.rules import Rule
from selfsame.device.samples import read_samples
from selfsame.device.verifier import Verifier
from selfsame.errors import SelfsameError
from selfsame.export.webpage import page_files, read_runtime, write_page

DRIVER = Path(__file__).with_name("web") / "drive.mjs"
CLOSE = 1e-4


@pytest.fixture(scope="module")
def runtime(browser):
    """The runtime's files, or the reason why the page is not tried."""
    try:
        return read_runtime(browser[2] / "node_modules" / "onnxruntime-web")
    except SelfsameError as error:
        pytest.skip(f"the page is not tried in a browser: {error}")


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args):
        self.server.log.append(self.path)


@pytest.fixture(scope="module")
def serve():
    """Serves folders on ports of their own; gives (address, log of requests)."""
    servers = []

    def start(folder):
        handler = functools.partial(Quiet, directory=str(folder))
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.log = []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://localhost:{server.server_port}/", server.log

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def drive(browser, tmp_path):
    """Plays a scenario and gives what was seen."""
    node, chromium, packages = browser

    def run(scenario, url, **more):
        asked = {"scenario": scenario, "url": url, "chromium": chromium, "packages": str(packages)}
        asked |= {"profile": str(tmp_path / "profile"), "shots": os.environ.get("SELFSAME_WEB_SHOTS"), **more}
        line = [node, str(DRIVER), json.dumps(asked, default=str)]
        done = subprocess.run(line, capture_output=True, text=True, timeout=1200, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def pages(runtime, serve, tmp_path_factory):
    """The page of a model, served; gives (address, log, model)."""

    @functools.cache
    def make(kind):
        models = {
            "pictures": lambda: picture_model(cohort=picture_cohort()),
            "sounds": sound_model,
            "digits": lambda: picture_model(1, 8, "digits"),
        }
        data = models[kind]()
        folder = tmp_path_factory.mktemp(kind)
        write_page(folder, page_files(data, "net.onnx", runtime))
        return (*serve(folder), OnnxEmbedder(data, "net.onnx"))

    return make


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Folders of pictures: to enrol, to verify, and a stranger's; not of the model's size."""
    root = tmp_path_factory.mktemp("photos")
    everybody = write_pictures(root / "all", 1, 14, 3)
    folders = {"enrol": root / "enrol", "verify": root / "verify"}
    for number, file in enumerate(sorted(everybody.iterdir())):
        place = folders["enrol" if number < 10 else "verify"]
        place.mkdir(exist_ok=True)
        shutil.copy(file, place)
    return {**folders, "stranger": write_pictures(root / "stranger", 2, 10, 2)}


def own_files(requests, url):
    return all(one.startswith(url) or one.startswith(("data:", "blob:")) for one in requests)


def python_scores(model, folders, rule=None):
    """The threshold and the scores that Python's own verifier has of the same files."""
    verifier = Verifier(model, None)

    def read(name):
        return read_samples([folders[name]], model.card, resize=True)

    _, kept = verifier.prepare(read("enrol"), rule or Rule())
    return kept.threshold, *(list(verifier.scores_of(read(name), kept.template_D)) for name in ("verify", "stranger"))


def test_files_enrol_and_verify_as_in_python(drive, pages, photos):
    url, log, model = pages("pictures")
    seen = drive("files", url, **photos)
    threshold, own, other = python_scores(model, photos)
    assert seen["threshold"] == pytest.approx(threshold, abs=CLOSE)
    assert [score for _, score, _ in seen["own"]] == pytest.approx(own, abs=CLOSE)
    assert [score for _, score, _ in seen["other"]] == pytest.approx(other, abs=CLOSE)
    assert all(accepted for *_, accepted in seen["own"]) and not any(accepted for *_, accepted in seen["other"])
    assert seen["accepted"].startswith("Accepted") and seen["refused"].startswith("Refused")
    assert seen["about"].startswith("nina is enrolled") and "people of a test" in seen["about"]
    assert seen["wrong"].startswith("Wrong passphrase")
    # Of the two users the deleted one has left nothing, and of the other nothing is readable but the name.
    assert [row[0] for row in seen["rows"]] == ["otto"]
    assert seen["rows"][0][2] == ["digest", "id", "nonce", "sealed", "user", "way"]
    # Nothing left: the page's own count, the browser's log and the server's.
    assert (seen["told"]["beyond"], seen["told"]["blocked"]) == (0, 0) and seen["told"]["own"] > 0
    assert seen["stopped"] and own_files(seen["requests"], url)
    assert {path.lstrip("/") for path in log} <= {"", "manifest.json", "sw.js", *listed_files(url)}
    assert [fault for fault in seen["faults"] if "card.json" not in fault and "Fetch API" not in fault] == []


def listed_files(url):
    with urllib.request.urlopen(f"{url}manifest.json") as answer:
        return json.load(answer)["files"]


def test_the_rule_of_strangers_and_mixed_samples(drive, pages, photos, tmp_path):
    url, _, _ = pages("pictures")
    seen = drive("enrolOnly", url, enrol=photos["enrol"], rule={"name": "fpr", "fpr": 0.05})
    assert seen["people"] == 1 and "at most 5\u00a0% of strangers" in seen["about"]
    (tmp_path / "mixed").mkdir()
    for folder in (photos["enrol"], photos["stranger"]):
        for file in folder.iterdir():
            shutil.copy(file, tmp_path / "mixed" / f"{file.stem}-{folder.name}.png")
    seen = drive("enrolOnly", url, enrol=tmp_path / "mixed", profile=tmp_path / "another")
    assert seen["people"] == 0 and "all of one person" in seen["about"]


def test_the_camera_enrols_the_owner_and_refuses_a_stranger(drive, pages, tmp_path):
    url, _, _ = pages("pictures")
    owner, stranger = write_video(tmp_path / "owner.y4m", 1), write_video(tmp_path / "stranger.y4m", 2)
    rule = {"name": "fpr", "fpr": 0.05}  # which no single picture sets
    assert drive("cameraEnrol", url, video=owner, rule=rule)["about"].startswith("nina is enrolled")
    seen = drive("cameraVerify", url, video=owner)
    assert seen["decision"].startswith("Accepted") and seen["told"]["beyond"] == 0
    seen = drive("cameraVerify", url, video=stranger)
    assert seen["decision"].startswith("Refused")
    assert own_files(seen["requests"], url) and seen["faults"] == []


def test_without_permission_the_page_says_so(drive, pages):
    url, _, _ = pages("pictures")
    assert "The camera is not allowed" in drive("denied", url, denied=True)["fault"]


def test_the_microphone_and_wav_files(drive, pages, tmp_path):
    url, _, model = pages("sounds")
    folders = {"enrol": write_sounds(tmp_path / "a", 1, 8), "verify": write_sounds(tmp_path / "b", 1, 3, 0.9)}
    folders["stranger"] = write_sounds(tmp_path / "c", 3, 3)
    long = write_sounds(tmp_path / "d", 1, 1, 4.0) / "00.wav"
    seen = drive("microphone", url, sound=long, **folders)
    threshold, own, other = python_scores(model, folders)
    assert seen["threshold"] == pytest.approx(threshold, abs=CLOSE)
    assert [score for _, score, _ in seen["own"]] == pytest.approx(own, abs=CLOSE)
    assert [score for _, score, _ in seen["other"]] == pytest.approx(other, abs=CLOSE)
    assert not any(accepted for *_, accepted in seen["other"])
    assert max(seen["heard"]) > 0.99 > 0.5 > max(other)  # the owner's tones, through the air
    assert seen["told"]["beyond"] == 0


def test_a_sign_is_drawn(drive, pages):
    url, _, _ = pages("digits")
    seen = drive("drawing", url, width=390, scheme="dark")
    assert seen["about"].startswith("zero is enrolled")
    assert seen["own"][0].startswith("Accepted") and seen["other"][0].startswith("Refused")
    assert seen["wide"] <= 0 and seen["unnamed"] == 0 and seen["faults"] == []


@pytest.mark.parametrize("name", ["model.onnx", "card.json"])
def test_a_changed_file_is_refused(drive, runtime, serve, tmp_path, name):
    files = page_files(picture_model(), "net.onnx", runtime)
    files[name] = files[name][:-40] + bytes([files[name][-40] ^ 1]) + files[name][-39:]
    write_page(tmp_path / "page", files)
    seen = drive("fault", serve(tmp_path / "page")[0])
    assert "has been changed" in seen["fault"] and not seen["shown"]


def test_without_a_network_the_page_opens(drive, pages):
    url, _, _ = pages("digits")
    seen = drive("offline", url)
    assert seen["faults"] == []
    assert seen["state"] == "Ready." and seen["fault"] == "" and "without a network" in seen["kept"]


def test_a_passkey_locks_and_opens(drive, pages, photos):
    url, _, _ = pages("pictures")
    seen = drive("passkey", url, passkey=True, enrol=photos["enrol"], verify=photos["verify"])
    assert seen["about"].startswith("nina is enrolled") and seen["locked"] == ""
    assert all(accepted for *_, accepted in seen["own"])
