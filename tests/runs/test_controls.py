"""Controls beside a paper's variants: the same data, network, seeds and budget, and none that is there already."""

from pathlib import Path

import pytest

from selfsame.config.exhibits import FIXED, NO_NEGATIVES, PAPERS, UNTRAINED
from selfsame.config.experiment import read_experiment, shortened
from selfsame.methods import make
from selfsame.runs.controls import with_controls

RECIPES = Path(__file__).parents[2] / "recipes"
EXPECTED = {  # how many networks the paper's method is trained on, and what the recipe lacks beside the untrained one
    "fedaws-table1-cifar10": (2, {NO_NEGATIVES}),  # Baseline-2 is there; Baseline-1 starts its class vectors elsewhere
    "fedaws-table1-cifar100": (2, {NO_NEGATIVES}),
    "fedaws-table3-amazoncat": (1, {NO_NEGATIVES}),
    "fedaws-table3-amazon670k": (1, {NO_NEGATIVES}),
    "fedaws-table3-wikilshtc": (1, {NO_NEGATIVES}),
    "fedaws-table4-amazoncat": (1, {FIXED, NO_NEGATIVES}),
    **{f"fedaws-table3-{name}": (1, {NO_NEGATIVES}) for name in ("delicious", "bibtex", "corel5k")},
    **{f"fedaws-table4-{name}": (1, {FIXED, NO_NEGATIVES}) for name in ("delicious", "bibtex", "corel5k")},
    "feduv-fig3-mnist-uv": (1, {FIXED}),  # FedUV itself is what its loss is without the negative term
    "feduv-fig4-mnist-uv": (1, {FIXED}),
    "feduv-fig4-celeba": (1, {FIXED}),
    "feduv-fig4-voxceleb": (1, {FIXED}),
    "feduv-fig4-audiomnist": (1, set()),
    "feduv-fig4-lfw": (1, set()),
    "fedmetric-table2-mnist": (1, set()),  # pos is without its term, and fixed vectors are there, tuned
    "fedmetric-table2-cifar10": (1, {FIXED}),
    "fedmetric-fig2-cifar10": (1, {FIXED}),
    "fedmetric-fig3-cifar10": (1, {FIXED, NO_NEGATIVES}),
    "fedhide-cifar100": (1, {FIXED, NO_NEGATIVES}),
    "fedhide-voxceleb1": (1, {FIXED, NO_NEGATIVES}),
    "fedhide-vggface2": (1, {FIXED, NO_NEGATIVES}),
    "fdml-touchauth": (1, {FIXED}),
    "fdml-cameraauth": (2, {FIXED}),
}
NAMED = [(paper, name) for paper in PAPERS for name in dict.fromkeys(n for e in PAPERS[paper] for n in e.recipes)]


def test_every_recipe_of_the_papers_is_expected():
    assert {name for _, name in NAMED} == set(EXPECTED)


@pytest.mark.parametrize(("paper", "name"), NAMED)
def test_controls_of_the_papers(paper, name):
    own = read_experiment(RECIPES / f"{name}.toml")
    found = with_controls(own, paper)
    assert found.variants[: len(own.variants)] == own.variants
    controls = found.variants[len(own.variants) :]
    networks, lacking = EXPECTED[name]
    assert sorted(one.control for one in controls) == sorted(networks * [UNTRAINED, *lacking])
    assert len({one.title for one in found.variants}) == len(found.variants)
    assert len({job.folder for job in found.jobs(Path("x"))}) == len(found.jobs(Path("x")))
    for one in controls:
        base = next(v for v in own.variants if v.recipe.method.name == paper and v.recipe.net == one.recipe.net)
        same = ("data", "net", "cohort", "local", "server", "augment", "split", "sums")
        assert all(getattr(one.recipe, part) == getattr(base.recipe, part) for part in same)
        assert one.seeds == base.seeds == (0, 1, 2) and not one.paper.figures
        assert one.untrained == (one.control == UNTRAINED)
        if not one.untrained:
            assert one.recipe.run == base.recipe.run and one.own_rounds == base.own_rounds
        if one.control == FIXED:
            assert one.recipe.method.name == "fixed"
        if one.control == NO_NEGATIVES:
            method, of = make(paper, one.recipe.method.options), make(paper, base.recipe.method.options)
            weight = "spread_weight" if paper == "fedaws" else "negative_weight"
            assert getattr(method, weight) == 0 < getattr(of, weight)
            assert {**one.recipe.method.options, weight: 0} == {**base.recipe.method.options, weight: 0}


def test_a_share_of_the_rounds():
    own = read_experiment(RECIPES / "fdml-touchauth.toml")
    short = shortened(own, 0.2)
    assert {v.recipe.run.rounds for v in short.variants} == {3000, 9000}
    assert {v.recipe.run.eval_every for v in short.variants} == {300, 900}
    assert [v.own_rounds for v in short.variants] == [v.own_rounds for v in own.variants]
    assert {v.recipe.run.rounds for v in shortened(own, 1e-9).variants} == {1}
    untrained = [v for v in with_controls(short, "fdml").variants if v.untrained]
    assert untrained[0].recipe == next(v for v in with_controls(own, "fdml").variants if v.untrained).recipe
