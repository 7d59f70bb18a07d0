"""Image files by person: split, and told about where something is wrong; every publisher's layout."""

import os
from zlib import crc32

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trees import people_tree, put, rows_of

from selfsame.data import Held, load
from selfsame.data.federation import Mapped, Rows
from selfsame.data.formats.pictures import decode_image
from selfsame.data.listing import shown
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


# Any folder of people


@pytest.mark.parametrize("hold", [2.0, 0.0])
def test_people_in_folders(tmp_path, hold):
    people_tree(tmp_path, [6, 5, 7, 1, 6, 0])
    (tmp_path / "p00" / "notes.txt").write_text("x")
    (tmp_path / "p01" / "bad.jpg").write_bytes(b"no image")
    (tmp_path / "p01" / ".hidden.jpg").write_bytes(b"")
    fed = load("imagefolder", tmp_path, size=8, validation=1, unseen_share=0.3, hold_gib=hold)
    assert fed.clients == 3 and fed.shape == (3, 8, 8) and len(fed.unseen.y.unique()) == 1
    assert isinstance(fed.source, Held if hold else Mapped) and isinstance(fed.test.x, Rows) == (not hold)
    assert fed.test.y.tolist() == [0, 0, 1, 1, 2, 2] and fed.validation.y.tolist() == [0, 1, 2]
    by_pixels = {decode_image(path, 8, False).tobytes(): path.parent.name for path in tmp_path.glob("p*/*.png")}
    met = []
    for client in range(3):
        rows = rows_of(fed, client)
        assert {by_pixels[row.numpy().tobytes()] for row in rows} == {fed.class_names[client]}
        met += [row.numpy().tobytes() for row in rows]
    for samples in (fed.validation, fed.test, fed.unseen):
        for row, label in zip(samples.x[:], samples.y.tolist()):
            assert by_pixels[row.numpy().tobytes()] == fed.class_names[label]
            met.append(row.numpy().tobytes())
    assert len(met) == len(set(met)) == 24  # everybody's images but the one of p03, who has too few
    assert set(fed.left_out) == {
        "p00/notes.txt: not an image by its name",
        "p05: no images in it",
        "p01/bad.jpg: not an image (JPEG, PNG, BMP, PPM or WebP)",
        "p03: 1 samples, a client needs 4",
        "p05: 0 samples, a client needs 4",
    }
    assert any("1 files could not be read: p01/bad.jpg" in note for note in fed.notes)
    assert any("2 people are no clients, with fewer than 4 samples: p03 (1), p05 (0)" in note for note in fed.notes)
    x = fed.scale(torch.cat([rows_of(fed, client) for client in range(3)]))
    assert (
        float(x.mean((0, 2, 3)).abs().max()) < 1e-5 and float((x.var((0, 2, 3), unbiased=False) - 1).abs().max()) < 1e-4
    )


def test_held_and_mapped_are_the_same_federation(tmp_path):
    people_tree(tmp_path, [5] * 6)
    held, mapped = (load("imagefolder", tmp_path, size=8, hold_gib=gib) for gib in (1, 0))
    client_M, index_MB = torch.tensor([3, 0, 1]), torch.tensor([[0, 2], [1, 1], [2, 0]])
    assert torch.equal(held.source.rows(client_M, index_MB), mapped.source.rows(client_M, index_MB))
    assert torch.equal(held.test.x, mapped.test.x[:]) and torch.equal(held.test.y, mapped.test.y)
    assert held.mean == mapped.mean and held.std == mapped.std
    assert torch.equal(held.trials.index_a, mapped.trials.index_a) and len(held.trials) > 0


