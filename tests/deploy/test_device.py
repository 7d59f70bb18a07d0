"""One device: what it agrees to, what it answers, what it refuses, and what is left of it after a kill."""

from __future__ import annotations

import json
import wave
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from loopback import Loopback, digits, kill_at, recipe, simulated
from PIL import Image

from selfsame.config.recipe import from_mapping
from selfsame.data import without_samples
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Spec, decode, encode, glance
from selfsame.deploy.device import Device, SystemStream
from selfsame.deploy.guest import open_samples
from selfsame.deploy.schedule import Terms
from selfsame.deploy.server import Server
from selfsame.engine.checkpoint import save_model
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError

TERMS = Terms(required=1, fewest=0)


class Pair:
    """A server and one device."""

    def __init__(self, folder: Path, order=None, seeded=True, **options) -> None:
        self.folder = folder
        self.server = Server(folder / "server", order or recipe("fedhide"), TERMS, seeded=seeded)
        self.device = Device(
            folder / "node", options.pop("samples", "digits:2"), simulate=seeded, trial=True, **options
        )
        self.server.begin(["n"], 0.0)

    def ask(self) -> bytes:
        (one,) = self.server.step(0.0)
        return one.payload

    def registered(self) -> Pair:
        assert self.server.answer("n", self.device.reply(self.ask()), 0.0) is None
        return self

    @property
    def state(self) -> bytes:
        path = self.folder / "node" / "state.safetensors"
        return path.read_bytes() if path.exists() else b""


def refusal(reply: bytes) -> str:
    return decode(reply, expected=Spec("refused", meta={"reason": str})).meta["reason"]


def test_registration_tells_what_it_must(tmp_path):
    pair = Pair(tmp_path)
    kind, _, meta = glance(pair.device.reply(pair.ask()), 10**6)
    assert kind == "registered"
    assert meta.keys() == {"run", "plan", "samples", "conditions", "owner", "place"}
    assert meta["samples"] == int(digits().count_N[2]) and meta["place"] == 2
    assert meta["conditions"] == {"charging": True, "unmetered": True, "idle": True}
    assert meta["plan"] == pair.server.agreement.digest


def test_the_same_request_gets_the_same_bytes(tmp_path):
    """Also from a process that never saw it, and with private draws that nobody can repeat."""
    order = recipe("fedgn")
    pair = Pair(tmp_path, order, seeded=False).registered()
    ask = pair.ask()
    reply = pair.device.reply(ask)
    kept = pair.state
    again = Device(tmp_path / "node", "digits:2", trial=True)
    assert pair.device.reply(ask) == again.reply(ask) == reply
    assert pair.state == kept


def test_stale_rounds_are_refused(tmp_path):
    pair = Pair(tmp_path).registered()
    first = pair.ask()
    assert pair.server.answer("n", pair.device.reply(first), 0.0) is None
    second = pair.ask()
    reply = pair.device.reply(second)
    kept = pair.state
    assert refusal(pair.device.reply(first)) == "stale"
    theta = torch.zeros(len(pair.server.state.theta_P), dtype=torch.float64)
    _, _, meta = glance(second, 10**6)
    fields = {**pair.server.problem.method.send(pair.server.state.server, None), "network": theta}
    assert refusal(pair.device.reply(encode("train", 1, meta, fields))) == "stale"  # another request of that round
    assert pair.state == kept and pair.device.reply(second) == reply


def changed(payload: bytes, pair: Pair, kind="train", round=0, drop=(), tensors=None, **meta) -> bytes:
    """A request with something else in it."""
    _, _, claimed = glance(payload, 10**7)
    fields = {"network": pair.server.state.theta_P, **pair.server.problem.method.send(pair.server.state.server, None)}
    fields = {name: value for name, value in {**fields, **(tensors or {})}.items() if name not in drop}
    return encode(kind, round, {**claimed, **meta}, fields)


