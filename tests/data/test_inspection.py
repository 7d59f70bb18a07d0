"""Checking a data set: every fault has its line."""

import struct

import numpy as np
import pytest
import torch
from trees import people_tree, picture

from selfsame.data import DATASETS, DataSet, Samples, from_classes
from selfsame.data.inspection import check
from selfsame.errors import SelfsameError


def test_a_sound_set_has_nothing_wrong():
    report = check("digits", held_out=2)
    assert report.usable and report.wrong == () and dict(report.found)["clients"] == "16"


def test_a_folder_of_people(tmp_path):
    people_tree(tmp_path, [5, 6, 8, 5, 1])
    picture(1000).save(tmp_path / "p00" / "copy.png")  # the first image of p01
    (tmp_path / "p02" / "empty.jpg").touch()
    (tmp_path / "p02" / "cut.png").write_bytes((tmp_path / "p02" / "000.png").read_bytes()[:90])
    from PIL import Image

    Image.new("RGB", (9, 9)).save(tmp_path / "p03" / "black.png")
    report = check("imagefolder", tmp_path, size=8, unseen_share=0.0, test=1)
    assert report.usable
    assert set(report.wrong) == {
        "p02/empty.jpg: empty file",
        "p02/cut.png: cannot be decoded: image file is truncated",
        "p04: 1 samples, a client needs 2",
        "p03: 1 samples are blank, all their values equal",
        "1 samples of p01 are the same as samples of p00",
    }
    found = dict(report.found)
    assert found["clients"] == "4" and found["of a client"] == "5 at least, 5 in the middle, 7 at most"
    assert any("2 files could not be read" in note for note in report.notes)


def test_all_unreadable_files_are_named_not_only_the_first(tmp_path):
    record = np.zeros((10, 3073), np.uint8)
    record[:, 0] = np.arange(10)
    for batch in (1, 2, 3):
        (tmp_path / f"data_batch_{batch}.bin").write_bytes(record.tobytes())
    (tmp_path / "data_batch_2.bin").write_bytes(b"x")
    (tmp_path / "test_batch.bin").write_bytes(b"")
    report = check("cifar10", tmp_path)
    assert not report.usable and report.found == () and len(report.wrong) == 2
    assert "data_batch_2.bin: 1 bytes are not whole records" in report.wrong[0]
    assert "test_batch.bin: empty" in report.wrong[1]


def test_idx_files_one_by_one(tmp_path):
    for name in ("train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"):
        (tmp_path / name).write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 9))
    for name in ("train-labels-idx1-ubyte", "t10k-images-idx3-ubyte"):
        (tmp_path / name).write_bytes(b"")
    report = check("mnist", tmp_path)
    assert [line.split(": ")[0].rsplit("/", 1)[1] for line in report.wrong] == [
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ]


def test_what_is_missing_is_told_with_where_to_get_it(tmp_path):
    (line,) = check("lfw", tmp_path).wrong
    assert "pairs.txt not found; wanted: " in line and "http://" in line
    with pytest.raises(SelfsameError, match="unknown data set"):
        check("nothing", tmp_path)
    with pytest.raises(SelfsameError, match="unknown option 'hue'"):
        check("lfw", tmp_path, hue=1)


def test_values_that_are_not_finite_and_samples_in_two_parts(monkeypatch):
    x = torch.arange(24.0).reshape(6, 4)
    x[1, 2], x[4, 0] = torch.nan, torch.inf
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    test = Samples(torch.cat([x[2:3], torch.full((1, 4), 99.5)]), torch.tensor([0, 1]))
    unseen = Samples(torch.ones(0, 4), torch.empty(0, dtype=torch.int64))

    def loader():
        return from_classes("toy", x, y, test=test, unseen=unseen, class_names=("ann",))

    monkeypatch.setitem(DATASETS, "toy", DataSet("toy", loader, False, "nothing", "lenet", 8))
    assert check("toy").wrong == (
        "ann: 1 samples are not finite",
        "class 1: 1 samples are not finite",
        "class 1: 1 samples are blank, all their values equal",
        "ann: 1 test samples are training samples as well",
    )