def test_a_list_of_pairs_names_the_unseen(tmp_path):
    people_tree(tmp_path, [3] * 5)
    (tmp_path / "pairs.txt").write_text(
        "1 p01/000.png p01/002.png\n0 p01/000.png p04/001.png\n1 p01/000.png p01/009.png\n"
    )
    fed = load("imagefolder", tmp_path, size=8, pairs="pairs.txt")
    assert fed.clients == 3 and fed.class_names == ("p00", "p02", "p03", "p01", "p04")
    assert fed.trials.same.tolist() == [True, False] and len(fed.unseen.y) == 3
    by_pixels = {decode_image(p, 8, False).tobytes(): f"{p.parent.name}/{p.name}" for p in tmp_path.glob("p*/*.png")}
    pairs = [
        (by_pixels[fed.unseen.x[a].numpy().tobytes()], by_pixels[fed.unseen.x[b].numpy().tobytes()])
        for a, b in zip(fed.trials.index_a.tolist(), fed.trials.index_b.tolist())
    ]
    assert pairs == [("p01/000.png", "p01/002.png"), ("p01/000.png", "p04/001.png")]
    assert fed.unseen.y.tolist() == [3, 3, 4]
    assert "trial p01/000.png p01/009.png: absent or unreadable" in fed.left_out
    (tmp_path / "pairs.txt").write_text("1 p01/000.png p02/002.png\n")
    with pytest.raises(SelfsameError, match=r"trial 1 says 1, but p01/000.png and p02/002.png are of two people"):
        load("imagefolder", tmp_path, size=8, pairs="pairs.txt")
    with pytest.raises(SelfsameError, match=r"none.txt: cannot be read"):
        load("imagefolder", tmp_path, pairs="none.txt")


@pytest.mark.parametrize(
    "options, line",
    [
        ({"size": 7}, "size must be 8 to 1024"),
        ({"unseen_share": 1.0}, "unseen_share must be 0 or more and below 1"),
        ({"trials": -1}, "trials must be 0 to"),
        ({"unseen_samples": -1}, "unseen_samples must be 0 to"),
        ({"unseen_least": -1}, "unseen_least must be 0 to"),
        ({"hold_gib": -0.5}, "hold_gib must be 0 to"),
        ({"people": 9}, "people must be 0"),
    ],
)
def test_wrong_options_get_one_line(tmp_path, options, line):
    people_tree(tmp_path, [3] * 3)
    with pytest.raises(SelfsameError, match=line):
        load("imagefolder", tmp_path, **options)


@pytest.mark.parametrize("share", [0.25, 0.5, 0.99])
def test_unseen_people_have_the_samples_asked_for(tmp_path, share):
    """The share is of those who have enough; people with fewer can be clients."""
    people_tree(tmp_path, [3, 9, 4, 8, 3, 8, 9, 4])
    fed = load("imagefolder", tmp_path, size=8, unseen_least=8, unseen_share=share)
    counts = fed.unseen.y.unique(return_counts=True)[1]
    assert len(counts) == int(4 * share) and int(counts.min()) >= 8
    assert fed.clients == 8 - len(counts)