def test_requests_that_are_refused(tmp_path):
    """Each by its reason, and nothing is written."""
    pair = Pair(tmp_path).registered()
    good = pair.ask()
    before = pair.state
    theta = pair.server.state.theta_P
    nan = theta.clone()
    nan[3] = float("nan")
    cases = [
        (changed(good, pair, "embed"), "kind"),
        (changed(good, pair, run="other"), "run"),
        (changed(good, pair, run="other", plan="x"), "run"),
        (changed(good, pair, plan="x"), "plan"),
        (changed(good, pair, round=2), "round"),
        (changed(good, pair, round=-1), "stale"),
        (changed(good, pair, client=7), "meta"),
        (changed(good, pair, client=-1), "meta"),
        (changed(good, pair, client="2"), "meta"),
        (changed(good, pair, present=10**6), "meta"),
        (changed(good, pair, **{"class": 4}), "meta"),
        (changed(good, pair, extra=1), "meta"),
        (changed(good, pair, tensors={"network": nan}), "finite"),
        (changed(good, pair, tensors={"network": theta[:-1]}), "shape"),
        (changed(good, pair, tensors={"network": theta.float()}), "dtype"),
        (changed(good, pair, tensors={"codewords": theta}), "fields"),
        (changed(good, pair, drop=("proxies",)), "fields"),
        (changed(good, pair, tensors={"proxies": torch.zeros(4, 8, dtype=torch.float64)}), "shape"),
        (good[:-1], "form"),
        (b"", "form"),
        (bytes(10**8), "size"),
    ]
    for payload, why in cases:
        assert refusal(pair.device.reply(payload)) == why
    assert pair.state == before
    assert pair.server.answer("n", pair.device.reply(good), 0.0) is None


def test_before_it_has_registered(tmp_path):
    pair = Pair(tmp_path).registered()
    stranger = Device(tmp_path / "stranger", "digits:1", simulate=True)
    assert refusal(stranger.reply(pair.ask())) == "plan"
    assert not (tmp_path / "stranger" / "state.safetensors").exists()


def test_the_plan_is_pinned(tmp_path):
    """The first server's terms, and no others: not of that run, not of another."""
    pair = Pair(tmp_path).registered()
    before = pair.state
    terms = pair.server.agreement
    worse = replace(terms, recipe=replace(terms.recipe, local=replace(terms.recipe.local, lr=9.0)))
    for offered, why in ((worse, "plan"), (replace(terms, run="other"), "run")):
        payload = encode("register", 0, {"run": offered.run, "agreement": offered.to_json(), "attested": ""}, {})
        assert refusal(pair.device.reply(payload)) == why
    assert pair.state == before
    ask = pair.ask()
    assert pair.server.answer("n", pair.device.reply(ask), 0.0) is None
    moved = changed(pair.ask(), pair, round=1, client=0)
    assert refusal(pair.device.reply(moved)) == "plan"  # it is client 2, and stays it


def test_only_terms_that_were_read(tmp_path):
    pair = Pair(tmp_path)
    ask = pair.ask()
    wary = Device(tmp_path / "wary", "digits:2", simulate=True, agreed="0" * 64)
    assert refusal(wary.reply(ask)) == "plan"
    knowing = Device(tmp_path / "knowing", "digits:2", simulate=True, agreed=pair.server.agreement.digest)
    assert glance(knowing.reply(ask), 10**6)[0] == "registered"


def test_draws_that_the_server_knows_need_consent(tmp_path):
    """A seeded run, and codewords from the seed."""
    for name, seeded in (("fedhide", True), ("feduv", False)):
        pair = Pair(tmp_path / name, recipe(name), seeded=seeded)
        wary = Device(tmp_path / name / "wary", "digits:2", trial=True)
        assert refusal(wary.reply(pair.ask())) == "plan"


def test_code_by_its_path_is_against_the_policy(tmp_path):
    pair = Pair(tmp_path)
    terms = pair.server.agreement
    terms = replace(terms, recipe=replace(terms.recipe, net=replace(terms.recipe.net, name="os:system")))
    payload = encode("register", 0, {"run": terms.run, "agreement": terms.to_json(), "attested": ""}, {})
    assert refusal(pair.device.reply(payload)) == "policy"


@pytest.mark.parametrize(
    "change",
    [
        {"wire": []},
        {"shape": []},
        {"shape": [1, 8, -8]},
        {"std": [0.0]},
        {"precision": "float8"},
        {"precision": ["float64"]},
        {"raw": None},
        {"clients": 0},
        {"clients": "4"},
        {"clients": 2**40},
        {"seeded": 1},
        {"transport": "sparse"},
        {"run": ""},
        {"recipe": {}},
        {"recipe": 3},
        {"more": 1},
    ],
)
def test_terms_that_make_no_sense(tmp_path, change):
    pair = Pair(tmp_path)
    given = {**pair.server.agreement.to_json(), **change}
    payload = encode("register", 0, {"run": str(given["run"]), "agreement": given, "attested": ""}, {})
    assert refusal(pair.device.reply(payload)) == "plan"
    assert pair.state == b""


