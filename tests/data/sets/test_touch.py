"""Touches: FDML's ten numbers by plain loops, samples that stay within a person, a part and half an hour."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.data.sets.touch import read_touches
from selfsame.data.sets.touchalytics import read_touchalytics
from selfsame.data.touches import Touches, first_touches, touch_vectors
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
TOUCH = "user,time,x_start,y_start,x_end,y_end,duration,pressure,size"
POINT = "user,time,action,x,y,pressure,size"


def write(folder, header, rows, name="x.csv"):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / name).write_text("\n".join([header, *rows]) + "\n")
    return folder / name


def stream(person, touches, step=1000.0, begin=0.0):
    """A person's touches, each with a pressure of its own so that it can be told from all others."""
    return [
        f"{person},{begin + step * n},0.1,0.2,0.3,0.1,100,{(n + 1) / 4096 + person / 8},0.5" for n in range(touches)
    ]


def mark(person, touch):
    return np.float32((touch + 1) / 4096 + person / 8)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), known=st.booleans())
def test_the_ten_numbers_by_plain_loops(seed, known):
    rng = np.random.default_rng(seed)
    start = rng.random((5, 2))
    end = start + rng.choice([0.0, 0.02, -0.02, 0.3, -0.4], (5, 2))
    duration, pressure, size = rng.choice([0.0, 55.0, 1600.0, 9000.0], 5), rng.random(5) * 1.5, rng.random(5) - 0.2
    tap = rng.random(5) < 0.5
    got = touch_vectors(start, end, duration, pressure, size, tap if known else None)
    assert got.shape == (5, 10) and got.dtype == np.float32
    for n in range(5):
        (xs, ys), (xe, ye) = start[n], end[n]
        still = abs(xe - xs) < 8 / 320 and abs(ye - ys) < 8 / 320
        expected = [xs, ys, xe, ye, 1.0 if xe - xs > 0 else 0.0, 1.0 if ye - ys > 0 else 0.0]
        expected += [min(duration[n], 1600.0) / 1600.0, min(pressure[n], 1.0), max(size[n], 0.0)]
        expected += [1.0 if (tap[n] if known else still) else 0.0]
        np.testing.assert_allclose(got[n], expected, rtol=1e-6)


@settings(max_examples=60)
@given(seed=st.integers(0, 10_000), events=st.integers(1, 5))
def test_samples_stay_within_person_session_part_and_half_an_hour(seed, events):
    rng = np.random.default_rng(seed)
    number = int(rng.integers(1, 25))
    person = np.sort(rng.integers(0, 3, number))
    session = np.concatenate([np.sort(rng.integers(0, 2, n)) for n in np.bincount(person)])
    part = np.concatenate([np.sort(rng.integers(0, 2, n)) for n in np.bincount(person * 2 + session)])
    time = np.cumsum(rng.choice([0.0, 1.0, 900_000.0], number))
    touches = Touches(np.zeros((number, 10), np.float32), person, session, time, ("a", "b", "c"))
    expected = []
    for first in range(number - events + 1):
        own = range(first, first + events)
        alike = all(len({column[n] for n in own}) == 1 for column in (person, session, part))
        if alike and time[own[-1]] - time[first] <= 30 * 60 * 1000:
            expected.append(first)
    assert first_touches(touches, part, events).tolist() == expected


def test_a_row_a_touch(tmp_path):
    rows = ["b,5,10,40,20,20,800,0.25,0.5,100,200,1", "a,7,1,2,3,4,1,0,1,10,10,0", "b,4,0,0,100,200,3200,1,1,100,200,0"]
    touches, notes = read_touches(write(tmp_path, f"{TOUCH},width,height,type", rows), "error")
    assert touches.names == ("a", "b") and notes == ()
    assert touches.person_T.tolist() == [0, 1, 1] and touches.time_T.tolist() == [7, 4, 5]
    expected = [
        [0.1, 0.2, 0.3, 0.4, 1, 1, 1 / 1600, 0, 1, 0],
        [0, 0, 1, 1, 1, 1, 1, 1, 1, 0],
        [0.1, 0.2, 0.2, 0.1, 1, 0, 0.5, 0.25, 0.5, 1],
    ]
    np.testing.assert_allclose(touches.vector_TF, expected, rtol=1e-6)


