"""Messages: what goes in comes out, equal messages are equal bytes, and anything else is refused by its reason."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from selfsame.deploy import codec
from selfsame.deploy.codec import REASONS, Field, Refused, Spec, decode, encode, glance
from selfsame.errors import SelfsameError

RUN = {"run": "abc", "plan": "p"}
FIELDS = {"network": torch.linspace(-1, 1, 7), "proxy": torch.full((1, 3), 0.5), "rows": torch.tensor([[1, -1]])}
SPEC = Spec(
    "trained",
    "abc",
    4,
    {"plan": str},
    {
        "network": Field((7,), torch.float32, 2.0, torch.zeros(7)),
        "proxy": Field((1, 3), torch.float32, 1.0),
        "rows": Field((1, -1), torch.int64, most=5),
    },
)


def message(kind="trained", round=4, meta=None, half=frozenset(), **fields):
    return encode(kind, round, RUN if meta is None else meta, {**FIELDS, **fields}, half)


def reason(payload: bytes, spec: Spec = SPEC) -> str:
    with pytest.raises(Refused) as caught:
        decode(payload, expected=spec)
    assert caught.value.reason in REASONS
    return caught.value.reason


def test_there_and_back():
    found = decode(message(), expected=SPEC)
    assert (found.kind, found.run, found.round, found.meta) == ("trained", "abc", 4, RUN)
    assert found.fields.keys() == FIELDS.keys()
    for name, value in FIELDS.items():
        assert torch.equal(found.fields[name], value) and found.fields[name].dtype == value.dtype
    assert glance(message(), SPEC.most_bytes) == ("trained", 4, RUN)


def test_equal_messages_are_equal_bytes():
    """A request that is written again after a crash must be the very same."""
    turned = encode("trained", 4, dict(reversed(RUN.items())), dict(reversed(FIELDS.items())))
    assert {message() for _ in range(20)} == {turned}


@given(st.lists(st.floats(-1e30, 1e30), min_size=1, max_size=40), st.integers(-90, 30))
def test_half_precision_keeps_eleven_bits(values, power):
    """Whatever the size of the numbers: every one within 2^-11 of itself, or of the largest times 2^-38."""
    value = torch.tensor(values, dtype=torch.float64) * 2.0**power
    payload = encode("x", 0, {"run": ""}, {"v": value}, frozenset({"v"}))
    assert len(payload) <= 2 * len(values) + 400
    spec = Spec("x", fields={"v": Field((len(values),), torch.float64, half=True)})
    found = decode(payload, expected=spec).fields["v"]
    top = max(abs(float(x)) for x in value)
    for got, want in zip(found.tolist(), value.tolist()):
        assert abs(got - want) <= max(2.0**-11 * abs(want), 2.0**-38 * top)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_half_precision_of_the_smallest_numbers(dtype):
    info = torch.finfo(dtype)
    value = torch.tensor([1.0, 0.0, 1000.0], dtype=dtype) * (info.tiny * info.eps)
    spec = Spec("x", fields={"v": Field((3,), dtype, half=True)})
    assert torch.equal(
        decode(encode("x", 0, {"run": ""}, {"v": value}, frozenset({"v"})), expected=spec).fields["v"], value
    )


def test_views_of_one_tensor():
    table = torch.arange(6.0).reshape(2, 3)
    fields = {"a": table, "b": table[0], "c": table.T}
    spec = Spec("x", fields={name: Field(tuple(value.shape), torch.float32) for name, value in fields.items()})
    found = decode(encode("x", 0, {"run": ""}, fields), expected=spec).fields
    assert all(torch.equal(found[name], value) for name, value in fields.items())


def test_a_message_without_tensors():
    spec = Spec("register", meta={"agreement": dict})
    payload = encode("register", 0, {"run": "r", "agreement": {"a": [1, 2.5]}}, {})
    assert decode(payload, expected=spec).meta["agreement"] == {"a": [1, 2.5]}


def test_too_much_beside_the_tensors_is_not_sent():
    with pytest.raises(SelfsameError, match="KiB"):
        encode("register", 0, {"run": "r", "agreement": "x" * codec.MOST_META}, {})


WRONG = {
    "kind": [message("train"), message("")],
    "run": [message(meta={**RUN, "run": "other"}), message(meta={"plan": "p"}), message(meta={**RUN, "run": 3})],
    "round": [message(round=3), message(round=5), message(round=-1), message(round=2**60)],
    "meta": [
        message(meta={"run": "abc"}),
        message(meta={**RUN, "more": 1}),
        message(meta={**RUN, "plan": 1}),
        message(meta={**RUN, "plan": None}),
    ],
    "fields": [
        message(codeword=torch.ones(3)),
        encode("trained", 4, RUN, {"network": FIELDS["network"]}),
        encode("trained", 4, RUN, {}),
    ],
    "shape": [
        message(network=torch.zeros(8)),
        message(network=torch.zeros(7, 1)),
        message(network=torch.zeros(())),
        message(rows=torch.zeros(1, 6, dtype=torch.int64)),
        message(proxy=torch.zeros(2, 3)),
    ],
    "dtype": [
        message(network=torch.zeros(7, dtype=torch.float64)),
        message(network=torch.zeros(7, dtype=torch.bfloat16)),
        message(network=torch.zeros(7, dtype=torch.int32)),
        message(rows=torch.zeros(1, 2)),
        message(half=frozenset({"network"})),
    ],
    "finite": [
        message(network=torch.tensor([0, 0, 0, math.nan, 0, 0, 0])),
        message(proxy=torch.tensor([[0, math.inf, 0]])),
        message(proxy=torch.tensor([[0, -math.inf, 0]])),
    ],
    "norm": [message(network=torch.full((7,), 0.8)), message(proxy=torch.tensor([[0.8, 0.8, 0.0]]))],
    "size": [message() + bytes(10**6), bytes(10**8)],
    "form": [
        b"",
        b"\x00" * 7,
        bytes(200),
        message()[:-1],
        message()[:50],
        message() + b"\x00",
        (2**63).to_bytes(8, "little") + b"{}",
        save(FIELDS),
        save(FIELDS, {"selfsame": "[1]"}),
        save(FIELDS, {"selfsame": "{", "other": "x"}),
        save(FIELDS, {"selfsame": "[" * 100_000}),
    ],
}


@pytest.mark.parametrize(("why", "number"), [(why, n) for why, some in WRONG.items() for n in range(len(some))])
def test_refused_by_reason(why, number):
    assert reason(WRONG[why][number]) == why


def test_the_size_is_looked_at_first(monkeypatch):
    """100 MB of zeros cost nothing."""

    def parse(*args, **kwargs):
        raise AssertionError("parsed")

    monkeypatch.setattr(codec.json, "loads", parse)
    monkeypatch.setattr(codec, "load", parse)
    assert reason(bytes(10**8)) == "size"


def raw(header: dict | bytes, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def said(**changes) -> dict:
    return {"format": "selfsame-message-1", "kind": "x", "round": 0, "scales": {}, "meta": {"run": ""}, **changes}


ONE = Spec("x", fields={"v": Field((2,), torch.float32, half=False)})
PLACE = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "data_offsets": [0, 4]}}, "form"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "data_offsets": [-8, 0]}}, "form"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": 3}, "form"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "shape": [-2]}}, "shape"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "shape": [2.0]}}, "shape"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "shape": [True, 2]}}, "shape"),
        ({"__metadata__": {"selfsame": json.dumps(said())}, "v": {**PLACE, "dtype": ["F32"]}}, "dtype"),
        ({"__metadata__": {"selfsame": json.dumps(said(scales={"v": 1.0}))}, "v": PLACE}, "dtype"),
        ({"__metadata__": {"selfsame": json.dumps(said(round=True))}, "v": PLACE}, "round"),
        ({"__metadata__": {"selfsame": json.dumps(said(meta=[]))}, "v": PLACE}, "form"),
        ({"__metadata__": {"selfsame": json.dumps(said(meta={"run": "", "x": math.nan}))}, "v": PLACE}, "form"),
        ({"__metadata__": {"selfsame": json.dumps(said(format="other"))}, "v": PLACE}, "form"),
        ({"__metadata__": {"selfsame": json.dumps({**said(), "more": 1})}, "v": PLACE}, "form"),
        ({"__metadata__": {"selfsame": 3}, "v": PLACE}, "form"),
        ({"v": PLACE}, "form"),
        (b'{"v":{},"v":{}}', "form"),
        (b"[]", "form"),
        (b"\xff\xfe", "form"),
        (b"1" * 5000, "form"),
    ],
)
def test_headers_written_by_hand(header, why):
    assert reason(raw(header, bytes(8)), ONE) == why


def test_a_false_scale():
    part = {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}
    spec = Spec("x", fields={"v": Field((2,), torch.float32, 1.0, half=True)})
    for scale, why in ((0.0, "finite"), (-1.0, "finite"), ("1", "finite"), (1, "finite"), (1e300, "finite")):
        data = torch.ones(2, dtype=torch.float16).numpy().tobytes()
        header = {"__metadata__": {"selfsame": json.dumps(said(scales={"v": scale}))}, "v": part}
        assert reason(raw(header, data), spec) == why
    header = {"__metadata__": {"selfsame": json.dumps(said(scales={"v": 100.0}))}, "v": part}
    assert reason(raw(header, data), spec) == "norm"


@settings(max_examples=60)
@given(st.data())
def test_changed_bytes_are_refused_or_within_bounds(data):
    """Nothing but `Refused` ever comes out, and what is taken keeps every promise of the spec."""
    good = message()
    payload = bytearray(good)
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(good)), st.integers(0, len(good))))
    try:
        found = decode(bytes(payload[:cut]), expected=SPEC)
    except Refused:
        return
    assert (found.kind, found.run, found.round) == ("trained", "abc", 4)
    assert float(found.fields["network"].norm()) <= 2.0 and float(found.fields["proxy"].norm()) <= 1.0
    assert found.fields["rows"].shape[0] == 1 and found.fields["rows"].dtype == torch.int64


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_any_bytes_are_refused(payload):
    assert reason(payload) == "form"


def test_bounds_are_measured_from_where_they_say():
    about = torch.full((7,), 10.0)
    spec = replace(SPEC, fields={**SPEC.fields, "network": Field((7,), torch.float32, 0.1, about)})
    assert reason(message(), spec) == "norm"
    decode(message(network=about + 0.01), expected=spec)
