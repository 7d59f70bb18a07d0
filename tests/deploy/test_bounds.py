"""Bounds that hold: the security review's attacks on what is exchanged beside the network, each refused."""

from __future__ import annotations

import pytest
import torch
from loopback import Loopback, recipe

from selfsame.deploy.codec import Field, Refused, Spec, decode, encode, hold
from selfsame.deploy.device import ASSIGNED, REGISTERED


def changed(reply: bytes, harness: Loopback, **rows) -> bytes:
    """A device's answer with some of its fields replaced by functions of them."""
    good = decode(reply, expected=harness.server._forms["trained"])
    fields = {**good.fields, **{name: change(good.fields[name]) for name, change in rows.items()}}
    return encode("trained", good.round, good.meta, fields)


@pytest.mark.parametrize(
    ("name", "field", "change"),
    [
        ("fedhide", "proxy", lambda x: 999 * x),
        ("fedgn", "proxy", lambda x: 1.01 * x),
        ("fedcs", "proxy", lambda x: 999 * x),
        ("fedmetric", "margin", lambda x: 0 * x + 999),
        ("fedmetric", "margin", lambda x: 0 * x - 999),
        ("fedmetric", "proxy_centre", lambda x: 999 * x / x.norm()),
        ("fedmetric-true", "true_radius", lambda x: 0 * x + 999),
        ("fedaws", "class_embedding", lambda x: 999 * x / x.norm()),
        ("feduv-negative", "codeword", lambda x: 2 * x),
    ],
)
def test_a_row_beyond_its_bound_is_refused(tmp_path, name, field, change):
    """Node 3 sends it; the others' round completes without it, and their private vectors stay of their size."""
    harness = Loopback(tmp_path, recipe(name, run={"rounds": 1}))
    attacked = lambda ask: ask.node == "3" and "train" in ask.id  # noqa: E731
    harness.filter = lambda ask, reply: [changed(reply, harness, **{field: change}) if attacked(ask) else reply]
    server = harness.run()
    assert harness.reasons == ["norm"] and server.records[0]["taken"] == 3
    for rows in harness.own().values():
        assert float(rows.double().norm(dim=-1).max()) < 100


def test_prototypes_stay_as_they_are_where_one_device_attacks(tmp_path):
    """The review's own figure: four clients, one of which scales its proxy by 999; they grew to 49,000 and more."""
    harness = Loopback(tmp_path, recipe("fedhide", run={"rounds": 4}))
    attacked = lambda ask: ask.node == "3" and "train" in ask.id  # noqa: E731
    scale = lambda x: 999 * x  # noqa: E731
    harness.filter = lambda ask, reply: [changed(reply, harness, proxy=scale) if attacked(ask) else reply]
    harness.run()
    assert float(harness.own()["prototype"].norm(dim=1).max()) < 10


@pytest.mark.parametrize(
    ("name", "field", "row"),
    [
        ("fedhide", "proxies", 1e6),
        ("fedhide", "proxy_classes", 2**40),
        ("fedmetric", "margins", 1e6),
        ("fedmetric", "proxy_centres", 1e6),
        ("fedaws", "class_embedding", 1e6),
        ("feduv-negative", "codewords", 1e6),
    ],
)
def test_a_servers_row_beyond_its_bound_is_refused_by_the_device(tmp_path, name, field, row):
    harness = Loopback(tmp_path, recipe(name, run={"rounds": 1}))
    harness.turn()
    ask = next(ask for ask in harness.server.step(0.0) if ask.node == "0")
    device = harness.devices["0"]
    agreement = device._agreed_to(device.keep.read())
    good = decode(ask.payload, expected=device._request(agreement, 4))
    table = good.fields[field].clone()
    table[(0,) * table.dim()] = row
    before = device.keep.read()
    reply = device.reply(encode("train", good.round, good.meta, {**good.fields, field: table}))
    said = decode(reply, expected=Spec("refused", meta={"reason": str}))
    assert said.meta["reason"] == "norm" and device.keep.read().turn == before.turn == -1
    assert set(good.meta) == {*ASSIGNED, "run"}


@pytest.mark.parametrize("name", ["softmax", "fl-traditional"])
def test_what_travels_with_the_network_has_a_bound_too(tmp_path, name):
    """From the server and from a device: a class's row a thousand times as long as it may be."""
    harness = Loopback(tmp_path, recipe(name, run={"rounds": 1}, sums={"clip": 1e6}))  # only the row is at fault
    model = harness.server.problem.model

    def grown(theta_P):
        theta_P = theta_P.clone()
        next(iter(model.head_views(theta_P).values()))[0] = 1e4 / 2
        return theta_P

    harness.filter = lambda ask, reply: [
        changed(reply, harness, network=grown) if ask.node == "3" and "train" in ask.id else reply
    ]
    server = harness.run()
    assert harness.reasons == ["norm"] and server.records[0]["taken"] == 3


def test_numbers_and_whole_numbers_are_measured_one_by_one():
    spec = Spec("k", fields={"x": Field((3,), torch.float64, longest=2.0), "i": Field((2,), torch.int64, longest=4)})
    good = {"x": torch.tensor([2.0, -2.0, 2.0], dtype=torch.float64), "i": torch.tensor([-1, 4])}
    assert decode(encode("k", 0, {"run": "r"}, good), expected=spec).fields.keys() == good.keys()
    for wrong in ({"x": good["x"] * 1.01}, {"i": torch.tensor([-2, 0])}, {"i": torch.tensor([0, 5])}):
        with pytest.raises(Refused, match="norm"):
            decode(encode("k", 0, {"run": "r"}, good | wrong), expected=spec)
    with pytest.raises(Refused, match="norm"):
        hold({"row": torch.ones(2, 9)}, {"row": 2.9})


def test_the_agreement_says_the_bounds(tmp_path):
    """So that a server of another version, with other bounds, is refused at registration."""
    harness = Loopback(tmp_path, recipe("fedmetric", run={"rounds": 1}))
    rows = {(name, way): bound for name, way, _, _, bound in harness.server.agreement.wire}
    assert rows["margin", "up"] == "7.5 sqrt(D)" and rows["margins", "down"] == "7.5 sqrt(D)"
    assert rows["centre", "stays"] == rows["network", "down"] == ""


def claiming(harness: Loopback, samples: int):
    """Node 3 says at registration that it has so many samples."""

    def claim(ask, reply):
        if ask.node != "3" or "register" not in ask.id:
            return [reply]
        said = decode(reply, expected=Spec("registered", meta=REGISTERED))
        return [encode("registered", said.round, {**said.meta, "samples": samples}, {})]

    harness.filter = claim


@pytest.mark.parametrize("cap", [0, 20])
def test_a_device_cannot_say_how_much_it_weighs(tmp_path, cap):
    """The review's attack: 2^31 - 1 samples claimed, and the network is the attacker's."""
    order = recipe("fedhide", run={"rounds": 1}, cohort={"cap": cap})
    harness = Loopback(tmp_path, order)
    claiming(harness, 2**31 - 1)
    weights = {}
    take = harness.server._settle

    def settle(now):
        weights.update({node: answer.weight for node, answer in harness.server._reports.items()})
        take(now)

    harness.server._settle = settle
    harness.run()
    assert weights["3"] == (cap or 1000)
    for node in "012":
        assert weights[node] == min(harness.server.seats[node].samples, cap or 1000)