def test_folders_without_images(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(SelfsameError, match="no images found"):
        load("imagefolder", tmp_path)


def test_names_that_no_terminal_can_print(tmp_path):
    assert shown("a\nb") == "a\\nb" and shown("Jürgen") == "Jürgen" and shown("a\udcff") == "a?"
    people_tree(tmp_path, [4] * 3)
    os.rename(tmp_path / "p01", os.fsencode(tmp_path) + b"/p\xff1")
    fed = load("imagefolder", tmp_path, size=8, unseen_share=0.0)
    assert fed.clients == 3 and all(name.isprintable() for name in fed.class_names)


# LFW


def lfw_tree(root, counts, lines):
    for number, (name, count) in enumerate(counts.items()):
        for image in range(1, count + 1):
            put(root / "lfw" / name / f"{name}_{image:04d}.jpg", 100 * number + image)
    (root / "pairs.txt").write_text("\n".join(lines) + "\n")


LFW = {"Ann_A": 3, "Bob": 2, "Cid": 4, "Dora_D": 3, "Eve": 3, "Finn": 1}
PAIRS = ["2\t1", "Ann_A\t1\t3", "Ann_A\t2\tBob\t1", "Dora_D\t1\t2", "Dora_D\t3\tBob\t2"]


def test_lfw_trains_on_those_outside_the_pairs(tmp_path):
    lfw_tree(tmp_path, LFW, PAIRS)
    put(tmp_path / "lfw" / "Cid" / "Eve_0009.jpg", 77)
    fed = load("lfw", tmp_path, size=8)
    assert fed.class_names == ("Cid", "Eve", "Ann_A", "Bob", "Dora_D")
    assert fed.count_N.tolist() == [3, 2] and len(fed.test.y) == 2
    by_pixels = {decode_image(p, 8, False).tobytes(): p.stem for p in (tmp_path / "lfw").glob("*/*.jpg")}
    trials = [
        (by_pixels[fed.unseen.x[a].numpy().tobytes()], by_pixels[fed.unseen.x[b].numpy().tobytes()], bool(same), int(f))
        for a, b, same, f in zip(fed.trials.index_a, fed.trials.index_b, fed.trials.same, fed.trials.fold)
    ]
    assert trials == [
        ("Ann_A_0001", "Ann_A_0003", True, 0),
        ("Ann_A_0002", "Bob_0001", False, 0),
        ("Dora_D_0001", "Dora_D_0002", True, 1),
        ("Dora_D_0003", "Bob_0002", False, 1),
    ]
    assert set(fed.left_out) == {"Cid/Eve_0009.jpg: not named after its folder", "Finn: 1 samples, a client needs 2"}
    one = load("lfw", tmp_path, size=8, fold=1)
    assert one.class_names == ("Cid", "Dora_D", "Eve", "Ann_A", "Bob") and one.trials.fold.tolist() == [0, 0]
    with pytest.raises(SelfsameError, match="fold must be 0"):
        load("lfw", tmp_path, size=8, fold=3)


@pytest.mark.parametrize(
    "lines, line",
    [
        ([], r"line 1: expected the number of folds"),
        (["x 1"], "line 1: expected a whole number"),
        (["0 1"], "line 1: expected the number of folds"),
        (PAIRS[:-1], "3 pairs, its first line promises 4"),
        ([*PAIRS[:-1], "Dora_D 3 Bob"], "line 5: expected NAME NUMBER NAME NUMBER"),
        ([*PAIRS[:2], "Ann_A 2 Ann_A 1", *PAIRS[3:]], "line 3: a pair of two people names Ann_A twice"),
        ([PAIRS[0], "Ann_A 1 three", *PAIRS[2:]], "line 2: expected a whole number, got 'three'"),
    ],
)
def test_bad_pairs_get_one_line(tmp_path, lines, line):
    lfw_tree(tmp_path, LFW, lines)
    with pytest.raises(SelfsameError, match=line) as caught:
        load("lfw", tmp_path, size=8)
    assert str(tmp_path / "pairs.txt") in str(caught.value)


@FUZZ
@given(st.one_of(st.binary(max_size=60), st.text("0123456789 \t\nAnB_", max_size=60).map(str.encode)))
def test_any_pairs_file_is_read_or_gets_one_line(tmp_path, body):
    if not (tmp_path / "lfw").exists():
        lfw_tree(tmp_path, LFW, PAIRS)
    (tmp_path / "pairs.txt").write_bytes(body)
    try:
        load("lfw", tmp_path, size=8)
    except SelfsameError as error:
        assert "\n" not in str(error)


# Omniglot


def test_omniglot(tmp_path):
    for part, alphabets in (("background", ("Greek", "Latin")), ("evaluation", ("Tengwar",))):
        for alphabet in alphabets:
            for character in (1, 2):
                for drawer in range(1, 9):
                    place = tmp_path / "omniglot" / f"images_{part}" / alphabet / f"character{character:02d}"
                    put(place / f"0001_{drawer:02d}.png", crc32(f"{alphabet}{character}{drawer}".encode()), mode="L")
    fed = load("omniglot", tmp_path, size=8)
    assert fed.class_names[:4] == tuple(f"{a}/character0{c}" for a in ("Greek", "Latin") for c in (1, 2))
    assert fed.shape == (1, 8, 8) and fed.count_N.tolist() == [2] * 4 and len(fed.unseen.y) == 16
    assert len(fed.test.y) == len(fed.validation.y) == 12
    assert int(fed.trials.same.sum()) == 2 * 8 * 7 // 2 and int((~fed.trials.same).sum()) == 64
    turned = load("omniglot", tmp_path, size=8, rotations=True)
    assert turned.clients == turned.classes == 16 and len(turned.class_names) == 18
    assert turned.class_names[4:6] == ("Greek/character01, 90 degrees", "Greek/character02, 90 degrees")
    everybody, both = torch.arange(4), torch.arange(2).expand(4, 2)
    upright = fed.source.rows(everybody, both)
    for turns in range(4):
        rows = turned.source.rows(everybody + 4 * turns, both)
        assert torch.equal(rows, torch.rot90(upright, turns, (-2, -1)))
    assert torch.equal(turned.test.y.bincount(), torch.full((16,), 3)) and torch.equal(turned.unseen.x, fed.unseen.x)
    assert turned.unseen.y.unique().tolist() == [16, 17] and torch.equal(turned.trials.same, fed.trials.same)


# CelebA


def celeba_tree(root, people, images):
    rng = np.random.default_rng(0)
    identity = []
    for number in range(1, images + 1):
        put(root / "img_align_celeba" / f"{number:06d}.jpg", number)
        identity.append(f"{number:06d}.jpg {int(rng.integers(people)) + 10 if number > people else number + 9}")
    (root / "identity_CelebA.txt").write_text("\n".join(identity) + "\n")
    return dict(line.split() for line in identity)


SMALL = {"size": 8, "people": 3, "held_out": 2, "train": 2, "validation": 1, "test": 1}


def test_celeba(tmp_path):
    identity = celeba_tree(tmp_path / "celeba", 6, 60)
    with (tmp_path / "celeba" / "identity_CelebA.txt").open("a") as stream:
        stream.write("000099.jpg 12\n")
    put(tmp_path / "celeba" / "img_align_celeba" / "000098.jpg", 5)
    fed = load("celeba", tmp_path, **SMALL)
    assert fed.clients == 3 and fed.count_N.tolist() == [2] * 3 and len(fed.class_names) == 5
    assert len(fed.validation.y) == len(fed.test.y) == 3
    by_pixels = {
        decode_image(p, 8, False).tobytes(): identity.get(p.name) for p in (tmp_path / "celeba").glob("*/*.jpg")
    }
    for samples in (fed.validation, fed.test, fed.unseen):
        for row, label in zip(samples.x, samples.y.tolist()):
            assert by_pixels[row.numpy().tobytes()] == fed.class_names[label]
    assert "identity_CelebA.txt: 000099.jpg is not in img_align_celeba" in fed.left_out
    assert "img_align_celeba/000098.jpg: no identity in identity_CelebA.txt" in fed.left_out


def test_celeba_by_its_official_partition(tmp_path):
    identity = celeba_tree(tmp_path, 9, 90)
    with pytest.raises(SelfsameError, match=r"list_eval_partition.txt not found"):
        load("celeba", tmp_path, official=True, **SMALL)
    part = {str(10 + who): 0 if who < 5 else 1 if who < 7 else 2 for who in range(9)}
    lines = [f"{file} {part[who]}" for file, who in identity.items()]
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines))
    fed = load("celeba", tmp_path, official=True, **SMALL)
    assert set(fed.class_names[:3]) <= {"10", "11", "12", "13", "14"} and set(fed.class_names[3:]) == {"17", "18"}
    with pytest.raises(SelfsameError, match="held_out must be 0 to 2 people of the test partition"):
        load("celeba", tmp_path, official=True, **{**SMALL, "held_out": 3})
    (tmp_path / "list_eval_partition.txt").write_text("\n".join(lines[:-1]))
    with pytest.raises(SelfsameError, match="are not in one partition"):
        load("celeba", tmp_path, official=True, **SMALL)


