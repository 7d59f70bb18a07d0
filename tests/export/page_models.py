"""Small model files for tests of the page, and what they recognise: textures and tones. Nothing is trained."""

import wave

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from selfsame.device.card import DTYPES, FORMAT, Card, score, template
from selfsame.device.embedder import OnnxEmbedder
from selfsame.device.model_file import INPUT, KEY, OUTPUT, sealed
from selfsame.device.strangers import enrolled_cohort

SIDE, WIDTH = 24, 16
RATE, LENGTH = 8000, 4000
OPSET = 20


def packed(nodes, tensors, shape, dtype, kind, cohort, data, rate=0):
    into = helper.make_tensor_value_info(INPUT, kind, ["n", *shape])
    out = helper.make_tensor_value_info(OUTPUT, TensorProto.FLOAT, ["n", WIDTH])
    held = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "net", [into], [out], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    low, high = DTYPES[dtype]
    told = Card(
        FORMAT, "0.1", "fedhide", data, shape, dtype, low, high, WIDTH, "unit", "cosine", OPSET, "0" * 64, "float32",
        rate=rate, cohort=tuple(cohort),
    )  # fmt: skip
    helper.set_model_props(model, {KEY: told.to_json()})
    return sealed(model.SerializeToString())


def picture_model(channels=3, side=SIDE, data="fake", cohort=()):
    """Pixels, less their middle, projected at random."""
    size = channels * side * side
    weight = np.random.default_rng(0).normal(size=(size, WIDTH)).astype(np.float32) / 100
    nodes = [
        helper.make_node("Cast", [INPUT], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["x", "middle"], ["centred"]),
        helper.make_node("Flatten", ["centred"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weight"], [OUTPUT]),
    ]
    tensors = {"weight": weight, "middle": np.array(128, np.float32)}
    return packed(nodes, tensors, (channels, side, side), "uint8", TensorProto.UINT8, cohort, data)


def sound_model():
    """The loudness in 16 bands."""
    time = np.arange(256) / RATE
    wave_BT = np.cos(2 * np.pi * (200 + 200 * np.arange(WIDTH))[:, None] * time) * np.hanning(256)
    nodes = [
        helper.make_node("Cast", [INPUT], ["x"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["x", "waves"], ["bands"], strides=[37]),
        helper.make_node("Mul", ["bands", "bands"], ["power"]),
        helper.make_node("ReduceMean", ["power", "last"], [OUTPUT], keepdims=0),
    ]
    tensors = {"waves": (wave_BT[:, None] / 1e5).astype(np.float32), "last": np.array([2])}
    return packed(nodes, tensors, (1, LENGTH), "int16", TensorProto.INT16, (), "tones", RATE)


def texture(person):
    """(3, side, side), between 40 and 216."""
    return np.random.default_rng(100 + person).integers(40, 217, (3, SIDE, SIDE))


def seen(person, number, noise=30):
    """Pictures of one person: (number, 3, side, side)."""
    rng = np.random.default_rng(1000 + person)
    return (texture(person) + rng.integers(-noise, noise + 1, (number, 3, SIDE, SIDE))).astype(np.uint8)


def picture_cohort(people=24, each=8):
    """The statistics of strangers that the picture model's card carries."""
    model = OnnxEmbedder(picture_model(), "test")
    rows = [model.embed(seen(50 + one, each, 60)) for one in range(people)]
    return enrolled_cohort(
        lambda emb, one: score(model.card, emb, one), lambda emb: template(model.card, emb), rows, "people of a test"
    )


def write_pictures(folder, person, number, scale=1):
    """PNG files, `scale` times as large as the model takes them."""
    folder.mkdir(parents=True, exist_ok=True)
    for at, pixels in enumerate(seen(person, number)):
        large = np.kron(pixels, np.ones((1, scale, scale), np.uint8)).transpose(1, 2, 0)
        Image.fromarray(large).save(folder / f"{at:02d}.png")
    return folder


def write_video(path, person, frames=12):
    """A film for a fake camera, 320x240, the person in its middle: YUV 4:2:0."""
    block = 240 // SIDE
    with open(path, "wb") as file:
        file.write(b"YUV4MPEG2 W320 H240 F10:1 Ip A1:1 C420jpeg\n")
        for pixels in seen(person, frames, 15):
            middle = np.kron(pixels, np.ones((1, block, block))).astype(np.uint8).transpose(1, 2, 0)
            full = np.full((240, 320, 3), 128, np.uint8)
            full[:, 40:280] = middle
            y, u, v = np.asarray(Image.fromarray(full).convert("YCbCr")).transpose(2, 0, 1)
            file.write(b"FRAME\n" + y.tobytes() + u[::2, ::2].tobytes() + v[::2, ::2].tobytes())
    return path


def tone(person, number, seconds=1.0):
    """Recordings of two tones."""
    rng = np.random.default_rng(person)
    time = np.arange(int(RATE * seconds)) / RATE
    low, high = 400 + 400 * person, 1000 + 400 * person
    for _ in range(number):
        sound = np.sin(2 * np.pi * low * time) + np.sin(2 * np.pi * high * time)
        yield (6000 * sound + rng.normal(0, 300, len(time))).astype("<i2")


def write_sounds(folder, person, number, seconds=1.0):
    folder.mkdir(parents=True, exist_ok=True)
    for at, pcm in enumerate(tone(person, number, seconds)):
        with wave.open(str(folder / f"{at:02d}.wav"), "wb") as file:
            file.setparams((1, 2, RATE, 0, "NONE", ""))
            file.writeframes(pcm.tobytes())
    return folder
