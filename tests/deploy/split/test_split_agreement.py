"""The terms of split rounds and their messages, read strictly."""

import copy
import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from split_loop import NOISE, a_recipe, digits, reasons

from selfsame.deploy.codec import Refused, as_tensor, decode, encode
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.agreement import SplitAgreement, derived, from_hex
from selfsame.deploy.split.device import SplitDevice
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError


@functools.cache
def agreed(**method):
    problem = prepare(a_recipe(method=method), digits())
    return SplitAgreement.of(problem, Terms(4), "a run", True), problem


def leaves(value, path=()):
    """The paths to everything that is no table."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return (
        [path] if not isinstance(value, dict | list) else [found for k, v in items for found in leaves(v, (*path, k))]
    )


ANY = st.one_of(
    st.none(), st.booleans(), st.integers(-300, 300), st.floats(allow_nan=False), st.text(max_size=5),
    st.lists(st.integers(0, 9), max_size=3), st.dictionaries(st.text(max_size=3), st.integers(0, 9), max_size=2),
)  # fmt: skip


@settings(max_examples=60)
@given(st.data())
def test_terms_are_read_whole_or_not_at_all(tmp_path_factory, data):
    """One value changed to any other: it is refused in one line, or they are other terms."""
    agreement, _ = agreed()
    given_ = copy.deepcopy(agreement.to_json())
    *path, last = data.draw(st.sampled_from(leaves(given_)))
    place = functools.reduce(lambda part, key: part[key], path, given_)
    before, place[last] = place[last], data.draw(ANY)
    same = type(before) is type(place[last]) and before == place[last]
    try:
        found = SplitAgreement.from_json(given_)
    except SelfsameError:
        assert not same
        return
    assert (found.digest == agreement.digest) == same
    device = SplitDevice(tmp_path_factory.mktemp("device"), torch.zeros(3, 1, 8, 8, dtype=torch.uint8), simulate=True)
    message = encode("register", 0, {"run": "a run", "agreement": given_, "attested": ""}, {})
    assert reasons(device.reply(message)) in (None, "plan", "run", "samples")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["mean", "std", "gradient_clip", "lr"])
def test_every_number_of_the_terms_is_finite(name, value):
    terms = copy.deepcopy(agreed()[0].to_json())
    if name == "lr":
        terms["recipe"]["local"]["lr"] = value
    else:
        terms[name] = [value] if name in ("mean", "std") else value
    with pytest.raises(SelfsameError, match=name) as caught:
        SplitAgreement.from_json(terms)
    assert "\n" not in str(caught.value)


@given(st.recursive(ANY, lambda inner: st.dictionaries(st.text(max_size=4), inner, max_size=3), max_leaves=6))
def test_what_is_no_agreement_is_one_line(whatever):
    with pytest.raises(SelfsameError, match="agreement"):
        SplitAgreement.from_json(whatever)


def test_the_plan_says_what_the_terms_say():
    agreement, problem = agreed(**NOISE, margin=0.5)
    plan = agreement.mandate(problem)
    assert plan.privacy == {"kind": "gaussian", "drop": 0.0, "clip": 0.5, "scale": 0.5}
    assert plan.loss["margin"] == 0.5 and plan.loss["kind"] == "multi-similarity"
    assert (plan.participants, plan.gradients, plan.samples, plan.rounds) == (4, 3, 5, 2)
    assert (plan.dim, plan.parameters) == (8, problem.model.parameters)
    assert agreement.digest in plan.network
    assert agreed()[0].mandate(agreed()[1]).privacy == {"kind": "none"}


@pytest.mark.parametrize(
    ("terms", "least"),
    [
        (Terms(8, response=0.75), 3),
        (Terms(8, response=0.75, strategy="as"), 6),
        (Terms(4, response=0.5), 2),
        (Terms(8, fewest=4), 5),
    ],
)
def test_the_least_number_of_gradients(terms, least):
    problem = prepare(a_recipe(), digits())
    assert SplitAgreement.of(problem, terms, "a run", True).gradients == least


def test_an_enclave_has_no_sum_of_one():
    problem = prepare(a_recipe(), digits())
    with pytest.raises(SelfsameError, match="at least 2"):
        SplitAgreement.of(problem, Terms(4, response=0.25), "a run", True).mandate(problem)


@given(st.binary(max_size=200))
def test_sealed_bytes_travel_as_they_are(content):
    agreement, problem = agreed()
    payload = encode("derive", 0, {"run": "x"}, {"sealed": as_tensor(content)})
    message = decode(payload, expected=derived(agreement.mandate(problem)))
    assert bytes(message.fields["sealed"].numpy()) == content


def test_more_bytes_than_a_gradient_takes_are_refused():
    agreement, problem = agreed()
    expected = derived(agreement.mandate(problem))
    most = expected.fields["sealed"].most
    for length, why in ((most + 1, "shape"), (2 * expected.most_bytes, "size")):
        with pytest.raises(Refused, match=why):
            decode(encode("derive", 0, {"run": "x"}, {"sealed": as_tensor(bytes(length))}), expected=expected)


def test_digits_are_hexadecimal():
    assert from_hex("00ff") == b"\x00\xff" and from_hex("") == b""
    with pytest.raises(Refused, match="meta"):
        from_hex("0g")
