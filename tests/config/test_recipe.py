"""Recipes: written and read without loss, and anything wrong said in one line that names it."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import get_type_hints

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from selfsame.config.recipe import (
    ENGINES,
    OPTIMISERS,
    PARTS,
    PRECISIONS,
    SCHEDULES,
    STRATEGIES,
    SWITCH,
    WEIGHTS,
    AugmentPart,
    CohortPart,
    DataPart,
    LocalPart,
    NamedPart,
    NetPart,
    Recipe,
    RunPart,
    ServerPart,
    SplitPart,
    apply_settings,
    differences,
    from_mapping,
    merged,
    name_of,
    parse_setting,
    read_toml,
    to_mapping,
    to_toml,
)
from selfsame.errors import SelfsameError

# Any text that can stand in a file: no lone surrogates, which UTF-8 has no bytes for.
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
COUNT = st.integers(0, 10**6)
SHARE = st.floats(0, 1, exclude_max=True)
RATE = st.floats(0, 1e6)
SCALAR = st.one_of(st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), TEXT)
OPTIONS = st.dictionaries(
    TEXT.filter(lambda k: k not in {"options", "path", *(one.name for one in dataclasses.fields(NetPart))}),
    st.one_of(SCALAR, st.lists(st.integers(-99, 99), max_size=3)),
    max_size=4,
)
COHORT = st.builds(
    CohortPart,
    size=COUNT,
    sampling=st.sampled_from(["uniform", "round-robin"]),
    weights=st.sampled_from(WEIGHTS),
    dropout=SHARE,
    late=SHARE,
    join_round=COUNT,
)
RECIPE = st.builds(
    Recipe,
    method=st.builds(NamedPart, TEXT, OPTIONS),
    data=st.builds(DataPart, TEXT, OPTIONS, TEXT),
    net=st.builds(
        NetPart,
        TEXT,
        OPTIONS,
        COUNT,
        TEXT,
        TEXT,
        st.dictionaries(TEXT, TEXT, max_size=3),
        st.lists(TEXT, max_size=3).map(tuple),
        st.lists(TEXT, max_size=3).map(tuple),
        COUNT,
        st.floats(0, 1e6),
    ),
    run=st.builds(
        RunPart,
        st.integers(1, 10**9),
        st.integers(-(2**63), 2**63 - 1),
        COUNT,
        COUNT,
        st.sampled_from(ENGINES),
        TEXT,
        st.sampled_from(PRECISIONS),
        st.sampled_from(SWITCH),
        st.booleans(),
        COUNT,
    ),
    cohort=st.one_of(COHORT, st.just(CohortPart(sampling="all"))),
    split=st.builds(
        SplitPart,
        st.floats(1, 1e6),
        st.floats(0, 1, exclude_min=True),
        st.sampled_from(STRATEGIES),
        st.floats(0, 1, exclude_min=True),
        st.integers(1, 10**6),
        SHARE,
        RATE,
        RATE,
        COUNT,
    ),
    local=st.builds(
        LocalPart, st.integers(1, 99), COUNT, st.integers(1, 99), RATE, st.sampled_from(SCHEDULES), RATE, COUNT
    ),
    server=st.builds(
        ServerPart,
        st.sampled_from(OPTIMISERS),
        RATE,
        SHARE,
        st.booleans(),
        RATE,
        SHARE,
        st.floats(1e-12, 1),
        st.sampled_from(SCHEDULES),
        RATE,
        COUNT,
    ),
    augment=st.builds(AugmentPart, COUNT, st.booleans(), st.floats(0, 180)),
    title=TEXT,
)


def from_text(text: str, folder: Path) -> Recipe:
    (folder / "recipe.toml").write_bytes(text.encode())
    return from_mapping(read_toml(folder / "recipe.toml"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("recipes")


@given(recipe=RECIPE)
@example(Recipe(title='a "quoted" \\ title\nwith\ttabs, \r returns, \x00\x1f\x7f\x85\u2028 and 漢字 🙂 = [x] # y'))
@example(Recipe(method=NamedPart("m", {"a b": 1, "": 2, 'q"uote': [], "é": -0.0, "x.y": math.inf})))
def test_round_trip(folder, recipe):
    assert from_text(to_toml(recipe), folder) == recipe
    assert from_mapping(to_mapping(recipe)) == recipe


def test_default_round_trip(folder):
    assert from_text(to_toml(Recipe()), folder) == Recipe()
    assert from_text("", folder) == Recipe()
    assert from_text("[local]\nlr = 1", folder).local.lr == 1.0


def test_options_stand_beside_the_name_or_in_a_table(folder):
    beside = from_text('[method]\nname = "fedhide"\nalpha = 0.5', folder)
    below = from_text('[method]\nname = "fedhide"\n[method.options]\nalpha = 0.5', folder)
    assert beside == below == Recipe(method=NamedPart("fedhide", {"alpha": 0.5}))


def refused(tables) -> str:
    with pytest.raises(SelfsameError) as caught:
        from_mapping(tables)
    message = str(caught.value)
    assert message and len(message.splitlines()) == 1
    return message


KINDS = {int: [1.5, "1", True, [1], {}, None], float: ["1", True, [0.5]], bool: [1, "true", 0.0], str: [1, True, ["a"]]}
KINDS |= {tuple[str, ...]: [1, [1], {"a": "b"}], dict[str, str]: [1, ["a"]]}


def fields():
    for part, kind in PARTS.items():
        types = get_type_hints(kind)
        for field in dataclasses.fields(kind):
            if field.name != "options":
                yield part, field.name, types[field.name]


@pytest.mark.parametrize(("part", "key", "kind"), list(fields()))
def test_types(part, key, kind):
    for wrong in KINDS[kind]:
        message = refused({part: {key: wrong}})
        assert message.startswith(f"{part}.{key}: expected ")


RANGES = [
    ("run.rounds", [0, -1]),
    ("run.eval_every", [-1]),
    ("run.checkpoint_every", [-1]),
    ("run.patience", [-1]),
    ("run.engine", ["fast", ""]),
    ("run.precision", ["float16"]),
    ("run.compile", ["yes"]),
    ("net.width", [-1]),
    ("net.adapters", [-1]),
    ("net.keep", [-1.0, math.nan]),
    ("net.vectors", ["random"]),
    ("net.whitened", [-1.0, math.nan]),
    ("net.whitened_noise", [-1.0, math.nan]),
    ("cohort.size", [-1]),
    ("cohort.sampling", ["random"]),
    ("cohort.weights", ["n"]),
    ("cohort.dropout", [-0.1, 1.0, math.nan, 1]),
    ("cohort.late", [-0.1, 1.0, math.nan]),
    ("cohort.join_round", [-1]),
    ("split.over", [0.5, math.nan, math.inf]),
    ("split.response", [0.0, 1.5, math.nan]),
    ("split.strategy", ["ac", ""]),
    ("split.ready", [0.0, 1.5, math.nan]),
    ("split.registration", [0, -1]),
    ("split.lost", [-0.1, 1.0, math.nan]),
    ("split.embedding_wait", [-1.0, math.nan]),
    ("split.gradient_wait", [-1.0, math.nan]),
    ("split.most", [-1]),
    ("split.epsilon", [-1.0, math.nan]),
    ("split.delta", [0.0, 1.0, math.nan]),
    ("local.steps", [0]),
    ("local.epochs", [-1]),
    ("local.batch", [0]),
    ("local.lr", [-0.1, math.nan]),
    ("local.schedule", ["linear"]),
    ("local.decay", [-1.0, math.nan]),
    ("local.every", [-1]),
    ("server.optimiser", ["sgd"]),
    ("server.lr", [-1.0, math.nan]),
    ("server.momentum", [1.0, -0.1, math.nan]),
    ("server.weight_decay", [-1.0, math.nan]),
    ("cohort.cap", [-1]),
    ("sums.aggregation", ["x"]),
    ("sums.least", [-1]),
    ("sums.clip", [-1.0, math.nan]),
    ("sums.reach", [-1.0, math.nan]),
    ("sums.bits", [8, 31, 64]),
    ("sums.noise", [-1.0, math.nan]),
    ("sums.quiet", [-0.1, 1.0, math.nan]),
    ("sums.stand_ins", [-1]),
    ("server.beta2", [1.0, -0.1, math.nan]),
    ("server.epsilon", [0.0, -1.0, math.nan]),
    ("server.schedule", ["x"]),
    ("server.decay", [-1.0]),
    ("server.every", [-1]),
    ("server.plain_lr", [0.0, -1.0, math.nan]),
    ("augment.crop", [-1]),
    ("augment.rotation", [-1.0, 181.0, math.nan]),
]


@pytest.mark.parametrize(("where", "values"), RANGES)
def test_ranges(where, values):
    part, key = where.split(".")
    for value in values:
        message = refused({part: {key: value}})
        assert message.startswith(f"{where}: ") and (isinstance(value, str) or str(value) in message)


def test_every_range_is_tested():
    free = {"run.seed", "run.device", "method.name", "data.name", "data.path", "net.name"}
    free |= {"net.start", "net.digest", "net.rename", "net.skip", "net.train", "server.plain"}
    free |= {"server.nesterov", "augment.flip", "run.shard_tables", "run.training_figures"}
    assert {f"{part}.{key}" for part, key, _ in fields()} - free == {where for where, _ in RANGES}


def test_size_of_everybody():
    assert refused({"cohort": {"sampling": "all", "size": 3}}).startswith("cohort.size: ")


def test_unknown_names():
    assert refused({"local": {"lrr": 0.1}}) == "local.lrr: unknown option; did you mean 'lr'?"
    assert refused({"local": {"zzz": 1}}).startswith("local.zzz: unknown option; known: batch, decay, ")
    assert refused({"locl": {}}) == "[locl]: unknown part of a recipe; did you mean 'local'?"
    assert refused({"titel": "x"}).startswith("[titel]: ")
    assert refused({"local": 3}) == "[local]: expected a table, got 3"
    assert refused({"method": {"options": 3}}) == "[method.options]: expected a table, got 3"
    assert refused({"title": 3}).startswith("title: expected a text")


@given(st.dictionaries(TEXT, st.one_of(SCALAR, st.dictionaries(TEXT, SCALAR, max_size=2)), min_size=1, max_size=3))
def test_any_table_is_a_recipe_or_one_line(tables):
    try:
        from_mapping(tables)
    except SelfsameError as error:
        assert len(str(error).split("\n")) == 1


@pytest.mark.parametrize("number", [10**400, -(10**400), 2**63])
@pytest.mark.parametrize("where", ["local.lr", "run.rounds", "run.seed"])
def test_huge_numbers(number, where):
    part, key = where.split(".")
    assert refused({part: {key: number}}).startswith(f"{where}: ")


@settings(max_examples=60)
@given(
    st.one_of(
        st.binary(max_size=80), TEXT.map(str.encode), st.text("[]{}=.\"'\n#,ab10e+-: xu\\", max_size=40).map(str.encode)
    )
)
@example(b"v = " + b"9" * 5000)
@example(b"v = " + b"[" * 5000)
@example(b"\xff\xfe")
@example(b'a = "\\ud800"')
@example(b"a = 2020-13-45")
def test_read_toml_of_anything(folder, data):
    path = folder / "fuzz.toml"
    path.write_bytes(data)
    try:
        tables = read_toml(path)
        from_mapping(tables)
    except SelfsameError as error:
        assert len(str(error).split("\n")) == 1


def test_read_toml_names_the_file(tmp_path):
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(SelfsameError) as caught:
            read_toml(path)
        assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("local.lr=0.05", ["local", "lr"], 0.05),
        ("run.rounds = 7", ["run", "rounds"], 7),
        ("augment.flip=true", ["augment", "flip"], True),
        ("data.name=digits", ["data", "name"], "digits"),
        ('data.name="digits"', ["data", "name"], "digits"),
        ("data.path=/a=b/c", ["data", "path"], "/a=b/c"),
        ("net.channels=[8, 4]", ["net", "channels"], [8, 4]),
        ("alpha=1e-2", ["alpha"], 0.01),
        ("title=", ["title"], ""),
        ("x=" + "9" * 5000, ["x"], "9" * 5000),
    ],
)
def test_parse_setting(text, path, value):
    found = parse_setting(text)
    assert found == (path, value) and type(found[1]) is type(value)


@pytest.mark.parametrize("text", ["", "lr", "=3", "  =3"])
def test_bad_settings(text):
    with pytest.raises(SelfsameError, match="expected key=value"):
        parse_setting(text)


def test_apply_settings():
    base = {"local": {"lr": 1.0, "steps": 2}, "title": "old"}
    found = apply_settings(base, ["local.lr=0.5", "alpha=0.1", "title=new", "run.rounds=3", "local.lr=0.25"])
    assert found == {
        "local": {"lr": 0.25, "steps": 2},
        "method": {"alpha": 0.1},
        "title": "new",
        "run": {"rounds": 3},
    }
    assert base == {"local": {"lr": 1.0, "steps": 2}, "title": "old"}
    with pytest.raises(SelfsameError, match=r"--set lcal\.lr=1: unknown part 'lcal'; did you mean 'local'\?"):
        apply_settings({}, ["lcal.lr=1"])
    with pytest.raises(SelfsameError, match="--set"):
        apply_settings({}, ["local.lr.x=1"])
    with pytest.raises(SelfsameError, match=r"\[local\]: expected a table, got 3"):
        apply_settings({"local": 3}, ["local.lr=1"])


def test_merged():
    assert merged({"a": {"x": 1, "y": 2}, "t": "1"}, {"a": {"y": 3}, "b": {"z": 4}}, {"t": "2"}) == {
        "a": {"x": 1, "y": 3},
        "t": "2",
        "b": {"z": 4},
    }
    first = {"a": {"x": 1}}
    merged(first, {"a": {"x": 2}})
    assert first == {"a": {"x": 1}}


def test_what_toml_cannot_hold():
    with pytest.raises(SelfsameError, match="cannot hold"):
        to_toml(Recipe(method=NamedPart("x", {"a": None})))


def test_name_of():
    assert name_of(Recipe(title="mine")) == "mine"
    assert name_of(Recipe(method=NamedPart("fedhide"))) == "fedhide"
    assert name_of(Recipe(method=NamedPart("fedhide", {"alpha": 0.1, "neighbours": 3}))) == (
        "fedhide(alpha=0.1, neighbours=3)"
    )


def test_differences_leave_out_the_title_where_the_data_lie_and_the_device():
    one = from_mapping({"title": "a", "data": {"name": "mnist", "path": "x"}, "method": {"name": "fedhide"}})
    two = from_mapping({"title": "b", "data": {"name": "mnist", "path": "y"}, "method": {"name": "fedhide"}})
    two = dataclasses.replace(two, run=dataclasses.replace(two.run, device="cuda"))
    assert differences(one, two) == []
    three = from_mapping(
        {"data": {"name": "mnist", "held_out": 1}, "method": {"name": "fedhide", "alpha": 1}, "run": {"rounds": 3}}
    )
    assert sorted(differences(one, three)) == ["data.held_out", "method.alpha", "run.rounds"]
    assert differences(one, three) == differences(three, one)
