"""A helper against a server that lies, and against messages that are no messages."""

from __future__ import annotations

import json
import os
import random

import pytest
import torch
from loopback import digits
from masked_loop import MaskedLoopback, helper_terms, masked_recipe, register, sealing, signer
from safetensors.torch import load

from selfsame.deploy import guest
from selfsame.deploy.aggregation.groups import divided, joined, whose_turn
from selfsame.deploy.aggregation.helper import BLAMED, Helper, make_keys, read_keys, request, to_unmask
from selfsame.deploy.aggregation.sum_terms import HelperTerms, SumTerms
from selfsame.deploy.agreement import digest_of
from selfsame.deploy.codec import REASONS, REFUSED, decode, encode
from selfsame.enclave.message import REASONS as DENIED
from selfsame.enclave.records import Record
from selfsame.enclave.release import Asked
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    monkeypatch.setattr(guest, "load", lambda name, **options: digits(**options))


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """A run of two rounds, and every message to and from its helper and its devices."""
    folder, said = tmp_path_factory.mktemp("talk"), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        patch.setattr(guest, "load", lambda name, **options: digits(**options))
        harness = MaskedLoopback(folder, masked_recipe("fedaws", run={"rounds": 2}))
        harness.filter = lambda ask, reply: said.append((ask, reply)) or [reply]
        harness.run()
    return harness, said


def fresh_helper(folder, **rest) -> Helper:
    return Helper(folder / "helper", sealing(0), register(folder / "register", range(4)), **rest)


def unmask(talk, number=0) -> bytes:
    return [ask.payload for ask, _ in talk[1] if "unmask" in ask.id][number]


def reason(reply: bytes) -> str:
    return decode(reply, expected=BLAMED).meta["reason"]


def changed(payload: bytes, round: int | None = None, meta=None, **fields) -> bytes:
    message = decode(payload, expected=to_unmask())
    whole = {"run": message.run, **message.meta, **(meta or {})}
    return encode("unmask", message.round if round is None else round, whole, {**message.fields, **fields})


def test_once_a_round_also_after_a_restart(tmp_path, talk):
    payload = unmask(talk)
    first = fresh_helper(tmp_path).reply(payload)
    assert load(first)["masks"].shape == (talk[0].server.agreement.sums.numbers,)
    assert fresh_helper(tmp_path).reply(payload) == first  # the same again is no second release
    fields = decode(payload, expected=to_unmask()).fields
    other = changed(payload, records=fields["records"][:3])
    assert reason(fresh_helper(tmp_path).reply(other)) == "twice"
    assert fresh_helper(tmp_path / "new").reply(other) != first  # where it was the first, it may be asked for


def test_whom_it_helps(tmp_path, talk):
    payload = unmask(talk)
    fields = decode(payload, expected=to_unmask()).fields
    helper = fresh_helper(tmp_path)
    assert reason(helper.reply(changed(payload, members=fields["members"][:3]))) == "group"
    assert reason(helper.reply(changed(payload, round=1))) == "few"  # no record is of that round
    assert reason(helper.reply(changed(payload, meta={"network": "00" * 32}))) == "network"
    assert reason(helper.reply(changed(payload, meta={"plan": "00" * 32}))) == "plan"
    assert reason(helper.reply(changed(payload, meta={"run": "another"}))) == "plan"
    assert reason(fresh_helper(tmp_path, least=5).reply(payload)) == "group"
    (tmp_path / "register" / "device-2.pub").unlink()  # the server's word for a device is not enough
    told = decode(helper.reply(payload), expected=BLAMED).meta
    assert told["reason"] == "device" and told["nodes"] == [signer(2).name]
    stranger = Helper(tmp_path / "other", sealing(3), register(tmp_path / "all", range(4)))
    assert reason(stranger.reply(payload)) == "helper"
    assert not list(tmp_path.glob("helper/*.json"))


def test_terms_are_pinned(tmp_path, talk):
    """The rules of a run cannot be softened later on."""
    helper, payload = fresh_helper(tmp_path), unmask(talk)
    helper.reply(payload)
    terms = decode(payload, expected=to_unmask()).meta["agreement"]
    softer = json.loads(json.dumps(terms))
    softer["sums"]["stand_ins"] = 99
    told = changed(unmask(talk, 1), meta={"agreement": softer, "plan": digest_of(softer)})
    assert reason(helper.reply(told)) == "plan"


def test_a_server_that_sends_two_networks_gets_nothing(tmp_path):
    """One device is sent a network of its own: its answer is of no use, here to the server and else to the helper."""
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 1}))
    reply = harness.devices[signer(1).name].reply

    def other(payload):
        said = json.loads(
            json.loads(payload[8 : 8 + int.from_bytes(payload[:8], "little")])["__metadata__"]["selfsame"]
        )
        fields = load(payload)
        if said["kind"] == "train":
            fields["network"] = fields["network"] + 1e-9
        return reply(encode(said["kind"], said["round"], said["meta"], fields))

    harness.devices[signer(1).name].reply = other
    for _ in range(12):
        harness.turn()
    assert harness.server.counts["seal"] == 1 and harness.server.records[0]["taken"] == 3


def test_damage_is_never_a_new_beginning(tmp_path, talk):
    helper, payload = fresh_helper(tmp_path), unmask(talk)
    helper.reply(payload)
    (path,) = (tmp_path / "helper").glob("*.json")
    path.write_text("{}")
    assert reason(helper.reply(payload)) == "internal"


