"""The attackers on split rounds: what a device's gradient tells of its owner, and what the sums over cohorts do."""

import math
from dataclasses import replace

import pytest
import torch

from selfsame.audit import lines
from selfsame.audit.active import ActiveServer
from selfsame.audit.attackers import Audited, audit_record, findings
from selfsame.audit.differences import Way
from selfsame.audit.layers import LastLayer
from selfsame.audit.readers import SumReader, UpdateReader
from selfsame.audit.split_server import PAIRS, one_network_twice, two_networks
from selfsame.audit.split_updates import enrolled, gradients, split_updates
from selfsame.audit.suite import KNOWN
from selfsame.audit.transcript import Transcript, overheard
from selfsame.audit.updates import can_watch, watch
from selfsame.config.presets import preset
from selfsame.config.recipe import from_mapping, merged
from selfsame.engine.plan import make_plan
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import begin
from selfsame.methods.base import unit
from selfsame.methods.fdml import Fdml
from selfsame.methods.update_attack import Seen, seen_of

ONE = torch.tensor(1.0, dtype=torch.float64)


def case_of(rounds=0, watched=1, precision="float64", **parts):
    """FDML on digits, trained for some rounds."""
    tables = {
        "method": {"name": "fdml"},
        "data": {"name": "digits"},
        "run": {"device": "cpu", "precision": precision, "rounds": 200},
        "server": {"lr": 1e-3},
    }
    recipe = from_mapping(merged(preset("fdml", "digits"), tables, parts))
    problem = prepare(recipe)
    state = begin(problem)
    if rounds:
        Engine(problem).run(state, make_plan(problem.recipe, 0, rounds, state.present))
    return Audited(problem, state, watched)


def by_did(attacker, case):
    return {one.did: one for one in attacker.run(case)}


def loops(weight_DH, bias_D, layer_DH, offset_D):
    """What an update of one client tells of its embeddings' mean, with plain loops: sum over samples of z (d.S) / S.S,
    where dW = sum d h' and S = sum d are all that is known."""
    wide, deep = len(bias_D), len(weight_DH[0])
    square = sum(float(x) ** 2 for x in bias_D)
    along_H = [sum(float(weight_DH[i][k]) * float(bias_D[i]) for i in range(wide)) / square for k in range(deep)]
    return [sum(float(layer_DH[j][k]) * along_H[k] for k in range(deep)) + float(offset_D[j]) for j in range(wide)]


@pytest.mark.parametrize("samples", [1, 5])
def test_the_mean_is_read_off_an_update_whatever_the_derivatives_are(samples):
    draw = torch.Generator().manual_seed(samples)
    h_BH, d_BD = (torch.randn(samples, width, generator=draw, dtype=torch.float64) for width in (7, 4))
    layer_DH, offset_D = torch.randn(4, 7, generator=draw).double(), torch.randn(4, generator=draw).double()
    weight_DH, bias_D = d_BD.T @ h_BH, d_BD.sum(0)
    guess_1D = Fdml().attack_updates(seen_of(weight_DH[None], bias_D[None], layer_DH, offset_D))
    expected = torch.tensor(loops(weight_DH, bias_D, layer_DH, offset_D), dtype=torch.float64)
    torch.testing.assert_close(guess_1D[0], expected)
    emb_BD = h_BH @ layer_DH.T + offset_D
    share_B = d_BD @ bias_D / (bias_D @ bias_D)
    assert float(share_B.sum()) == pytest.approx(1)
    torch.testing.assert_close(guess_1D[0], share_B @ emb_BD)  # so of one sample it is the embedding
    if samples == 1:
        torch.testing.assert_close(guess_1D[0], emb_BD[0])


def test_what_is_far_too_long_for_an_embedding_is_nothing():
    seen = Seen(torch.eye(3).double()[None].repeat(2, 1, 1), torch.tensor([[1e-9, 0, 0], [0.5, 0, 0]]).double(), True)
    assert Fdml().attack_updates(seen).tolist() == [[0, 0, 0], [2, 0, 0]]


def test_updates_are_those_that_the_round_adds_up():
    """The whole cohort's sum is the step that the engine takes, by its other half."""
    case = case_of(3, server={"optimiser": "average", "lr": 1.0}, local={"lr": 0.5})
    problem, state = case.problem, case.copy()
    change_MP = split_updates(problem, state, case.everyone, ONE / 2)
    before_P = state.theta_P.clone()
    Engine(problem, "reference").run(state, make_plan(problem.recipe, 3, 1, state.present))
    torch.testing.assert_close(change_MP.mean(0), state.theta_P - before_P, rtol=1e-6, atol=1e-9)
    # Those who are not asked for fill the cohort up: the same loss, and the same updates.
    torch.testing.assert_close(split_updates(problem, case.state, case.everyone[3:6], ONE / 2), change_MP[3:6])


