"""Algorithm 3 with the clock passed in: deadlines, replacements, UC and AS, and the simulator's turnout."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsame.config.recipe import from_mapping
from selfsame.deploy.schedule import Conditions, Decision, Phase, Registry, Round, Terms, select
from selfsame.engine.turnout import _select, host_generator, np, turnout
from selfsame.errors import SelfsameError
from selfsame.fields import read_fields


def registered(count, now=0.0, valid=1000.0):
    registry = Registry(valid)
    for rank in range(count):
        registry.register(f"n{rank}", now, rank)
    return registry


# Who may be asked


def test_a_registration_runs_out_and_can_be_renewed():
    registry = registered(2, valid=10.0)
    assert registry.eligible(9.9) == ["n0", "n1"]
    registry.register("n1", 5.0, 1)
    assert registry.eligible(10.0) == ["n1"]
    assert registry.expired(10.0) == ["n0"]
    registry.forget("n0")
    assert registry.expired(10.0) == [] and "n0" not in registry
    assert registry.eligible(15.0) == []


def test_a_device_suspends_its_part_and_comes_back_to_its_place():
    registry = registered(3)
    registry.register("n1", 1.0, 1, Conditions(False, True, True))
    assert registry.eligible(2.0) == ["n0", "n2"]
    registry.forget("n1")
    registry.register("n1", 3.0, 1)
    assert registry.eligible(4.0) == ["n0", "n1", "n2"]


def test_a_spent_device_stays_spent_and_a_busy_one_is_left_alone():
    registry = registered(3)
    registry.spent.add("n0")
    registry.hold("n1", 5.0)
    assert registry.eligible(4.9) == ["n2"]
    registry.register("n0", 1.0, 0)
    registry.register("n1", 1.0, 1)  # registering again does not free it
    assert registry.eligible(4.9) == ["n2"]
    assert registry.eligible(5.0) == ["n1", "n2"]
    registry.hold("n1", 9.0)
    registry.hold("n1", -math.inf)
    assert registry.eligible(5.0, besides=["n2"]) == ["n1"]


@pytest.mark.parametrize(
    "given_", [{}, {"charging": 1, "idle": True, "unmetered": True}, {"charging": True, "x": True}]
)
def test_conditions_are_three_truth_values(given_):
    with pytest.raises(SelfsameError, match="conditions"):
        read_fields("conditions", given_, Conditions)
    assert not read_fields("conditions", {"charging": True, "idle": False, "unmetered": True}, Conditions).ready


@pytest.mark.parametrize(
    "bad",
    [
        {"required": 0},
        {"over": 0.5},
        {"response": 0.0},
        {"response": 1.5},
        {"strategy": "x"},
        {"embedding_wait": 0.0},
        {"answer_wait": math.inf},
        {"registration": -1.0},
        {"tries": 0},
        {"over": math.nan},
    ],
)
def test_terms_that_cannot_be_are_one_line(bad):
    with pytest.raises(SelfsameError, match="schedule"):
        Terms(**({"required": 3} | bad))


# The listing, line by line


def small(**changes):
    whole = {"required": 4, "over": 1.5, "response": 0.75, "embedding_wait": 10.0, "answer_wait": 20.0}
    return Terms(**(whole | changes))


def test_the_numbers_of_the_listing():
    terms = small()
    assert (terms.asked, terms.needed, terms.longest) == (6, 3, 50.0)
    assert Terms(10, over=1.1).asked == 11  # 11.000000000000002 in floating point


def embedded(round_, now, nodes):
    for node in nodes:
        assert round_.embeddings.take(node, now)


def test_a_round_without_exceptions_goes_on_at_once():
    registry = registered(9)
    round_ = Round(small(), registry, 0, 7)
    asked = round_.open_embeddings(100.0)
    assert len(asked) == 6 and round_.waiting_until == 110.0
    assert not set(registry.eligible(105.0)) & set(asked)
    embedded(round_, 101.0, asked[:3])
    assert round_.embeddings_decision(101.0) is Decision.WAIT
    embedded(round_, 102.0, asked[5:6])
    assert round_.embeddings_decision(102.0) is Decision.GO_ON
    assert not round_.embeddings.take(asked[4], 103.0)  # num_required are in
    used = round_.embeddings.answered
    assert used == [*asked[:3], asked[5]]
    assert round_.open_answers(103.0, used) == used and round_.waiting_until == 123.0
    for count, node in enumerate(used[:3]):
        assert round_.answers_decision(104.0) is Decision.WAIT, count
        assert round_.answers.take(node, 104.0)
    assert round_.answers_decision(104.0) is Decision.GO_ON
    assert not round_.answers.take(used[3], 105.0)  # rate_p: the fourth is not waited for
    round_.close()
    assert len(registry.eligible(106.0)) == 9


def test_time_up_before_the_embeddings_goes_to_line_2_and_keeps_the_counter():
    registry = registered(12)
    round_ = Round(small(tries=2), registry, 0, 1)
    first = round_.open_embeddings(0.0)
    embedded(round_, 1.0, first[:2])
    assert round_.embeddings_decision(9.99) is Decision.WAIT
    assert round_.embeddings_decision(10.0) is Decision.AGAIN
    second = round_.open_embeddings(10.0)
    assert len(second) == 3  # k times the two that are missing
    assert not set(second) & set(first)
    assert round_.waiting_until == 20.0
    embedded(round_, 15.0, first[2:3])  # late for the first selection, in time for the second
    embedded(round_, 16.0, second[:1])
    assert round_.embeddings_decision(16.0) is Decision.GO_ON


def test_where_nobody_else_is_there_the_silent_are_asked_again():
    round_ = Round(small(over=1.0), registered(4), 0, 1)
    first = round_.open_embeddings(0.0)
    embedded(round_, 1.0, first[:3])
    assert round_.open_embeddings(10.0) == first[3:]
    assert round_.embeddings.asked == first


def test_a_round_that_never_gets_its_embeddings_is_given_up():
    round_ = Round(small(tries=2), registered(6), 0, 1)
    round_.open_embeddings(0.0)
    round_.open_embeddings(10.0)
    assert round_.embeddings_decision(19.0) is Decision.WAIT
    assert round_.embeddings_decision(20.0) is Decision.GIVE_UP


def test_nobody_waits_for_those_who_are_gone_where_others_are_there():
    registry = registered(6)
    round_ = Round(small(), registry, 0, 1)
    asked = round_.open_embeddings(0.0)
    for node in asked:
        round_.embeddings.lose(node)
    assert round_.embeddings_decision(0.5) is Decision.WAIT  # somebody may still come
    registry.register("n6", 0.6, 6)
    assert round_.embeddings_decision(0.7) is Decision.AGAIN
    assert round_.open_embeddings(0.7) == ["n6"]


@pytest.mark.parametrize("strategy", ["uc", "as"])
@pytest.mark.parametrize("count", range(5))
def test_time_up_before_the_gradients(strategy, count):
    """UC continues with more than two participants; AS abandons (section VIII-B2)."""
    terms = small(required=5, response=1.0, strategy=strategy)
    round_ = Round(terms, registered(5), 0, 1)
    nodes = round_.open_answers(0.0, [f"n{i}" for i in range(5)])
    for node in nodes[:count]:
        assert round_.answers.take(node, 20.0)  # at the deadline is in time
    assert round_.answers_decision(19.9) is Decision.WAIT
    expected = Decision.GO_ON if strategy == "uc" and count > 2 else Decision.GIVE_UP
    assert round_.answers_decision(20.0) is expected
    assert not round_.answers.take(nodes[4], 20.1)


def test_a_round_of_one_phase_selects_and_waits_once():
    round_ = Round(small(), registered(9), 3, 2)
    asked = round_.open_answers(0.0)
    assert asked == select(small(), 3, 2, 0, [f"n{i}" for i in range(9)], 6)
    assert round_.answers.needed == 3 and round_.waiting_until == 20.0


def test_an_answer_of_a_stranger_and_a_second_one_do_not_count():
    phase = Phase(["a", "b"], 2, 10.0)
    assert not phase.take("c", 1.0)
    assert phase.take("a", 1.0) and not phase.take("a", 2.0)
    phase.lose("b")
    assert phase.over(3.0)
    assert phase.take("b", 4.0)  # it was not gone after all
    assert phase.enough(4.0)


def test_selection_is_named_and_in_order():
    nodes = [f"n{i:02}" for i in range(30)]
    one = select(small(), 1, 5, 0, nodes, 7)
    assert one == sorted(one) and len(set(one)) == 7
    assert one == select(small(), 1, 5, 0, nodes, 7)
    others = [
        select(small(), 1, 6, 0, nodes, 7),
        select(small(), 2, 5, 0, nodes, 7),
        select(small(), 1, 5, 1, nodes, 7),
    ]
    assert all(other != one for other in others)
    assert select(small(sampling="all"), 1, 5, 0, nodes, 7) == nodes
    around = select(small(sampling="round-robin"), 1, 7, 0, nodes, 4)
    assert around == ["n00", "n01", "n28", "n29"]  # from 7 * 4 on


# Against the simulator


@pytest.mark.parametrize("strategy", ["uc", "as"])
def test_the_same_turnout_as_the_simulator(strategy):
    """Simulated answer times, fed as arrivals: the same devices embed, the same gradients count."""
    split = {"over": 1.5, "response": 0.75, "strategy": strategy, "lost": 0.1}
    split |= {"embedding_wait": 2.0, "gradient_wait": 1.2, "most": 6}
    recipe = from_mapping({"cohort": {"size": 8, "dropout": 0.3}, "split": split, "run": {"rounds": 40, "seed": 5}})
    taken = np.zeros(30, dtype=np.int64)
    seen = {"first": 0, "given up": 0, "fewer": 0, "full": 0}
    for number in range(20):
        expected = turnout(recipe, number, 8, 30, taken)
        if expected.selections == 1:  # a second selection starts from nothing there, and keeps what is in here
            seen["first"] += 1
            order = _select(recipe, number, 0, 8, np.flatnonzero(taken < recipe.split.most)).tolist()
            registry = registered(30)
            registry.spent |= {f"n{i}" for i in range(30) if taken[i] >= recipe.split.most}
            terms = Terms.of(recipe, 8, embedding_wait=2.0, answer_wait=1.2)
            round_ = Round(terms, registry, recipe.run.seed, number)
            assert sorted(round_.open_embeddings(0.0)) == sorted(f"n{i}" for i in order)
            lost = host_generator(5, "lost", number, 0).random(len(order)) < 0.1
            time = host_generator(5, "embedding answer", number, 0).exponential(size=len(order))
            for at, gone, client in sorted(zip(time, lost, order)):
                if not gone:
                    round_.embeddings.take(f"n{client}", at)
            assert round_.embeddings_decision(2.0) is Decision.GO_ON
            used = sorted(int(node[1:]) for node in round_.embeddings.answered)
            assert used == expected.client_M.tolist()
            round_.open_answers(0.0, [f"n{i}" for i in used])
            dropped = host_generator(5, "dropout", number).random(8) < 0.3
            time = host_generator(5, "gradient answer", number).exponential(size=8)
            for at, gone, client in sorted(zip(time, dropped, used)):
                if not gone:
                    round_.answers.take(f"n{client}", at)
            going = round_.answers_decision(1.2) is Decision.GO_ON
            alive = {int(node[1:]) for node in round_.answers.answered} if going else set()
            assert alive == set(expected.client_M[expected.alive_M].tolist())
            seen["given up" if not alive else "full" if len(alive) == 6 else "fewer"] += 1
        taken[expected.client_M] += 1
    assert seen["first"] > 8 and seen["full"] and (seen["fewer"] if strategy == "uc" else seen["given up"])


# Whatever happens


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["answer", "lose", "leave", "register", "suspend", "spend"]),
        st.integers(0, 11),
        st.floats(0, 8, allow_nan=False),
    ),
    max_size=60,
)


@given(EVENTS, st.integers(1, 5), st.sampled_from([1.0, 1.4, 2.0]), st.sampled_from([0.3, 0.8, 1.0]), st.booleans())
def test_no_round_outlasts_its_deadlines_and_nobody_is_asked_who_must_not(events, required, over, response, uc):
    terms = Terms(required, over, response, "uc" if uc else "as", 10.0, 7.0, 25.0, tries=3)
    registry, now = Registry(terms.registration), 0.0
    until, ready, spent, busy = {}, {}, set(), {}

    def register(node, ok):
        registry.register(node, now, int(node[1:]), Conditions(True, True, ok))
        until[node], ready[node] = now + 25.0, ok

    for i in range(8):
        register(f"n{i}", True)
    round_, begun, result = Round(terms, registry, 0, 3), now, Decision.WAIT

    def fair(asked, deadline):
        for node in asked:
            assert now < until[node] and ready[node] and node not in spent and busy.get(node, -1.0) <= now
            busy[node] = deadline

    fair(round_.open_embeddings(now), now + 10.0)
    queue = [*events, *[("tick", 0, 8.0)] * 8]
    while result is Decision.WAIT and queue:
        what, i, later = queue.pop(0)
        now, node = min(now + later, round_.waiting_until), f"n{i}"
        phase = round_.answers or round_.embeddings
        if what == "answer":
            counted = phase.take(node, now)
            assert not counted or (node in phase.asked and now <= phase.deadline)
        elif what == "lose":
            phase.lose(node)
        elif what == "leave":
            registry.forget(node)
            until[node] = -1.0
            busy.pop(node, None)  # it is not at work any longer
        elif what in ("register", "suspend"):
            register(node, what == "register")
        elif what == "spend":
            registry.spent.add(node)
            spent.add(node)
        if round_.answers is None:
            verdict = round_.embeddings_decision(now)
            while verdict is Decision.AGAIN:
                before = list(round_.embeddings.answered)
                fair(round_.open_embeddings(now), now + 10.0)
                assert round_.embeddings.answered == before
                verdict = round_.embeddings_decision(now)
            if verdict is Decision.GO_ON:
                assert len(round_.embeddings.answered) == required
                round_.open_answers(now, round_.embeddings.answered)
            else:
                result = verdict
        if round_.answers is not None:
            result = round_.answers_decision(now)
            counted = len(round_.answers.answered)
            if result is Decision.GO_ON:
                assert counted == terms.needed or (uc and counted > 2)
            elif result is Decision.GIVE_UP:
                assert counted < terms.needed and (not uc or counted <= 2)
    assert result is not Decision.WAIT
    assert now - begun <= terms.longest + 1e-9
    round_.close()
    assert set(registry.eligible(now)) == {n for n in until if now < until[n] and ready[n] and n not in spent}
