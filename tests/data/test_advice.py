"""What a first run begins with: by the files and the machine; what the user sets wins."""

import numpy as np
import pytest
from trees import people_tree

from selfsame.data.advice import advice_words, advise
from selfsame.data.formats.wav import to_pcm
from selfsame.runs.beginning import recipe_for


def tree(root, people, pictures=3, **options):
    from trees import put

    for person in range(people):
        for number in range(pictures):
            put(root / f"p{person:03d}" / f"{number}.png", 100 * person + number, **options)
    return root


def test_small_grey_pictures_stay_small_and_grey(tmp_path):
    found = advise("imagefolder", tree(tmp_path, 40, width=30, height=33, mode="L"), gpu=False)
    assert found["data"] == {"size": 28, "grey": True} and found["cohort"] == {"size": 16}
    assert found["net"]["name"] == "lenet"


def test_large_ones_in_colour(tmp_path):
    tree(tmp_path, 6, width=150, height=180)
    found = advise("imagefolder", tmp_path, gpu=False)
    assert found["data"] == {"size": 32, "grey": False} and "cohort" not in found
    strong = advise("imagefolder", tmp_path, gpu=True)
    assert strong["data"]["size"] == 112 and strong["net"]["name"] == "mobilefacenet"


def test_colour_files_of_grey_pictures_are_grey(tmp_path):
    from trees import picture

    for number in range(4):
        (tmp_path / "ann").mkdir(exist_ok=True)
        picture(number, mode="L").convert("RGB").save(tmp_path / "ann" / f"{number}.png")
    assert advise("imagefolder", tmp_path, gpu=False)["data"]["grey"] is True


def test_recordings(tmp_path):
    import wave

    for person in range(3):
        (tmp_path / f"p{person}").mkdir()
        with wave.open(str(tmp_path / f"p{person}" / "a.wav"), "wb") as file:
            file.setnchannels(1), file.setsampwidth(2), file.setframerate(8000)
            file.writeframes(to_pcm(np.sin(np.arange(4800))).tobytes())
    found = advise("audiofolder", tmp_path, gpu=False)
    assert found["data"] == {"seconds": 0.6, "test_seconds": 0.6} and found["net"]["name"] == "lenet-mel"


@pytest.mark.parametrize("name", ["imagefolder", "audiofolder", "digits", "table"])
def test_nothing_to_look_at(name, tmp_path):
    found = advise(name, tmp_path, gpu=False)
    assert found.get("net") is None or name == "audiofolder"
    assert advise(name, tmp_path / "none", gpu=False) == {}


def test_what_is_set_wins(tmp_path):
    root = people_tree(tmp_path / "faces", [4] * 40)
    given = {"data": {"name": "imagefolder", "path": str(root)}, "run": {"device": "cpu"}}
    chosen, words = recipe_for("fedhide", None, given)
    assert chosen.cohort.size == 16 and chosen.net.name == "lenet" and chosen.data.options["size"] == 16
    assert words == advice_words(advise("imagefolder", root, False), False)
    assert "data.size=16, data.grey=false, net.name=lenet" in words and "cohort.size=16" in words
    mine, words = recipe_for("fedhide", None, given, ["net.name=resnet8", "data.size=20", "cohort.size=5"])
    assert mine.net.name == "resnet8" and mine.net.options == {} and mine.data.options["size"] == 20
    assert mine.cohort.size == 5 and "net" not in words and "size=" not in words and "data.grey=false" in words
    few, _ = recipe_for("fedhide", None, given, ["data.people=8"])
    assert few.cohort.size == 0


def test_an_encoder_keeps_the_pictures_as_large_as_they_are_measured(tmp_path):
    """A face encoder for 150x150 used to be given 32x32, while `evaluate` gave it 64x64."""
    root = tree(tmp_path / "faces", 40, width=90, height=90)
    given = {"data": {"name": "imagefolder", "path": str(root)}, "run": {"device": "cpu"}}
    chosen, words = recipe_for("fedhide", None, given, ["net.name=dlib-face", "net.start=face.safetensors"])
    assert "size" not in chosen.data.options and chosen.cohort.size == 16 and "data." not in words
    plain, _ = recipe_for("fedhide", None, given, ["net.name=lenet"])
    assert plain.data.options["size"] == 32