@pytest.mark.parametrize(
    "body, line",
    [
        (b"", "empty, expected lines"),
        (b"000001.jpg\n", "line 1: expected a file and a number"),
        (b"000001.jpg one\n", "line 1: expected a file and a number"),
        (b"000001.jpg 1\n000001.jpg 2\n", "line 2: 000001.jpg is listed twice"),
        (b"000001.jpg \xff\n", "not UTF-8"),
    ],
)
def test_a_bad_list_of_identities_gets_one_line(tmp_path, body, line):
    celeba_tree(tmp_path, 2, 4)
    (tmp_path / "identity_CelebA.txt").write_bytes(body)
    with pytest.raises(SelfsameError, match=line) as caught:
        load("celeba", tmp_path, **SMALL)
    assert "identity_CelebA.txt" in str(caught.value)


@FUZZ
@given(
    body=st.one_of(st.binary(max_size=60), st.text("0123456789. \njpg", max_size=60).map(str.encode)),
    file=st.sampled_from(["identity_CelebA.txt", "list_eval_partition.txt"]),
)
def test_any_celeba_list_is_read_or_gets_one_line(tmp_path, body, file):
    if not (tmp_path / "img_align_celeba").exists():
        celeba_tree(tmp_path, 3, 12)
        (tmp_path / "kept.txt").write_bytes((tmp_path / "identity_CelebA.txt").read_bytes())
    (tmp_path / "identity_CelebA.txt").write_bytes((tmp_path / "kept.txt").read_bytes())
    (tmp_path / file).write_bytes(body)
    try:
        load("celeba", tmp_path, official=file != "identity_CelebA.txt", **SMALL)
    except SelfsameError as error:
        assert "\n" not in str(error)


