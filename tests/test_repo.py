"""Rules of the house that no single room can keep: paths, pickles, recipes, and which room imports which."""

import ast
import inspect
import subprocess
from pathlib import Path

import pytest

from selfsame.data import DATASETS
from selfsame.nets import NETS
from selfsame.options import options_of

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "selfsame"
MODULES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


def tracked():
    """The files that git knows; outside a checkout, the sources."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    names = [name for name in done.stdout.split("\0") if name] if done.returncode == 0 else []
    found = [ROOT / name for name in names] or [*MODULES, *RECIPES]
    return [path for path in found if path.is_file()]


def test_no_file_holds_a_path_of_one_machine():
    places = ["/" + room + "/" for room in ("work", "root", "farm")]
    hits = []
    for path in tracked():
        text = path.read_bytes().decode("utf-8", "ignore")
        hits += [f"{path.relative_to(ROOT)}: {place}" for place in places if place in text]
    assert hits == []


def calls(tree):
    """The dotted names of everything that is called or imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            yield ast.unparse(node)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_pickles(path):
    names = set(calls(ast.parse(path.read_text(encoding="utf-8"))))
    bad = {name for name in names if name.split(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve", "marshal")}
    bad |= names & {"torch.load", "torch.save"}
    reads = {name for name in bad if not name.endswith((".Unpickler", ".UnpicklingError"))} - {"pickle"}
    assert reads == set()


def imports(path):
    """The modules of selfsame that a file imports, at its top or within a function."""
    package = ("selfsame", *path.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "selfsame"}


def inside(name, room):
    return name == f"selfsame.{room}" or name.startswith(f"selfsame.{room}.")


ABOVE = ("run", "cli", "summary", "assess", "commands", "deploy")
FORBIDDEN = {
    "privacy": ("engine", "methods", "data", "nets", "report", "audit", "verify", "enclave", *ABOVE),
    "deploy": ("report", "audit", *ABOVE[:-1]),
    "methods": ("engine", "data", "nets", "report", "audit", "verify", *ABOVE),
    "nets": ("engine", "methods", "report", "audit", "verify", *ABOVE),
    "data": ("engine", "methods", "nets", "report", "audit", "verify", *ABOVE),
    "engine": ("report", "audit", *ABOVE),
    "verify": ("engine", "report", "audit", *ABOVE),
    "report": ("engine", "methods", *ABOVE),
    "audit": ("report", *ABOVE),
}


@pytest.mark.parametrize("room", FORBIDDEN)
def test_imports_point_one_way(room):
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    crossed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files
        for name in sorted(imports(path))
        if any(inside(name, other) for other in FORBIDDEN[room])
    ]
    assert crossed == []


def test_the_enclave_is_readable_on_its_own():
    crossed = [name for path in sorted((PACKAGE / "enclave").rglob("*.py")) for name in imports(path)]
    assert [name for name in crossed if not inside(name, "enclave")] == []


def test_the_reader_of_imports_reads(tmp_path):
    """It finds what stands in a function, and what is relative."""
    assert "selfsame.run.carry_on" in imports(PACKAGE / "commands" / "watch.py")
    assert "selfsame.methods.base" in imports(PACKAGE / "methods" / "fedhide.py")


def test_there_are_recipes():
    assert RECIPES


SHARED = {"people", "least", "train", "validation", "test", "held_out", "unseen_share", "unseen_samples", "trials"}
SHARED |= {"seed", "cache", "hold_gib"}


@pytest.mark.parametrize("name", [*DATASETS, *NETS])
def test_pages_tell_of_every_data_set_and_network(name):
    """Its row, or that of its family, names what only it can do; what most share stands below the table."""
    data = name in DATASETS
    text = (ROOT / ("docs/data.md" if data else "docs/networks.md")).read_text()
    row = next((line for line in text.splitlines() if line.startswith("|") and f"`{name}`" in line.split("|")[1]), None)
    assert row is not None, f"nothing on {name}"
    if "the same, and" in row:
        row += text
    options = set(inspect.signature(DATASETS[name].load).parameters) - {"path"} if data else set(options_of(NETS[name]))
    for option in options:
        where = text if option in SHARED and "..." in row else row
        assert f"`{option}`" in where, f"{name}: no word on {option}"
