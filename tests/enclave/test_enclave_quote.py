"""Quotes, and the plan that they bind."""

import hashlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from split_small import a_plan

from selfsame.enclave import quote
from selfsame.enclave.mandate import Mandate

KEY, NONCE, DIGEST = b"k" * 32, b"n" * 32, b"p" * 32


def test_report_data_by_hand():
    expected = hashlib.sha512(b"selfsame enclave 1\n" + KEY + NONCE + DIGEST).digest()
    assert quote.report_data(KEY, NONCE, DIGEST) == expected
    assert len(expected) == 64


def test_report_data_depends_on_each_part():
    parts = [KEY, NONCE, DIGEST]
    seen = {quote.report_data(*parts)}
    for i in range(3):
        seen.add(quote.report_data(*[bytes(32) if j == i else part for j, part in enumerate(parts)]))
    assert len(seen) == 4
    with pytest.raises(ValueError, match="32 bytes"):
        quote.report_data(KEY + b"x", NONCE[1:], DIGEST)


def test_without_hardware_the_quote_says_so(tmp_path):
    data = bytes(range(64))
    raw = quote.take(data, tmp_path / "none", tmp_path / "none")
    assert b"SIMULATED" in raw
    assert quote.simulated_data(raw) == data
    assert quote.simulated_data(raw[:-1]) is None
    assert quote.simulated_data(b"x" + raw[1:]) is None


def test_gramine_is_asked_where_there_is_one(tmp_path):
    (tmp_path / "quote").write_bytes(b"the hardware's")
    assert quote.take(bytes(range(64)), tmp_path, tmp_path / "none") == b"the hardware's"
    assert (tmp_path / "user_report_data").read_bytes() == bytes(range(64))


def test_a_tdx_guest_is_asked_where_there_is_one(tmp_path, monkeypatch):
    from pathlib import Path

    make = Path.mkdir

    def configfs(path, *args, **options):
        make(path, *args, **options)
        (path / "outblob").write_bytes(b"the hardware's")

    monkeypatch.setattr(Path, "mkdir", configfs)
    for _ in range(2):  # the entry is there the second time
        assert quote.take(bytes(range(64)), tmp_path / "none", tmp_path) == b"the hardware's"
    (entry,) = tmp_path.iterdir()
    assert (entry / "inblob").read_bytes() == bytes(range(64))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_simulated_quote(raw):
    assert quote.simulated_data(raw) is None


def test_a_plan_is_written_in_one_way():
    plan = a_plan()
    data = plan.canonical()
    whole = json.loads(data)
    assert data == json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()
    assert Mandate.read(data) == plan
    turned = a_plan(loss=dict(reversed(plan.loss.items())))
    assert turned.digest() == plan.digest() == hashlib.sha256(b"selfsame plan 1\n" + data).digest()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("network", "another"),
        ("dim", 4),
        ("parameters", 16),
        ("loss", {"kind": "batch-all", "margin": 0.25}),
        ("privacy", {"kind": "laplace", "clip": 2e-5, "scale": 1e-5}),
        ("participants", 4),
        ("gradients", 3),
        ("samples", 5),
        ("embedding_clip", 1.0),
        ("gradient_clip", 1.0),
        ("rounds", 5),
    ],
)
def test_every_field_counts(name, value):
    assert a_plan(**{name: value}).digest() != a_plan().digest()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"dim": 0}, "dim"),
        ({"dim": True}, "dim"),
        ({"parameters": 2.0}, "parameters"),
        ({"participants": 1}, "participants"),
        ({"gradients": 1}, "gradients"),
        ({"gradients": 4}, "gradients is at most"),
        ({"embedding_clip": float("nan")}, "embedding_clip"),
        ({"gradient_clip": 0.0}, "gradient_clip"),
        ({"network": ""}, "network"),
        ({"loss": {"margin": float("inf")}}, "loss"),
        ({"loss": {"kind": ["a"]}}, "loss"),
        ({"privacy": "none"}, "privacy"),
    ],
)
def test_a_bad_plan_is_refused(changes, says):
    with pytest.raises(ValueError, match=says):
        a_plan(**changes)


def test_only_the_canonical_form_is_read():
    data = a_plan().canonical()
    whole = json.loads(data)
    for other in (
        data + b"\n",
        data.replace(b'"dim":3', b'"dim":9,"dim":3'),
        json.dumps(whole).encode(),
        json.dumps(whole | {"extra": 1}, sort_keys=True, separators=(",", ":")).encode(),
        b"[" * 60_000,
        b"{}",
        b"NaN",
        b"\xff",
        data + b" " * 70_000,
    ):
        with pytest.raises(ValueError):
            Mandate.read(other)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_plan_or_a_value_error(data):
    with pytest.raises(ValueError):
        Mandate.read(data)


@given(st.floats(1e-9, 1e14), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=20).filter(bool))
def test_what_is_written_is_read(norm, margin, network):
    plan = a_plan(embedding_clip=norm, loss={"margin": margin}, network=network)
    assert Mandate.read(plan.canonical()) == plan