def test_terms_there_and_back():
    for transport in ("exact", "half"):
        terms = Agreement.of(prepare(recipe("fedmetric", local={"schedule": "cosine"})), "r", transport, False)
        again = Agreement.from_json(json.loads(json.dumps(terms.to_json())))
        assert again == terms and again.digest == terms.digest and terms.recipe.run.seed == 0


@pytest.mark.parametrize(("name", "why"), [("deepsvdd", "nothing to deploy"), ("fdml", "enclave")])
def test_methods_of_another_kind_are_refused_in_one_line(tmp_path, name, why):
    order = recipe(name, server={"optimiser": "adam"})
    with pytest.raises(SelfsameError, match=why):
        Server(tmp_path / "server", order, TERMS)
    assert not (tmp_path / "server").exists()


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["mean", "std", "lr"])
def test_every_number_of_the_terms_is_finite(name, value):
    terms = Agreement.of(prepare(recipe("fedhide"), digits()), "a run", "exact", True).to_json()
    if name == "lr":
        terms["recipe"]["local"]["lr"] = value
    else:
        terms[name] = [value]
    with pytest.raises(SelfsameError, match=name) as caught:
        Agreement.from_json(terms)
    assert "\n" not in str(caught.value)


def test_private_draws_are_the_systems(tmp_path):
    """Two devices of one seed and one sample set send different proxies; a seeded run repeats them."""
    replies = {}
    for seeded in (False, True):
        for copy in "ab":
            pair = Pair(tmp_path / f"{seeded}{copy}", recipe("fedgn"), seeded=seeded).registered()
            reply = pair.device.reply(pair.ask())
            spec = pair.server._forms["trained"]
            replies[seeded, copy] = decode(reply, expected=spec).fields["proxy"]
    assert torch.equal(replies[True, "a"], replies[True, "b"])
    assert torch.isclose(replies[False, "a"], replies[False, "b"]).double().mean() < 0.5


def test_the_system_stream_draws_like_any_other():
    """Nobody can seed it, so numbers are many enough that no run ever fails by chance."""
    stream = SystemStream(3)
    normal = stream.normal(20000)
    assert normal.shape == (3, 20000)
    assert abs(float(normal.mean())) < 0.05 and abs(float(normal.std()) - 1) < 0.05
    assert not torch.equal(stream.bits(4), stream.bits(4)) and not torch.equal(stream.fold(1).key_M, stream.key_M)
    low = stream.below(torch.tensor([1, 5, 100]), 10000)
    assert low.min(1).values.tolist() == [0, 0, 0] and low.max(1).values.tolist() == [0, 4, 99]


@pytest.mark.parametrize("name", ["fedhide", "feduv", "fedmetric", "fl-traditional"])
def test_nothing_private_leaves(tmp_path, name):
    """No row of a private field, before or after the round, stands in what the device sends."""
    options = {"secrets": "system"} if name == "feduv" else None
    pair = Pair(tmp_path, recipe(name, options), seeded=False).registered()
    sent = b""
    for _ in range(2):
        reply = pair.device.reply(pair.ask())
        sent += reply
        assert pair.server.answer("n", reply, 0.0) is None
        for value in pair.device.keep.read().fields.values():
            assert value.double().numpy().tobytes() not in sent and value.abs().max() > 0


def test_terms_of_another_version(tmp_path):
    """After an update that changed what a method sends, the device no longer takes part, and says so."""
    pair = Pair(tmp_path).registered()
    ask, kept = pair.ask(), pair.device.keep.read()
    given = kept.notes["agreement"]
    given["wire"][0][3] = "something else"
    pair.device.keep.write(kept)
    assert refusal(Device(tmp_path / "node", "digits:2", simulate=True).reply(ask)) == "plan"


def test_conditions(tmp_path):
    """Read anew for every message; a file that makes no sense is a device that is not ready."""
    file = tmp_path / "conditions.json"
    pair = Pair(tmp_path, conditions=file).registered()
    ask, before = pair.ask(), pair.state
    for text in ('{"charging": false, "unmetered": true, "idle": true}', "{}", "[", "[1]", '{"charging": 1}', "nul"):
        file.write_text(text)
        assert refusal(pair.device.reply(ask)) == "not ready"
    assert pair.state == before
    file.write_text('{"charging": true, "unmetered": true, "idle": true}')
    assert pair.server.answer("n", pair.device.reply(ask), 0.0) is None


