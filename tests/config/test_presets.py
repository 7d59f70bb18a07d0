"""From a method's name, a file, options and settings to one recipe: what lies over what."""

import pytest

from selfsame.config.presets import make_recipe, preset
from selfsame.config.recipe import from_mapping, merged
from selfsame.errors import SelfsameError


def test_without_a_file_the_preset_is_beneath():
    named = {"method": {"name": "fedaws"}, "data": {"name": "mnist"}}
    assert make_recipe("fedaws", None, {"data": {"name": "mnist"}}) == from_mapping(
        merged(preset("fedaws", "mnist"), named)
    )
    assert make_recipe("fedaws", None, {}).data.name == "digits"


def test_settings_over_options_over_the_file(tmp_path):
    file = tmp_path / "base.toml"
    file.write_text(
        '[run]\nrounds = 3\nseed = 4\n[local]\nlr = 0.5\n[data]\nname = "synthetic"\n[paper]\n"p@1" = 58.0\n'
    )
    found = make_recipe("fixed", file, {"run": {"rounds": 5, "seed": 6}}, ["run.seed=7"])
    assert (found.run.rounds, found.run.seed, found.local.lr) == (5, 7, 0.5)
    assert (found.method.name, found.data.name, found.cohort.size) == ("fixed", "synthetic", 0)  # and no preset
    assert make_recipe("fixed", file, {"data": {"name": "digits"}}).data.name == "digits"
    file.write_text("")
    assert make_recipe("fixed", file, {}) == from_mapping({"method": {"name": "fixed"}})


@pytest.mark.parametrize("text", ["[[variant]]\n", '[grid]\n"local.lr" = [1]\n', "seeds = [1]\n"])
def test_a_file_with_variants_is_no_base(text, tmp_path):
    (tmp_path / "many.toml").write_text(text)
    with pytest.raises(SelfsameError, match=r"has variants; run it with `selfsame recipe .*many\.toml`"):
        make_recipe("fixed", tmp_path / "many.toml", {})


@pytest.mark.parametrize("asked, rate", [({}, 0.0001), ({"adapters": 4}, 0.003), ({"train": ["last"]}, 0.001)])
def test_a_network_that_is_given_learns_slowly(asked, rate):
    net = {"name": "dlib-face", "start": "face.safetensors", **asked}
    found = make_recipe("fedcrowd", None, {"data": {"name": "imagefolder"}, "net": net})
    assert (found.local.lr, found.local.schedule, found.server.optimiser) == (rate, "cosine", "momentum")
    assert found.run.rounds == 300 and found.augment.crop == 0
    plain = make_recipe("fedcrowd", None, {"data": {"name": "imagefolder"}})
    assert plain.local.lr == 0.03 and plain.run.rounds == 1000
    chosen = make_recipe("fedcrowd", None, {"data": {"name": "imagefolder"}, "net": net}, ["local.lr=0.5"])
    assert chosen.local.lr == 0.5
    split = make_recipe("fdml", None, {}, ["net.start=w.safetensors"])
    assert split.local.lr == 0.03 and split.method.options["normalise"] and split.server.optimiser == "momentum"
