"""A recipe file that is written from its variants says what the file said that they came from."""

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.config.experiment import Paper, paper_table, read_experiment
from selfsame.config.recipe import from_mapping
from selfsame.config.writing import Written, experiment_to_toml, oracle_rows, quoted_rows

RECIPES = sorted((Path(__file__).parents[2] / "recipes").rglob("*.toml"))


@pytest.mark.parametrize("file", RECIPES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_recipe_is_written_and_read_again(file, tmp_path):
    whole = read_experiment(file)
    variants = [Written(v.title, v.recipe, paper_table(v.paper, v.own_rounds), v.control) for v in whole.variants]
    seeds = () if whole.variants[0].seeds == (whole.variants[0].recipe.run.seed,) else whole.variants[0].seeds
    again = tmp_path / "again.toml"
    again.write_text(experiment_to_toml(variants, seeds, quoted_rows(file), oracle_rows(file)))
    found = read_experiment(again)
    assert [one.title for one in found.variants] == [one.title for one in whole.variants]
    for one, before in zip(found.variants, whole.variants, strict=True):
        assert replace(one.recipe, title="") == replace(before.recipe, title="") and one.seeds == before.seeds
        assert one.paper.figures == before.paper.figures and one.own_rounds == before.own_rounds
        assert (one.control, one.paper.chosen) == (before.control, before.paper.chosen)
        if before.paper != Paper() and not one.control:
            rounds = before.own_rounds if before.paper.rounds is None else before.paper.rounds
            assert one.paper == replace(before.paper, rounds=rounds)
    assert [(one.title, one.paper.figures) for one in found.quoted] == [
        (one.title, one.paper.figures) for one in whole.quoted
    ]
    assert [(one.title, one.digest, one.seeds, one.paper.chosen) for one in found.oracles] == [
        (one.title, one.digest, one.seeds, one.paper.chosen) for one in whole.oracles
    ]


METHODS = (
    {"name": "fixed"},
    {"name": "fedhide", "alpha": 0.1},
    {"name": "fedhide", "alpha": 0.2, "neighbours": 3},
    {"name": "softmax", "scale": 1.0},
)
PARTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(METHODS),
        "local": st.fixed_dictionaries({}, optional={"lr": st.sampled_from((1, 1.0, 0.1)), "steps": st.integers(1, 3)}),
        "net": st.sampled_from(({}, {"name": "lenet"}, {"name": "lenet", "channels": [8, 4]}, {"name": "mlp"})),
        "server": st.fixed_dictionaries({}, optional={"plain": st.sampled_from(([], ["embedding"]))}),
    }
)


@given(st.lists(PARTS, min_size=1, max_size=4), st.sampled_from([(), (0, 1), (5,)]))
def test_variants_of_any_kind_are_written_and_read_again(tables, seeds):
    """Options of one method, network or data set are never inherited by another."""
    variants = [Written(f'row {n}, "of" {n}\'s', from_mapping(one)) for n, one in enumerate(tables)]
    text = experiment_to_toml(variants, seeds)
    found = read_text_again(text)
    assert [one.title for one in found.variants] == [one.title for one in variants]
    assert [replace(one.recipe, title="") for one in found.variants] == [one.recipe for one in variants]
    assert {one.seeds for one in found.variants} == {seeds or (0,)}


def read_text_again(text):
    """The experiment of a file with this text."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "again.toml"
        file.write_text(text)
        return read_experiment(file)
