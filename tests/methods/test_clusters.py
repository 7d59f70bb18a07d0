"""The clusters of a public table: against plain loops, for every row's place, and in whole runs of FedHide."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from selfsame.audit.recovery import audit
from selfsame.config.recipe import from_mapping
from selfsame.data import load
from selfsame.engine.checkpoint import load_state, save_state
from selfsame.engine.plan import make_plan
from selfsame.engine.problem import Problem
from selfsame.engine.rounds import Engine
from selfsame.engine.setup import prepare
from selfsame.engine.state import State, begin, join
from selfsame.methods import clusters
from selfsame.methods.base import Fields, unit
from selfsame.methods.fedhide import FedHide
from selfsame.runs.summary import wire_rows
from selfsame.streams import Stream

ONE = torch.zeros(1, dtype=torch.int64)


def stream(*rest: int) -> Stream:
    return Stream.named(3, "clusters", ONE, *rest)


def made(rows: int, dim: int = 5, lists: int = 0, seed: int = 0) -> tuple[Fields, Tensor]:
    """Fresh clusters and a random table, float64."""
    tables = clusters.begin(rows, dim, lists, stream(seed))
    tables["cluster_centres"] = tables["cluster_centres"].double()
    return tables, unit(Stream.named(seed, "table", torch.arange(rows)).normal(dim).double())


def work(tables: Fields, table: Tensor, rounds: int, refresh: int, first: int = 0) -> None:
    """Rounds in which no row changes."""
    nobody = torch.zeros(1, dtype=torch.bool)
    for number in range(first, first + rounds):
        clusters.update(tables, table, ONE, nobody, refresh, stream(99, number))


def check_seats(tables: Fields) -> None:
    """Every row sits on exactly one seat, and both tables say the same one."""
    at, seats = tables["cluster_rows"].flatten().tolist(), tables["cluster_seats"].tolist()
    assert len(at) == 2 * len(seats)
    assert sorted(row for row in at if row != -1) == list(range(len(seats)))
    assert [at[seat] for seat in seats] == list(range(len(seats)))


def order(point: Tensor, centre: Tensor) -> list[int]:
    """The centres from the nearest to the farthest."""
    fit = [sum(a * b for a, b in zip(point.tolist(), c)) for c in centre.tolist()]
    return sorted(range(len(fit)), key=lambda c: -fit[c])


def loops_seat(tables: Fields, table: Tensor, rows: list[int], asks: list[bool], tried: int) -> tuple[list[int], ...]:
    """The seats after `rows` have asked one after another, each first for its first choice, then for its second, ..."""
    at, seats = tables["cluster_rows"].flatten().tolist(), tables["cluster_seats"].tolist()
    centre = tables["cluster_centres"]
    lists, length = len(centre), math.ceil(len(at) / len(centre))
    first = int(tables["cluster_clock"]) * tried
    choice = {row: order(table[row], centre)[: clusters.CHOICES] for row in rows}
    waiting = [row for row, ask in zip(rows, asks) if ask]
    for turn in range(min(clusters.CHOICES, lists)):
        given, left = [], []  # a seat that is left can be had from the next turn on
        still = []
        for row in waiting:
            want = choice[row][turn]
            if seats[row] % lists == want:
                continue
            window = [(first + w) % length * lists + want for w in range(min(length, tried))]
            free = [s for s in window if s < len(at) and at[s] == -1 and s not in given]
            if not free:
                still.append(row)
                continue
            given.append(free[0])
            left.append(seats[row])
            seats[row] = free[0]
        for row in rows:
            at[seats[row]] = row
        for seat in left:
            at[seat] = -1
        waiting = still
    return seats, at


@settings(max_examples=60)
@given(
    rows=st.integers(2, 40),
    lists=st.integers(0, 40),
    count=st.integers(1, 40),
    clock=st.integers(0, 50),
    tried=st.sampled_from([2, 3, 64]),
    bunched=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_rows_take_the_seats_that_loops_give_them(rows, lists, count, clock, tried, bunched, seed) -> None:
    tables, table = made(rows, lists=min(lists, rows), seed=seed)
    if bunched:  # all want the same few lists, which cannot hold them
        table = unit(table + 9)
    tables["cluster_clock"] += clock
    draw = torch.Generator().manual_seed(seed)
    row_K = torch.randperm(rows, generator=draw)[:count]
    asks_K = torch.rand(len(row_K), generator=draw) < 0.8
    before = clusters.SEATS_TRIED
    clusters.SEATS_TRIED = tried
    try:
        seats, at = loops_seat(tables, table, row_K.tolist(), asks_K.tolist(), tried)
        clusters._seat(tables, table, row_K, asks_K)
    finally:
        clusters.SEATS_TRIED = before
    check_seats(tables)
    assert tables["cluster_seats"].tolist() == seats
    assert tables["cluster_rows"].flatten().tolist() == at


def test_a_row_goes_to_the_list_of_its_nearest_centre() -> None:
    """With room everywhere nobody has to take a second choice."""
    tables, table = made(30, lists=3)
    table = unit(tables["cluster_centres"].repeat_interleave(10, 0) + 0.1 * table)
    clusters._seat(tables, table, torch.arange(30), torch.ones(30, dtype=torch.bool))
    assert not clusters.displaced(tables, table).any()
    for row in range(30):
        assert int(tables["cluster_seats"][row]) % 3 == order(table[row], tables["cluster_centres"])[0] == row // 10


def test_displaced_counts_by_loops() -> None:
    tables, table = made(25)
    want = [
        int(tables["cluster_seats"][row]) % 5 != order(table[row], tables["cluster_centres"])[0] for row in range(25)
    ]
    assert clusters.displaced(tables, table).tolist() == want
    assert 5 <= sum(want) < 25


def test_nobody_is_lost_where_everybody_wants_the_same_list() -> None:
    """40 rows at one point, 20 lists of 4 seats: the 4 nearest lists fill up, the others stay, all are found."""
    tables, table = made(40, lists=20)
    table = table[:1].expand(40, -1).clone()
    near = order(table[0], tables["cluster_centres"])[:4]
    for _ in range(5):  # a seat that is left is free from the next turn on
        clusters._seat(tables, table, torch.arange(40), torch.ones(40, dtype=torch.bool))
    held = (tables["cluster_seats"] % 20).tolist()
    assert [held.count(c) for c in near] == [4, 4, 4, 4]
    assert int(clusters.displaced(tables, table).sum()) == 36
    check_seats(tables)
    found = clusters.candidates(tables, table[:1], 20)[0]
    assert sorted(found[found >= 0].tolist()) == list(range(40))


@settings(max_examples=30)
@given(rows=st.integers(2, 30), lists=st.integers(0, 30), rounds=st.integers(0, 6), probes=st.integers(1, 40))
def test_candidates_are_the_members_of_the_nearest_lists(rows, lists, rounds, probes) -> None:
    tables, table = made(rows, lists=min(lists, rows))
    work(tables, table, rounds, refresh=3)
    query = unit(Stream.named(0, "query", torch.arange(4)).normal(5).double())
    found = clusters.candidates(tables, query, probes)
    count = len(tables["cluster_centres"])
    assert found.shape == (4, min(probes, count) * math.ceil(2 * rows / count))
    for m in range(4):
        lists_m = order(query[m], tables["cluster_centres"])[:probes]
        want = [row for row in range(rows) if int(tables["cluster_seats"][row]) % count in lists_m]
        assert sorted(row for row in found[m].tolist() if row != -1) == want


@settings(max_examples=40)
@given(
    width=st.integers(1, 30),
    k=st.integers(1, 12),
    at_once=st.sampled_from([1, 20, 60, 2**22]),
    seed=st.integers(0, 10**6),
)
def test_nearest_of_the_listed_by_loops(width, k, at_once, seed) -> None:
    _, table = made(12, seed=seed)
    draw = torch.Generator().manual_seed(seed)
    row_ML = torch.stack([torch.randperm(30, generator=draw)[:width] for _ in range(3)])
    row_ML = row_ML.where(row_ML < 12, -1)  # each row once, empty places between
    label_N, label_M = torch.arange(12) // 2, torch.tensor([0, 3, 5])
    query = unit(Stream.named(seed, "query", torch.arange(3)).normal(5).double())
    before = clusters._ON_CPU
    clusters._ON_CPU = at_once
    try:
        value, index = clusters.nearest_listed(query, table, row_ML, k, label_M=label_M, label_N=label_N)
    finally:
        clusters._ON_CPU = before
    assert value.shape == index.shape == (3, min(k, width))
    for m in range(3):
        rows = [row for row in row_ML[m].tolist() if row != -1 and row // 2 != int(label_M[m])]
        fit = {row: sum(a * b for a, b in zip(query[m].tolist(), table[row].tolist())) for row in rows}
        want = sorted(rows, key=lambda row: -fit[row])[:k]
        found = [row for row, v in zip(index[m].tolist(), value[m].tolist()) if v != -math.inf]
        assert found == want
        assert value[m, : len(want)].tolist() == pytest.approx([fit[row] for row in want], abs=1e-12)
        assert ((index[m] >= 0) & (index[m] < 12)).all()


def test_how_many_lists() -> None:
    assert [clusters.count_lists(n, 0) for n in (1, 2, 10, 10_000, 1_000_000)] == [1, 1, 3, 100, 1000]
    assert [clusters.count_lists(10, c) for c in (1, 7, 10, 11)] == [1, 7, 10, 10]


def test_a_centre_is_the_mean_direction_of_its_list() -> None:
    tables, table = made(20, lists=6)
    tables["cluster_clock"] += 2  # two centres a round: it is the turn of 4 and 5
    before = tables["cluster_centres"].clone()
    clusters._move_centres(tables, table, 2, stream())
    for c in range(6):
        if c < 4:
            assert torch.equal(tables["cluster_centres"][c], before[c])
            continue
        rows = [row for row in range(20) if int(tables["cluster_seats"][row]) % 6 == c]
        total = [sum(float(table[row, d]) for row in rows) for d in range(5)]
        length = math.sqrt(sum(t * t for t in total))
        want = torch.tensor([t / length for t in total], dtype=torch.float64)
        torch.testing.assert_close(tables["cluster_centres"][c], want, rtol=0, atol=1e-12)


def test_a_list_without_rows_begins_anew_near_a_row() -> None:
    tables, table = made(6, lists=6)
    empty = [c for c in range(6) if c not in (tables["cluster_seats"] % 6).tolist()]
    assert empty
    clusters._move_centres(tables, table, 6, stream())
    near = []
    for number in range(8):
        clusters._move_centres(tables, table, 6, stream(number))
        fit = tables["cluster_centres"][empty] @ table.T
        assert ((fit.max(1).values > 0.9999) & (fit.max(1).values < 1)).all()
        near.append(fit.argmax(1).tolist())
    assert len({rows[0] for rows in near}) > 1, "always the same row"


@pytest.mark.parametrize(("rows", "refresh"), [(23, 7), (23, 100), (23, 1), (4, 2)])
def test_everybody_has_a_turn_within_refresh_rounds(rows, refresh, monkeypatch) -> None:
    tables, table = made(rows)
    asked: list[int] = []
    seat = clusters._seat

    def spy(tables: Fields, table: Tensor, row_K: Tensor, asks_K: Tensor) -> None:
        asked.extend(row_K[asks_K].tolist())
        seat(tables, table, row_K, asks_K)

    monkeypatch.setattr(clusters, "_seat", spy)
    before = tables["cluster_centres"].clone()
    work(tables, table, min(refresh, rows), refresh)
    assert set(asked) == set(range(rows)) and len(asked) < 2 * rows
    moved = (tables["cluster_centres"] != before).any(1)
    assert moved.all()


def test_a_changed_row_moves_at_once_and_a_dead_one_does_not() -> None:
    tables, table = made(200)
    work(tables, table, 80, refresh=20)
    row_M, alive_M = torch.tensor([150, 170, 160]), torch.tensor([True, False, True])
    table[row_M] = -table[row_M]
    before = tables["cluster_seats"].clone()
    clusters.update(tables, table, row_M, alive_M, 20, stream())  # by turns it asks rows 0 to 9
    now = tables["cluster_seats"]
    assert [bool(now[row] != before[row]) for row in row_M] == [True, False, True]
    check_seats(tables)


def recall(tables: Fields, table: Tensor, query: Tensor, probes: int) -> float:
    true = (query @ table.T).topk(10).indices
    found = clusters.candidates(tables, query, probes)
    return float((true[:, :, None] == found[:, None]).any(2).double().mean())


def test_neighbours_are_found_in_few_lists() -> None:
    """In a table of 16 bunches, 2 of its 20 lists hold nearly all neighbours once everybody has had some turns."""
    tables, table = made(400, dim=8)
    point = unit(Stream.named(1, "points", torch.arange(16)).normal(8).double())
    table = unit(point.repeat(25, 1) + 0.1 * table)
    query = unit(point + 0.02 * table[:16])
    assert recall(tables, table, query, 2) < 0.3
    work(tables, table, 200, refresh=20)
    assert recall(tables, table, query, 2) > 0.9
    assert recall(tables, table, query, 20) == 1.0
    assert clusters.displaced(tables, table).double().mean() < 0.1


def test_rows_of_the_first_tables_do_not_depend_on_how_many_there_are() -> None:
    small, large = (clusters.begin(rows, 4, 0, stream()) for rows in (9, 30))
    assert (len(small["cluster_centres"]), len(large["cluster_centres"])) == (3, 5)
    for name in small:
        assert torch.equal(small[name], large[name][: len(small[name])]), name
    check_seats(large)
    joined = {name: torch.cat([table, large[name][len(table) :]]) for name, table in small.items()}
    check_seats(joined)


def test_no_step_depends_on_values() -> None:
    """Fake tensors have no values, so anything that a CUDA graph could not capture fails here."""
    tables, table = made(50)
    key, row = stream().key_M, torch.arange(3)
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(t) for name, t in tables.items()}
        table, row_M = mode.from_tensor(table), mode.from_tensor(row)
        clusters.update(fake, table, row_M, row_M >= 0, 10, Stream(mode.from_tensor(key)))
        assert clusters.candidates(fake, table[:3], 2).shape == (3, 2 * 15)


# Whole runs of FedHide, small enough for both engines in float64.

OPTIONS: dict[str, dict[str, Any]] = {
    "clustered": {"search": "clustered", "clusters": 4, "probes": 2, "refresh": 3},
    "sampled": {"negatives": 5},
    "both": {"search": "clustered", "probes": 2, "refresh": 5, "negatives": 5},
}
DOWN = {
    "clustered": {"proxies", "proxy_classes", "near_rows"},
    "sampled": {"proxies", "proxy_classes", "drawn_rows"},
    "both": {"proxies", "proxy_classes", "near_rows", "drawn_rows"},
}
PART = {"size": 5, "dropout": 0.3}


def build(options: dict[str, Any], rounds: int = 4, steps: int = 1, each: int = 1, **cohort: Any) -> Problem:
    tables = {
        "method": {"name": "fedhide", "neighbours": 3, **options},
        "data": {"name": "synthetic"},
        "net": {"name": "lenet", "width": 8, "channels": [4, 4]},
        "run": {"rounds": rounds, "device": "cpu", "precision": "float64"},
        "local": {"batch": 4, "steps": steps},
        "server": {"optimiser": "momentum"},
        "cohort": cohort,
    }
    federation = load("synthetic", clients=12, samples=9, unequal=True, held_out=10, clients_per_class=each)
    return prepare(from_mapping(tables), federation)


def go_on(problem: Problem, state: State, rounds: int, engine: str = "cohort") -> State:
    Engine(problem, engine).run(state, make_plan(problem.recipe, state.round, rounds, state.present))
    return state


def assert_same(a: State, b: State, tolerance: float = 1e-9) -> None:
    left, right = a.tensors(), b.tensors()
    assert left.keys() == right.keys()
    for name, value in left.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, right[name], rtol=tolerance, atol=tolerance, msg=name)
        else:
            assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("which", OPTIONS)
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize(("each", "cohort"), [(1, {}), (2, PART)], ids=["all", "partial, shared classes"])
def test_both_engines_give_the_same(which, steps, each, cohort) -> None:
    problem = build(OPTIONS[which], steps=steps, each=each, **cohort)
    rounds = 2 if steps > 1 and not cohort else 4
    states = [go_on(problem, begin(problem), rounds, engine) for engine in ("cohort", "reference")]
    assert_same(*states)
    assert int(states[0].refused) == 0
    if problem.method.search == "clustered":
        check_seats(states[0].server)
        assert int(states[0].server["cluster_clock"]) == rounds


def test_looking_into_all_clusters_is_the_exact_search() -> None:
    exact, wide = build({}, rounds=6, **PART), build({"search": "clustered", "probes": 12}, rounds=6, **PART)
    a, b = (go_on(problem, begin(problem), 6) for problem in (exact, wide))
    for name, value in a.tensors().items():
        torch.testing.assert_close(b.tensors()[name], value, rtol=1e-9, atol=1e-9, msg=name)


@pytest.mark.parametrize("which", OPTIONS)
def test_a_run_goes_on_after_a_checkpoint_as_if_nothing_had_happened(which, tmp_path: Path) -> None:
    problem = build(OPTIONS[which], **PART)
    state = go_on(problem, begin(problem), 2)
    save_state(state, tmp_path / "state.safetensors")
    other = begin(problem)
    load_state(other, tmp_path / "state.safetensors")
    assert_same(go_on(problem, state, 2), go_on(problem, other, 2), tolerance=0.0)


@pytest.mark.parametrize("which", OPTIONS)
def test_clients_may_join(which, tmp_path: Path) -> None:
    states = []
    for engine in ("cohort", "reference"):
        problem = build(OPTIONS[which], late=0.5, join_round=2, **PART)
        state = go_on(problem, begin(problem, 6), 2, engine)
        join(problem, state)
        assert {k: v.shape for k, v in state.tensors().items()} == {
            k: v.shape for k, v in begin(problem).tensors().items()
        }
        if problem.method.search == "clustered":
            check_seats(state.server)
        states.append(go_on(problem, state, 2, engine))
    assert_same(*states)
    save_state(states[0], tmp_path / "state.safetensors")
    load_state(begin(problem), tmp_path / "state.safetensors")


@pytest.mark.parametrize("which", OPTIONS)
def test_what_is_declared_is_what_is_sent(which) -> None:
    problem = build(OPTIONS[which])
    method, state = problem.method, begin(problem)
    who = problem.cohort(torch.tensor([3, 7]), torch.ones(2, dtype=torch.bool))
    sent = method.send(state.server, who)
    method.wire.check_down(sent)
    assert set(sent) == DOWN[which] == {row[0] for row in method.wire.rows() if row[1] == "down"} - {"network"}
    assert all(sight == "public" for _, way, sight, _ in wire_rows(method.wire) if way == "down")
    assert method.wire.up.keys() == {"proxy"} and method.wire.own.keys() == {"prototype"}


def test_a_client_reads_no_more_than_it_is_packed() -> None:
    """A device that gets the named rows alone computes the same, and so it does if the others are not numbers."""
    problem = build({**OPTIONS["both"], "clusters": 6, "probes": 1})
    method, state = problem.method, begin(problem)
    assert isinstance(method, FedHide)
    for client in range(12):
        who = problem.cohort(torch.tensor([client]), torch.ones(1, dtype=torch.bool))
        sent = method.send(state.server, who)
        packed = method.packed(sent)
        method.wire.check_down(packed)
        rows = {row for name in ("near_rows", "drawn_rows") for row in sent[name].flatten().tolist()} - {-1}
        assert len(packed["proxies"]) == len(packed["proxy_classes"]) <= len(rows) + 1 < 12
        torn = sent["proxies"].clone()
        torn[[row for row in range(1, 12) if row not in rows]] = torch.nan  # row 0 stands on empty places, unused
        mine, emb = {"prototype": state.own["prototype"][client : client + 1]}, torch.ones(1, 2, 8).double()
        results = []
        for message in (sent, packed, {**sent, "proxies": torn}):
            loss = method.loss(emb, emb[..., 0], mine, message, {}, who)
            results.append(
                torch.cat([loss, method.report(mine, message, who, emb, emb[..., 0], stream())[1]["proxy"][0]])
            )
        assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_the_class_still_declares_the_plain_method() -> None:
    FedHide(search="clustered", negatives=3)
    assert FedHide.wire.down.keys() == FedHide().wire.down.keys() == {"proxies", "proxy_classes"}
    assert FedHide().wire is FedHide.wire


@pytest.mark.parametrize("which", OPTIONS)
def test_the_attacker_still_has_a_table_to_read(which) -> None:
    """The clusters change which rows are leant on, and hide nothing from somebody who knows the table."""
    problem = build({**OPTIONS[which], "alpha": 0.2}, rounds=8)
    state = go_on(problem, begin(problem), 8)
    found = audit(problem.method, state.own, state.server, {}, problem.world, problem.server_stream("audit"))
    assert found.recovered is not None and found.recovered > 0.6
    assert found.paper is not None and found.recovered_cosine is not None
