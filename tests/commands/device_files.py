"""A small model file and pictures of people, for tests of the commands on a device."""

import numpy as np
from PIL import Image

from selfsame.device.card import DTYPES, FORMAT, Card, score, template
from selfsame.device.embedder import OnnxEmbedder
from selfsame.device.model_file import INPUT, KEY, OUTPUT, sealed
from selfsame.device.strangers import enrolled_cohort


def write_model(path, seed=0, cohort=()):
    """A model file that embeds images of 4x5 pixels in 8 dimensions."""
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(seed).normal(size=(20, 8)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", [INPUT], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["x"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], [OUTPUT]),
    ]
    into = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, ["samples", 1, 4, 5])
    out = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["samples", 8])
    graph = helper.make_graph(nodes, "net", [into], [out], [numpy_helper.from_array(weight, "weight")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    low, high = DTYPES["uint8"]
    told = Card(
        FORMAT,
        "0.1",
        "fedhide",
        "fake",
        (1, 4, 5),
        "uint8",
        low,
        high,
        8,
        "unit",
        "cosine",
        20,
        "0" * 64,
        "float32",
        cohort=tuple(cohort),
    )
    helper.set_model_props(model, {KEY: told.to_json()})
    path.write_bytes(sealed(model.SerializeToString()))
    return path


def images(folder, number, seed=0):
    """Pictures of somebody."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    face = rng.integers(20, 236, (4, 5))
    for i in range(number):
        Image.fromarray((face + rng.integers(-10, 11, (4, 5))).astype(np.uint8)).save(folder / f"{i:02d}.png")
    return folder


def with_cohort(path, people=12, each=8):
    """The same with the statistics of some people in its card; the file at `path` is replaced."""
    model = OnnxEmbedder(write_model(path).read_bytes(), "plain")
    emb = []
    for seed in range(100, 100 + people):
        rng = np.random.default_rng(seed)
        face = rng.integers(20, 236, (4, 5))
        raw = (face + rng.integers(-10, 11, (each, 4, 5))).astype(np.uint8)[:, None]
        emb.append(model.embed(raw).astype(np.float64))

    def cosines(samples, vector):
        return np.asarray(score(model.card, samples, vector), np.float64)

    found = enrolled_cohort(cosines, lambda samples: template(model.card, samples), emb, "strangers")
    return write_model(path, cohort=found)
