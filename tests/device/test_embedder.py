"""Opening model files: a changed byte, a foreign part or a wrong sample is refused in one line."""

import random
from pathlib import Path

import numpy as np
import pytest

from selfsame.device import model_file as onnxfile
from selfsame.device.card import Card
from selfsame.device.embedder import OnnxEmbedder
from selfsame.device.model_file import INPUT, OUTPUT, read_card, sealed
from selfsame.errors import SelfsameError
from selfsame.export.opened import open_model

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3) / 7 - 0.5


def card(**changes):
    fields = {
        "format": "selfsame-onnx-1",
        "version": "0.1.0",
        "method": "fedhide",
        "data": "digits",
        "shape": (1, 2, 2),
        "dtype": "uint8",
        "low": 0.0,
        "high": 255.0,
        "width": 3,
        "place": "unit",
        "score": "cosine",
        "opset": 18,
        "digest": "0" * 64,
        "variant": "float32",
    }
    return Card(**(fields | changes))


def parts():
    """A linear layer over four raw pixels, node by node."""
    nodes = [
        helper.make_node("Cast", [INPUT], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["x", "flat"], ["row"]),
        helper.make_node("MatMul", ["row", "weight"], [OUTPUT]),
    ]
    tensors = [
        numpy_helper.from_array(np.array([-1, 4]), "flat"),
        numpy_helper.from_array(WEIGHT, "weight"),
    ]
    return nodes, tensors