def test_moments_are_summed_and_read_back_from_adam():
    case = case_of(2)
    problem, state = case.problem, case.copy()
    plan = make_plan(problem.recipe, 2, 1, state.present)
    expected = watch(problem, state, case.everyone).seen.moment_MDD.sum(0)
    seen = overheard(problem, state, Engine(problem, "reference"), plan, moments=True)
    torch.testing.assert_close(seen.sum_TD[0], expected.flatten(), rtol=1e-5, atol=1e-8)


def test_a_whole_cohort_has_no_shift():
    """Distances do not change when all embeddings move together."""
    case = case_of()
    seen = watch(case.problem, case.state, case.everyone).seen
    assert float(seen.shift_MD.sum(0).norm()) < 1e-9 * float(seen.shift_MD.norm(dim=1).min())


def test_the_truth_is_the_mean_of_all_training_samples_by_the_network_of_now():
    case = case_of(2)
    federation, model = case.problem.federation, case.problem.model
    for client in (0, 5):
        count = int(federation.count_N[client])
        emb = []
        for place in range(count):
            raw = federation.source.rows(torch.tensor([client]), torch.tensor([[place]]))[0]
            emb.append(model.embed_eager(case.state.theta_P, federation.scale(raw).to(model.dtype))[0])
        torch.testing.assert_close(case.truth()[client], sum(emb) / count)
    assert not torch.allclose(enrolled(case.problem, case.state), case.state.own["template"].double())


def test_owners_are_named_in_the_clear_and_by_nobody_elses_update():
    case = case_of()
    found = by_did(UpdateReader(), case)
    assert found["one update"].identified >= 0.9 and found["one update"].cosine > 0.9
    guess = case.problem.method.attack_updates(watch(case.problem, case.state, case.everyone).seen)
    assert case.judged(case.everyone, guess)[0] >= 0.9
    shuffled = [case.judged(case.everyone, guess.roll(step, 0))[0] for step in range(1, 14)]
    assert sum(shuffled) / len(shuffled) < 2 * case.chance
    for size in (2, 4):
        assert found[f"a sum of {size}"].identified <= 1 / size + 1e-9
    assert found["a sum of 14"].identified <= 1 / 14 + 1e-9


def test_who_sends_nothing_in_one_round_does_in_another():
    case = case_of(60, watched=12, precision="float32")
    found = by_did(UpdateReader(), case)
    assert found["one update"].identified < found["over rounds"].identified
    assert found["over rounds"].identified >= 0.7 and found["over rounds"].rounds == 12


@pytest.mark.parametrize("noise", [{"noise": "laplace", "drop": 0.1}, {"noise": "gaussian", "clip": 0.1, "scale": 0.1}])
def test_noise_on_derivatives_does_not_hide_whose_they_are(noise):
    case = case_of(method=noise, precision="float32")
    guess = case.problem.method.attack_updates(watch(case.problem, case.state, case.everyone).seen)
    assert case.judged(case.everyone, guess)[0] >= 0.9


def test_what_the_run_itself_shows_is_a_sum():
    case = case_of(cohort={"size": 7})
    assert (case.aggregation, case.group, case.split) == ("enclave", 7, True)
    found = findings(case, [UpdateReader(), SumReader(), ActiveServer()])
    applies = {f"{one.attacker}, {one.did}" for one in found if one.applies(case.aggregation)}
    assert "updates, a sum of 7" in applies and "differences, cohorts of 7" in applies
    assert not any(one.did in ("one update", "over rounds", "a sum of 2") for one in found if one.applies("enclave"))
    stopped, lured = (next(one for one in found if one.did == did) for did in ("2 networks", "2 networks, unseen"))
    assert stopped.applies("enclave") and stopped.identified == 0 and "digest" in stopped.said
    assert not lured.applies("enclave") and lured.identified >= 0.9  # what the digest is for
    alone = next(one for one in found if one.did == "sybils, 1 honest")
    assert alone.identified >= 0.9 and "sessions" in alone.said
    assert audit_record(case, found, "a run")["aggregation"] == "enclave"


LOSSES = [{}, {"normalise": True}, {"kind": "supervised-contrastive"}, {"noise": "laplace", "drop": 0.1}]


@pytest.mark.parametrize("method", LOSSES, ids=str)
def test_of_two_networks_the_sum_is_one_devices(method):
    case = case_of(method=method)
    some_M = case.everyone[::4]
    guess_MD = two_networks(case, some_M)
    share, cosine = case.judged(some_M, guess_MD)
    assert share >= 0.75 and cosine > 0.95
    assert case.judged(some_M, guess_MD.roll(1, 0))[0] <= 0.25


@pytest.mark.parametrize("cohort", [{}, {"size": 7}], ids=str)
def test_one_network_in_two_rounds_gives_away_who_is_left_out_of_one(cohort):
    case = case_of(cohort=cohort)
    some_M = case.everyone[::3]
    guess_MD = one_network_twice(case, some_M)
    assert case.judged(some_M, guess_MD)[0] >= 0.8
    assert case.judged(some_M, guess_MD.roll(1, 0))[0] <= 0.2