def test_a_row_a_point(tmp_path):
    rows = [
        "a,10,2,0.9,0.9,1,1",  # moves before any finger came down
        "a,20,0,0.2,0.2,0.1,0.4",
        "a,30,2,0.9,0.1,0.2,0.5",
        "b,25,0,0.5,0.5,0.5,0.5",  # of somebody else, at the same time
        "a,60,1,0.6,0.1,0.6,0.6",
        "b,26,1,0.5,0.5,0.7,0.5",
        "a,70,2,0.0,0.0,1,1",  # after the finger left
        "a,90,0,0.3,0.3,0.3,0.3",  # and never leaves
        "a,95,2,0.3,0.3,0.3,0.3",
        "a,99,0,0.4,0.4,0.4,0.2",
        "a,99,1,0.4,0.4,0.4,0.4",
    ]
    touches, notes = read_touches(write(tmp_path, POINT, rows), "error")
    assert notes == ("2 touches are left out, without a beginning or an end",)
    assert touches.person_T.tolist() == [0, 0, 1] and touches.time_T.tolist() == [20, 99, 25]
    expected = [
        [0.2, 0.2, 0.6, 0.1, 1, 0, 40 / 1600, 0.3, 0.5, 0],
        [0.4, 0.4, 0.4, 0.4, 0, 0, 0, 0.4, 0.3, 1],
        [0.5, 0.5, 0.5, 0.5, 0, 0, 1 / 1600, 0.6, 0.5, 1],
    ]
    np.testing.assert_allclose(touches.vector_TF, expected, rtol=1e-6)


