"""An honest install: the wheel and its base dependencies alone enrol and verify, leave nothing in the home folder, and
say in one line what training takes."""

import ast
import os
import re
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import selfsame

pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytest.importorskip("cryptography")
pytest.importorskip("setuptools")

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "sklearn", "scipy", "matplotlib", "safetensors", "onnx", "keyring")
LINE = 'selfsame: this needs the training part: pip install "selfsame[train]"\n'


def told_needs(site):
    """What the wheel itself says it needs, without extras."""
    (about,) = site.glob("selfsame-*.dist-info/METADATA")
    lines = re.findall(r"(?m)^Requires-Dist: (.*)$", about.read_text())
    return [Requirement(line) for line in lines]


def wanted(requirement, extras=("",)):
    marker = requirement.marker
    return marker is None or any(marker.evaluate({"extra": extra}) for extra in extras)


def closure(requirements):
    """The names of the distributions that these need, and that those need in turn."""
    found, todo = {}, [one for one in requirements if wanted(one)]
    while todo:
        one = todo.pop()
        name = re.sub(r"[-_.]+", "-", one.name).lower()
        if name not in found:
            try:
                found[name] = distribution(name)
            except PackageNotFoundError:
                pytest.skip(f"{name} is not installed here")
            assert one.specifier.contains(found[name].version, prereleases=True), f"{one}, {found[name].version}"
            extras = tuple(one.extras) or ("",)
            todo += [more for more in map(Requirement, found[name].requires or []) if wanted(more, extras)]
    return found


def link(packages, site):
    """What these distributions have put beside each other, linked into one folder."""
    for package in packages.values():
        for top in {file.parts[0] for file in package.files if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(package.locate_file(top))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A run on digits as a model file, and pictures of two of its people; made where everything is installed."""
    from PIL import Image

    from selfsame.commands.export import export

    place = tmp_path_factory.mktemp("model")
    short = {"run": {"rounds": 30, "eval_every": 30, "device": "cpu"}}
    run = selfsame.train("fedaws", "digits", out=place / "run", settings=short)
    export(place / "run", out=place / "model.onnx", check=20)
    test = run.problem.federation.test
    for who, label in (("ann", 1), ("bob", 5)):
        (place / who).mkdir()
        for number, picture in enumerate(test.x[test.y == label][:30]):
            Image.fromarray(picture[0].numpy()).save(place / who / f"{number:02d}.png")
    return place


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the wheel and the packages that it needs, and with nothing else."""
    place = tmp_path_factory.mktemp("install")
    source, wheels, site = (place / name for name in ("source", "wheels", "site"))
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "selfsame", source / "selfsame", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    built = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(wheels), str(source)]
    subprocess.run([*pip, *built], check=True, capture_output=True, timeout=300)
    (wheel,) = wheels.iterdir()
    put = ["install", "--no-deps", "--no-index", "--no-compile", "--target", str(site), str(wheel)]
    subprocess.run([*pip, *put], check=True, capture_output=True, timeout=300)
    link(closure(told_needs(site)), site)
    return site


