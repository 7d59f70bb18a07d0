"""Split rounds on devices that keep everything on disk, with an enclave between: the simulator's network."""

import itertools
import json
import os
import signal
import stat
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from split_loop import ADAM, NOISE, Direct, Loop, a_recipe, digits, kind_of, reasons, simulated
from split_small import Recording

from selfsame.deploy.codec import encode, glance
from selfsame.deploy.memory import Keep
from selfsame.deploy.schedule import Terms
from selfsame.deploy.split.agreement import SplitAgreement
from selfsame.deploy.split.attest import Policy
from selfsame.deploy.split.controller import Controller
from selfsame.deploy.split.device import SplitDevice
from selfsame.deploy.split.server import SplitServer
from selfsame.engine.plan import Plan, make_plan
from selfsame.engine.setup import prepare
from selfsame.errors import SelfsameError


@pytest.fixture
def loop(tmp_path):
    """Loops with an enclave in this process, unless one is asked for; all are closed in the end."""
    made = []

    def make(recipe, terms=None, enclave=Direct, **options):
        options |= {} if enclave is None else {"enclave": enclave}
        made.append(Loop(tmp_path / str(len(made)), recipe, terms, **options))
        return made[-1]

    yield make
    for one in made:
        one.server.close()


def terms_of(required=4, **changes):
    return Terms(required, **({"embedding_wait": 10.0, "answer_wait": 10.0} | changes))


def as_happened(loop):
    """The reference engine's plan of the rounds that the server's table records; nothing comes of the others."""
    recipe = loop.recipe
    whole = make_plan(recipe, 0, recipe.run.rounds, 4)
    client_TM, alive_TM = whole.client_TM.clone(), torch.zeros_like(whole.alive_TM)
    for record in loop.server.records:
        if record["complete"]:
            t = record["round"] - 1
            client_TM[t] = torch.tensor(record["embedded"])
            alive_TM[t] = torch.isin(client_TM[t], torch.tensor(record["answered"]))
    return Plan(0, client_TM, alive_TM, whole.lr_T, whole.server_lr_T)


def assert_equal(loop, wanted, tolerance=1e-6):
    """The networks are one. Adam makes a step of the noise where a gradient is nothing else: no loss of plain distances
    depends on what is added to every embedding."""
    views = loop.server.problem.model.layout.views
    got, want = views(loop.server.state.theta_P), views(wanted.theta_P)
    noise = loop.recipe.server.optimiser == "adam" and loop.recipe.method.options["kind"] != "multi-similarity"
    free = {"net.head.bias"} if noise else set()
    for name in got.keys() - free:
        assert float((got[name] - want[name]).abs().max()) <= tolerance, name


# Equal to the simulator


TRIPLETS = {"kind": "batch-all", "margin": 5.0}
SEMI_HARD = {"kind": "semi-hard", "margin": 2.0}


@pytest.mark.parametrize(
    ("precision", "server", "method"),
    [
        ("float32", None, {}),
        ("float32", ADAM, TRIPLETS),
        ("float64", None, SEMI_HARD),
        ("float64", ADAM, {}),
        ("float32", None, {"kind": "supervised-contrastive"}),
        ("float64", None, {"kind": "margin-softmax"}),
    ],
)
def test_with_the_enclave_process_between_it_is_the_simulator(loop, precision, server, method):
    """Every message finds a device that knows only what is on its disk."""
    one = loop(a_recipe(rounds=3, server=server, precision=precision, method=method), enclave=None)
    start = one.server.state.theta_P.clone()
    one.run()
    assert one.server.counts == {"complete": 3}
    wanted = simulated(one.recipe)
    assert_equal(one, wanted)
    written = load_file(one.folder / "server" / "model.safetensors")
    assert torch.equal(
        written["net.conv1.weight"], one.server.problem.model.layout.views(one.server.state.theta_P)["net.conv1.weight"]
    )
    assert float((wanted.theta_P - start).abs().max()) > 1e-4  # there was something to learn
    assert one.server.state.server["taken"].tolist() == [3] * 4 == [one.device[name].taken for name in one.names]
    for i, name in enumerate(one.names):
        template_D = Keep(one.folder / name).read().fields["template"][0]
        atol = 1e-2 if server else 1e-5  # with Adam the bias is in it
        torch.testing.assert_close(template_D, wanted.own["template"][i], rtol=0, atol=atol)
    assert "SIMULATED" in str(one.device["node0"].attested)


def test_class_vectors_stay_in_the_enclave_and_learn_as_in_the_simulator(loop):
    """Three of four devices a round, the absent one a negative; a round that is given up moves no vector."""
    method = {"kind": "margin-softmax", "class_lr": 3.0, "logit_scale": 8.0}
    recipe = a_recipe(rounds=6, method=method, precision="float64", cohort={"size": 3})
    one = loop(recipe, terms_of(3, strategy="as"))

    def deliver(ask):
        return None if kind_of(ask) == "derive" and one.server.round == 2 else one.ask(ask)

    one.run(deliver=deliver)
    wanted = simulated(recipe, as_happened(one))
    assert one.server.counts["given up"] == 1 and one.server.counts["complete"] == 5
    assert len({tuple(record["embedded"]) for record in one.server.records}) > 1
    assert_equal(one, wanted)
    kept = one.server._enclave.enclave._vectors
    assert len(kept) == 4 and one.server.state.enclave == {}
    table_CD = torch.from_numpy(np.stack(list(kept.values())))
    nearest_C = (table_CD @ wanted.enclave["class_vectors"].T).max(1).values
    torch.testing.assert_close(nearest_C, torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-6)
    everything = b"".join(ask.payload for ask in one.log)
    for vector_D in kept.values():
        assert vector_D.tobytes() not in everything and vector_D.astype(np.float32).tobytes() not in everything


