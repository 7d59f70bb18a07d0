"""A federation is known again by its people, samples and order; a grey level more or less is another decoder."""

from dataclasses import replace

import pytest
import torch

from selfsame.data import Held, Samples, load
from selfsame.data.federation import from_classes
from selfsame.data.fingerprint import TOUCHED, UNKNOWN, Fingerprint, check_fingerprint, keep_fingerprint
from selfsame.errors import SelfsameError

NAMES = ("ann", "bob", "cy", "dee", "eve")


def a_federation(x=None, y=None, names=NAMES, unseen=None):
    """Four clients with five samples each, and one person held out."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (20, 1, 4, 4), generator=draw, dtype=torch.uint8) if x is None else x
    y = torch.arange(20) // 5 if y is None else y
    test = Samples(x[:4].flip(0), torch.arange(4))
    unseen = Samples(255 - x[:3], torch.full((3,), 4)) if unseen is None else unseen
    return from_classes("mine", x, y, test=test, unseen=unseen, class_names=names)


def refused(folder, federation):
    with pytest.raises(SelfsameError) as caught:
        check_fingerprint(federation, folder)
    words = str(caught.value)
    assert words.startswith(f"{folder}: was trained on other data: ") and "\n" not in words and "--path" in words
    return words


def test_the_same_again(tmp_path):
    keep_fingerprint(a_federation(), tmp_path)
    assert check_fingerprint(a_federation(), tmp_path) == ()


def test_no_fingerprint_is_said(tmp_path):
    assert check_fingerprint(a_federation(), tmp_path) == (UNKNOWN,)


def test_what_changed_is_said(tmp_path):
    keep_fingerprint(a_federation(), tmp_path)
    one = a_federation()
    x, y = one.source.x, torch.arange(20) // 5
    more = torch.cat([x, x[:5]]), torch.cat([y, torch.full((5,), 4)])
    assert "5 people then, 6 now: new is flo;" in refused(
        tmp_path, a_federation(*more, names=(*NAMES, "flo"), unseen=Samples(x[:3], torch.full((3,), 5)))
    )
    fewer = a_federation(x[:15], y[:15], names=(*NAMES[:3], "eve"), unseen=Samples(255 - x[:3], torch.full((3,), 3)))
    assert "5 people then, 4 now: missing is dee;" in refused(tmp_path, fewer)
    uneven = torch.tensor([0] * 6 + [1] * 4 + [2] * 5 + [3] * 5)
    assert "ann had 5 samples, has 6: bob had 5 samples, has 4;" in refused(tmp_path, a_federation(x, uneven))
    assert "in another order" in refused(tmp_path, a_federation(names=("bob", "ann", *NAMES[2:])))
    assert "held out then or now" in refused(tmp_path, a_federation(names=("ann", "bob", "cy", "eve", "dee")))
    assert "samples were 1x4x4, are 1x2x8" in refused(tmp_path, a_federation(x.reshape(20, 1, 2, 8)))
    other = x.clone()
    other[7] = 255 - other[7] // 2
    assert "1 of the 20 training samples looked at are others" in refused(tmp_path, replace_training(one, other))
    assert "2 of the 20 training samples" in refused(tmp_path, replace_training(one, x[[1, 0, *range(2, 20)]]))
    test = Samples(one.test.x.flip(0), one.test.y)
    assert "4 of the 4 test samples" in refused(tmp_path, replace(one, test=test))
    assert "samples are scaled otherwise" in refused(tmp_path, replace(one, mean=(0.5,)))
    assert "the data set was mine, is digits" in refused(tmp_path, load("digits", turns=1))


def replace_training(federation, x):
    return replace(federation, source=Held(x, federation.source.start_N))


def test_another_decoder_is_no_other_data(tmp_path):
    """A few pixels of each picture differ by one level."""
    one = a_federation()
    keep_fingerprint(one, tmp_path)
    x = one.source.x.clone()
    x[:, 0, 0, 0] ^= 1
    assert check_fingerprint(replace_training(one, x), tmp_path) == (TOUCHED,)


@pytest.mark.parametrize("text", ["{", "{}", "[]", '{"name": 3}'])
def test_damaged(text, tmp_path):
    (tmp_path / "data.json").write_text(text)
    with pytest.raises(SelfsameError, match=r"data\.json: "):
        check_fingerprint(a_federation(), tmp_path)


def test_looks_that_are_no_numbers(tmp_path):
    keep_fingerprint(a_federation(), tmp_path)
    file = tmp_path / "data.json"
    file.write_text(file.read_text().replace('"looks": "', '"looks": "!', 1))
    with pytest.raises(SelfsameError, match="damaged"):
        check_fingerprint(a_federation(), tmp_path)


@pytest.mark.parametrize(("name", "options"), [("digits", {"turns": 1}), ("synthetic", {"clients": 30})])
def test_sets_that_come_along_are_known_again(name, options):
    one, two = (Fingerprint.of(load(name, **options)) for _ in range(2))
    assert one == two and one.changes(two) == ""


def test_too_many_people_to_name(monkeypatch):
    monkeypatch.setattr("selfsame.data.fingerprint._MOST_PEOPLE", 3)
    one = Fingerprint.of(a_federation())
    assert one.seen == {} and one.unseen == {}
    uneven = Fingerprint.of(a_federation(y=torch.tensor([0] * 6 + [1] * 4 + [2] * 5 + [3] * 5)))
    assert "4 clients then, 4 now, or others of them" in one.changes(uneven)
