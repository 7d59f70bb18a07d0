"""The registry, what is kept of an audit, and that every attacker fits or stays away."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from selfsame.audit import attackers, suite
from selfsame.audit.attackers import Audited, Finding, audit_record, chosen, findings, register, strongest
from selfsame.audit.picture_reader import PictureReader
from selfsame.audit.readers import ReportReader, SumReader, UpdateReader
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.errors import SelfsameError
from selfsame.methods import METHODS

OPTIONS = {
    "feduv": {"code_length": 31, "secrets": "seeded"},
    "feduv-negative": {"code_length": 31, "secrets": "seeded"},
}
PASSIVE = (ReportReader(), UpdateReader(), SumReader())


def case_of(name, rounds=2, **parts):
    tables = {
        "method": {"name": name, **OPTIONS.get(name, {}), **parts.pop("method", {})},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "channels": [4, 4], **({"bias": False} if name == "deepsvdd" else {})},
        "local": {"batch": 4, **parts.pop("local", {})},
        "run": {"device": "cpu", "precision": "float64", "rounds": 20},
        **parts,
    }
    problem = prepare(from_mapping(tables), load("synthetic", clients=12, samples=5, held_out=2))
    return Audited(problem, begin(problem), rounds, steps=3)


def finding(identified, chance=0.1, under="any", cosine=0.5, **rest):
    return Finding("one", "did", "server", under, identified, cosine, chance, **rest)


def test_the_strongest_is_farthest_above_chance_where_it_can_happen():
    weak, strong = finding(0.5), finding(0.9, chance=0.2)
    assert strongest([weak, strong, finding(1.0, under="clear")], "masked") == strong
    assert strongest([weak, strong, finding(1.0, under="clear")], "clear").identified == 1
    assert strongest([weak, finding(0.9, under="sums")], "enclave").under == "sums"
    assert strongest([weak, finding(1.0, compared=True), finding(1.0, vectors=False)], "clear") == weak
    assert strongest([weak, finding(0.5, cosine=0.8)], "clear").cosine == 0.8
    assert strongest([finding(0.1), finding(None)], "clear") is None


@dataclass(frozen=True)
class Guesser:
    """An attacker of somebody else's."""

    name: str = "guesser"

    def fits(self, case: Audited) -> bool:
        return True

    def run(self, case: Audited) -> Iterator[Finding]:
        yield Finding(self.name, "guessed", "public", "any", 0.25, 0.0, 0.1)


def test_one_line_adds_an_attacker(monkeypatch):
    monkeypatch.setattr(attackers, "ATTACKERS", {})
    monkeypatch.setattr(suite, "ATTACKERS", attackers.ATTACKERS)
    register(Guesser())
    suite.load()
    assert [one.name for one in chosen([])] == ["guesser", *(one.name for one in suite.KNOWN)]
    case = case_of("feduv")
    found = findings(case, chosen(["guesser"]))
    record = audit_record(case, found, "a run")
    assert record["strongest"]["attacker"] == "guesser" and record["findings"][0]["applies"]
    with pytest.raises(SelfsameError, match="did you mean 'guesser'"):
        chosen(["gueser"])


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_audited(name):
    """Whatever fits runs, on a copy: the run's own state is as it was."""
    case = case_of(name)
    before = {key: value.clone() for key, value in case.state.tensors().items()}
    found = findings(case, PASSIVE)
    assert bool(found) != (name == "deepsvdd")  # which sends nothing
    for one in found:
        assert one.identified is None or 0 <= one.identified <= 1
        assert 0 < one.chance <= 1 and one.seconds >= 0
    assert case.state.round == 0
    assert all(torch.equal(before[key], value) for key, value in case.state.tensors().items())


@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_nothing_and_all_of_the_prototype(alpha):
    """Without a trace of it the proxy is all there is to see; with nothing else the proxy is the prototype."""
    found = {one.did: one for one in ReportReader().run(case_of("fedhide", method={"alpha": alpha, "neighbours": 3}))}
    assert set(found) == {"as shared, (17)", "at a standstill", "real reports"}
    for did in ("at a standstill", "real reports"):
        assert found[did].identified == 1 if alpha else found[did].cosine < 0.9


def test_several_steps_are_unrolled_and_one_is_not():
    one = [found.did for found in UpdateReader().run(case_of("fedgn"))]
    several = [found.did for found in UpdateReader().run(case_of("fedgn", local={"steps": 2}))]
    assert "one, unrolled" not in one and "one, unrolled" in several


def test_a_summed_run_shows_its_own_groups():
    parts = {"sums": {"aggregation": "masked"}, "cohort": {"size": 6}}
    case = case_of("feduv", **parts)
    assert case.group == 6
    found = {one.did: one for one in findings(case, PASSIVE)}
    assert found["a sum of 6"].applies("masked") and found["a sum of 6"].chance == pytest.approx(1 / 6)
    assert not found["a sum of 2"].applies("masked") and not found["one update"].applies("masked")
    assert found["groups of 6"].identified <= 1 / 6 + 1e-9


def test_random_cohorts_are_told_apart_over_rounds():
    case = case_of("feduv", rounds=60, cohort={"size": 4, "weights": "uniform"})
    going_on, first = SumReader().run(case)
    assert going_on.did == "cohorts of 4" and going_on.chance == case.chance
    assert going_on.identified > 0.8 and going_on.rounds == 60 and going_on.who == "public"
    assert first.rounds == 20 and first.identified > going_on.chance


def test_a_copy_goes_on_at_the_full_rate():
    case = case_of("feduv", local={"schedule": "cosine"})
    assert case.going_on.recipe.local.schedule == "constant"
    assert case.going_on.recipe.local.lr == case.problem.recipe.local.lr


def test_guesses_of_zero_find_nobody():
    case = case_of("feduv")
    truth = case.truth()
    assert case.judged(case.everyone, truth) == (1, pytest.approx(1))
    half = truth.clone()
    half[:6] = 0
    assert case.judged(case.everyone, half)[0] == 0.5
    assert replace(finding(1.0), under="masked").applies("enclave") is False


def test_found_pictures_are_judged_by_lpips_where_its_weights_are_given(random_lpips):
    case = case_of("fixed")
    plain, judged = (
        [one.said for one in PictureReader().run(here)] for here in (case, replace(case, judge=random_lpips))
    )
    assert len(plain) == len(judged) == 2
    for before, after in zip(plain, judged, strict=True):
        assert "LPIPS" not in before
        assert after.startswith(before) and " for one of them" in after
