"""The manual: every link and anchor leads somewhere, every page is reached, the reference has all that the code has."""

import dataclasses
import re
import sys
import unicodedata
from functools import cache
from pathlib import Path

import click
import pytest
import typer.main

from selfsame import cli
from selfsame.config.experiment import read_experiment
from selfsame.config.recipe import PARTS, from_mapping
from selfsame.data import DATASETS
from selfsame.errors import SelfsameError
from selfsame.fields import options_of
from selfsame.methods import METHODS, make
from selfsame.nets import NETS
from selfsame.report.words import sight_words

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))

from reference import PAGES  # noqa: E402
from reference.limits import allowed  # noqa: E402
from reference.markdown import code  # noqa: E402

DOCS = ROOT / "docs"
WRITTEN = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"\]\(([^)\s]*)\)")


@cache
def generated():
    return {DOCS / "reference" / name: write() for name, write in PAGES.items()}


@cache
def text_of(path):
    return generated().get(path) or path.read_text(encoding="utf-8")


def prose_of(text):
    """A page without its code: fenced blocks and spans."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"(?ms)^ *```.*?^ *```", "", text))


def slug(heading):
    """A heading's anchor, as Python-Markdown makes it."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("\\", "")
    plain = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


@cache
def anchors(path):
    lines = re.sub(r"(?ms)^ *```.*?^ *```", "", text_of(path)).splitlines()
    named = {name for line in lines for name in re.findall(r'<a id="([\w-]+)">', line)}
    return named | {slug(line.lstrip("#")) for line in lines if re.match(r"#{1,6} ", line)}


