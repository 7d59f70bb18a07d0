"""Exported networks: equal to PyTorch on real samples, opened without it, and nothing left where they are not equal."""

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from selfsame.commands.export import export
from selfsame.data import Samples, from_classes
from selfsame.device.embedder import OnnxEmbedder
from selfsame.errors import SelfsameError
from selfsame.export import measured
from selfsame.export.cohort_of import cohort_of
from selfsame.export.from_run import read_run
from selfsame.export.graph import OPSET, before_wide, calibration, difference, finished, to_int8, to_onnx
from selfsame.export.measured import FileRun, export_run
from selfsame.export.opened import open_model
from selfsame.export.trained import describe, shortest
from selfsame.methods import make
from selfsame.nets import build, fastresnet
from selfsame.runs.loop import train

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("operators_once")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A short run on digits, and its exports."""
    place = tmp_path_factory.mktemp("export") / "run"
    train("fedaws", "digits", out=place, settings={"run": {"rounds": 30, "eval_every": 30}}, neighbours=1)
    before = {path: path.read_bytes() for path in place.rglob("*") if path.is_file()}
    export(place, int8=True, check=100)
    assert {path: path.read_bytes() for path in before} == before  # the run itself is left as it was
    return place


def test_the_file_equals_pytorch(folder):
    run = read_run(folder)
    model = open_model(folder / "model.onnx")
    x = torch.cat([run.problem.federation.test.x[::7], run.problem.federation.unseen.x[::7]])
    want = run.embed(x).numpy()
    got = model.embed(x.numpy())
    assert np.abs(got - want).max() < 1e-4 * np.abs(want).max()
    np.testing.assert_allclose(model.embed(x[3:4].numpy())[0], got[3], atol=1e-5)  # any number of samples
    assert (model.card.method, model.card.opset, model.card.variant) == ("fedaws", 18, "float32")


def test_int8_is_smaller_and_alike(folder):
    run = read_run(folder)
    small, plain = open_model(folder / "model.int8.onnx"), open_model(folder / "model.onnx")
    told = {"variant": "int8", "digest": small.card.digest, "cohort": small.card.cohort}
    assert small.card == replace(plain.card, **told)
    assert (folder / "model.int8.onnx").stat().st_size < 0.5 * (folder / "model.onnx").stat().st_size
    x = run.problem.federation.test.x.numpy()
    one, two = small.embed(x), plain.embed(x)
    cosine = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    assert cosine.min() > 0.97
    assert difference(one, two) > 1e-4  # it is another network, not the same one again


def test_each_file_promises_by_its_own_scores(folder):
    """The populations on a card, whose thresholds `enrol` promises by, are what that very file makes of people."""
    run = read_run(folder)
    plain, small = open_model(folder / "model.onnx"), open_model(folder / "model.int8.onnx")
    assert [one.who for one in small.card.cohort] == [one.who for one in plain.card.cohort] != []
    assert small.card.cohort == cohort_of(FileRun(run.problem, run.state, file=small), small.card)
    for one, other in zip(small.card.cohort, plain.card.cohort, strict=True):
        assert one.pooled != other.pooled


def test_the_same_bytes_again_and_the_rates_of_the_run(folder):
    run = read_run(folder)
    torch_one, plain, small = export_run(run, int8=True, check=4)
    assert [torch_one.data, plain.data] == [b"", (folder / "model.onnx").read_bytes()]
    assert small.data == (folder / "model.int8.onnx").read_bytes()
    figures = run.evaluate().figures
    assert torch_one.rates == (figures["eer_seen"], figures["eer"])
    assert plain.rates == pytest.approx(torch_one.rates, abs=2e-3)
    assert small.rates == pytest.approx(torch_one.rates, abs=2e-2)
    assert plain.seconds is not None and plain.seconds > 0


def test_no_trace_of_the_machine(folder):
    data = (folder / "model.onnx").read_bytes() + (folder / "model.int8.onnx").read_bytes()
    assert b".py" not in data
    assert b"selfsame/" not in data
    assert b"pkg.torch" not in data


def test_without_pytorch(folder, tmp_path):
    """A device has numpy and onnxruntime, and none of what training needs."""
    run = read_run(folder)
    x = run.problem.federation.unseen.x[:5]
    np.save(tmp_path / "raw.npy", x.numpy())
    np.save(tmp_path / "want.npy", run.embed(x).numpy())
    code = f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "sklearn", "matplotlib", "scipy", "onnx", "onnxscript", "safetensors"):
            raise ImportError(name + " is not on this device")
sys.meta_path.insert(0, Blocked())
import numpy as np
from pathlib import Path
from selfsame.export.opened import open_model
from selfsame.device.card import score, template
here = Path({str(tmp_path)!r})
model = open_model(Path({str(folder)!r}) / "model.onnx")
emb = model.embed(np.load(here / "raw.npy"))
want = np.load(here / "want.npy")
assert np.abs(emb - want).max() < 1e-4 * np.abs(want).max()
assert score(model.card, emb, template(model.card, emb)).shape == (5,)
assert not {{"torch", "sklearn", "matplotlib"}} & set(sys.modules)
print("opened")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "opened"), done.stderr


def test_nothing_is_left_where_the_check_fails(folder, tmp_path, monkeypatch):
    model = onnx.load(folder / "model.onnx")
    bias = next(tensor for tensor in model.graph.initializer if tensor.name == "net.head.bias")
    bias.raw_data = (onnx.numpy_helper.to_array(bias) + 1e-3).tobytes()
    monkeypatch.setattr(measured, "to_onnx", lambda *a: model)
    with pytest.raises(SelfsameError, match="nothing was written"):
        export(folder, out=tmp_path / "m.onnx", check=4)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out": "m.bin"}, "must end in .onnx"),
        ({"check": 0}, "must be 1 or more"),
        ({"client": 3}, "one network for everybody"),
        ({"path": "here"}, "takes no path"),
    ],
)
def test_options_that_do_not_fit(folder, tmp_path, options, words):
    from pathlib import Path

    options = {key: Path(value) if key in ("out", "path") else value for key, value in options.items()}
    with pytest.raises(SelfsameError, match=words):
        export(folder, **options)


def test_folders_that_are_no_runs(tmp_path):
    with pytest.raises(SelfsameError, match="not a run"):
        export(tmp_path)
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(SelfsameError, match="no checkpoint"):
        export(tmp_path)


def test_a_network_of_one_client(tmp_path):
    net = {"channels": [2, 2], "bias": False, "width": 4}
    run = train("deepsvdd", "digits", out=tmp_path / "run", settings={"run": {"rounds": 2}, "net": net})
    for client in (None, -1, 99):
        with pytest.raises(SelfsameError, match="name one from 0 to 13"):
            export(tmp_path / "run", client=client)
    export(tmp_path / "run", client=5, check=20)
    model = open_model(tmp_path / "run" / "model.onnx")
    x = run.problem.federation.test.x[:9]
    np.testing.assert_allclose(model.embed(x.numpy()), run.embed(x, 5).numpy(), rtol=1e-4, atol=1e-5)
    assert (model.card.score, model.card.place) == ("squared-distance", "as-is")
    with pytest.raises(SelfsameError, match="a network for each client"):
        open_model(tmp_path / "run")


def test_a_run_is_opened_as_well(tmp_path):
    run = train("fedaws", "digits", out=tmp_path / "run", settings={"run": {"rounds": 2}}, neighbours=1)
    model = open_model(tmp_path / "run")
    x = run.problem.federation.test.x[:9]
    np.testing.assert_allclose(model.embed(x.numpy()), run.embed(x).numpy(), rtol=1e-5, atol=1e-6)
    assert (model.card.data, model.card.shape, model.card.width) == ("digits", (1, 8, 8), 32)
    with pytest.raises(SelfsameError, match="run: another model than the one asked for"):
        open_model(tmp_path / "run", digest="0" * 64)
    file = tmp_path / "run" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(SelfsameError, match=r"model\.safetensors: damaged, its digest does not fit its content"):
        open_model(tmp_path / "run")
    file.write_bytes(data[:-8])
    with pytest.raises(SelfsameError, match="damaged"):
        open_model(tmp_path / "run")
    file.unlink()
    with pytest.raises(SelfsameError, match="run: the run has not ended"):
        open_model(tmp_path / "run")
    with pytest.raises(SelfsameError, match="not a run"):
        open_model(tmp_path)


def federation(x, mean=(0.0,), std=(1.0,)):
    y = torch.arange(len(x)) // 2
    return from_classes("random", x, y, test=Samples(x, y), unseen=Samples.none(), mean=mean, std=std)


def through(net, fed, samples):
    """The file of a network as bytes, its graph, and the largest difference from PyTorch on the samples."""
    net = net.eval().requires_grad_(False)
    method = make("fedaws", {})
    width = net(fed.scale(samples[:1])).shape[1]
    card = describe(method, fed, net, width, opset=OPSET)
    graph = to_onnx(net, fed, fed.test.x[:2])
    model = OnnxEmbedder(finished(graph, card), "test")
    return model, graph, difference(model.embed(samples.numpy()), net(fed.scale(samples)).numpy())


def test_speech_with_its_filterbank_at_any_length(monkeypatch):
    monkeypatch.setattr(fastresnet, "_STAGES", ((8, 1, 1),))  # the whole network takes ten times as long to export
    x = (torch.randn(4, 1, 3000, generator=torch.Generator().manual_seed(0)) * 3000).short()
    fed = federation(x)
    net = build("fast-resnet34-mel", (1, 3000), 5, rate=8000)
    assert shortest(net) == 101
    model, graph, apart = through(net, fed, x)
    assert apart < 1e-4
    assert (model.card.shape, model.card.dtype) == ((1, -1), "int16")
    longer = torch.cat([x, x.flip(-1)], -1)
    want = net(fed.scale(longer)).numpy()
    assert difference(model.embed(longer.numpy()), want) < 1e-4
    with pytest.raises(SelfsameError, match="fails on these samples"):
        model.embed(x[..., :50].numpy())
    front = set(before_wide(graph))
    kinds = {node.op_type for node in graph.graph.node if node.name in front}
    assert {"Log", "MatMul", "Pad"} <= kinds
    assert "Conv" not in kinds
    small = to_int8(graph, x.numpy())
    fitted = OnnxEmbedder(finished(small, replace(model.card, variant="int8")), "int8")
    emb = fitted.embed(x.numpy())
    assert difference(emb, net(fed.scale(x)).numpy()) < 0.2
    weights = {tensor.name: tensor.data_type for tensor in small.graph.initializer}
    mel = [node for node in small.graph.node if node.op_type == "MatMul" and node.name in front]
    assert len(mel) == 2
    assert all(weights.get(name, onnx.TensorProto.FLOAT) == onnx.TensorProto.FLOAT for n in mel for name in n.input)


def test_standardised_kernels_are_exported_as_they_are_used():
    """No arithmetic on weights is left in the graph, and int8 finds every convolution's."""
    x = torch.randint(0, 256, (6, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    fed = federation(x)
    net = build("resnet8", (3, 8, 8), 5, standardise=True)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    model, graph, apart = through(net, fed, x)
    assert apart < 1e-4
    weights = {tensor.name for tensor in graph.graph.initializer}
    convs = [node for node in graph.graph.node if node.op_type == "Conv"]
    assert len(convs) == 7
    assert all(node.input[1] in weights for node in convs)
    small = OnnxEmbedder(finished(to_int8(graph, x.numpy()), replace(model.card, variant="int8")), "int8")
    assert difference(small.embed(x.numpy()), net(fed.scale(x)).numpy()) < 0.2
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert type(net.conv).__name__ == "StandardConv2d"


def test_sparse_rows_and_linear_layers_with_int8():
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(8, 2, 6, generator=generator)
    x[:, 0] = torch.randint(-2, 52, (8, 6), generator=generator).float()  # some words are not in the vocabulary
    fed = federation(x)
    net = build("embedding-bag", (2, 6), 7, features=50)
    model, graph, apart = through(net, fed, x)
    assert apart < 1e-4
    assert (model.card.shape, model.card.dtype) == ((2, 6), "float32")
    small = to_int8(graph, x.numpy())
    kinds = {node.op_type for node in small.graph.node}
    assert "MatMulInteger" in kinds and "QuantizeLinear" not in kinds
    fitted = OnnxEmbedder(finished(small, replace(model.card, variant="int8")), "int8")
    assert difference(fitted.embed(x.numpy()), net(fed.scale(x)).numpy()) < 0.1


@pytest.mark.parametrize("name", ["lenet", "mlp"])
def test_products_of_int8_weights_fit_into_sixteen_bits_in_pairs(name):
    """As x86_64 processors without VNNI add them; with weights of eight bits a pair reaches 64,770."""
    x = torch.rand(4, *((1, 28, 28) if name == "lenet" else (30,)), generator=torch.Generator().manual_seed(2))
    fed = federation(x)
    _, graph, _ = through(build(name, tuple(x.shape[1:]), 5), fed, x)
    kinds = onnx.TensorProto
    held = [tensor for tensor in to_int8(graph, x.numpy()).graph.initializer if tensor.data_type == kinds.INT8]
    weights = [onnx.numpy_helper.to_array(tensor).astype(int) for tensor in held]
    weights = [one for one in weights if one.ndim > 1]  # the rest are zero points
    assert len(weights) >= 2
    for one in weights:
        assert 2 * 255 * np.abs(one).max() <= 32767
        assert np.abs(one).max() == 64  # all of the range is used


def test_channels_are_standardised_and_long_sums_keep_their_digits():
    """Over a group of 2^18 numbers, one after another, float32 would be off by more than 1e-5."""

    class Normed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.GroupNorm(1, 4)
            self.norm.weight.data = torch.tensor([1.0, 2.0, -1.0, 0.5])

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)[:, :, ::8192].flatten(1)

    x = (256 * torch.rand(4, 4, 2**16, generator=torch.Generator().manual_seed(3)).square()).to(torch.uint8)
    mean, std = (0.2, 0.5, 0.7, 0.0), (0.1, 0.3, 0.25, 1.0)
    net = Normed()
    model, _, apart = through(net, federation(x, mean, std), x)
    assert apart < 1e-4
    want = []
    for sample in x.double().numpy():
        channels = [(channel / 255 - m) / s for channel, m, s in zip(sample, mean, std)]
        middle = sum(channel.sum() for channel in channels) / 2**18
        spread = sum(((channel - middle) ** 2).sum() for channel in channels) / 2**18
        weighed = [w * (c - middle) / (spread + 1e-5) ** 0.5 for w, c in zip((1.0, 2.0, -1.0, 0.5), channels)]
        want.append(np.concatenate([channel[::8192] for channel in weighed]))
    assert difference(model.embed(x.numpy()), np.array(want)) < 3e-6
    assert isinstance(net.norm, nn.GroupNorm)  # the network itself is left as it was


def test_a_graph_with_an_operator_that_files_may_not_have(folder):
    model = onnx.load(folder / "model.onnx")
    model.graph.node.append(onnx.helper.make_node("NonZero", ["a"], ["b"]))
    with pytest.raises(SelfsameError, match="may not have: NonZero"):
        finished(model, open_model(folder / "model.onnx").card)


def test_a_network_that_cannot_be_exported(monkeypatch):
    def fails(*a, **k):
        raise RuntimeError("no\nway")

    monkeypatch.setattr(torch.onnx, "export", fails)
    x = torch.rand(4, 3)
    with pytest.raises(SelfsameError, match=r"cannot put this network into ONNX: no way$"):
        to_onnx(nn.Identity(), federation(x), x)


def test_a_network_that_cannot_be_quantised(folder):
    with pytest.raises(SelfsameError, match="cannot quantise this network"):
        to_int8(onnx.load(folder / "model.onnx"), np.zeros((2, 3, 9, 9), np.float32))


def test_calibration_takes_from_every_client():
    x = torch.arange(40, dtype=torch.uint8).reshape(40, 1)
    y = torch.arange(40) // 10
    fed = from_classes("random", x, y, test=Samples(x, y), unseen=Samples.none())
    assert calibration(fed, 8)[:, 0].tolist() == [0, 5, 10, 15, 20, 25, 30, 35]
    assert calibration(fed, 2)[:, 0].tolist() == [0, 30]
    assert len(calibration(fed, 1000)) == 1000  # a client with few samples gives some of them again


def test_the_difference_by_plain_loops():
    one, two = np.array([[1.0, 2.0], [3.0, 4.5]]), np.array([[1.0, 2.0], [3.0, 4.0]])
    lengths = [(1 + 4) ** 0.5, 5.0]
    assert difference(one, two) == pytest.approx(0.5 / (sum(lengths) / 2))
    assert difference(two, np.zeros((2, 2))) == 5.0


def test_a_missing_exporter_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(SelfsameError, match=r'^this needs onnxscript: pip install "selfsame\[export\]"$'):
        to_onnx(nn.Identity(), federation(torch.rand(4, 3)), torch.rand(2, 3))


def test_the_metadata_is_the_card(folder):
    model = onnx.load(folder / "model.onnx")
    onnx.checker.check_model(model)
    (entry,) = model.metadata_props
    assert entry.key == "selfsame"
    assert json.loads(entry.value)["digest"] == open_model(folder / "model.onnx").card.digest
    assert not any(tensor.external_data for tensor in model.graph.initializer)


def test_the_card_knows_strangers_and_nobody(folder):
    """Statistics of six unseen people and of fourteen trained vectors; none on the commit before."""
    card = open_model(folder / "model.onnx").card
    kinds = {(one.kind, one.template, one.together) for one in card.cohort}
    assert {("enrolled", 1, 1), ("enrolled", 5, 1), ("enrolled", 15, 3), ("trained", 0, 1)} <= kinds
    trained = next(one for one in card.cohort if (one.kind, one.together) == ("trained", 1))
    run = read_run(folder)
    federation, method = run.problem.federation, run.problem.method
    templates = run.truth()
    emb = run.embed(federation.unseen.x)
    score_SC = method.score(emb, templates)
    assert (trained.owners, trained.who) == (14, "people the network has never seen")
    for rate, limit in zip(trained.rate, trained.pooled):  # of some hundred samples of each
        assert float((score_SC > limit).float().mean()) == pytest.approx(rate, abs=0.03)


def test_a_small_set_has_a_cohort_of_those_it_was_trained_with(folder):
    """Two unseen people and two test samples each, a small folder's defaults: nothing was known of strangers."""
    from dataclasses import replace

    from selfsame.data.federation import Samples
    from selfsame.export.cohort_of import cohort_of

    run = read_run(folder)
    full = run.problem.federation
    few = replace(full, unseen=Samples.none(full.shape), test=Samples.none(full.shape))
    small = replace(run, problem=replace(run.problem, federation=few))
    card = open_model(folder / "model.onnx").card
    found = cohort_of(small, card)
    assert {one.kind for one in found} == {"enrolled", "trained"}  # templates of samples, and what training left
    assert {one.owners for one in found} == {14}
    assert all("by the very samples" in one.who for one in found)


def test_a_client_by_name(folder):
    from selfsame.export.from_run import client_vector

    run = read_run(folder)
    raw = [run.problem.federation.test.x[0].numpy()]
    names = run.problem.federation.class_names
    opened = open_model(folder / "model.onnx")
    if names:
        one, two = (client_vector(folder, which, opened, raw) for which in (names[3], 3))
        assert one.tolist() == two.tolist()
    with pytest.raises(SelfsameError, match=r"--client: the run has clients 0 to 13.*, got zoe"):
        client_vector(folder, "zoe", opened, raw)


def test_the_card_of_a_table_names_its_columns(tmp_path):
    from selfsame.data import load

    lines = ["height,user,width", *(f"{n % 7},{'ann' if n % 2 else 'bob'},{n % 5}" for n in range(40))]
    (tmp_path / "t.csv").write_text("\n".join(lines) + "\n")
    fed = load("table", tmp_path / "t.csv", test=2, unseen_samples=0, held_out=0)
    card = describe(make("fedaws", {}), fed, build("mlp", fed.shape, 4), 4)
    assert card.columns == ("height", "width")
    from selfsame.device.samples import read_samples

    (tmp_path / "one.csv").write_text("width,user,height\n4,ann,6\n")
    assert [one.tolist() for one in read_samples([tmp_path / "one.csv"], card)] == [[6, 4]]