def test_samples_from_a_folder(tmp_path):
    """The same pictures as files: the same answer, bit for bit."""
    federation = digits()
    images = federation.source.rows(torch.tensor([2]), torch.arange(int(federation.count_N[2]))[None])[0]
    (tmp_path / "files").mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image[0].numpy()).save(tmp_path / "files" / f"{number:03d}.png")
    pair = Pair(tmp_path).registered()
    ask = pair.ask()
    reader = Device(tmp_path / "reader", tmp_path / "files", simulate=True)
    meta = {"run": pair.server.run, "agreement": pair.server.agreement.to_json(), "attested": ""}
    register = encode("register", 0, meta, {})
    _, _, meta = glance(reader.reply(register), 10**6)
    assert meta["place"] == -1 and meta["samples"] == len(images)
    assert reader.reply(ask) == pair.device.reply(ask)


def test_samples_that_cannot_be_read(tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "a.txt").write_text("x")
    pair = Pair(tmp_path, samples=tmp_path / "files")
    ask = pair.ask()
    for where in (tmp_path / "files", tmp_path / "none", "digits:99", "nowhere:1", torch.zeros(3, 1, 8, 8)):
        device = Device(tmp_path / "node", where, simulate=True)
        assert refusal(device.reply(ask)) == "samples"
    assert pair.state == b""


