"""The server over devices: the reference engine's numbers, whoever is killed, and whatever is sent."""

from __future__ import annotations

import json
import math
import os
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loopback import LOCAL, ROUNDING, Loopback, apart, digits, recipe, simulated
from safetensors.torch import load

from selfsame.data import without_samples
from selfsame.deploy import guest
from selfsame.deploy.codec import MOST_META, REASONS, decode, encode
from selfsame.deploy.device import Device
from selfsame.deploy.schedule import Terms
from selfsame.deploy.server import Server
from selfsame.engine.plan import Plan, Start, make_plan
from selfsame.engine.reference import client_update
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin, join
from selfsame.errors import SelfsameError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What reaches the disk when is for `test_keep`, here it would only take time; and the data are read once."""
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


def alike(one, two) -> bool:
    """Equal but for the order in which the server has added up."""
    return torch.allclose(one, two, rtol=0, atol=ROUNDING)


HARD = {"local": {"steps": 2}, "server": {"optimiser": "momentum", "weight_decay": 1e-3}}


@pytest.mark.parametrize("name", LOCAL)
def test_equal_to_the_reference_engine(tmp_path, name):
    """Every method: the network, the optimiser, the server's tables and the devices' private fields."""
    order = recipe(name, run={"rounds": 5}, **HARD)
    harness = Loopback(tmp_path, order)
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING
    assert harness.server.counts == {"registered": 4, "taken": 20}


@pytest.mark.parametrize("name", LOCAL)
def test_equal_in_single_precision(tmp_path, name):
    order = recipe(name, run={"rounds": 2, "precision": "float32"})
    harness = Loopback(tmp_path, order)
    harness.run()
    assert apart(harness, simulated(order)) <= 1e-6


@pytest.mark.parametrize(
    ("name", "options", "parts"),
    [
        ("fedhide", {"search": "clustered", "negatives": 3}, {}),
        ("fedhide", {"negatives": 2}, {"cohort": {"weights": "uniform"}}),
        ("fedaws", {}, {"data": {"clients_per_class": 2, "held_out": 8}}),
        ("fedgn", {}, {"local": {"epochs": 1, "batch": 16, "schedule": "cosine"}, "server": {"optimiser": "adam"}}),
        ("fedcs", {}, {"cohort": {"size": 2}, "run": {"rounds": 6}}),
        ("fedgn", {}, {"cohort": {"size": 3, "sampling": "round-robin"}, "run": {"rounds": 5}}),
    ],
)
def test_other_settings(tmp_path, name, options, parts):
    order = recipe(name, options, **parts)
    required = order.cohort.size or 4
    harness = Loopback(tmp_path, order, terms={"required": required, "sampling": order.cohort.sampling})
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING


def rounded(value: torch.Tensor) -> torch.Tensor:
    """Half precision by numpy and by way of single precision, the largest number between 2^14 and 2^15."""
    scale = 2.0 ** (math.floor(math.log2(float(value.abs().max()))) + 1 - 15)
    half = (value.numpy() / scale).astype(np.float32).astype(np.float16)
    return torch.from_numpy(half.astype(np.float64)) * scale


def test_half_precision_by_hand(tmp_path):
    """Devices train from the rounded network, and their rounded changes are averaged on the server's exact one."""
    order = recipe("fedmetric-pos", run={"rounds": 3})
    harness = Loopback(tmp_path, order, options={"transport": "half"})
    harness.run()
    problem = prepare(order)
    theta, counts = begin(problem).theta_P.clone(), problem.federation.count_N.tolist()
    for number in range(3):
        down, mean = rounded(theta), torch.zeros_like(theta)
        for client, count in enumerate(counts):
            who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
            own = {"centre": torch.zeros(1, 8, dtype=torch.float64)}
            lr = torch.tensor(order.local.lr, dtype=torch.float64)
            change = rounded(client_update(problem, down, Start(who, own, {}, lr, number))[0] - down)
            mean += count / sum(counts) * (theta + change)
        theta = theta - (theta - mean)
    assert alike(harness.server.state.theta_P, theta)
    assert not torch.allclose(theta, simulated(order).theta_P, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["fedhide", "feduv", "fedmetric", "fedaws", "softmax"])