def mutants(payload: bytes, draw: random.Random, count: int):
    """Messages cut, lengthened, with some bytes changed, or out of nothing."""
    for number in range(count):
        kind = number % 4
        if kind == 0:
            yield payload[: draw.randrange(len(payload))]
        elif kind == 1:
            data = bytearray(payload)
            for _ in range(draw.randint(1, 4)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            yield bytes(data)
        elif kind == 2:
            yield payload + draw.randbytes(draw.randint(1, 50))
        else:
            head = draw.randint(0, 200)
            yield head.to_bytes(8, "little") + draw.randbytes(draw.randint(0, 300))


MANY = int(os.environ.get("SELFSAME_HOSTILE", "80"))  # of each kind; `make fuzz` sends 10,000


def test_hostile_messages_to_a_helper(tmp_path, talk):
    helper, payload = fresh_helper(tmp_path), unmask(talk)
    good = helper.reply(payload)
    before = {path.name: path.read_bytes() for path in (tmp_path / "helper").iterdir()}
    for message in mutants(payload, random.Random(1), MANY):
        reply = helper.reply(message)
        assert reply == good or reason(reply) in (*REASONS, *DENIED)
    assert {path.name: path.read_bytes() for path in (tmp_path / "helper").iterdir()} == before


def test_hostile_messages_to_a_server(tmp_path, talk):
    """From devices and from its helper, at any time: counted, and the round ends as it would have."""
    said = {ask.id.split("/")[1]: reply for ask, reply in talk[1]}
    draw = random.Random(2)
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 1}))
    helper = harness.terms_of_helpers[0].name
    bad = [*mutants(said["train"], draw, MANY), *mutants(said["unmask"], draw, MANY), *said.values()]
    draw.shuffle(bad)
    stages = [bad[place::4] for place in range(4)]

    def between(self):
        for message in stages.pop() if (stages and self.server._closed is not None) or len(stages) > 2 else ():
            self.server.answer(helper, message, self.now)

    harness.between = between
    harness.run()
    assert harness.server.records[0]["taken"] == 4
    assert sum(harness.server.counts.values()) >= MANY


def test_hostile_messages_to_a_device(tmp_path, talk):
    ask = next(ask for ask, _ in talk[1] if "train" in ask.id)
    harness = MaskedLoopback(tmp_path, masked_recipe("fedaws", run={"rounds": 1}))
    harness.turn()
    device = harness.devices[harness.place(0)]
    before = device.keep.read()
    for message in mutants(ask.payload, random.Random(3), MANY):
        assert decode(device.reply(message), expected=REFUSED).meta["reason"] in REASONS
    after = device.keep.read()
    assert (after.turn, after.notes) == (before.turn, before.notes)


def test_groups():
    nodes = [f"n{number}" for number in range(11)]
    assert [len(group) for group in divided(nodes, 4)] == [5, 6] and divided(nodes[:3], 4) == []
    assert sorted(sum(divided(nodes, 4), ())) == sorted(nodes)
    groups = divided(nodes[:8], 4)
    assert joined(groups, {"n0"}, 4, 8) == [groups[1] + groups[0]]  # one below its size joins another, whole
    assert joined(groups, {"n0"}, 4, 7) == groups and joined(groups, set(), 4, 8) == groups
    assert joined(groups[:1], {"n0"}, 4, 8) == groups[:1]  # there is no other
    assert [whose_turn(groups, nodes, 2, round) for round in range(3)] == [groups[0], groups[1], groups[0]]
    assert whose_turn(groups, nodes[3:], 2, 0) == groups[1] and whose_turn(groups, nodes[:1], 2, 0) is None


def test_keys_of_helpers(tmp_path):
    public = make_keys(tmp_path / "h.seal")
    assert read_keys(tmp_path / "h.seal").public_key().public_bytes_raw() == public
    with pytest.raises(SelfsameError, match="never written over"):
        make_keys(tmp_path / "h.seal")
    terms = helper_terms(0)
    terms.write(tmp_path / "h.helper")
    assert HelperTerms.read(tmp_path / "h.helper") == terms and terms.recipient == bytes.fromhex(terms.key)
    told = json.loads((tmp_path / "h.helper").read_text()) | {"key": "00" * 32}
    (tmp_path / "h.helper").write_text(json.dumps(told))
    with pytest.raises(SelfsameError, match="not signed"):
        HelperTerms.read(tmp_path / "h.helper")


@pytest.mark.parametrize(
    ("sums", "cohort", "said"),
    [
        ({"least": 1}, {}, "sums.least"),
        ({"least": 5}, {}, "sums.least"),
        ({"noise": 1.0}, {}, "uniform"),
        ({"bits": 16}, {"cap": 20_000}, "sums.bits"),
        ({"reach": 30.0}, {}, "sums.reach"),
    ],
)
def test_terms_that_cannot_work(sums, cohort, said):
    with pytest.raises(SelfsameError, match=said):
        SumTerms.of(prepare(masked_recipe("fedaws", sums=sums, cohort=cohort), digits()), 4, [helper_terms(0)])


def test_masks_need_a_helper():
    with pytest.raises(SelfsameError, match="needs a helper"):
        SumTerms.of(prepare(masked_recipe("fedaws"), digits()), 4)


def test_a_request_holds_no_update(talk):
    """What a helper is sent: names, sealed seeds, terms; and no number of a contribution."""
    fields = load(unmask(talk))
    assert set(fields) == {"members", "records"} and all(value.dtype == torch.uint8 for value in fields.values())
    assert fields["records"].shape == (4, 264)
    found = [Record.unpack(bytes(row.numpy())) for row in fields["records"]]
    terms = talk[0].server.agreement
    asked = Asked(
        terms.run, bytes.fromhex(terms.digest), 0, tuple(r.name for r in found), found[0].network, tuple(found)
    )
    assert load(request(asked, terms.to_json()))["records"].tolist() == fields["records"].tolist()