def test_weights_are_numbers_of_samples(loop):
    """Batches of all that a device has, and of these one has fewer."""
    one = loop(a_recipe(method={"kind": "contrastive", "margin": 1.0}, local={"batch": 300, "lr": 1.0}))
    counts = one.server.problem.federation.count_N
    assert len(set(counts.tolist())) > 1
    one.run()
    assert_equal(one, simulated(one.recipe))


def test_a_few_of_the_devices_are_asked_as_the_simulator_asks(loop):
    one = loop(a_recipe(rounds=4, cohort={"size": 3}), terms_of(3))
    one.run()
    expected = make_plan(one.recipe, 0, 4, 4).client_TM.tolist()
    assert [record["embedded"] for record in one.server.records] == expected
    assert len({tuple(clients) for clients in expected}) > 1
    assert_equal(one, simulated(one.recipe))


def test_augmented_samples_are_the_same_in_both_phases(loop):
    one = loop(a_recipe(augment={"crop": 1, "rotation": 10.0}))
    one.run()
    assert_equal(one, simulated(one.recipe))


def test_the_network_goes_down_in_half_precision_where_that_is_agreed(loop):
    one = loop(a_recipe(), transport="half")
    one.run()
    whole, half = loop(a_recipe()), first(one, "embed").payload
    whole.run()
    assert len(first(whole, "embed").payload) - len(half) > 1.8 * one.server.mandate.parameters
    assert one.server.counts == {"complete": 2}
    assert 1e-7 < float((one.server.state.theta_P - whole.server.state.theta_P).abs().max()) < 1e-3
    with pytest.raises(SelfsameError, match="transport"):
        loop(a_recipe(), transport="quarter")


def test_batches_are_the_devices_own_where_the_run_is_not_seeded(tmp_path):
    recipe = a_recipe()
    with SplitServer(tmp_path / "s", recipe, terms_of(), enclave=Direct) as server:
        assert not server.agreement.seeded and server.agreement.recipe.run.seed == 0
        devices = [
            SplitDevice(tmp_path / f"d{i}", f"digits:{i}", policy=Policy(allow_simulated=True), trial=True)
            for i in range(4)
        ]
        server.begin(["0", "1", "2", "3"], 0.0)
        for _ in range(20):
            for ask in server.step(0.0):
                server.answer(ask.node, devices[int(ask.node)].reply(ask.payload), 0.0)
        assert server.done and server.counts == {"complete": 2}
        seeds = {device.keep.read().notes["seed"] for device in devices}
        assert len(seeds) == 4 and recipe.run.seed not in seeds
        assert not torch.allclose(server.state.theta_P, simulated(recipe).theta_P, atol=1e-6)


# Algorithm 3 with real messages


def losing(one, *lost):
    """Deliver everything but messages of these (kind, node)."""
    return lambda ask: None if (kind_of(ask), ask.node) in lost else one.ask(ask)


def test_uc_goes_on_at_the_deadline_with_three(loop):
    one = loop(a_recipe(), terms_of(answer_wait=7.0))
    one.run(deliver=losing(one, ("derive", "node2")))
    assert [record["answered"] for record in one.server.records] == [[0, 1, 3]] * 2
    assert [record["seconds"] for record in one.server.records] == [7.0, 7.0]
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_uc_gives_up_with_two(loop):
    one = loop(a_recipe())
    one.run(deliver=losing(one, ("derive", "node2"), ("derive", "node1")))
    assert one.server.counts["given up"] == 2 and one.server.done
    assert torch.equal(one.server.state.theta_P, one.server.problem.model.first_theta)
    assert one.server.state.server["taken"].tolist() == [2] * 4  # derivatives have left


def test_as_gives_up_with_three_and_its_plan_says_so(loop):
    one = loop(a_recipe(split={"strategy": "as"}), terms_of(strategy="as"))
    assert one.server.mandate.gradients == 4
    assert loop(a_recipe(), terms_of()).server.mandate.gradients == 3
    one.run(deliver=losing(one, ("derive", "node2")))
    assert one.server.counts["given up"] == 2


