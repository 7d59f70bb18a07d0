"""The registry of data sets: every mistake of a user gets one line."""

import subprocess
import sys

import pytest

from selfsame.data import DATASETS, load
from selfsame.errors import SelfsameError


@pytest.mark.parametrize(
    "name, options, line",
    [
        ("imagenet", {}, "unknown data set 'imagenet'; the data sets are: digits, synthetic, mnist, "),
        ("digits", {"turn": 1}, "unknown option 'turn'.*turns"),
        ("digits", {"turns": 2.0}, "digits: option turns: expected a whole number, got 2.0"),
        ("digits", {"turns": True}, "digits: option turns: expected a whole number, got True"),
        ("digits", {"turns": 5}, "turns must be 1 to 4"),
        ("digits", {"held_out": 9}, "held_out must be 0 to 8"),
        ("digits", {"held_out": -1}, "held_out must be 0 to 8"),
        ("digits", {"test_share": 0}, "test_share must lie between 0 and 1"),
        ("digits", {"test_share": 1.0}, "test_share must lie between 0 and 1"),
        ("digits", {"test_share": float("nan")}, "test_share: expected a finite number"),
        ("digits", {"test_share": 10**400}, "test_share: expected a number of at most 64 bits"),
        ("digits", {"clients_per_class": 0}, "clients_per_class must be at least 1"),
        ("digits", {"clients_per_class": 10**18}, "too few"),
        ("digits", {"path": "somewhere"}, "takes no path"),
        ("synthetic", {"samples": 0}, "samples must be 1 to"),
        ("synthetic", {"clients": 1}, "clients must be 2 to"),
        ("synthetic", {"clients": 10**18}, "clients must be 2 to"),
        ("synthetic", {"clients": 10**30}, "synthetic: option clients: expected a number of at most 64 bits"),
        ("synthetic", {"clients": 10, "clients_per_class": 3}, "multiple of clients_per_class"),
        ("synthetic", {"unequal": 1}, "synthetic: option unequal: expected true or false, got 1"),
        ("synthetic", {"held_out": 2000}, "held_out must be 0 to"),
        ("synthetic", {"noise": -1}, "noise must be 0 to 100"),
        ("mnist", {}, "a path is needed; wanted: train-images-idx3-ubyte"),
        ("mnist", {"path": "no/such/folder"}, "no/such/folder: no such folder; wanted: train-images"),
        ("cifar10", {"path": "no/such/folder"}, "data_batch_1.bin to data_batch_5.bin.*cifar-10-binary.tar.gz"),
        ("cifar100", {}, "train.bin and test.bin.*cifar-100-binary.tar.gz"),
    ],
)
def test_a_mistake_gets_one_line(name, options, line):
    with pytest.raises(SelfsameError, match=line) as caught:
        load(name, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"])
def test_an_empty_folder_is_told_what_it_lacks(name, tmp_path):
    with pytest.raises(SelfsameError, match="not found; wanted: ") as caught:
        load(name, tmp_path)
    assert str(tmp_path) in str(caught.value) and "https://" in str(caught.value)


@pytest.mark.parametrize(
    "name, options, line",
    [
        ("table", {"test": -1}, "table: test must be 0 to 1000000, got -1"),
        ("hold_and_tap", {"train": 10**9}, "hold_and_tap: train must be 0 to 1000000"),
        ("lfw", {"size": 7}, "lfw: size must be 8 to 1024, got 7"),
        ("lfw", {"hold_gib": -0.5}, "lfw: hold_gib must be 0 to 1000000, got -0.5"),
        ("celeba", {"trials": 10**9}, "celeba: trials must be 0 to 100000000"),
        ("voxceleb", {"rate": 10}, "voxceleb: rate must be 1000 to 384000, got 10"),
        ("audiofolder", {"test_crops": 0}, "audiofolder: test_crops must be 1 to 1000, got 0"),
        ("touch", {"test": 0}, "touch: test must be 1 to 1000000, got 0"),
        ("touchalytics", {"stride": -1}, "touchalytics: stride must be 0 to 1000000, got -1"),
    ],
)
def test_options_out_of_bounds_are_refused_before_a_file_is_read(tmp_path, name, options, line):
    with pytest.raises(SelfsameError, match=line):
        load(name, tmp_path, **options)


def test_the_options_are_those_of_the_loader():
    assert DATASETS["digits"].options == {
        "turns": 2,
        "held_out": 3,
        "clients_per_class": 1,
        "test_share": 0.25,
        "seed": 0,
    }
    assert DATASETS["mnist"].options == {"held_out": 0, "clients_per_class": 1, "standardise": True}


def test_importing_the_registry_does_not_import_scikit_learn():
    code = "import sys, selfsame.data; sys.exit(any(name.split('.')[0] == 'sklearn' for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_set_of_ones_own_is_registered_and_loaded(monkeypatch, tmp_path):
    monkeypatch.setattr("selfsame.data.DATASETS", dict(DATASETS))
    from selfsame import data

    digits = DATASETS["digits"].load()
    data.register(data.DataSet("mine", lambda path, *, size=3: digits, True, "my files", "lenet", 8))
    assert data.load("mine", tmp_path, size=4) is digits and data.find("mine", tmp_path) == (tmp_path, {})
    with pytest.raises(SelfsameError, match="mine: a path is needed; wanted: my files"):
        data.load("mine")