def test_killed_and_reopened_between_any_two_things(tmp_path, name):
    """Server and devices are dropped at random and opened from their folders: the same result."""
    order = recipe(name, run={"rounds": 3})
    draw = random.Random(name)

    def between(self: Loopback) -> None:
        if draw.random() < 0.2:
            self.reopen_server()
        if draw.random() < 0.5:
            self.reopen_device(draw.choice(list(self.devices)))

    harness = Loopback(tmp_path, order, between=between)
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING
    assert [record["round"] for record in harness.server.records] == [1, 2, 3]
    assert len([ask for ask in harness.asks if "register" not in ask.id]) > 12  # some were asked more than once


def test_the_server_dies_with_every_reply_on_its_way(tmp_path):
    """The requests are written again, the devices answer from their disks, and nobody has moved twice."""
    order = recipe("fedgn", run={"rounds": 3})
    harness = Loopback(tmp_path, order)
    lost = set()

    def lose_once(ask, reply):
        if "register" in ask.id or ask.id in lost:
            return [reply]
        lost.add(ask.id)
        return []

    harness.filter = lose_once
    while not harness.server.done:
        harness.turn()
        if harness.server._round is not None and not harness.server._reports:
            harness.reopen_server()
    train = [ask for ask in harness.asks if "register" not in ask.id]
    assert len(train) == 24 and len({(ask.node, ask.payload) for ask in train}) == 12
    assert apart(harness, simulated(order)) <= ROUNDING


def test_every_reply_twice(tmp_path):
    order = recipe("fedhide", run={"rounds": 3})
    harness = Loopback(tmp_path, order, filter=lambda ask, reply: [reply, reply])
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING
    assert harness.server.counts["not needed"] + harness.server.counts["round"] == 12


def test_last_rounds_replies_come_again(tmp_path):
    """Before this round's: they are refused, and cost nobody anything."""
    order = recipe("fedhide", run={"rounds": 3})
    before: dict[str, bytes] = {}

    def replay(ask, reply):
        old, before[ask.node] = before.get(ask.node), reply
        return [reply] if old is None or "register" in ask.id else [old, reply]

    harness = Loopback(tmp_path, order, filter=replay)
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING
    assert harness.reasons.count("round") == 8


def without(order, absent: dict[int, set[int]]):
    """The reference engine where some clients do not answer in some rounds."""
    problem = prepare(order)
    state = begin(problem)
    plan = make_plan(problem.recipe, 0, order.run.rounds, state.present)
    for round, clients in absent.items():
        for client in clients:
            plan.alive_TM[round, client] = False
    Engine(problem, "reference").run(state, plan)
    return state


def test_a_silent_device_holds_a_round_no_longer_than_its_deadline(tmp_path):
    """And is back in the next one, when it registers again."""
    order = recipe("fedaws", run={"rounds": 3})
    harness = Loopback(tmp_path, order, terms={"answer_wait": 30.0})
    harness.filter = lambda ask, reply: [] if ask.node == "1" and ask.id.endswith("train/1/1") else [reply]
    server = harness.run()
    assert [record["seconds"] for record in server.records] == [0.0, 30.0, 0.0]
    assert [record["taken"] for record in server.records] == [4, 3, 4]
    assert server.counts["silent"] == 1
    assert alike(server.state.theta_P, without(order, {1: {1}}).theta_P)  # FedAwS keeps nothing on the device


def test_a_lost_device_is_not_waited_for(tmp_path):
    order = recipe("fedaws", run={"rounds": 3})
    harness = Loopback(tmp_path, order)

    def lose(ask, reply):
        if ask.node == "1" and "register" not in ask.id:
            harness.server.lost("1", harness.now)
            return []
        return [reply]

    harness.filter = lose
    server = harness.run()
    assert [record["seconds"] for record in server.records] == [0.0, 0.0, 0.0]
    assert harness.now == 0.0  # nor does the next round wait for it
    assert alike(server.state.theta_P, without(order, {0: {1}, 1: {1}, 2: {1}}).theta_P)