def test_response_rate_ends_a_round_early(loop):
    one = loop(a_recipe(split={"response": 0.75}), terms_of(response=0.75))
    one.run()
    assert [(r["answered"], r["seconds"]) for r in one.server.records] == [([0, 1, 2], 0.0)] * 2
    assert one.server.counts["round"] + one.server.counts["not needed"] == 2
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_silent_devices_are_replaced_within_the_deadlines(loop):
    """Three are needed, three are asked, one is silent: the fourth takes its place after the first time-out."""
    one = loop(a_recipe(cohort={"size": 3}), terms_of(3))
    one.run(deliver=losing(one, ("embed", "node1")))
    assert all(record["embedded"] == [0, 2, 3] for record in one.server.records)
    assert all(record["seconds"] <= one.terms.longest for record in one.server.records)
    assert any(record["selections"] == 2 for record in one.server.records)
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_a_dead_device_delays_one_round(loop):
    """It is not asked again until it registers; when it does, it goes on."""
    one = loop(a_recipe(rounds=5, cohort={"size": 3, "sampling": "round-robin"}), terms_of(3, registration=1e6))
    one.run(until=lambda: all(name in one.server.registry for name in one.names))
    dead = [(kind, "node1") for kind in ("register", "embed", "derive")]
    one.run(until=lambda: one.server.round == 4, deliver=losing(one, *dead))
    assert [record["seconds"] for record in one.server.records] == [10.0, 0.0, 0.0, 0.0]
    assert one.server.counts["silent"] == 1 and "node1" not in one.server.registry
    one.now += 1000.0
    one.run(until=lambda: "node1" in one.server.registry)
    one.run()
    assert one.server._enclave.counts()["accepted"]["hello"] == 5  # it has attested anew
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_over_selection_uses_the_first(loop):
    recipe = a_recipe(cohort={"size": 3}, split={"over": 1.3})
    one = loop(recipe, terms_of(3, over=1.3))
    one.run(deliver=losing(one, ("embed", "node0")))
    assert [(r["embedded"], r["seconds"]) for r in one.server.records] == [([1, 2, 3], 0.0)] * 2
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_no_embeddings_at_all_gives_the_round_up_in_time(loop):
    one = loop(a_recipe(rounds=1), terms_of(tries=2))
    one.run(deliver=losing(one, *[("embed", name) for name in one.names]))
    assert one.server.records[0]["seconds"] == 20.0 and not one.server.records[0]["complete"]


def test_a_device_that_is_not_ready_is_not_asked_until_it_is(loop):
    one = loop(a_recipe(rounds=1, cohort={"size": 3}), terms_of(3, answer_wait=3.0))
    file = one.folder / "conditions.json"
    file.write_text(json.dumps({"charging": False, "unmetered": True, "idle": True}))
    one.fresh = False
    one.device["node0"] = one.open_device("node0", conditions=file)
    one.run()
    assert one.server.records[0]["embedded"] == [1, 2, 3] and one.device["node0"].taken == 0


def test_a_device_that_stops_being_ready_suspends_its_part(loop):
    one = loop(a_recipe(rounds=4), terms_of(answer_wait=3.0))
    file = one.folder / "conditions.json"
    one.fresh = False
    one.device["node0"] = one.open_device("node0", conditions=file)
    one.run(until=lambda: one.server.round == 1)
    file.write_text(json.dumps({"charging": True, "unmetered": False, "idle": True}))
    with pytest.raises(AssertionError, match="does not end"):
        one.run(most=30)  # four are required
    assert one.server.counts["device: not ready"] == 1
    file.write_text("{}")  # which says nothing, so it is not ready
    with pytest.raises(AssertionError, match="does not end"):
        one.run(most=30)
    file.unlink()
    one.run()
    assert one.device["node0"].taken == one.server.counts["complete"] == 4 - one.server.counts["given up"] >= 3


# Registration


def registrations(one):
    return [ask for ask in one.log if kind_of(ask) == "register"]


def test_registering_is_two_messages_once(loop):
    one = loop(a_recipe(rounds=3))
    one.run()
    assert len(registrations(one)) == 8 and len(one.log) == 8 + 3 * 8


def test_a_registration_lasts_as_long_as_it_is_valid(loop):
    one = loop(a_recipe(rounds=2), terms_of(registration=100.0))
    one.run(until=lambda: one.server.round == 1)
    one.now = 99.0
    one.run()
    assert len(registrations(one)) == 8
    assert one.server._enclave.counts()["sessions"] == 4


def test_whoever_registers_attests_anew(loop):
    """A device ends its session when it is asked to register, whatever the server would like to go on with."""
    one = loop(a_recipe(rounds=2))
    one.run(until=lambda: one.server.round == 1)
    assert one.device["node0"].attested is not None
    terms, quoted = asks(one, "register")
    assert reasons(one.ask(terms), one.ask(quoted)) == [None, "quote"]  # made for the nonce before
    assert one.device["node0"].attested is None
    one.run()
    assert one.server.counts["device: session"] == 1 and one.server.counts["complete"] == 2
    assert one.server._enclave.counts()["accepted"]["hello"] == 5


def test_a_registration_that_runs_out_ends_the_session(loop):
    one = loop(a_recipe(rounds=2), terms_of(registration=100.0))
    one.run(until=lambda: one.server.round == 1)
    one.now = 100.0
    one.run()
    assert len(registrations(one)) == 16
    counts = one.server._enclave.counts()
    assert counts["sessions"] == 4 and counts["accepted"]["hello"] == 8
    assert_equal(one, simulated(one.recipe))


