"""Checkpoints: what is read is what was written, or one clear line."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from safetensors.torch import save
from small import bits, build, train

from selfsame.engine import checkpoint
from selfsame.engine.checkpoint import load_state, peek, read_tensors, save_state
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.state import State, begin
from selfsame.errors import SelfsameError
from selfsame.files import write
from selfsame.methods import METHODS


def trained(name: str = "fedhide", optimiser: str = "adam"):
    problem = build(name, server={"optimiser": optimiser}, cohort={"size": 5}, run={"rounds": 4})
    state, losses = train(problem, rounds=2)
    state.losses = losses.tolist()
    return problem, state


def same(a: State, b: State) -> bool:
    left, right = a.tensors(), b.tensors()
    return (a.round, a.present, a.losses) == (b.round, b.present, b.losses) and all(
        bits(left[name]) == bits(right[name]) for name in left
    )


def one_line(error: SelfsameError, path: Path) -> None:
    assert str(error).startswith(f"{path}: ") and "\n" not in str(error)


@pytest.mark.parametrize("name", METHODS)
def test_round_trip_is_exact_and_the_run_goes_on_as_if_nothing_happened(name, tmp_path):
    problem, state = trained(name)
    save_state(state, tmp_path / "deep" / "state.safetensors")
    other = begin(problem)
    tables = other.tensors()
    load_state(other, tmp_path / "deep" / "state.safetensors")
    assert same(state, other)
    assert all(other.tensors()[key] is value for key, value in tables.items())  # in place: a graph may hold them
    assert peek(tmp_path / "deep" / "state.safetensors") == {"round": 2, "present": 12}
    for each in (state, other):
        Engine(problem).run(each, make_plan(problem.recipe, 2, 2, 12))
    assert same(state, other)


def test_truncated_anywhere(tmp_path):
    problem, state = trained()
    path = tmp_path / "state.safetensors"
    save_state(state, path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    cuts = {*range(0, 64), *range(0, header, 37), *range(header - 3, len(whole), 211), len(whole) - 1}
    for cut in sorted(cuts):
        path.write_bytes(whole[:cut])
        target = begin(problem)
        for read in (lambda: load_state(target, path), lambda: read_tensors(path), lambda: peek(path)):  # noqa: B023
            with pytest.raises(SelfsameError) as caught:
                read()
            one_line(caught.value, path)
        assert same(target, begin(problem))


def test_corrupted_anywhere(tmp_path):
    """Flipped bytes give one line wherever they are; what only changes blanks in the header changes nothing."""
    problem, state = trained()
    path = tmp_path / "state.safetensors"
    save_state(state, path)
    whole = path.read_bytes()
    header = 8 + int.from_bytes(whole[:8], "little")
    draw = random.Random(0)
    refused = 0
    for trial in range(400):
        data = bytearray(whole)
        limit = header if trial % 2 else len(whole)  # half of them in the header, where they hurt
        for _ in range(draw.choice([1, 1, 1, 4, 30])):
            data[draw.randrange(limit)] ^= draw.randrange(1, 256)
        path.write_bytes(data)
        target = begin(problem)
        try:
            peek(path)
        except SelfsameError as error:
            one_line(error, path)
        try:
            load_state(target, path)
        except SelfsameError as error:
            refused += 1
            one_line(error, path)
            assert same(target, begin(problem))  # nothing half read
            continue
        assert same(target, state)
    assert refused > 380


def test_one_bit_of_one_number(tmp_path):
    """The smallest damage that there is."""
    problem, state = trained()
    path = tmp_path / "state.safetensors"
    save_state(state, path)
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(SelfsameError, match="its digest does not fit its content"):
        load_state(begin(problem), path)
    with pytest.raises(SelfsameError, match="its digest does not fit its content"):
        read_tensors(path)


def test_a_checkpoint_of_before_has_no_digest(tmp_path):
    problem, state = trained()
    meta = {"format": "selfsame-state-2", "round": "2", "present": "12", "losses": json.dumps(state.losses)}
    (tmp_path / "x").write_bytes(save(state.tensors(), metadata=meta))
    target = begin(problem)
    load_state(target, tmp_path / "x")
    assert same(target, state)


@pytest.mark.parametrize("garbage", [b"", b"\x00" * 8, b"\xff" * 64, b"{}" * 40, os.urandom(512), b"not a checkpoint"])
def test_not_a_checkpoint(garbage, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(garbage)
    for read in (lambda: load_state(trained()[1], path), lambda: peek(path)):
        with pytest.raises(SelfsameError) as caught:
            read()
        one_line(caught.value, path)


def test_no_file_and_a_folder(tmp_path):
    for path in (tmp_path / "none", tmp_path):
        for read in (read_tensors, peek):
            with pytest.raises(SelfsameError) as caught:
                read(path)
            one_line(caught.value, path)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("field", ["theta", "own.prototype", "server.proxies", "optim.square"])
def test_values_that_are_not_finite_are_refused(bad, field, tmp_path):
    problem, state = trained()
    state.tensors()[field].view(-1)[3] = bad
    save_state(state, tmp_path / "x")
    target = begin(problem)
    with pytest.raises(SelfsameError, match=rf"{field} holds values that are not finite"):
        load_state(target, tmp_path / "x")
    assert same(target, begin(problem))


def test_of_another_recipe(tmp_path):
    path = tmp_path / "x"
    save_state(trained()[1], path)
    for name, parts, word in [
        ("feduv", {}, "own.codeword"),
        ("fedhide", {"server": {"optimiser": "momentum"}}, "optim.square"),
        ("fedhide", {"server": {"optimiser": "adam"}, "net": {"name": "lenet", "width": 9}}, "theta"),
        ("fedhide", {"server": {"optimiser": "adam"}, "run": {"precision": "float32"}}, "float32"),
    ]:
        target = begin(build(name, **parts))
        with pytest.raises(SelfsameError, match=word) as caught:
            load_state(target, path)
        one_line(caught.value, path)


@pytest.mark.parametrize(
    "change",
    [
        {"format": "selfsame-state-0"},
        {"round": "two"},
        {"round": ""},
        {"present": "6"},
        {"present": "x"},
        {"losses": "{"},
        {"losses": "[null]"},
        {"losses": "7"},
        {"losses": '["a"]'},
        {"losses": "[1" + 400 * "0" + "]"},
        {"losses": 5000 * "["},
        {"round": None},
        {"losses": None},
    ],
)
def test_metadata_is_checked(change, tmp_path):
    problem, state = trained()
    meta = {"format": checkpoint.FORMAT, "round": "2", "present": "12", "losses": "[]"} | change
    said = {k: v for k, v in meta.items() if v is not None}
    data = save(state.tensors(), metadata=checkpoint.sealed(state.tensors(), said))
    (tmp_path / "x").write_bytes(data)
    target = begin(problem)
    with pytest.raises(SelfsameError) as caught:
        load_state(target, tmp_path / "x")
    one_line(caught.value, tmp_path / "x")
    assert same(target, begin(problem))


def test_write_atomically_keeps_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write(path, b"old")

    def fails(*_):
        raise OSError("the disk is full")

    for broken in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, broken, fails)
            with pytest.raises(OSError, match="full"):
                write(path, b"new")
        assert path.read_bytes() == b"old"
        assert os.listdir(tmp_path) == ["file"]
    write(path, b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["file"]


def test_the_file_can_be_read_without_us(tmp_path):
    _, state = trained()
    save_state(state, tmp_path / "x")
    raw = (tmp_path / "x").read_bytes()
    header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    assert set(header) == {*state.tensors(), "__metadata__"}
    assert header["__metadata__"]["round"] == "2"