@pytest.mark.parametrize("shuffled", [False, True])
def test_clients_draw_samples_from_their_early_touches_and_are_tested_on_the_late(tmp_path, shuffled):
    rows = [row for person in range(4) for row in stream(person, 20 + person)]
    if shuffled:
        np.random.default_rng(0).shuffle(rows)
    write(tmp_path, TOUCH, rows)
    fed = load("touch", tmp_path, events=3, stride=1, test_share=0.3, validation_share=0.2, test=2, held_out=1)
    assert fed.shape == (1, 3, 10) and fed.clients == 3 and len(fed.class_names) == 4
    for client in range(3):
        person = int(fed.class_names[client])
        number = 20 + person
        tested, checked = int(0.3 * number + 0.5), int(0.2 * number + 0.5)
        own = list(range(number))
        late, middle = own[number - tested :], own[number - tested - checked : number - tested]
        train = own[: number - tested - checked]
        count = int(fed.count_N[client])
        assert count == len(train) - 2
        got = fed.source.to("cpu").rows(torch.tensor([client]), torch.arange(count)[None])
        assert got.shape == (1, count, 1, 3, 10)
        expected = [[mark(person, n + i) for i in range(3)] for n in train[:-2]]
        np.testing.assert_array_equal(got[0, :, 0, :, 7].numpy(), expected)
        for samples, part in ((fed.test, late), (fed.validation, middle)):
            starts = part[:-2]
            chosen = [starts[len(starts) * n // 2] for n in range(2)]
            expected = [[mark(person, n + i) for i in range(3)] for n in chosen]
            np.testing.assert_array_equal(samples.x[samples.y == client][:, 0, :, 7].numpy(), expected)
    person = int(fed.class_names[3])
    assert fed.unseen.y.tolist() == [3, 3]
    first = [mark(person, 0), mark(person, (20 + person - 2) // 2)]
    np.testing.assert_array_equal(fed.unseen.x[:, 0, 0, 7].numpy(), first)


def test_drawing_a_batch_never_waits_for_a_value(tmp_path):
    """On the meta device there are shapes alone: what works there can be captured in a CUDA graph."""
    write(tmp_path, TOUCH, [row for person in (0, 1) for row in stream(person, 30)])
    source = load("touch", tmp_path, events=4).source.to("meta")
    index = torch.empty(3, 8, dtype=torch.int64, device="meta")
    batch = source.rows(index[:, 0], index)
    assert batch.shape == (3, 8, 1, 4, 10) and batch.device.type == "meta" and not source.on_host


def test_no_sample_goes_beyond_a_session_or_half_an_hour(tmp_path):
    rows = [
        f"{row},{'early' if n % 40 < 20 else 'late'}" for person in (0, 1) for n, row in enumerate(stream(person, 40))
    ]
    write(tmp_path, f"{TOUCH},session", rows)
    fed = load("touch", tmp_path, events=10, test_share=0.25)
    assert fed.count_N.tolist() == [11 + 1] * 2  # of 20 touches, and of the 10 before the test begins
    write(tmp_path, TOUCH, [row for person in (0, 1) for row in stream(person, 40, step=200_001.0)])
    with pytest.raises(SelfsameError, match="at least 2 are needed"):
        load("touch", tmp_path, events=10)
    write(tmp_path, TOUCH, [row for person in (0, 1) for row in stream(person, 40, step=200_000.0)])
    assert load("touch", tmp_path, events=10).count_N.tolist() == [21, 21]


def test_people_with_too_few_touches_are_told(tmp_path):
    write(tmp_path, TOUCH, [row for person in range(3) for row in stream(person, 8 if person else 4)])
    fed = load("touch", tmp_path, events=2)
    assert fed.class_names == ("1", "2")
    assert fed.notes == ("1 people are no clients, with fewer than 1 samples: 0 (0)",)
    assert fed.left_out == ("0: 0 samples, a client needs 1",)


@pytest.mark.parametrize("stride", [0, 1, 2, 7])
def test_test_samples_are_a_stride_apart_and_never_share_a_touch_by_default(tmp_path, stride):
    write(tmp_path, TOUCH, [row for person in range(3) for row in stream(person, 80)])
    fed = load("touch", tmp_path, events=4, stride=stride, test_share=0.5, held_out=1, test=100, trials=12)
    assert fed.count_N.tolist() == [37, 37]
    for samples, touches in ((fed.test, 40), (fed.unseen, 80)):
        for label in samples.y.unique().tolist():
            person = int(fed.class_names[label])
            own = samples.x[samples.y == label][:, 0, 0, 7].double()
            first = ((own - person / 8) * 4096 - 1).round().long().tolist()
            assert first == list(range(80 - touches, 77, stride or 4))
    assert len(fed.trials) == 6 and bool(fed.trials.same.all())  # of the only unseen person
    a, b = fed.unseen.x[fed.trials.index_a], fed.unseen.x[fed.trials.index_b]
    assert not bool((a == b).flatten(1).all(1).any())


@pytest.mark.parametrize(
    "header, rows, line",
    [
        (TOUCH.replace(",size", ""), [], "line 1: no column 'size'; needed: time, x_start"),
        (POINT.replace(",y", ""), [], "line 1: no column 'y'; needed: time, action"),
        (f"{TOUCH},width", [], "line 1: a column 'width', but none for the other side"),
        (f"{TOUCH},width,height", ["a,1,1,1,1,1,1,1,1,0,1"], "line 2: the screen's width or height is not above 0"),
        (f"{TOUCH},width,height", ["a,1,9,1,1,1,1,1,1,2,2"], "line 2: x_start is far off the screen; are width"),
        (TOUCH, ["a,2,0,0,0,0,1,1,1", "a,1,0,0,0,400,1,1,1"], "line 3: y_end is far off the screen; without columns"),
        (TOUCH, ["a,1,0,0,0,0,-1,1,1"], "line 2: duration is below 0 ms"),
        (TOUCH, ["a,1,0,0,0,0,1,,1"], "line 2: 'pressure' is empty or not finite"),
        (f"{TOUCH},type", ["a,1,0,0,0,0,1,1,1,2"], "line 2: type is neither 0 .swipe. nor 1 .tap."),
        (f"{TOUCH},width,height", ["a,1,1e30,1,1,1,1,1,1,1e-300,2"], "line 2: x_start is far off the screen"),
        (POINT, ["a,1,0,0,0,1,1", "a,2,1e30,0,0,1,1"], "line 3: action is not 0, 1 or 2"),
        (POINT, ["a,1,0,0,0,1,1", "a,2,1.5,0,0,1,1"], "line 3: action is not 0, 1 or 2"),
    ],
)
def test_broken_files_get_one_line_with_its_number(tmp_path, header, rows, line):
    write(tmp_path, header, rows or ["a" + ",1" * header.count(",")])
    with pytest.raises(SelfsameError, match=line) as caught:
        load("touch", tmp_path)
    assert "\n" not in str(caught.value)


def test_missing_values_may_drop_their_row(tmp_path):
    rows = [row for person in (0, 1) for row in stream(person, 30)]
    write(tmp_path, TOUCH, [*rows[:3], "0,nan,0,0,0,0,1,1,1", *rows[3:]])
    fed = load("touch", tmp_path, events=2, missing="drop")
    assert fed.notes == ("1 rows are left out, with missing values",) and fed.count_N.tolist() == [21, 21]


@pytest.mark.parametrize(
    "options, line",
    [
        ({"events": 0}, "events must be 1 to"),
        ({"test": 0}, "test must be 1 to"),
        ({"stride": -1}, "stride must be 0 to"),
        ({"trials": -1}, "trials must be 0 to"),
        ({"missing": "mean"}, "missing: 'mean' is not one of error, drop"),
        ({"test_share": 0.0}, "test_share must be above 0"),
        ({"test_share": 0.6, "validation_share": 0.4}, "their sum below 1"),
        ({"held_out": 3}, "held_out must be 0 to 2"),
    ],
)
def test_wrong_options_get_one_line(tmp_path, options, line):
    write(tmp_path, TOUCH, [row for person in (0, 1) for row in stream(person, 30)])
    with pytest.raises(SelfsameError, match=line):
        load("touch", tmp_path, **{"events": 2, **options})


STROKE = [
    "inter-stroke time",
    "stroke duration",
    "start $x$",
    "start $y$",
    "stop $x$",
    "stop $y$",
    "phone id",
    "phone orientation",
    "mid-stroke pressure",
    "mid-stroke area covered",
    "20\\%-perc. pairwise acc",
    "doc_0",
]


def strokes(folder, each=4, users=4, **change):
    """For each user, `each` strokes on each of the documents 1 to 5, phone and orientation by turns."""
    rng = np.random.default_rng(0)
    rows = []
    for user in range(1, users + 1):
        for document in (4, 1, 3, 5, 2):
            for n in range(each):
                values = dict.fromkeys(STROKE, 0.5)
                values |= {"start $x$": rng.random() * 30, "start $y$": -rng.random() * 30, "stop $y$": -3.0}
                values |= {"phone id": user % 5 + 1, "phone orientation": n % 2 + 1, "doc_0": document}
                values["inter-stroke time"] = -1e6 if n == each - 1 else 2.0
                rows.append({**values, **change})
    lines = [",".join([str(1 + n // (5 * each)), *(str(row[name]) for name in STROKE)]) for n, row in enumerate(rows)]
    write(folder, ",".join(["user", *STROKE]), lines, "features.csv")
    return rows


def test_touchalytics_is_mapped_as_it_says(tmp_path):
    rows = strokes(tmp_path)
    touches = read_touchalytics(tmp_path / "features.csv")
    order = sorted(range(len(rows)), key=lambda n: (n // 20, rows[n]["doc_0"], n))
    assert touches.session_T.tolist() == [rows[n]["doc_0"] for n in order]
    assert touches.person_T.tolist() == [n // 20 for n in order]
    for got, n in zip(touches.vector_TF, order):
        row = rows[n]
        step = 25.4 / (233 if row["phone id"] in (2, 4) else 252)
        wide, high = (320, 533) if row["phone orientation"] == 1 else (533, 320)
        xs, ys = row["start $x$"] / (wide * step), -row["start $y$"] / (high * step)
        xe, ye = row["stop $x$"] / (wide * step), -row["stop $y$"] / (high * step)
        tap = max(abs(xe - xs), abs(ye - ys)) < 8 / 320
        np.testing.assert_allclose(
            got, [xs, ys, xe, ye, xe > xs, ye > ys, 500 / 1600, 0.5, 0.5, tap], rtol=1e-5, atol=1e-6
        )
    np.testing.assert_array_equal(np.diff(touches.time_T)[:3], [2000.0] * 3)  # within one document
    assert np.diff(touches.time_T)[3] > 30 * 60 * 1000  # to the next one


def test_touchalytics_documents_are_its_parts(tmp_path):
    strokes(tmp_path / "touchalytics")
    fed = load("touchalytics", tmp_path, events=3, held_out=1)
    assert fed.shape == (1, 3, 10) and fed.count_N.tolist() == [6] * 3  # documents 1, 3 and 4, two places to begin each
    assert len(fed.test.y) == 3 * 2 and len(fed.unseen.y) == 5 and len(fed.validation.y) == 0
    assert len(load("touchalytics", tmp_path, events=3, held_out=1, stride=1).unseen.y) == 10
    fed = load("touchalytics", tmp_path, events=3, held_out=1, validation=True)
    assert fed.count_N.tolist() == [4] * 3 and len(fed.validation.y) == 3
    fed = load("touchalytics_strokes", tmp_path, held_out=1, test=3)
    assert fed.shape == (len(STROKE) - 2,) and fed.count_N.tolist() == [17] * 3


@pytest.mark.parametrize(
    "change, line",
    [
        ({"phone id": 6}, "line 2: phone id is not 1 to 5"),
        ({"doc_0": 1e30}, "line 2: doc_0 is not a document from 1 to 7"),
        ({"phone orientation": 0}, "line 2: phone orientation is neither 1 nor 2"),
        ({"stroke duration": "nan"}, "line 2: a value is missing"),
    ],
)
def test_odd_touchalytics_get_one_line(tmp_path, change, line):
    strokes(tmp_path, **change)
    with pytest.raises(SelfsameError, match=line):
        load("touchalytics", tmp_path)


def test_an_unknown_wait_keeps_samples_apart(tmp_path):
    strokes(tmp_path, **{"inter-stroke time": ""})
    with pytest.raises(SelfsameError, match="at least 2 are needed"):
        load("touchalytics", tmp_path, events=3, held_out=0)


def test_hold_and_tap_leaves_the_activity_out(tmp_path):
    rows = [f"{user},{user},{n},{'' if n == 1 else n % 3},{n % 3}" for user in range(5) for n in range(9)]
    write(tmp_path / "hold_and_tap", "user,touch_0,touch_1,sensor_0,activity_0", rows, "features.csv")
    fed = load("hold_and_tap", tmp_path, held_out=2, test=3)
    assert fed.name == "hold_and_tap" and fed.shape == (3,) and fed.count_N.tolist() == [6] * 3
    assert load("hold_and_tap", tmp_path, held_out=2, test=3, columns="touch_*").shape == (2,)
    (tmp_path / "nothing").mkdir()
    with pytest.raises(SelfsameError, match=r"no file features.csv; wanted: features.csv in PATH or PATH/hold_and_tap"):
        load("hold_and_tap", tmp_path / "nothing")


@FUZZ
@given(data=st.data(), points=st.booleans())
def test_changed_files_load_or_get_one_line(tmp_path, data, points):
    if points:
        rows = [f"{n // 24},{n},{(0, 2, 1)[n % 3]},0.5,0.5,0.5,0.5" for n in range(48)]
    else:
        rows = [row for person in (0, 1) for row in stream(person, 8)]
    file = write(tmp_path, POINT if points else TOUCH, rows)
    raw = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.sampled_from(b'0129.,-eEn"\n\r\xff '))
    file.write_bytes(raw)
    try:
        fed = load("touch", tmp_path, events=2)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return
    for x in (fed.test.x, fed.source.touch_TF):
        assert bool(torch.isfinite(x).all()) and bool((x.abs() <= 2).all())