def test_a_lost_hello_is_asked_for_again_and_a_late_one_does_no_harm(loop):
    one = loop(a_recipe(rounds=1))
    late = []

    def deliver(ask):
        answer = one.ask(ask)
        if ask.node == "node1" and kind_of(ask) == "register":
            late.append(answer)
            if len(late) == 2:
                return None
            if len(late) == 3:
                assert one.server.answer("node1", late[1], one.now) == "not asked"
        return answer

    one.run(deliver=deliver)
    assert len(late) == 4 and one.server.counts == {"complete": 1, "not asked": 1}


def test_a_device_that_leaves_and_comes_back_goes_on(loop):
    one = loop(a_recipe(rounds=3, cohort={"size": 3}), terms_of(3))
    one.run(until=lambda: one.server.round == 1)
    one.server.begin(one.names[:3], one.now)
    one.run(until=lambda: one.server.round == 2)
    assert one.server.records[1]["embedded"] == [0, 1, 2]
    one.server.begin(one.names, one.now)
    one.run()
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_a_late_comer_takes_a_free_place_and_one_too_many_is_turned_away(loop):
    one = loop(a_recipe(rounds=1))
    one.server.begin([*one.names, "node4"], 0.0)
    one.fresh = False
    one.device["node4"] = SplitDevice(
        one.folder / "node4", "digits:3", policy=Policy(allow_simulated=True), simulate=True
    )
    one.run()
    assert one.server.counts["full"]
    assert one.server.records[0]["embedded"] == [0, 1, 2, 3]


# The enclave ends


@pytest.mark.parametrize("phase", ["embed", "derive"])
def test_an_enclave_killed_in_mid_round_costs_that_round(loop, phase):
    """A new process, a new key, everybody attests it; the rounds after are those of the simulator."""
    keys = []

    def started(plan):
        controller = Controller(plan)
        keys.append(controller.attest(bytes(32))[:32])
        return controller

    one = loop(a_recipe(rounds=3), enclave=started)
    one.run(until=lambda: one.server.round == 1)
    killed = []

    def deliver(ask):
        answer = one.ask(ask)
        if kind_of(ask) == phase and ask.node == "node2" and not killed:
            os.kill(one.server._enclave._process.pid, signal.SIGKILL)
            killed.append(one.server._enclave._process.wait())
        return answer

    one.run(deliver=deliver)
    assert killed and len(set(keys)) == 2
    assert [record["complete"] for record in one.server.records] == [True, False, True]
    assert one.server.counts["enclave ended"] == 1
    assert one.server.records[1]["seconds"] <= one.terms.longest
    assert_equal(one, simulated(one.recipe, as_happened(one)))
    assert [one.device[name].taken for name in one.names] == [3] * 4  # embeddings have left three times


def test_an_enclave_that_hangs_is_ended(loop):
    one = loop(a_recipe(rounds=2), enclave=Controller)
    one.run(until=lambda: one.server._round is not None)
    one.server._enclave.limit = 0.2
    os.kill(one.server._enclave._process.pid, signal.SIGSTOP)
    one.run()
    assert [record["complete"] for record in one.server.records] == [False, True]


# The server ends


@pytest.mark.parametrize("after", ["register", "embed", "derive", "round"])
def test_a_server_that_stops_anywhere_goes_on_from_its_last_round(loop, after):
    one = loop(a_recipe(rounds=4, server=ADAM))
    one.run(until=lambda: one.server.round == (0 if after == "register" else 2))
    if after != "round":
        stop = []

        def deliver(ask):
            answer = one.ask(ask)
            if stop or (kind_of(ask) == after and ask.node == "node1"):
                stop.append(ask)
                return None
            return answer

        one.run(until=lambda: bool(stop), deliver=deliver)
    rounds = one.server.records
    one.reopen_server()
    assert one.server.records == rounds
    assert one.server.round == len(rounds) + (after in ("embed", "derive"))
    one.run()
    assert len(one.server.records) == 4 - (after in ("embed", "derive"))
    assert_equal(one, simulated(one.recipe, as_happened(one)))
    for name in one.names:  # no embeddings of one round twice
        assert one.device[name].taken <= 4
    assert one.server.state.server["taken"].tolist() == [3 if after == "embed" else 4] * 4


def test_a_server_that_stops_in_its_last_round_writes_its_network(loop):
    """The round that was open is given up, and with it the run is over."""
    one = loop(a_recipe(rounds=2))
    one.run(until=lambda: one.server._round is not None and one.server.round == 1)
    one.reopen_server()
    assert one.server.done and one.server.counts["given up"] == 1
    written = load_file(one.folder / "server" / "model.safetensors")
    views = one.server.problem.model.layout.views(one.server.state.theta_P)
    assert torch.equal(written["net.conv1.weight"], views["net.conv1.weight"])


def test_what_stands_in_a_strangers_folder_is_left_alone(tmp_path):
    (tmp_path / "recipe.toml").write_text("precious")
    with pytest.raises(SelfsameError, match="holds no run"):
        SplitServer(tmp_path, a_recipe(), terms_of(), federation=digits(), enclave=Direct)
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.toml"]
    assert (tmp_path / "recipe.toml").read_text() == "precious"