def test_recordings(tmp_path):
    """Clips are cut from recordings of any length at random places."""
    for number, length in enumerate((500, 3000)):
        with wave.open(str(tmp_path / f"{number}.wav"), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(2)
            file.setframerate(1000)
            file.writeframes(np.arange(length, dtype="<i2").tobytes())
    order = from_mapping(
        {
            "method": {"name": "fedgn"},
            "data": {"name": "audiomnist", "rate": 1000},
            "net": {"name": "mlp", "width": 4},
            "run": {"rounds": 1, "device": "cpu"},
        }
    )
    federation = without_samples((800,), "int16", 3, 3)
    terms = Agreement.of(prepare(order, federation), "r", "exact", False)
    terms = replace(terms, shape=(1, 800), clips=True)
    source, count = open_samples(tmp_path, terms)
    assert count == 2 and terms.rate == 1000
    found = source.rows(torch.tensor([2]), torch.tensor([[0, 1]]))
    assert found.shape == (1, 2, 1, 800)
    assert found[0, 0, 0, :502].tolist() == [*range(500), 0, 1]  # the short one goes round
    assert found[0, 1, 0, 0] == 1100
    with pytest.raises(SelfsameError, match="samples a second"):
        open_samples(tmp_path, replace(terms, recipe=replace(order, data=replace(order.data, options={"rate": 999}))))


def test_a_client_whose_update_is_not_finite_says_so(tmp_path):
    """And keeps its state."""
    pair = Pair(tmp_path, recipe("fedhide", local={"lr": 1e200, "steps": 3})).registered()
    ask, before = pair.ask(), pair.state
    assert refusal(pair.device.reply(ask)) in ("finite", "failed")
    assert pair.state == before


@pytest.mark.parametrize("seeded", [True, False])
def test_killed_at_any_point_while_answering(tmp_path, seeded):
    """After every kill the same request is answered, once, and the private state has moved once."""
    order, killed = recipe("fedgn"), 0
    pair = Pair(tmp_path / "whole", order, seeded=seeded).registered()
    registered, ask = pair.state, pair.ask()
    pair.device.reply(ask)
    whole = pair.device.keep.read()
    for point in range(1, 16):
        folder = tmp_path / str(point)
        device = Device(folder, "digits:2", simulate=seeded, trial=True)
        (folder / "state.safetensors").touch(mode=0o600)
        (folder / "state.safetensors").write_bytes(registered)
        killed += kill_at(point, False, lambda device=device: device.reply(ask))
        after = Device(folder, "digits:2", simulate=seeded, trial=True)
        there = after.keep.read()
        reply = after.reply(ask)
        assert there.turn == -1 or there.reply == reply  # a reply that was on the disk is the one that is given
        found = after.keep.read()
        assert found.turn == 0 and found.reply == reply == after.reply(ask)
        if seeded:
            assert reply == whole.reply and torch.equal(found.fields["prototype"], whole.fields["prototype"])
    assert killed >= 6


def test_leaving(tmp_path):
    """After `forget` the folder is as new, and takes another run's terms."""
    pair = Pair(tmp_path / "a").registered()
    pair.device.keep.forget()
    other = Server(tmp_path / "b", recipe("fedcs"), TERMS, seeded=True)
    other.begin(["n"], 0.0)
    (ask,) = other.step(0.0)
    assert other.answer("n", pair.device.reply(ask.payload), 0.0) is None


def test_half_precision_travels_both_ways(tmp_path):
    order = recipe("fedhide", run={"precision": "float32"})
    sizes = {}
    for transport in ("exact", "half"):
        harness = Loopback(tmp_path / transport, order, options={"transport": transport})
        harness.run()
        sizes[transport] = harness.server.records[-1]
    parameters = len(harness.server.state.theta_P)
    for way in ("down", "up"):
        saved = sizes["exact"][way] - sizes["half"][way]
        assert abs(saved - 4 * 2 * parameters) < 4 * 100  # two bytes a parameter and node, but for the headers


@pytest.mark.parametrize("part", [{"adapters": 2}, {"train": ["last"]}, {"adapters": 1, "keep": 0.5}])
def test_devices_that_have_the_first_network_are_sent_what_learns(tmp_path, part):
    """The run on devices is the run of the reference engine; without the file, or with another, a device declines."""
    net = {"name": "lenet", "width": 8, "channels": [4, 4], **part}
    order = recipe("fedhide", net=net)
    loop = Loopback(tmp_path, order)
    whole = Loopback(tmp_path / "whole", recipe("fedhide")).server.problem.model.parameters
    start = tmp_path / "server" / "start.safetensors"
    loop.devices = {
        node: Device(tmp_path / f"d{node}", f"digits:{node}", simulate=True, start=start) for node in "0123"
    }
    pair = Pair(tmp_path / "pair", order)
    assert refusal(pair.device.reply(pair.ask())) == "start"
    loop.run()
    wanted = simulated(order).theta_P
    assert len(wanted) < whole and torch.allclose(loop.server.state.theta_P, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("vectors", ["", "drawn"])
@pytest.mark.parametrize("method", ["fedhide", "fedgn"])
def test_a_run_on_devices_begins_with_given_weights(tmp_path, method, vectors):
    """Vectors that begin as enrolled want the given network on every device."""
    problem = prepare(recipe(method))
    save_model(problem, 2 * problem.model.first_theta, tmp_path / "w.safetensors")
    net = {
        "name": "lenet",
        "width": 8,
        "channels": [4, 4],
        "start": str(tmp_path / "w.safetensors"),
        "vectors": vectors,
    }
    order = recipe(method, net=net)
    loop = Loopback(tmp_path / "run", order)
    assert loop.server.agreement.recipe.net.start == "" and loop.server.agreement.recipe.net.digest
    if not vectors:
        start = tmp_path / "run" / "server" / "start.safetensors"
        loop.devices = {
            node: Device(tmp_path / f"d{node}", f"digits:{node}", simulate=True, start=start) for node in "0123"
        }
    loop.run()
    assert torch.allclose(loop.server.state.theta_P, simulated(order).theta_P, rtol=0, atol=1e-12)


def test_vectors_that_devices_do_not_keep_begin_as_drawn(tmp_path):
    net = {"name": "lenet", "width": 8, "channels": [4, 4], "vectors": "enrolled"}
    with pytest.raises(SelfsameError, match=r'vectors of fedaws are not kept by devices.*set net.vectors="drawn"'):
        Agreement.of(prepare(recipe("fedaws", net=net), digits()), "a run", "exact", True)


def test_no_device_agrees_to_a_network_that_is_whitened_already():
    terms = Agreement.of(prepare(recipe("fedhide"), digits()), "a run", "exact", True)
    net = replace(terms.recipe.net, whitened=1.0)
    with pytest.raises(SelfsameError, match=r"net.whitened: a network is whitened when training has ended"):
        Agreement.from_json(replace(terms, recipe=replace(terms.recipe, net=net)).to_json())
    with pytest.raises(SelfsameError, match=r"net.whitened: a network is whitened when training has ended"):
        prepare(recipe("fedhide", net={"name": "lenet", "width": 8, "channels": [4, 4], "whitened": 1.0}))