def test_a_device_that_is_not_ready_is_not_waited_for(tmp_path):
    """And takes part again once it is."""
    order = recipe("fedaws", run={"rounds": 5})
    harness = Loopback(tmp_path, order, terms={"answer_wait": 30.0, "required": 3, "over": 1.4})
    file = tmp_path / "conditions.json"
    harness.devices["1"] = Device(tmp_path / "node1", "digits:1", simulate=True, conditions=file)
    file.write_text('{"charging": true, "unmetered": false, "idle": true}')
    while harness.server.round < 2:
        harness.turn()
    assert harness.now == 0.0 and harness.server.counts["not ready yet"] == 1
    file.write_text('{"charging": true, "unmetered": true, "idle": true}')
    harness.now = 31.0
    harness.run()
    assert [record["asked"] for record in harness.server.records][-1] == 4


def test_a_dead_device_costs_one_deadline_and_one_registration(tmp_path):
    """Then nothing: rounds go on without it at once."""
    order = recipe("fedaws", run={"rounds": 6})
    harness = Loopback(tmp_path, order, terms={"answer_wait": 30.0})
    harness.filter = lambda ask, reply: [] if ask.node == "1" and harness.server.round >= 2 else [reply]
    server = harness.run()
    assert [record["seconds"] for record in server.records] == [0.0, 0.0, 30.0, 0.0, 0.0, 0.0]
    assert harness.now == 60.0


def test_an_answer_after_its_round(tmp_path):
    """It is refused as one of another round, and its node stays registered."""
    order = recipe("fedaws", run={"rounds": 2})
    harness, late = Loopback(tmp_path, order, terms={"answer_wait": 30.0}), []
    harness.filter = lambda ask, reply: late.append(reply) or [] if ask.id.endswith("train/1/0") else [reply]
    harness.turn()
    harness.turn()
    harness.turn()  # until the deadline
    (again,) = harness.server.step(harness.now)  # node 1 is to register again, the next round waits for it
    assert harness.server.answer("1", late[0], harness.now) == "round"
    assert harness.server.answer("1", harness.devices["1"].reply(again.payload), harness.now) is None
    assert harness.run().records[-1]["taken"] == 4


def test_strategies(tmp_path):
    """UC goes on with those who are there, AS gives the round up: the network stays, the round counts."""
    order = recipe("fedaws", run={"rounds": 2})
    found = {}
    for strategy in ("uc", "as"):
        harness = Loopback(tmp_path / strategy, order, terms={"strategy": strategy})
        harness.filter = lambda ask, reply: [] if ask.node == "1" and ask.id.endswith("train/1/0") else [reply]
        found[strategy] = harness.run()
    assert [record["taken"] for record in found["uc"].records] == [3, 4]
    assert [record["taken"] for record in found["as"].records] == [0, 4]
    assert alike(found["as"].state.theta_P, without(order, {0: {0, 1, 2, 3}}).theta_P)


def test_the_first_answers_end_a_round(tmp_path):
    """Over-selection and response rate: three are required, four are asked, two end it."""
    order = recipe("fedaws", run={"rounds": 2})
    harness = Loopback(tmp_path, order, terms={"required": 3, "over": 1.3, "response": 0.6})
    server = harness.run()
    assert [(record["asked"], record["taken"]) for record in server.records] == [(4, 2), (4, 2)]
    assert server.counts["not needed"] + server.counts["round"] + server.counts["not asked"] >= 2