@pytest.fixture
def device(site, model, tmp_path):
    """Python and the command line on a device: (exit code, standard output, standard error)."""
    home = tmp_path / "home"
    home.mkdir()
    keep = {name: os.environ[name] for name in ("PATH", "SYSTEMROOT", "LD_LIBRARY_PATH") if name in os.environ}
    settings = {"HOME": str(home), "PYTHONPATH": str(site), "SELFSAME_PASSPHRASE": "open, sesame, now"}

    def call(*words):
        # -S: nothing of the Python that runs the tests but the standard library; -P: nor of the working folder.
        done = subprocess.run(
            [sys.executable, "-S", "-P", *words],
            cwd=model,
            env=keep | settings,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    call.home = home
    return call


def test_the_base_is_small(site):
    needs = closure(told_needs(site))
    assert not {"torch", "scikit-learn", "scipy", "matplotlib", "safetensors", "keyring"} & set(needs)
    assert {"numpy", "onnxruntime", "cryptography", "typer"} <= set(needs)


def test_the_wheel_holds_every_module(site):
    ours, theirs = ({path.relative_to(root) for path in (root / "selfsame").rglob("*.py")} for root in (ROOT, site))
    assert ours == theirs


def test_nothing_of_training_is_there(device):
    code = f"""
import importlib.util, selfsame
print([name for name in {HEAVY!r} if importlib.util.find_spec(name)], selfsame.__file__)
try:
    selfsame.train
except selfsame.SelfsameError as error:
    print(error)
"""
    done, out, err = device("-c", code)
    assert (done, err) == (0, "")
    first, line = out.splitlines()
    assert first.startswith("[] ") and "install" in first
    assert f"selfsame: {line}\n" == LINE


def test_enrol_and_verify(device):
    def cli(*words):
        return device("-m", "selfsame", *words)

    store = ("--store", str(device.home.parent / "store"))
    any_fpr = ("--most-fpr", "1")  # a network of thirty rounds tells few people apart
    code, out, err = cli("enrol", "model.onnx", "ann", "--user", "ann", "--threshold", "0.5", *any_fpr, *store)
    assert (code, err) == (0, "") and "template: 30 samples" in out
    attempts = [cli("verify", "model.onnx", "ann", f"{who}/03.png", *store) for who in ("ann", "bob")]
    assert [code for code, _, _ in attempts] == [0, 1], attempts
    assert cli("enrol", "model.onnx", "bob", "--user", "bob", *any_fpr, *store)[0] == 0
    assert cli("warm-up", "model.onnx", "bob", "bob/29.png", *any_fpr, *store)[0] == 0
    code, out, _ = cli("users", *store)
    assert code == 0 and "ann" in out and "bob" in out
    assert cli("revoke", "ann", *store)[:2] == (0, "ann: revoked\n")
    assert cli("verify", "model.onnx", "ann", "ann/03.png", *store)[0] == 2
    assert list(device.home.iterdir()) == []  # of onnxruntime's telemetry: a number for this machine, what to send


@pytest.mark.parametrize(
    "words",
    [
        ("train", "fedaws"),
        ("compare",),
        ("methods",),
        ("wire", "fedaws"),
        ("data",),
        ("export", "run"),
        ("enrol", "run", "ann", "--user", "ann"),
        ("enrol", "model.onnx", "ann", "--user", "ann", "--client", "1", "--run", "run"),
    ],
    ids=" ".join,
)
def test_what_training_takes_is_one_line(device, words):
    assert device("-m", "selfsame", *words) == (2, "", LINE)
    assert list(device.home.iterdir()) == []


@pytest.mark.parametrize("words", ["--help", "methods --help", "train --help", "--version"])
def test_help_needs_nothing(device, words):
    code, out, err = device("-m", "selfsame", *words.split())
    assert (code, err) == (0, "") and out


def test_the_keyring_is_an_extra(device):
    store, any_fpr = ("--store", str(device.home.parent / "store")), ("--most-fpr", "1")
    answer = device("-m", "selfsame", "enrol", "model.onnx", "ann", "--user", "ann", "--keyring", *any_fpr, *store)
    assert answer == (2, "", 'selfsame: this needs keyring: pip install "selfsame[keyring]"\n')


def test_onnxruntime_has_one_door():
    """Its telemetry begins with its import, so nothing imports it but what has switched that off before."""
    named = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "selfsame").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "onnxruntime" for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "onnxruntime")
    }
    assert named == set()
    code = """
import importlib, os, sys
import selfsame.device.runtime as runtime
seen, real = [], importlib.import_module
def watched(name, *rest):
    seen.append((name, os.environ.get("ORT_DISABLE_TELEMETRY")))
    return real(name, *rest)
importlib.import_module = watched
assert "onnxruntime" not in sys.modules
assert runtime.onnxruntime() is sys.modules["onnxruntime"]
print(seen[0])
"""
    clean = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run([sys.executable, "-c", code], env=clean, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "('onnxruntime', '1')"), done.stderr


def test_extras_and_what_is_said_of_them():
    """Every package that a line names an extra for is brought by that extra, or by the base."""
    import tomllib

    from selfsame.errors import _EXTRAS

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {"": project["dependencies"]} | {f"[{k}]": v for k, v in project["optional-dependencies"].items()}
    for package, (extra, _) in _EXTRAS.items():
        name = {"sklearn": "scikit-learn"}.get(package, package.replace("_", "-"))
        assert name in {Requirement(line).name for line in extras[extra]}, f"{package}: not in {extra}"


@pytest.mark.parametrize("file", ["requirements.lock", "requirements-dev.lock", "requirements-docs.lock"])
def test_every_locked_package_has_hashes(file):
    """So that `make` installs the files that were locked and no others of their names."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==\S+(\s*;[^-]*)?(\s+--hash=sha256:[0-9a-f]{64})+\s*", line), line[:80]
    steps = [line for line in (ROOT / "Makefile").read_text().splitlines() if f"-r {file}" in line]
    assert len(steps) == 1 and "--require-hashes" in steps[0]


def test_locks_agree():
    """What is needed to train is in two locks, what tests and the manual need in two others, nothing in two of them."""
    lines = {}
    for file in ("requirements.lock", "requirements-torch.lock", "requirements-dev.lock", "requirements-docs.lock"):
        text = (ROOT / file).read_text()
        lines[file] = {re.sub(r"[-_.]+", "-", n).lower() for n in re.findall(r"(?m)^([\w.-]+)==", text)}
    train, torch, dev, docs = lines.values()
    assert not train & dev and torch == {"torch"} and not torch & (train | dev)
    assert "mkdocs-material" in docs and not docs & (train | torch | dev)
    train |= torch
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(one) for one in project["dependencies"] + project["optional-dependencies"]["train"]]
    assert {one.name for one in asked} <= train