def test_what_is_left_is_one_gradient_where_batches_hold_all_samples():
    """With plain sums: everybody's gradients less those of all others, in rounds whose batches are the same."""
    data = {"turns": 1}  # few clients, whose batches are whole
    case = case_of(data=data, local={"batch": 400}, augment={"crop": 0, "flip": False, "rotation": 0.0})
    layer, client_1 = LastLayer.of(case.problem), case.everyone[:1]
    alone = gradients(case.problem, case.state, case.everyone)[0]
    expected = case.problem.method.attack_updates(
        layer.seen(case.problem, case.state.theta_P, -PAIRS * alone[None], 1.0)
    )
    assert torch.allclose(one_network_twice(case, client_1), expected, rtol=1e-4, atol=1e-6)


def test_who_may_be_left_out_of_no_round_is_safe_from_that():
    found = {one.did: one for one in ActiveServer().run(case_of(split={"strategy": "as"}))}
    assert found["1 network twice"].identified == 0 and "abandoned" in found["1 network twice"].said


def test_others_gradients_leave_the_weights_of_the_last_layer_alone():
    case, layer = case_of(method={"kind": "batch-all", "margin": 100.0}), LastLayer("head.weight", "head.bias")
    networks = [case.state.theta_P] + 13 * [torch.zeros_like(case.state.theta_P)]
    found = gradients(case.problem, case.state, case.everyone, networks)
    moved = [layer.of_network(case.problem, one[None]).weight.abs().max() for one in found]
    assert float(moved[0]) > 0 and not any(map(float, moved[1:]))


def test_half_of_the_answers_make_a_smaller_sum():
    assert case_of(split={"response": 0.5}).group == 7


def test_those_who_need_a_loss_on_the_device_stay_away():
    case = case_of()
    assert can_watch(case.problem)
    fitting = {one.name for one in KNOWN if one.fits(case)}
    assert fitting == {"updates", "differences", "active"}


def told(mixed, rounds=200, clients=12, size=4, dim=6, seed=0):
    """Sums of (x x' + noise) over cohorts that mix, or that are always everybody: (what is seen, everybody's x)."""
    draw = torch.Generator().manual_seed(seed)
    truth = torch.randn(clients, dim, generator=draw, dtype=torch.float64)
    truth = truth - truth.mean(0)
    asked, sums = torch.zeros(rounds, clients, dtype=torch.bool), []
    for t in range(rounds):
        who = torch.randperm(clients, generator=draw)[: size if mixed else clients]
        asked[t, who] = True
        noise = 0.5 * torch.randn(dim, dim, generator=draw, dtype=torch.float64)
        sums.append((truth[who].T @ truth[who] + noise).flatten())
    return Transcript(asked, asked, torch.stack(sums), False), truth


def test_cohorts_that_mix_give_lines_away_and_one_cohort_does_not():
    seen, truth = told(mixed=True)
    got = lines.identified(seen, truth + 5)  # wherever the middle is
    assert got.share >= 0.9 and got.cosine > 0.9
    other = lines.judged(lines.lines(seen, got.way), truth.roll(3, 0), got.way)
    assert other.share <= 0.25
    seen, truth = told(mixed=False)
    for way in lines.WAYS:
        assert lines.judged(lines.lines(seen, way), truth, way).share <= 1 / 12 + 1e-9


def test_a_line_is_that_of_the_clients_own_part():
    """Two clients, two sums of one each: least squares without a ridge to speak of gives each its own moment."""
    x = torch.tensor([[3.0, 0.0], [1.0, 1.0]]).double()
    asked = torch.eye(2, dtype=torch.bool)
    seen = Transcript(asked, asked, torch.stack([torch.outer(one, one).flatten() for one in x]), False)
    found = lines.lines(seen, Way(0.0, False, 1e-9))
    assert (found * unit(x)).sum(1).abs().tolist() == pytest.approx([1, 1])
    none = replace(seen, sum_TD=torch.zeros_like(seen.sum_TD))
    got = lines.identified(none, x)
    assert got.share == 0 and got.cosine == 0


def test_released_sums_of_mixing_cohorts_name_owners():
    """Chance is 1/14: by luck, five of 14 or more are found in one of 460 cases."""
    case = case_of(watched=60, precision="float32", cohort={"size": 7}, method={"kind": "supervised-contrastive"})
    going_on = next(SumReader().run(case))
    assert (going_on.did, going_on.who, going_on.rounds) == ("cohorts of 7", "server", 60)
    assert going_on.chance == pytest.approx(1 / 14) and going_on.identified >= 5 / 14
    assert math.isfinite(going_on.cosine)


def test_the_same_audit_twice_is_the_same():
    once, again = (
        [replace(one, seconds=0) for one in findings(case, [UpdateReader(), SumReader()])]
        for case in (case_of(1, precision="float32"), case_of(1, precision="float32"))
    )
    assert once == again