# VGGFace2


def vgg_tree(root):
    people_tree(root / "train", [6, 6, 2, 6, 6], "jpg")
    people_tree(root / "test", [4, 4, 4], "jpg")


def test_vggface2(tmp_path):
    vgg_tree(tmp_path)
    fed = load("vggface2", tmp_path, size=8, test=2, unseen_samples=3, trials=12)
    assert fed.clients == 4 and fed.count_N.tolist() == [4] * 4 and len(fed.unseen.y) == 9
    assert len(fed.trials) == 12 and int(fed.trials.same.sum()) == 6
    few = load("vggface2", tmp_path, size=8, people=2, held_out=1, test=2)
    assert few.clients == 2 and len(few.unseen.y) == 4 and len(few.class_names) == 3
    packed = {entry.name[:-17]: entry for entry in (tmp_path / ".selfsame").iterdir()}
    assert set(packed) == {"vggface2-8-colour", "vggface2-8-colour-2-1-0"}
    sizes = {name: (entry / "data.bin").stat().st_size // 192 for name, entry in packed.items()}
    assert sizes == {"vggface2-8-colour": 38, "vggface2-8-colour-2-1-0": 16}  # only those who were chosen
    assert any("p02 (2)" in note for note in few.notes) and "p02: 2 samples, a client needs 3" in few.left_out
    with pytest.raises(SelfsameError, match=r"held_out must be 0 to 3 people of test/ \(0 for all\)"):
        load("vggface2", tmp_path, size=8, held_out=4)


@pytest.mark.parametrize("name", ["imagefolder", "lfw", "omniglot", "celeba", "vggface2"])
def test_an_empty_folder_is_told_what_it_lacks(name, tmp_path):
    with pytest.raises(SelfsameError, match="wanted: ") as caught:
        load(name, tmp_path)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(("people", "unseen"), [(4, 0), (5, 2), (9, 2), (10, 2), (15, 3)])
def test_nobody_is_held_out_alone(tmp_path, people, unseen):
    """One unseen person has nobody to be told apart from."""
    people_tree(tmp_path, [4] * people)
    fed = load("imagefolder", tmp_path, size=8)
    assert len(fed.unseen.y.unique()) == unseen and fed.clients == people - unseen


def test_pictures_in_sessions_are_read(tmp_path):
    from trees import put

    for person in range(3):
        for number in range(4):
            put(tmp_path / f"p{person}" / f"day{number % 2}" / f"{number}.png", 10 * person + number)
    fed = load("imagefolder", tmp_path, size=8, unseen_share=0.0)
    assert fed.clients == 3 and fed.count_N.tolist() == [2, 2, 2] and fed.class_names == ("p0", "p1", "p2")