def unsealed(nodes=None, tensors=None, about=None, inputs=None, opsets=None):
    mine = parts()
    into = inputs or [helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", 1, 2, 2])]
    out = [helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", 3])]
    graph = helper.make_graph(nodes or mine[0], "g", into, out, tensors or mine[1])
    model = helper.make_model(graph, opset_imports=opsets or [helper.make_opsetid("", 18)], ir_version=10)
    model.metadata_props.add(key="selfsame", value=(about or card()).to_json())
    return model


def file_of(model):
    return sealed(model.SerializeToString(deterministic=True))


GOOD = file_of(unsealed())


@pytest.fixture
def good(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(GOOD)
    return path


def refused(path, *words, **options):
    with pytest.raises(SelfsameError) as caught:
        open_model(path, **options)
    assert "\n" not in str(caught.value)
    for word in (Path(path).name, *words):
        assert word in str(caught.value)


def refuses(tmp_path, model, *words):
    path = tmp_path / "bad.onnx"
    path.write_bytes(file_of(model))
    refused(path, *words)


def test_a_model_file_embeds(good):
    model = open_model(good)
    raw = np.random.default_rng(0).integers(0, 256, (5, 1, 2, 2), np.uint8)
    np.testing.assert_allclose(model.embed(raw), raw.reshape(5, 4).astype(np.float64) @ WEIGHT, rtol=1e-5)
    assert model.embed(raw).dtype == np.float32
    assert model.card.shape == (1, 2, 2)


def test_many_samples_are_embedded_in_parts(good, monkeypatch):
    model = open_model(good)
    raw = np.random.default_rng(1).integers(0, 256, (23, 1, 2, 2), np.uint8)
    whole = model.embed(raw)
    monkeypatch.setattr("selfsame.device.embedder._TOGETHER", 20)  # five at a time
    np.testing.assert_array_equal(model.embed(raw), whole)


def test_the_digest_is_that_of_the_file_with_zeros_in_its_place():
    import hashlib

    digest = read_card(GOOD, "good").digest
    assert GOOD.count(digest.encode()) == 1
    assert hashlib.sha256(GOOD.replace(digest.encode(), b"0" * 64)).hexdigest() == digest


def test_a_pinned_digest(good):
    digest = read_card(GOOD, "good").digest
    assert open_model(good, digest=digest.upper() + "\n").card.digest == digest
    refused(good, "another model", digest="0" * 64)


def test_a_pinned_file_is_refused_before_a_library_sees_it(good, monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *a, **k: pytest.fail("was loaded"))
    refused(good, "another model", digest="0" * 64)


def corrupted(data, chance):
    """The bytes with one thing wrong: a bit, a cut, an insertion, two blocks swapped, a run of zeros."""
    at = chance.randrange(len(data))
    kind = chance.randrange(5)
    if kind == 0:
        return data[:at] + bytes([data[at] ^ 1 << chance.randrange(8)]) + data[at + 1 :]
    if kind == 1:
        return data[:at]
    if kind == 2:
        return data[:at] + chance.randbytes(chance.randrange(1, 9)) + data[at:]
    size = chance.randrange(1, 60)
    if kind == 3:
        other = chance.randrange(len(data))
        low, high = sorted((at, other))
        size = min(size, high - low, len(data) - high)
        one, two = data[low : low + size], data[high : high + size]
        return data[:low] + two + data[low + size : high] + one + data[high + size :]
    return data[:at] + bytes(len(data[at : at + size])) + data[at + size :]


def test_a_thousand_damaged_files(monkeypatch):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *a, **k: pytest.fail("was loaded"))
    chance = random.Random(0)
    tried = 0
    while tried < 1000:
        bad = corrupted(GOOD, chance)
        if bad == GOOD:
            continue
        tried += 1
        with pytest.raises(SelfsameError, match=r"^m\.onnx: damaged") as caught:
            OnnxEmbedder(bad, "m.onnx")
        assert "\n" not in str(caught.value)


def test_every_single_bit_counts():
    for at in range(len(GOOD)):
        for bit in range(8):
            bad = bytearray(GOOD)
            bad[at] ^= 1 << bit
            with pytest.raises(SelfsameError, match="damaged"):
                read_card(bytes(bad), "m.onnx")


def test_damage_behind_a_new_digest_is_no_traceback():
    """Whoever forges a file can seal it again: then the walk through its parts must hold."""
    chance = random.Random(1)
    opened = 0
    blank = GOOD.replace(read_card(GOOD, "good").digest.encode(), b"0" * 64)
    for _ in range(1000):
        try:
            bad = sealed(corrupted(blank, chance))
        except SelfsameError:
            continue  # the place of the digest was hit
        try:
            read_card(bad, "m.onnx")
            opened += 1
        except SelfsameError as error:
            assert "\n" not in str(error)
    assert 0 < opened < 600  # a changed weight is a sound file


@pytest.mark.parametrize("data", [b"", b"\x00", b"PK\x03\x04", b'"digest":"' + b"0" * 64 + b'"', b"\xff" * 200])
def test_foreign_files(tmp_path, data):
    path = tmp_path / "foreign.onnx"
    path.write_bytes(data)
    refused(path, "damaged")


def test_files_that_are_none(tmp_path):
    refused(tmp_path / "nosuch.onnx", "no such file")
    refused(tmp_path, "not a run (no recipe.toml in it)")
    with pytest.raises(SelfsameError, match="cannot be read"):
        open_model("a\0b.onnx")


def test_a_pipe_is_not_waited_for(tmp_path):
    import os

    os.mkfifo(tmp_path / "pipe.onnx")
    refused(tmp_path / "pipe.onnx", "not a file")


def test_too_large_a_file(good, monkeypatch):
    monkeypatch.setattr(onnxfile, "MOST_BYTES", 100)
    refused(good, "at most 100")


def test_an_onnx_file_of_others(tmp_path):
    model = unsealed()
    del model.metadata_props[:]
    path = tmp_path / "others.onnx"
    path.write_bytes(model.SerializeToString())
    refused(path, "not a model file that selfsame wrote")


def test_operators_from_elsewhere(tmp_path):
    nodes, _ = parts()
    nodes[2].domain = "com.evil"
    refuses(tmp_path, unsealed(nodes), "not ONNX's own")
    both = [helper.make_opsetid("", 18), helper.make_opsetid("com.evil", 1)]
    refuses(tmp_path, unsealed(opsets=both), "not ONNX's own")


def test_operators_that_are_not_on_the_list(tmp_path):
    nodes, _ = parts()
    nodes.append(helper.make_node("NonZero", ["row"], ["places"]))
    refuses(tmp_path, unsealed(nodes), "'NonZero'")


def test_control_flow(tmp_path):
    nodes, _ = parts()
    empty = helper.make_graph([], "inner", [], [])
    nodes[0].attribute.append(helper.make_attribute("body", empty))
    refuses(tmp_path, unsealed(nodes), "unexpected part")


def test_functions(tmp_path):
    model = unsealed()
    model.functions.append(helper.make_function("", "Relu", ["a"], ["b"], [], [helper.make_opsetid("", 18)]))
    refuses(tmp_path, model, "unexpected part")


def test_numbers_in_other_files(tmp_path):
    nodes, tensors = parts()
    tensors[1].ClearField("raw_data")
    tensors[1].data_location = TensorProto.EXTERNAL
    tensors[1].external_data.add(key="location", value="/etc/passwd")
    refuses(tmp_path, unsealed(nodes, tensors), "must lie in the file itself")
    constant = helper.make_node("Constant", [], ["weight"], value=tensors[1])
    refuses(tmp_path, unsealed([constant, *nodes], tensors[:1]), "must lie in the file itself")


def test_two_cards_none_or_a_bad_one(tmp_path):
    model = unsealed()
    model.metadata_props.add(key="selfsame", value="{}")
    refuses(tmp_path, model, "one card")
    model = unsealed()
    model.metadata_props[0].key = "other"
    refuses(tmp_path, model, "one card")
    model = unsealed()
    model.metadata_props[0].value = '{"digest":"' + "0" * 64 + '"}'
    refuses(tmp_path, model, "needs format")


def test_another_input(tmp_path):
    more = [
        helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["n", 1, 2, 2]),
        helper.make_tensor_value_info("more", TensorProto.UINT8, ["n"]),
    ]
    refuses(tmp_path, unsealed(inputs=more), "the one input")


@pytest.mark.parametrize(
    "wrong",
    [{"shape": (1, 2, 3)}, {"shape": (1, 2, -1)}, {"dtype": "float32"}, {"width": 4}, {"opset": 17}],
    ids=str,
)
def test_a_card_that_describes_another_graph(tmp_path, wrong):
    refuses(tmp_path, unsealed(about=card(**wrong)), "its card")


def test_a_graph_that_cannot_be_loaded(tmp_path):
    nodes, tensors = parts()
    tensors[1].dims[0] = 5  # more numbers than there are
    refuses(tmp_path, unsealed(nodes, tensors), "cannot load")


def test_a_graph_that_fails_on_the_samples(tmp_path):
    nodes, tensors = parts()
    tensors[0] = numpy_helper.from_array(np.array([-1, 3]), "flat")
    path = tmp_path / "model.onnx"
    path.write_bytes(file_of(unsealed(nodes, [tensors[0], numpy_helper.from_array(WEIGHT[:3], "weight")])))
    with pytest.raises(SelfsameError, match="fails on these samples") as caught:
        open_model(path).embed(np.zeros((2, 1, 2, 2), np.uint8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (np.zeros((0, 1, 2, 2), np.uint8), "number, 1, 2, 2"),
        (np.zeros((1, 2, 2), np.uint8), "number, 1, 2, 2"),
        ([[[[1, 2], [3, 4]]]], "got list"),
        (np.zeros((1, 1, 2, 3), np.uint8), r"of shape \(1, 2, 2\)"),
        (np.zeros((1, 1, 2, 2), np.float32), "must be uint8, got float32"),
    ],
)
def test_samples_that_do_not_fit(good, raw, words):
    with pytest.raises(SelfsameError, match=words):
        open_model(good).embed(raw)


def floats(tmp_path, weight=WEIGHT, **about):
    nodes, tensors = parts()
    tensors[1] = numpy_helper.from_array(weight, "weight")
    into = [helper.make_tensor_value_info(INPUT, TensorProto.FLOAT, ["n", 1, 2, 2])]
    fields = {"dtype": "float32", "low": -1.0, "high": 1.0} | about
    path = tmp_path / "floats.onnx"
    path.write_bytes(file_of(unsealed(nodes, tensors, card(**fields), into)))
    return open_model(path)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1.5, -1.01])
