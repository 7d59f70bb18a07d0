"""Rules of the house that no single room can keep: paths, pickles, recipes, and which room imports which."""

import ast
import subprocess
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "selfsame"
MODULES = sorted(PACKAGE.rglob("*.py"))
RECIPES = sorted((ROOT / "recipes").rglob("*.toml"))


@cache
def tree_of(path):
    """A source, parsed once for all the rules."""
    return ast.parse(path.read_text(encoding="utf-8"))


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


def _weights_only(path):
    """Whether the file calls torch.load, and every time so that nothing but tensors is read."""
    nodes = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    loads = [node for node in nodes if ast.unparse(node.func) == "torch.load"]
    said = [{key.arg: ast.unparse(key.value) for key in node.keywords}.get("weights_only") for node in loads]
    return bool(said) and set(said) == {"True"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_no_pickles(path):
    names = set(calls(tree_of(path)))
    bad = {name for name in names if name.split(".")[0] in ("pickle", "cPickle", "dill", "joblib", "shelve", "marshal")}
    bad |= names & ({"torch.save"} if _weights_only(path) else {"torch.load", "torch.save"})
    reads = {name for name in bad if not name.endswith((".Unpickler", ".UnpicklingError"))} - {"pickle"}
    assert reads == set()


def imports(path):
    """The modules of selfsame that a file imports, at its top or within a function."""
    package = ("selfsame", *path.relative_to(PACKAGE).parent.parts)
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return {name for name in found if name.split(".")[0] == "selfsame"}


# Which rooms a room may look into. The trunk: cli -> commands -> deploy, runs, export -> report, audit -> engine,
# measure -> methods, data, nets. The runtime on a device needs little, the enclave nothing.
_FLOOR = {"errors", "files", "fields", "streams"}
_GROUND = {*_FLOOR, "config", "methods", "data", "nets", "privacy"}
MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "fields": {"errors"},
    "streams": {"errors"},
    "enclave": set(),
    "device": {"errors", "files", "fields"},
    "privacy": _FLOOR,
    "config": {"errors", "files", "fields"},
    "nets": _FLOOR,
    "data": {*_FLOOR, "device"},
    "methods": {*_FLOOR, "privacy"},
    "engine": _GROUND,
    "measure": {*_FLOOR, "methods", "data", "device"},
    "audit": {*_GROUND, "engine", "measure"},
    "report": {"errors", "files", "fields", "config", "measure", "privacy"},
    "runs": {*_GROUND, "engine", "measure", "audit", "report"},
    "export": {*_GROUND, "engine", "measure", "device", "runs"},
    "deploy": {*_GROUND, "engine", "enclave", "device"},
    "commands": {*_GROUND, "engine", "measure", "audit", "report", "runs", "export", "deploy", "device"},
    "cli": {"errors", "commands"},
    "__main__": {"cli"},
}


def rooms():
    """The folders and single files of the package."""
    return {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}


def test_every_room_has_its_rule():
    assert rooms() - {"__init__"} == set(MAY_IMPORT)


def files_of(room):
    return sorted((PACKAGE / room).rglob("*.py")) or [PACKAGE / f"{room}.py"]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_point_one_way(room):
    allowed = {room, *MAY_IMPORT[room]}
    crossed = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in files_of(room)
        for name in sorted(imports(path))
        if name.count(".") and name.split(".")[1] in rooms() and name.split(".")[1] not in allowed
    ]
    assert crossed == []


def module_of(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def loads(path, names):
    """What it imports, without the package of a module that is imported by `from package import module`."""
    found = imports(path)
    return found - {name.rpartition(".")[0] for name in found & names if not name.startswith(module_of(path) + ".")}


def test_no_circle():
    """No module imports itself by way of others, wherever the import stands."""
    names = {module_of(path) for path in MODULES}
    edges = {module_of(path): (loads(path, names) & names) - {module_of(path), "selfsame"} for path in MODULES}
    done, circles = set(), []

    def walk(name, trail):
        if name in trail:
            circles.append(" -> ".join([*trail[trail.index(name) :], name]))
        elif name not in done:
            for other in sorted(edges[name]):
                walk(other, [*trail, name])
            done.add(name)

    for name in sorted(names):
        walk(name, [])
    assert circles == []


def test_names_stand_once():
    """No two classes of one name, and no two modules of one name in folders side by side."""
    classes, modules = {}, {}
    for path in MODULES:
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
        if path.stem not in ("__init__", "__main__"):
            modules.setdefault((path.parent.parent, path.stem), []).append(str(path.relative_to(PACKAGE)))
    assert {name: where for name, where in classes.items() if len(where) > 1} == {}
    assert {name: where for (_, name), where in modules.items() if len(where) > 1} == {}


def test_no_module_is_imported_under_another_name():
    names = {module_of(path) for path in MODULES}
    renamed = [
        f"{path.relative_to(ROOT)}: {node.module}.{alias.name} as {alias.asname}"
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname and f"{node.module}.{alias.name}" in names
    ]
    assert renamed == []


def test_the_reader_of_imports_reads(tmp_path):
    """It finds what stands in a function, and what is relative."""
    assert "selfsame.runs.loop.carry_on" in imports(PACKAGE / "commands" / "progress.py")
    assert "selfsame.methods.base" in imports(PACKAGE / "methods" / "fedhide.py")


def test_there_are_recipes():
    assert RECIPES