def test_devices_join_while_it_runs(tmp_path):
    """The tables get rows for them between two rounds, as in the simulator."""
    order = recipe("fedhide", run={"rounds": 4})
    harness = Loopback(tmp_path, order, terms={"required": 3})
    late = harness.devices.pop("3")
    harness.server.begin(["0", "1", "2"], 0.0)
    while harness.server.round < 2:
        harness.turn()
    harness.devices["3"] = late
    harness.terms["required"] = 4
    harness.reopen_server()  # with all four, of which three are to do the round that was open
    state_before = harness.server.state
    assert state_before is not None and state_before.present == 3
    harness.run()
    problem = prepare(order)
    state, engine = begin(problem, 3), Engine(problem, "reference")
    assert [record["asked"] for record in harness.server.records] == [3, 3, 3, 4]
    engine.run(state, make_plan(order, 0, 3, 3))
    join(problem, state)
    engine.run(state, make_plan(order, 3, 1, 4))
    assert apart(harness, state) <= ROUNDING


def test_a_round_that_is_repeated_does_not_grow(tmp_path):
    """Its requests must be what they were, or the devices that have answered would refuse."""
    order = recipe("fedhide", run={"rounds": 2})
    harness = Loopback(tmp_path, order, terms={"required": 3})
    late = harness.devices.pop("3")
    harness.server.begin(["0", "1", "2"], 0.0)
    harness.filter = lambda ask, reply: [reply] if "register" in ask.id else []
    harness.turn()
    harness.turn()
    assert harness.server._round is not None
    harness.filter = lambda ask, reply: [reply]
    harness.devices["3"] = late
    harness.reopen_server()
    harness.run()
    assert [record["asked"] for record in harness.server.records] == [3, 3]
    assert not [name for name in harness.server.counts if name.startswith("device")]


def test_devices_leave(tmp_path):
    order = recipe("fedaws", run={"rounds": 4})
    harness = Loopback(tmp_path, order)
    while harness.server.round < 2:
        harness.turn()
    harness.server.begin(["0", "1", "3"], harness.now)
    harness.run()
    assert [record["taken"] for record in harness.server.records][-1] == 3


