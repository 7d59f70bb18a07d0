"""A device's own policy: terms that break it are refused with the reason, whatever the server says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
from loopback import digits, recipe
from split_loop import NOISE, a_recipe

from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Spec, decode, encode
from selfsame.deploy.device import Device
from selfsame.deploy.guest import REFUSED_TERMS
from selfsame.deploy.policy import TRIAL, DevicePolicy
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.agreement import SplitAgreement
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.nets import build, size

OPEN = replace(TRIAL, clear=True)


def terms_of(name="fedhide", options=None, **parts) -> Agreement:
    return Agreement.of(prepare(recipe(name, options, **parts), digits()), "a run", "exact", False)


def offered(device: Device, terms) -> str:
    """How the device answers terms: "registered", or the reason why not."""
    reply = device.reply(encode("register", 0, {"run": terms.run, "agreement": terms.to_json(), "attested": ""}, {}))
    try:
        return decode(reply, expected=Spec("refused", meta={"reason": str})).meta["reason"]
    except Exception:
        return "registered"


@dataclass(frozen=True)
class Sums:
    aggregation: str = "masked"
    group: int = 8
    least: int = 4
    noise: float = 0.0
    helpers: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Summed:
    """Terms as far as a policy reads them."""

    recipe: object
    sums: Sums | None
    shape: tuple[int, ...] = (1, 8, 8)


def test_terms_that_nobody_has_read_are_refused(tmp_path):
    """On the review's commit a device without `agreed` took the first terms it was offered."""
    terms = terms_of()
    device = Device(tmp_path / "a", "digits:1", rules=OPEN)
    assert offered(device, terms) == "policy" and device.keep.read().notes == {}
    words = (tmp_path / "a" / REFUSED_TERMS).read_text()
    assert terms.digest in words and "agreed" in words and words.count("\n") == 1
    assert offered(Device(tmp_path / "b", "digits:1", rules=OPEN, agreed=terms.digest), terms) == "registered"
    assert offered(Device(tmp_path / "c", "digits:1", trial=True), terms) == "registered"
    assert offered(Device(tmp_path / "d", "digits:1", trial=True, agreed="0" * 64), terms) == "plan"


@pytest.mark.parametrize(
    ("name", "options", "parts", "word"),
    [
        ("fedhide", {}, {}, "(clear)"),
        ("fedhide", {"alpha": 1.0}, {}, "(shown)"),
        ("fedgn", {"sigma": 0.0}, {}, "(shown)"),
        ("fedcs", {"cosine": 1.0}, {}, "(shown)"),
        ("fedaws", {}, {}, "(shown)"),
        ("fedmetric-true", {}, {}, "(shown)"),
        ("fedhide", {}, {"run": {"rounds": 10**6}}, "(rounds)"),
        ("fedhide", {}, {"local": {"steps": 10**12}}, "(work)"),
        ("fedhide", {}, {"local": {"epochs": 10**6}}, "(work)"),
    ],
)
def test_terms_beyond_the_policy_are_refused_though_they_were_agreed_to(tmp_path, name, options, parts, word):
    terms = terms_of(name, options, **parts)
    rules = DevicePolicy(clear=word != "(clear)")
    device = Device(tmp_path, "digits:1", agreed=terms.digest, rules=rules)
    assert offered(device, terms) == "policy" and device.keep.read().notes == {}
    assert word in (tmp_path / REFUSED_TERMS).read_text()


def test_a_large_network_is_refused(tmp_path):
    terms = terms_of()
    device = Device(tmp_path, "digits:1", agreed=terms.digest, rules=replace(OPEN, parameters=100))
    assert offered(device, terms) == "policy"
    assert "parameters, the policy allows 100" in (tmp_path / REFUSED_TERMS).read_text()


@pytest.mark.parametrize("name", ["lenet", "resnet18", "mobilefacenet"])
def test_a_network_is_measured_before_it_is_made(name):
    made = build(name, (3, 32, 32), 24)
    assert size(name, (3, 32, 32), 24) == sum(value.numel() for value in made.parameters())
    assert size(name, (3, 32, 32), 2**24) > 10**9 // 8  # which nobody here could hold


def test_code_by_its_name_is_refused(tmp_path):
    terms = terms_of()
    named = replace(terms, recipe=replace(terms.recipe, net=replace(terms.recipe.net, name="gift.helper:Net")))
    assert "gift.helper:Net" in TRIAL.broken(named, 10)
    assert "gift.helper:Net" in DevicePolicy(clear=True).broken(named, 10)
    with pytest.raises(SelfsameError, match="gift"):  # the policy lets it through, and there is no such module
        replace(OPEN, code=True).broken(named, 10)


def test_sums_of_too_few_are_refused():
    order = terms_of().recipe
    rules = DevicePolicy()

    def said(**sums):
        return rules.broken(Summed(order, Sums(**sums)), 10)

    assert said() == ""
    assert said(aggregation="enclave") == ""
    assert "(clear)" in said(aggregation="clear") and "(clear)" in rules.broken(Summed(order, None), 10)
    assert "(participants)" in said(group=7)
    assert "(answers)" in said(least=3)
    one, two = SimpleNamespace(name="ann"), SimpleNamespace(name="bob")
    picky = replace(rules, helpers=("ann",))
    assert picky.broken(Summed(order, Sums(helpers=(one, two))), 10) == ""  # one that is known will do
    assert "(helpers)" in picky.broken(Summed(order, Sums(helpers=(two,))), 10)
    assert "noise of 0 clips" in replace(rules, noise=0.1).broken(Summed(order, Sums()), 10)


@pytest.mark.parametrize(
    ("method", "required", "word"),
    [({}, 4, "(participants)"), ({}, 8, "(derivative_noise)"), (NOISE, 8, "")],
)
def test_split_rounds_have_a_floor_too(method, required, word):
    """FDML without noise, or with few participants, on the review's commit: accepted."""
    problem = prepare(a_recipe(method={"name": "fdml", **method}), digits())
    terms = replace(SplitAgreement.of(problem, Terms(4), "a run", True), required=required, gradients=4)
    said = DevicePolicy().broken(terms, 10)
    assert word in said if word else said == ""


def test_a_stricter_policy_ends_a_run_at_the_next_registration(tmp_path):
    terms = terms_of()
    assert offered(Device(tmp_path, "digits:1", rules=OPEN, agreed=terms.digest), terms) == "registered"
    assert offered(Device(tmp_path, "digits:1", rules=DevicePolicy(), agreed=terms.digest), terms) == "policy"


def test_the_file(tmp_path):
    path = tmp_path / "policy.toml"
    path.write_text('participants = 20\nclear = true\nhelpers = ["ab12"]\n')
    found = DevicePolicy.read(path)
    assert (found.participants, found.clear, found.helpers, found.rounds) == (20, True, ("ab12",), 100_000)
    for text, line in (("particpants = 3", "participants"), ("work = 0", "policy.work"), ('noise = "much"', "noise")):
        path.write_text(text)
        with pytest.raises(SelfsameError, match=line):
            DevicePolicy.read(path)


def test_which_methods_show_the_owners_vector():
    shows = {name for name, kind in METHODS.items() if kind().shows()}
    assert shows == {"positive-only", "fixed", "fedaws", "softmax", "feduv-negative", "fedmetric-true"}
