"""Tables: the right rows to the right people."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.data.tables import matching
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder, text):
    (folder / "x.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "x.csv"


def people(tmp_path, rows=12, gap=(), users=6):
    """A table of `users` people with a column a that is their number, b that counts, and c that never changes."""
    lines = ["b,who,c,a"]
    for row in range(rows):
        for user in range(users):
            a = "" if (user, row) in gap else f"{user + row / 100}"
            lines.append(f"{user * 1000 + row},p{user},4,{a}")
    write(tmp_path, "\n".join(lines))
    return tmp_path


def test_columns_are_chosen_by_name_and_pattern():
    header = ["touch_0", "touch_1", "sensor_0", "20\\%-perc", "odd [x]"]
    assert matching("t", header, "*", "") == header
    assert matching("t", header, "touch_*, odd [x]", "touch_1") == ["touch_0", "odd [x]"]
    assert matching("t", header, "20\\%-perc", "") == ["20\\%-perc"]
    for columns, without, line in (
        ("touch,touch_*", "", "columns: no column 'touch'; the columns are: 'touch_0'"),
        ("*", "nothing", "without: no column 'nothing'"),
        ("*", "*", "leave no column"),
        ("", "", "leave no column"),
    ):
        with pytest.raises(SelfsameError, match=line):
            matching("t", header, columns, without)


def test_people_are_split_and_their_rows_standardised_by_the_training_rows(tmp_path):
    fed = load("table", people(tmp_path), user="who", held_out=2, validation=2, test=3, without="c", trials=264)
    assert fed.name == "table" and fed.shape == (2,) and fed.clients == 4
    assert len(fed.class_names) == 6 and sorted(fed.class_names) == [f"p{user}" for user in range(6)]
    assert fed.count_N.tolist() == [7] * 4
    assert [len(part.y) for part in (fed.test, fed.validation, fed.unseen)] == [12, 8, 24]
    assert len(fed.trials) == 264 and int(fed.trials.same.sum()) == 132  # all 2 * 66 of one person, 144 of two
    met = []
    parts = [(fed.source.x, torch.arange(4).repeat_interleave(7))]
    parts += [(part.x, part.y) for part in (fed.test, fed.validation, fed.unseen)]
    for x, y in parts:
        for row, label in zip(x.tolist(), y.tolist()):
            count, value = row
            user, number = divmod(int(count), 1000)
            assert fed.class_names[label] == f"p{user}" and value == pytest.approx(user + number / 100)
            met.append((user, number))
    assert sorted(met) == [(user, row) for user in range(6) for row in range(12)]
    own = fed.source.x.double().numpy()
    assert fed.mean == pytest.approx(own.mean(0)) and fed.std == pytest.approx(own.std(0), rel=1e-5)
    scaled = fed.scale(fed.source.x)
    torch.testing.assert_close(scaled.mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(scaled.std(0, correction=0), torch.ones(2), atol=1e-5, rtol=0)


def test_a_missing_value_becomes_the_training_mean_and_nothing_else(tmp_path):
    gap = {(user, row) for user in range(6) for row in (0, 5)}
    fed = load("table", people(tmp_path, gap=gap), user="who", held_out=2, test=3, missing="mean")
    assert fed.notes == (
        "12 of 216 cells are missing and hold their column's mean",
        "columns of one value in all training rows: 'c'",
    )
    column_b, column_a = fed.source.x[:, 0], fed.source.x[:, 2]
    told = torch.tensor([int(count) % 1000 not in (0, 5) for count in column_b.tolist()])
    assert fed.mean[2] == pytest.approx(float(column_a[told].double().mean()))
    assert fed.std[2] == pytest.approx(float(column_a[told].double().std(correction=0)), rel=1e-5)
    assert fed.mean[1] == 4.0 and fed.std[1] == 1.0
    for x in (fed.source.x, fed.test.x, fed.unseen.x):
        filled = torch.tensor([int(count) % 1000 in (0, 5) for count in x[:, 0].tolist()])
        torch.testing.assert_close(fed.scale(x)[filled][:, 2], torch.zeros(int(filled.sum())), atol=1e-5, rtol=0)
    dropped = load("table", tmp_path, user="who", missing="drop", test=3, standardise=False, unseen_share=0.0)
    assert dropped.notes == ("12 rows are left out, with missing values",) and dropped.count_N.tolist() == [7] * 6
    assert dropped.mean == (0.0,) and dropped.std == (1.0,)


def test_the_split_depends_on_the_seed_alone(tmp_path):
    folder = people(tmp_path)
    one, same, other = (load("table", folder, user="who", held_out=2, test=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.source.x, same.source.x) and torch.equal(one.test.x, same.test.x)
    assert not torch.equal(one.test.x, other.test.x)


def test_people_with_too_few_rows_are_told(tmp_path):
    write(tmp_path, "user,a\n" + "\n".join(f"{user},{row}" for user in range(4) for row in range(3 + 2 * (user > 0))))
    fed = load("table", tmp_path, test=3)
    assert (
        fed.clients == 3
        and "1 people are no clients" in fed.notes[0]
        and fed.left_out == ("0: 3 samples, a client needs 4",)
    )


@pytest.mark.parametrize(
    "options, line",
    [
        ({"missing": "guess"}, "missing: 'guess' is not one of error, drop, mean"),
        ({"user": "me"}, "no column 'me'; the columns are: 'b', 'who', 'c', 'a'"),
        ({"columns": "d"}, "columns: no column 'd'"),
        ({"held_out": 7}, "held_out must be 0 to 6"),
        ({"test": 12}, "at least 2 are needed; a client must have 13 samples"),
    ],
)
def test_wrong_options_get_one_line(tmp_path, options, line):
    with pytest.raises(SelfsameError, match=line):
        load("table", people(tmp_path), **{"user": "who", **options})


def test_a_column_without_values_is_refused(tmp_path):
    lines = "\n".join(f"{user},{row}," for user in range(3) for row in range(6))
    write(tmp_path, f"user,a,b\n{lines}")
    with pytest.raises(SelfsameError, match="column 'b' has no value in any training row; leave it out"):
        load("table", tmp_path, missing="mean", test=1)


def tried(action):
    try:
        return action()
    except SelfsameError as error:
        assert "\n" not in str(error)
        return None


@FUZZ
@given(data=st.data())
def test_changed_files_load_or_get_one_line(tmp_path, data):
    people(tmp_path, rows=4, users=3)
    raw = bytearray((tmp_path / "x.csv").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    write(tmp_path, bytes(raw))
    fed = tried(lambda: load("table", tmp_path, user="who", test=1))
    assert fed is None or bool(torch.isfinite(fed.scale(fed.source.x)).all())


def test_a_fifth_of_the_people_is_held_out(tmp_path):
    assert len(load("table", people(tmp_path, users=15), user="who").unseen.y.unique()) == 3
    assert len(load("table", tmp_path, user="who", held_out=4).unseen.y.unique()) == 4
    assert len(load("table", tmp_path, user="who", unseen_share=0.0).unseen.y) == 0


@pytest.mark.parametrize("mark", [";", "\t"])
def test_other_delimiters(tmp_path, mark):
    comma = load("table", people(tmp_path), user="who")
    text = (tmp_path / "x.csv").read_text()
    write(tmp_path, text.replace(",", mark))
    other = load("table", tmp_path, user="who")
    assert torch.equal(other.source.x, comma.source.x) and other.class_names == comma.class_names


def test_the_column_of_people_is_asked_for(tmp_path):
    with pytest.raises(
        SelfsameError, match=r"no column 'user'; the columns are: 'b', 'who', 'c', 'a'.*data\.user=NAME"
    ):
        load("table", people(tmp_path))