def test_a_folder_of_the_version_before_goes_on(loop):
    """It kept client numbers alone, in server.json, and wrote shorter records."""
    one = loop(a_recipe(rounds=4, server=ADAM))
    one.run(until=lambda: one.server.round == 2)
    place = one.folder / "server"
    saved = json.loads((place / "nodes.json").read_text())
    (place / "nodes.json").unlink()
    clients = {node: seat["client"] for node, seat in saved["nodes"].items()}
    old = saved | {"format": "selfsame-split-server-1", "nodes": clients}
    (place / "server.json").write_text(json.dumps(old))
    records = [{k: v for k, v in record.items() if k not in ("down", "up", "counts")} for record in one.server.records]
    (place / "rounds.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    one.reopen_server()
    assert one.server.records == records and one.server.run == saved["run"]
    assert {node: seat.client for node, seat in one.server.seats.items()} == clients
    one.run()
    assert_equal(one, simulated(one.recipe, as_happened(one)))
    assert one.server.state.server["taken"].tolist() == [4] * 4
    assert json.loads((place / "nodes.json").read_text())["format"] == "selfsame-server-1"


def test_a_folder_of_another_recipe_is_one_line(loop, tmp_path):
    one = loop(a_recipe())
    with pytest.raises(SelfsameError, match="another recipe"):
        SplitServer(one.folder / "server", a_recipe(method={"alpha": 3.0}), one.terms, seeded=True)
    (one.folder / "server" / "nodes.json").write_text("[]")
    with pytest.raises(SelfsameError, match="damaged"):
        one.open_server()


# Everything at once


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_lost_late_doubled_or_killed_the_network_is_that_of_the_rounds_on_record(loop, seed):
    """Messages in any order, devices reopened for each, enclaves killed, the server reopened, nodes that leave."""
    rng = np.random.default_rng(seed)
    one = loop(a_recipe(rounds=6, cohort={"size": 3}, split={"response": 0.7}), terms_of(3, response=0.7, fewest=1))
    one.run(until=lambda: all(name in one.server.registry for name in one.names))  # each has its place
    down, up, replies = [], [], {}
    for _ in range(4000):
        if one.server.done:
            break
        chance = rng.random()
        if chance < 0.004:
            one.server._enclave and one.server._enclave.kill()
        elif chance < 0.008:
            one.reopen_server()
        elif chance < 0.012:
            one.server.begin([name for name in one.names if rng.random() < 0.8], one.now)
        elif chance < 0.1:
            one.server.begin(one.names, one.now)
        elif chance < 0.2:
            one.now += float(rng.exponential(1.0))
        elif chance < 0.5 and down:
            ask = down.pop(int(rng.integers(len(down))))
            for _ in range(1 + (rng.random() < 0.1)):
                answer = one.ask(ask)
                if kind_of(ask) != "register" and reasons(answer) is None:
                    assert replies.setdefault((ask.node, ask.payload), answer) == answer
                up.append((ask.node, answer))
        elif chance < 0.8 and up:
            node, answer = up.pop(int(rng.integers(len(up))))
            if rng.random() < 0.1:
                one.server.lost(node, one.now)
            else:
                one.server.answer(node, answer, one.now)
        else:
            down += one.server.step(one.now)
    assert one.server.done and one.server.counts["complete"] >= 2, one.server.counts
    assert all(record["seconds"] <= one.terms.longest + 5 for record in one.server.records)  # nobody called it sooner
    rounds = [glance(payload, 1 << 30)[:2] for _, payload in replies]
    nodes = [node for node, _ in replies]
    assert len(set(zip(nodes, rounds))) == len(replies)  # one answer a device, a phase and a round
    taken = one.server.state.server["taken"].tolist()
    assert all(taken[i] <= one.device[name].taken for i, name in enumerate(one.names))
    assert_equal(one, simulated(one.recipe, as_happened(one)))


@pytest.mark.parametrize("kind", ["register", "embed", "derive"])
@pytest.mark.parametrize("written", [False, True])
def test_a_device_that_dies_before_or_after_it_has_written_goes_on(loop, monkeypatch, kind, written):
    """Its memory is as it was, or as it was after; asked again, it says what it would have said."""

    class Killed(BaseException):
        pass

    one = loop(a_recipe(rounds=2))
    one.run(until=lambda: one.server.round == (kind != "register"))
    real, died = Keep.write, []

    def dying(self, kept):
        if written:
            real(self, kept)
        raise Killed

    def deliver(ask):
        if kind_of(ask) == kind and ask.node == "node1" and not died:
            with monkeypatch.context() as patch:
                patch.setattr(Keep, "write", dying)
                with pytest.raises(Killed):
                    one.ask(ask)
            died.append(ask)
        return one.ask(ask)

    one.run(deliver=deliver)
    assert died and one.server.counts == {"complete": 2}
    assert one.device["node1"].taken == 2
    assert_equal(one, simulated(one.recipe))


# What a device refuses


def first(one, kind, node="node0"):
    return next(ask for ask in one.log if kind_of(ask) == kind and ask.node == node)


def asks(one, kind, node="node0"):
    return [ask for ask in one.log if kind_of(ask) == kind and ask.node == node]


def on_disk(one, node="node0"):
    return (one.folder / node / "state.safetensors").read_bytes()


def test_the_same_request_brings_the_same_bytes_and_no_round_comes_twice(loop):
    one = loop(a_recipe(rounds=3))
    replies = {}

    def deliver(ask):
        answers = [one.ask(ask) for _ in range(2 + (kind_of(ask) != "register"))]
        if kind_of(ask) != "register":
            assert len(set(answers)) == 1
        replies[ask.id] = answers[-1]
        return answers[-1] if kind_of(ask) != "register" else answers[0] if not reasons(answers[0]) else answers[1]

    one.run(until=lambda: one.server.round == 1, deliver=lambda ask: one.ask(ask))
    one.run(deliver=deliver)
    assert_equal(one, simulated(one.recipe))
    before = on_disk(one)
    old = [*asks(one, "embed"), *asks(one, "derive")[:-1]]
    assert [reasons(one.ask(ask)) for ask in old] == ["stale"] * len(old)
    assert one.ask(asks(one, "derive")[-1]) == replies[asks(one, "derive")[-1].id]
    assert on_disk(one) == before and one.device["node0"].taken == 3


def test_derivatives_bring_one_gradient_out_for_the_batch_that_was_embedded(loop):
    """Those of another round, of another device, and a second message of the same round: nothing."""
    one = loop(a_recipe(rounds=2))
    one.run(until=lambda: one.server.round == 1)
    held = []

    def deliver(ask):
        if kind_of(ask) == "derive" and ask.node == "node0":
            held.append(ask)
            return None
        return one.ask(ask)

    one.run(until=lambda: bool(held), deliver=deliver)
    before, (mine,) = on_disk(one), held
    others = next(ask for ask in one.log if kind_of(ask) == "derive" and ask.node == "node1" and ask.id != mine.id)
    payloads = {
        "round one again": (first(one, "derive").payload, "stale"),
        "another device's": (asks(one, "derive", "node1")[-1].payload, "seal"),
        "another round's bytes": (first(one, "derive").payload.replace(b'\\"round\\":0', b'\\"round\\":1'), "seal"),
        "a round that was not embedded": (mine.payload.replace(b'\\"round\\":1', b'\\"round\\":2'), "round"),
        "cut": (mine.payload[:-8], "form"),
    }
    assert others.node == "node1"
    for name, (payload, reason) in payloads.items():
        assert reasons(one.open_device("node0").reply(payload)) == reason, name
        assert on_disk(one) == before, name
    assert reasons(one.ask(mine)) is None  # and the right one still counts
    again = mine.payload.replace(one.server.agreement.digest[:8].encode(), b"00000000")
    assert reasons(one.open_device("node0").reply(again)) == "plan"


def test_a_device_opens_its_budget_to_nobody(loop):
    """The server forgets what was spent; the device does not."""
    recipe = a_recipe(rounds=4, method=NOISE, split={"most": 4})
    one = loop(recipe)
    one.run(until=lambda: one.server.round == 2)
    for name in one.names:
        keep = Keep(one.folder / name)
        kept = keep.read()
        keep.write(replace(kept, notes={**kept.notes, "taken": 4}))  # as if it had spent it
    for _ in range(3):
        for ask in one.server.step(one.now):
            answer = one.ask(ask)
            assert reasons(answer) == "spent"
            one.server.answer(ask.node, answer, one.now)
        one.now += 1.0
    assert one.server.counts["device: spent"] == 4 and not one.server.registry.eligible(one.now)


def test_a_spent_device_is_not_selected_and_the_checkpoint_knows(loop):
    recipe = a_recipe(rounds=2, method=NOISE, cohort={"size": 2}, split={"most": 1})
    one = loop(recipe, terms_of(2))
    one.run(until=lambda: one.server.round == 1)
    used = one.server.records[0]["embedded"]
    one.reopen_server()
    one.run()
    assert set(one.server.records[1]["embedded"]) == {0, 1, 2, 3} - set(used)
    assert one.server.counts["device: spent"] == 0  # nobody had to be told


def test_a_device_trusts_no_enclave_unless_told(loop):
    one = loop(a_recipe(rounds=1), terms_of(answer_wait=1.0))
    one.fresh = False
    one.device["node0"] = one.open_device("node0", policy=Policy())
    with pytest.raises(AssertionError, match="does not end"):
        one.run(most=20)
    assert one.server.counts["device: quote"] >= 1 and one.device["node0"].attested is None
    assert not asks(one, "embed")


def test_a_session_ends_with_the_trust_in_its_enclave(loop):
    one = loop(a_recipe(rounds=2), terms_of(answer_wait=1.0))
    one.run(until=lambda: one.server.round == 1)
    one.fresh = False
    one.device["node0"] = one.open_device("node0", policy=Policy())
    with pytest.raises(AssertionError, match="does not end"):
        one.run(most=20)
    assert one.server.counts["device: quote"] >= 1 and one.device["node0"].taken == 1


def test_the_device_reckons_its_budget_itself(loop):
    """The server's terms name an epsilon, and more rounds than it pays for."""
    recipe = a_recipe(rounds=1, method=NOISE, split={"epsilon": 100.0})
    server = loop(recipe).server
    most = server.agreement.recipe.split.most
    assert 0 < most < 1000
    part = replace(server.agreement.recipe.split, most=10**6)
    claimed = replace(server.agreement, recipe=replace(server.agreement.recipe, split=part))
    again = claimed.problem(0, server.problem.federation.source, 5, 0)
    assert again.recipe.split.most == most


def test_an_enclave_of_another_plan_is_refused(loop):
    """The server starts an enclave that adds no noise."""

    def without_noise(plan):
        return Direct(replace(plan, privacy={"kind": "none"}))

    one = loop(a_recipe(rounds=1, method=NOISE), terms_of(answer_wait=1.0), enclave=without_noise)
    with pytest.raises(AssertionError, match="does not end"):
        one.run(most=20)
    assert one.server.counts["device: quote"] >= 4 and not asks(one, "embed")


def test_terms_are_pinned(loop, tmp_path):
    one, other = loop(a_recipe(rounds=1)), loop(a_recipe(rounds=1))
    one.run()
    other.run()
    before = on_disk(one)
    device = one.open_device("node0")
    assert reasons(device.reply(first(other, "register").payload)) == "run"
    assert reasons(device.reply(first(other, "embed").payload)) == "run"
    less = replace(one.server.agreement, gradients=2)
    message = encode("register", 0, {"run": less.run, "agreement": less.to_json(), "attested": ""}, {})
    assert reasons(device.reply(message)) == "plan"
    assert on_disk(one) == before
    only = SplitDevice(tmp_path / "only", "digits:0", agreed=one.server.agreement.digest, simulate=True)
    assert reasons(only.reply(first(other, "register").payload)) == "plan"
    assert reasons(only.reply(first(one, "register").payload)) is None
    unwilling = SplitDevice(tmp_path / "unwilling", "digits:0", trial=True)
    assert reasons(unwilling.reply(first(one, "register").payload)) == "plan"  # its batches would be the server's


def test_before_a_session_nothing_is_embedded(loop, tmp_path):
    one = loop(a_recipe(rounds=1))
    one.run()
    device = SplitDevice(tmp_path / "new", "digits:0", policy=Policy(allow_simulated=True), simulate=True)
    assert reasons(device.reply(first(one, "embed").payload)) == "plan"
    terms, quoted = asks(one, "register")
    assert reasons(device.reply(quoted.payload)) == "session"
    assert reasons(device.reply(terms.payload)) is None
    assert reasons(device.reply(quoted.payload)) == "quote"  # made for another nonce
    assert reasons(device.reply(first(one, "embed").payload)) == "session"
    assert device.taken == 0


def test_bad_terms_are_refused():
    recipe = a_recipe()
    agreement = SplitAgreement.of(prepare(recipe, digits()), terms_of(), "run", True)
    good = agreement.to_json()
    assert SplitAgreement.from_json(good) == agreement
    for name, value in {
        "shape": [1, -8, 8],
        "mean": ["x"],
        "std": [0.0],
        "raw": "complex64",
        "clients": 10**12,
        "run": "",
        "seeded": 1,
        "recipe": {},
        "gradients": None,
        "format": "x",
    }.items():
        changed = good | {name: value}
        try:
            found = SplitAgreement.from_json(changed)
        except SelfsameError:
            continue
        with pytest.raises((SelfsameError, TypeError, ValueError)):
            found.mandate(prepare(found.recipe))
    code = {**good["recipe"], "net": {**good["recipe"]["net"], "name": "os:system"}}
    with pytest.raises(SelfsameError, match="run code"):
        SplitAgreement.from_json(good | {"recipe": code})
    for parts, match in [
        ({"cohort": {"weights": "uniform"}}, "weights"),
        ({"cohort": {"dropout": 0.5}}, "dropout"),
        ({"split": {"lost": 0.5}}, "lost"),
    ]:
        with pytest.raises(SelfsameError, match=match):
            SplitAgreement.of(prepare(a_recipe(**parts), digits()), terms_of(), "run", True)
    twins = replace(recipe, data=replace(recipe.data, options={"turns": 1, "held_out": 6, "clients_per_class": 2}))
    with pytest.raises(SelfsameError, match="person of its own"):
        SplitAgreement.of(prepare(twins), terms_of(), "run", True)


# Hostile messages


def mutations(payload, rng, count):
    for _ in range(count):
        at, kind = int(rng.integers(len(payload))), rng.integers(4)
        if kind == 0:
            yield payload[:at]
        elif kind == 1:
            yield payload[:at] + bytes([payload[at] ^ (1 << int(rng.integers(8)))]) + payload[at + 1 :]
        elif kind == 2:
            yield rng.bytes(int(rng.integers(300)))
        else:
            yield payload[:at] + rng.bytes(8) + payload[at + 8 :]


def test_hostile_answers_are_counted_and_the_round_completes(loop):
    rng, hostile, hard = np.random.default_rng(0), [], set()
    one = loop(a_recipe(rounds=2))

    def deliver(ask):
        answer = one.ask(ask)
        if kind_of(ask) in ("embed", "derive"):
            for payload in [*mutations(answer, rng, 25), bytes(1 << 20), encode("train", 0, {"run": "x"}, {})]:
                if payload != answer and ask.node == "node1":
                    reason = one.server.answer("stranger", payload, one.now)  # not one of those that were asked
                    assert reason is not None
                    hostile.append(reason)
        return answer

    one.run(deliver=deliver)
    assert sum(one.server.counts[reason] for reason in set(hostile)) == len(hostile) > 100
    assert one.server.counts["complete"] == 2 and not hard
    assert_equal(one, simulated(one.recipe))


def test_a_device_that_lies_is_lost_for_the_round_and_the_others_go_on(loop):
    """NaN and wrong shapes, sealed as they should be."""
    bad = itertools.cycle([np.full((5, 8), np.nan), np.ones((5, 7)), np.ones((9, 8))])
    one = loop(a_recipe(rounds=4, cohort={"size": 3}), terms_of(3))
    one.fresh = False
    liar = one.device["node1"]
    honest = type(liar)._session

    def lying(self, agreement, kept, which):
        session = honest(self, agreement, kept, which)
        seal = session.embeddings
        session.embeddings = lambda number, emb_BD, network: seal(number, next(bad), network)
        return session

    one.run(until=lambda: all(name in one.server.registry for name in one.names))
    liar._session = lying.__get__(liar)
    one.run()
    assert one.server.counts["complete"] == 4
    assert all(1 not in record["embedded"] for record in one.server.records)
    assert {"finite", "shape"} <= set(one.server.counts)
    assert_equal(one, simulated(one.recipe, as_happened(one)))


def test_nobody_answers_for_another(loop):
    one = loop(a_recipe(rounds=1), terms_of(tries=1))
    sent = {}

    def deliver(ask):
        answer = one.ask(ask)
        if kind_of(ask) == "embed":
            sent[ask.node] = answer
            return sent["node0"]
        return answer

    one.run(deliver=deliver)
    assert one.server.counts["session"] == 3 and one.server.counts["given up"] == 1


def test_a_device_survives_any_bytes(loop):
    one = loop(a_recipe(rounds=1))
    one.run()
    rng, before = np.random.default_rng(1), on_disk(one)
    device = one.open_device("node0")
    for ask in (first(one, "embed"), first(one, "derive")):
        for payload in mutations(ask.payload, rng, 150):
            said = reasons(device.reply(payload))
            assert said is not None or payload == first(one, "derive").payload
    assert reasons(device.reply(bytes(100_000_000))) == "size"
    assert on_disk(one) == before


# What can be seen


def windows(array):
    for row in np.atleast_2d(array):
        for kind, together in (("<f4", 2), (">f4", 2), ("<f8", 1)):
            values = row.astype(kind)
            for i in range(0, len(values) - together + 1, 3):
                yield values[i : i + together].tobytes()


def test_the_server_sees_no_embedding_and_no_gradient(loop, monkeypatch):
    known, traffic = [], []
    from selfsame.deploy.split import participant

    for name in ("embeddings", "gradient"):
        real = getattr(participant.Participant, name)

        def spy(self, number, array, *network, real=real):
            known.append(np.atleast_2d(array).copy())
            return real(self, number, array, *network)

        monkeypatch.setattr(participant.Participant, name, spy)
    one = loop(a_recipe(rounds=2), enclave=Recording)

    def deliver(ask):
        traffic.extend([ask.payload, one.ask(ask)])
        return traffic[-1]

    one.run(deliver=deliver)
    seen = b"".join([*traffic, *one.server._enclave.seen])
    patterns = {p for array in known for p in windows(array) if len(set(p)) > 3}
    assert len(known) == 16 and len(patterns) > 1000
    assert not [p for p in patterns if p in seen]
    assert any(p in seen + known[0].astype("<f4").tobytes() for p in patterns)


def test_a_server_that_sends_one_device_another_network_gets_nothing(loop):
    """All four embeddings have to be of one network, so no derivatives are computed, and no mean comes out."""
    one = loop(a_recipe(rounds=1), terms_of(tries=1))

    def deliver(ask):
        if kind_of(ask) != "embed" or ask.node == "node0":
            return one.ask(ask)
        _, number, meta = glance(ask.payload, len(ask.payload))
        fields = {"network": torch.zeros_like(one.server.state.theta_P)}
        return one.ask(replace(ask, payload=encode("embed", number, meta, fields)))

    start = one.server.state.theta_P.clone()
    one.run(deliver=deliver, until=lambda: bool(one.server.records))
    assert [record["complete"] for record in one.server.records] == [False]
    assert one.server.counts["network"] == 3 and torch.equal(one.server.state.theta_P, start)


def test_what_a_device_keeps_is_its_own(loop):
    one = loop(a_recipe(rounds=1))
    held = []

    def deliver(ask):
        if kind_of(ask) == "derive":
            held.append(set(Keep(one.folder / ask.node).read().fields))
        return one.ask(ask)

    one.run(deliver=deliver)
    folder = one.folder / "node0"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "state.safetensors").stat().st_mode) == 0o600
    assert held == [{"round.network", "round.template"}] * 4
    assert set(Keep(folder).read().fields) == {"template"}