def test_samples_out_of_range(tmp_path, value):
    raw = np.zeros((2, 1, 2, 2), np.float32)
    raw[1, 0, 1, 1] = value
    with pytest.raises(SelfsameError, match="numbers from -1 to 1"):
        floats(tmp_path).embed(raw)


def test_an_answer_that_is_not_finite(tmp_path):
    weight = np.full((4, 3), 3e38, np.float32)
    with pytest.raises(SelfsameError, match="not finite"):
        floats(tmp_path, weight).embed(np.ones((1, 1, 2, 2), np.float32))


def test_a_file_that_is_also_of_the_librarys_own_format(tmp_path):
    """Four bytes at the right place made onnxruntime read the file as something else than what was looked through."""
    model = unsealed()
    model.ClearField("producer_name")
    plain = model.SerializeToString(deterministic=True)
    path = tmp_path / "both.onnx"
    path.write_bytes(sealed(b"\x12\x06..ORTM" + plain))  # a producer's name comes first
    assert path.read_bytes()[4:8] == b"ORTM"
    raw = np.arange(8, dtype=np.uint8).reshape(2, 1, 2, 2)
    np.testing.assert_allclose(open_model(path).embed(raw), raw.reshape(2, 4) @ WEIGHT, rtol=1e-5)


BIG = 2**29
LARGE = {
    "Expand": (["sum", "size"], {"size": np.array([BIG])}),
    "Pad": (["row", "size"], {"size": np.array([0, 0, 0, BIG])}),
    "Range": (["from", "to", "by"], {"from": np.float32(0), "to": np.float32(BIG), "by": np.float32(1)}),
    "MatMul": (["tall", "wide"], {}),
}


@pytest.mark.parametrize("operator", LARGE)
def test_a_small_file_cannot_take_much_memory(tmp_path, operator):
    """2 GB from some hundred bytes, each operator an allowed one; on the review's commit it ran."""
    given, numbers = LARGE[operator]
    nodes, tensors = parts()
    outer = [
        helper.make_node("Expand", ["sum", "tall size"], ["tall"]),
        helper.make_node("Expand", ["sum", "wide size"], ["wide"]),
    ]
    nodes[2:] = [
        helper.make_node("ReduceSum", ["row"], ["sum"]),
        *(outer if operator == "MatMul" else []),
        helper.make_node(operator, given, ["big"]),
        helper.make_node("ReduceMax", ["big"], ["most"], keepdims=0),
        helper.make_node("Add", ["row", "most"], ["more"]),
        helper.make_node("MatMul", ["more", "weight"], [OUTPUT]),
    ]
    if operator == "MatMul":
        numbers = {"tall size": np.array([2**15, 1]), "wide size": np.array([1, 2**14])}
    tensors += [numpy_helper.from_array(np.asarray(value), name) for name, value in numbers.items()]
    path = tmp_path / "large.onnx"
    path.write_bytes(file_of(unsealed(nodes, tensors)))
    assert path.stat().st_size < 1500
    with pytest.raises(SelfsameError, match=r"fails on these samples|cannot load it"):
        open_model(path).embed(np.ones((1, 1, 2, 2), np.uint8))