def hostile(server: Server, reply: bytes) -> dict[str, list[bytes]]:
    """Answers that are none, by the reason for which they are refused."""
    good = decode(reply, expected=server._forms["trained"])
    network, rest = good.fields["network"], {k: v for k, v in good.fields.items() if k != "network"}
    meta = {**good.meta}

    def again(round=good.round, kind="trained", meta=meta, **fields):
        return encode(kind, round, meta, {"network": network, **rest, **fields})

    nan, inf = network.clone(), network.clone()
    nan[0], inf[-1] = math.nan, math.inf
    return {
        "finite": [again(network=nan), again(network=inf), again(proxy=rest["proxy"] * math.nan)],
        "shape": [again(network=network[:-1]), again(network=network[None]), again(proxy=rest["proxy"].repeat(2, 1))],
        "dtype": [again(network=network.float()), again(network=network.half()), again(proxy=rest["proxy"].long())],
        "fields": [
            again(class_embedding=rest["proxy"]),
            again(codeword=rest["proxy"]),
            encode("trained", good.round, meta, {"network": network}),
        ],
        "norm": [again(network=network + 1e6), again(proxy=rest["proxy"] * 1e9)],
        "round": [again(round=good.round + 1), again(round=10**9)],
        "run": [again(meta={**meta, "run": "another"})],
        "plan": [again(meta={**meta, "plan": "another"})],
        "meta": [again(meta={**meta, "loss": 0.1})],
        "kind": [again(kind="train"), again(kind="embed"), again(kind="")],
        "size": [bytes(10**8), reply + bytes(2 * MOST_META)],
        "form": [
            b"",
            bytes(100),
            reply[:-1],
            reply[: len(reply) // 2],
            (2**62).to_bytes(8, "little"),
            (MOST_META + 1).to_bytes(8, "little") + b" " * (MOST_META + 1),
        ],
        "not asked": [encode("registered", 0, {"run": server.run}, {})],
    }


def test_hostile_answers(tmp_path):
    """Each is refused by its reason and counted; the round completes without it, and nothing is written."""
    order = recipe("fedgn", run={"rounds": 1})
    harness, expected = Loopback(tmp_path, order), []

    def attack(ask, reply):
        if ask.node != "3" or "register" in ask.id:
            return [reply]
        cases = hostile(harness.server, reply)
        expected.extend(why for why, some in cases.items() for _ in some)
        return [payload for some in cases.values() for payload in some]

    harness.filter = attack
    server = harness.run()
    assert harness.reasons == expected and len(expected) > 25
    assert server.counts == {"registered": 4, "taken": 3, **{why: expected.count(why) for why in set(expected)}}
    assert alike(server.state.theta_P, without(order, {0: {3}}).theta_P)
    files = sorted(path.name for path in (tmp_path / "server").rglob("*") if path.is_file())
    assert files == [
        "model.safetensors",
        "nodes.json",
        "recipe.toml",
        "rounds.jsonl",
        "samples.json",
        "state.safetensors",
    ]


@pytest.mark.parametrize("why", ["finite", "shape", "fields", "size", "form", "kind", "norm"])
def test_one_hostile_answer_ends_the_wait_for_its_node(tmp_path, why):
    """The others are not held up: the round takes no time beyond their answers."""
    order = recipe("fedgn", run={"rounds": 2})
    harness = Loopback(tmp_path, order)

    def attack(ask, reply):
        bad = ask.node == "0" and ask.id.endswith("train/0/0")
        return [hostile(harness.server, reply)[why][0]] if bad else [reply]

    harness.filter = attack
    server = harness.run()
    assert harness.reasons == [why]
    assert [(record["taken"], record["seconds"]) for record in server.records] == [(3, 0.0), (4, 0.0)]


@settings(max_examples=60)
@given(data=st.data())
def test_any_bytes_leave_the_server_as_it_was(tmp_path_factory, data):
    """Changed, cut or random bytes from any node at any time: one of the reasons, no exception, the state untouched."""
    harness = opened(tmp_path_factory)
    server, replies = harness.server, harness.replies
    node = data.draw(st.sampled_from(["0", "1", "2", "3", "stranger"]))
    payload = bytearray(data.draw(st.sampled_from([*replies.values(), b"\x00" * 64])))
    for _ in range(data.draw(st.integers(1, 5))):
        payload[data.draw(st.integers(0, min(len(payload), 600) - 1))] = data.draw(st.integers(0, 255))
    before = {name: value.clone() for name, value in server.state.tensors().items()}
    reason = server.answer(node, bytes(payload), 0.0)
    assert reason is None or reason in REASONS
    for name, value in server.state.tensors().items():
        assert torch.equal(value, before[name])


_opened: list[Loopback] = []


def opened(factory) -> Loopback:
    """A run whose first round is open, with its replies in hand."""
    if not _opened:
        harness = Loopback(factory.mktemp("open"), recipe("fedgn"))
        harness.turn()
        harness.replies = {ask.node: harness.devices[ask.node].reply(ask.payload) for ask in harness.server.step(0.0)}
        _opened.append(harness)
    return _opened[0]


def test_an_update_longer_than_agreed_is_refused(tmp_path):
    """The clip stands in the terms: an honest device keeps to it, and who does not is not taken."""
    order = recipe("fedgn", run={"rounds": 1}, sums={"clip": 0.01})
    harness = Loopback(tmp_path, order)

    def longer(ask, reply):
        if ask.node != "2" or "train" not in ask.id:
            return [reply]
        fields = load(reply)
        change = fields["network"] - load(ask.payload)["network"]
        fields["network"] = fields["network"] + change
        said = decode(reply, expected=harness.server._forms["trained"]).meta
        return [encode("trained", 0, said, fields)]

    harness.filter = longer
    harness.run()
    assert harness.server.counts["norm"] == 1 and harness.server.records[0]["taken"] == 3
    assert float((harness.server.state.theta_P - harness.server.problem.model.first_theta).norm()) <= 0.0101


def test_places_and_owners(tmp_path):
    """Where nothing is seeded: numbers in the order of registration, one class an owner, no more than there is room."""
    server = Server(tmp_path, recipe("fedhide"), Terms(required=9, fewest=0), federation=digits())
    owners = {"a": "ann", "b": "bob", "c": "ann", "d": "", "e": "eve"}
    server.begin(list(owners), 0.0)
    for ask in server.step(0.0):
        device = Device(tmp_path / "devices" / ask.node, "digits:3", owner=owners[ask.node], trial=True)
        server.answer(ask.node, device.reply(ask.payload), 0.0)
    assert {node: (seat.client, seat.label) for node, seat in server.seats.items()} == {
        "a": (0, 0),
        "b": (1, 1),
        "c": (2, 0),
        "d": (3, 2),
    }
    assert server.counts == {"registered": 4, "full": 1}
    again = Server(tmp_path, recipe("fedhide"), Terms(required=9, fewest=0), federation=digits())
    assert again.seats == server.seats and again.run == server.run


def test_a_place_that_is_taken(tmp_path):
    harness = Loopback(tmp_path, recipe("fedhide"), terms={"required": 3})
    harness.devices["3"] = Device(tmp_path / "twin", "digits:2", simulate=True)
    harness.run()
    assert harness.server.counts["full"] >= 1 and "3" not in harness.server.seats


def test_a_server_without_data(tmp_path):
    """It needs to know what samples look like, and no more."""
    known = digits()
    blank = without_samples(known.shape, "uint8", 4, 4, known.mean, known.std)
    order = recipe("fedhide", run={"rounds": 3})
    harness = Loopback(tmp_path, order, options={"federation": blank})
    harness.run()
    assert apart(harness, simulated(order)) <= ROUNDING
    with pytest.raises(SelfsameError, match="uint8"):
        without_samples((1, 8, 8), "uint4", 4, 4)
    with pytest.raises(SelfsameError, match="classes"):
        without_samples((1, 8, 8), "uint8", 4, 5)


def test_the_folder(tmp_path):
    order = recipe("fedhide")
    harness = Loopback(tmp_path, order)
    harness.run()
    model = load((tmp_path / "server" / "model.safetensors").read_bytes())
    assert sum(value.numel() for value in model.values()) == len(harness.server.state.theta_P)
    assert not [name for name in load((tmp_path / "server/checkpoint/state.safetensors").read_bytes()) if "own" in name]
    lines = [json.loads(line) for line in (tmp_path / "server/rounds.jsonl").read_text().splitlines()]
    assert lines == harness.server.records and lines[0].keys() == {
        "round",
        "asked",
        "taken",
        "seconds",
        "down",
        "up",
        "counts",
    }
    (tmp_path / "server/rounds.jsonl").write_text(json.dumps(lines[0]) + '\n{"round": 2, "as')
    harness.reopen_server()
    assert harness.server.done and harness.server.records == lines[:1] and harness.server.step(0.0) == []


def test_another_recipe_in_the_folder(tmp_path):
    terms = Terms(required=4)
    Server(tmp_path / "a", recipe("fedhide"), terms, seeded=True)
    with pytest.raises(SelfsameError, match="another recipe"):
        Server(tmp_path / "a", recipe("fedhide", local={"lr": 0.2}), terms, seeded=True)
    (tmp_path / "a" / "nodes.json").write_text('{"format": 1}')
    with pytest.raises(SelfsameError, match="damaged"):
        Server(tmp_path / "a", recipe("fedhide"), terms, seeded=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("")
    with pytest.raises(SelfsameError, match="holds no run"):
        Server(tmp_path / "b", recipe("fedhide"), terms)


def test_plan_is_the_simulators():
    """The plan that the comparisons above use asks everybody."""
    plan = make_plan(recipe("fedhide"), 0, 2, 4)
    assert isinstance(plan, Plan) and plan.alive_TM.all() and plan.client_TM.tolist() == [[0, 1, 2, 3]] * 2