def broken(page):
    """The relative links of a page that lead nowhere."""
    out = []
    for target in LINK.findall(prose_of(text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        there = path in generated() or path.exists()
        if not there or (anchor and path.suffix == ".md" and anchor not in anchors(path)):
            out.append(f"{page.parent.name}/{page.name}: {target}")
    return out


def test_every_link_and_anchor_leads_somewhere():
    pages = [*WRITTEN, *generated(), ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
    assert [one for page in pages for one in broken(page)] == []


def test_the_reader_of_links_reads(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A b\n\n[here](#a-b) [gone](other.md) [no](#c) `[code](x.md)` [out](https://example.org)\n")
    found = [re.sub(r".*: ", "", one) for one in broken(page)]
    assert found == ["other.md", "#c"]
    assert slug("`[net]`") == "net" and slug("What it's worth: a (b)") == "what-its-worth-a-b"


def test_no_link_leaves_the_manual():
    """The site holds docs/ alone."""
    for page in WRITTEN:
        for target in LINK.findall(prose_of(text_of(page))):
            if not re.match(r"[a-z]+:", target):
                path = (page.parent / target.partition("#")[0]).resolve()
                assert path.is_relative_to(DOCS), f"{page.relative_to(ROOT)}: {target}"


def test_pages_that_the_sources_name_are_there():
    """Comments, messages and recipes name pages by their paths."""
    named = re.compile(r"\bdocs/[\w/-]+\.(?:md|svg|png)")
    files = [
        path for folder in ("selfsame", "recipes", "bench", "deploy", "tests") for path in (ROOT / folder).rglob("*")
    ]
    texts = [*(path for path in files if path.suffix in (".py", ".toml", ".template", ".sh")), ROOT / "CHANGELOG.md"]
    lost = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in named.findall(path.read_text(encoding="utf-8"))
        if not (ROOT / name).is_file() and ROOT / name not in generated()
    ]
    assert lost == []


def test_every_page_is_in_the_navigation():
    named = re.findall(r"- (?:[\w ]+: )?([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    there = {str(page.relative_to(DOCS)) for page in (*WRITTEN, *generated())}
    assert len(named) == len(set(named))
    assert there <= set(named)
    assert set(named) <= there


def test_the_build_is_strict():
    """With --quiet mkdocs does not count the warnings that --strict would stop at."""
    (line,) = (line for line in (ROOT / "Makefile").read_text().splitlines() if "mkdocs build" in line)
    assert "--strict" in line and "--quiet" not in line and " -q" not in line
    settings = (ROOT / "mkdocs.yml").read_text()
    for name in ("omitted_files", "not_found", "absolute_links", "anchors", "unrecognized_links"):
        assert f"{name}: warn" in settings
    assert "make docs" in (ROOT / ".ci" / "run").read_text()


def test_lists_and_tables_begin_after_an_empty_line():
    """Python-Markdown takes them for text otherwise; a forge would not."""
    out = []
    for page in WRITTEN:
        before, fence = "", False
        for number, line in enumerate(text_of(page).splitlines(), 1):
            fence ^= line.lstrip().startswith("```")
            begins = re.match(r"(\||[-*] |\d+\. )", line)
            inside = re.match(r"(\||\s*[-*] |\s*\d+\. |\s{2,})", before)
            if begins and not fence and before.strip() and not inside:
                out.append(f"{page.relative_to(ROOT)}:{number}")
            before = line
    assert out == []


# The reference


def page_of(name):
    return generated()[DOCS / "reference" / name]


def sections(text):
    """Each section of a page by its heading."""
    parts = re.split(r"(?m)^#{2,3} (.*)$", text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def walk(command, path):
    yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from walk(one, f"{path} {name}")


def test_every_command_and_option_is_there():
    found = sections(page_of("commands.md"))
    known = [one for one in walk(typer.main.get_command(cli.app), "selfsame") if one[0] != "selfsame"]
    assert {path for path, _ in known} <= set(found)
    for path, command in known:
        for parameter in command.params:
            if parameter.name == "help" or getattr(parameter, "hidden", False):
                continue
            named = isinstance(parameter, click.Option)
            for name in parameter.opts if named else [parameter.make_metavar(click.Context(command))]:
                assert name.strip("[].") in found[path], f"{path}: {name}"


def rows(text):
    """The tables of a section, a row by its first cell."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {line[0].strip("` "): [cell.strip() for cell in line] for line in lines}


@pytest.mark.parametrize("part", PARTS)
def test_every_recipe_key_has_type_default_and_meaning(part):
    found = rows(sections(page_of("recipe.md"))[f"`[{part}]`"])
    fields = [one for one in dataclasses.fields(PARTS[part]) if one.name != "options"]
    assert set(found) == {one.name for one in fields}
    for one in fields:
        default = one.default if one.default is not dataclasses.MISSING else one.default_factory()
        assert found[one.name][2] == code(default)
        assert found[one.name][1] and len(found[one.name][-1]) > 3


def fits(part, key, value):
    try:
        from_mapping({part: {key: value}})
    except SelfsameError:
        return False
    return True


LIMITED = [(part, key) for part, kind in PARTS.items() for key in sorted(allowed(kind))]


@pytest.mark.parametrize("part, key", LIMITED)
def test_allowed_values_are_those_that_the_code_takes(part, key):
    limit, default = allowed(PARTS[part])[key], getattr(PARTS[part](), key)
    if part == "cohort" and key == "sampling":
        limit = tuple(word for word in limit if word != "all")
    if isinstance(limit, tuple):
        assert all(fits(part, key, value) for value in limit)
        assert not fits(part, key, "none of them" if isinstance(default, str) else 7)
        return
    low, high = map(float, limit[1:-1].split(","))
    kind = type(default)
    assert fits(part, key, kind(low)) == (limit[0] == "[")
    assert not fits(part, key, kind(low - 1))
    if high != float("inf"):
        assert fits(part, key, kind(high)) == (limit[-1] == "]")
        assert not fits(part, key, kind(high + 1))


def test_most_checks_of_recipes_are_read():
    """So that the reader of checks does not fall silent."""
    assert len(LIMITED) > 45
    assert allowed(PARTS["run"])["engine"] == ("auto", "cohort", "reference")
    assert allowed(PARTS["server"])["epsilon"] == "(0, inf)"


@pytest.mark.parametrize("name", DATASETS)
def test_every_option_of_a_data_set_is_there(name):
    section = sections(page_of("data.md"))[name]
    found = rows(section)
    assert set(found) == set(DATASETS[name].options)
    for key, value in DATASETS[name].options.items():
        assert found[key][2] == code(value) and len(found[key][-1]) > 3
    assert DATASETS[name].wants.split()[0] in section


@pytest.mark.parametrize("name", NETS)
def test_every_option_of_a_network_is_there(name):
    found = rows(sections(page_of("networks.md"))[name])
    assert set(found) == set(options_of(NETS[name]))
    for key, value in options_of(NETS[name]).items():
        assert found[key][2] == code(value) and len(found[key]) == 4


@pytest.mark.parametrize("name", METHODS)
def test_every_option_and_field_of_a_method_is_there(name):
    section = sections(page_of("methods.md"))[name]
    found = rows(section.partition("| field |")[0])
    assert set(found) == {one.name for one in dataclasses.fields(METHODS[name])}
    for one in dataclasses.fields(METHODS[name]):
        assert found[one.name][2] == code(one.default) and len(found[one.name][-1]) > 2
    wire = make(name, {}).wire
    for field, way, sight, what in wire.rows():
        line = next(one for one in section.splitlines() if one.startswith(f"| `{field}` | {way} |"))
        assert what in line and wire.bound_words(field, way) in line
        assert sight_words(sight.name.lower()) in line


def test_what_deployments_read_is_there():
    from selfsame.deploy.codec import REASONS
    from selfsame.deploy.flower.node_keys import DEVICE, HELPER
    from selfsame.deploy.flower.terms import SampleForm, Serving
    from selfsame.deploy.policy import DevicePolicy

    found = sections(page_of("deployment.md"))
    assert set(rows(found["deploy.toml"])) == {one.name for one in dataclasses.fields(Serving)}
    assert set(rows(found["deploy.toml: `[samples]`"])) == {one.name for one in dataclasses.fields(SampleForm)}
    assert set(rows(found["A device's policy"])) == {one.name for one in dataclasses.fields(DevicePolicy)}
    assert set(rows(found["Node configuration of a device"])) == set(DEVICE)
    assert set(rows(found["Node configuration of a helper"])) == set(HELPER)
    reasons = rows(sections(page_of("wire.md"))["Why a message is refused"])
    assert set(reasons) == set(REASONS) and all(line[-1] for line in reasons.values())


def test_the_python_interface_is_there():
    import selfsame

    found = sections(page_of("python.md"))
    for name in selfsame.__all__:
        if not name.startswith("_"):
            assert len(found[f"selfsame.{name}"]) > 40
    assert "`verify(user: str, sample: Raw) -> Verdict`" in found["selfsame.Verifier"]
    assert "`loss(" in found["selfsame.methods.LocalLoss"]
    assert "method: str = 'fedhide'" in found["selfsame.train"]


def test_the_table_of_recipes_lists_every_file_with_its_runs():
    table, listed = (ROOT / "docs" / "guides" / "compare.md").read_text(encoding="utf-8"), []
    for row in re.findall(r"^\| (`[^|]+`) \|[^|]+\|[^|]+\| ([^|]+) \|[^|]+\|$", table, flags=re.MULTILINE):
        names = re.findall(r"`([^`]+)`", row[0])
        parts = names[0].split("-")
        starts = ["-".join(parts[:end]) for end in range(len(parts), 0, -1)]
        for place, name in enumerate(names):
            if name.startswith("-"):  # the first one's name with another ending
                names[place] = next(s + name for s in starts if (ROOT / "recipes" / f"{s}{name}.toml").is_file())
        counts = []
        for name in names:
            variants = read_experiment(ROOT / "recipes" / f"{name}.toml", {}, []).variants
            (seeds,) = {len(variant.seeds) for variant in variants}
            counts.append(f"{len(variants)} x {seeds}" if seeds > 1 else f"{len(variants)}")
        same = len(counts) > 1 and len(set(counts)) == 1
        assert row[1] == (f"{counts[0]} each" if same else ", ".join(counts)), names
        listed += names
    there = [path.relative_to(ROOT / "recipes").with_suffix("") for path in (ROOT / "recipes").rglob("*.toml")]
    assert sorted(listed) == sorted(map(str, there))
