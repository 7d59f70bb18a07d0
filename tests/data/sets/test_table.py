"""Tables: the right rows to the right people, and one line with its number for whatever is wrong with a CSV file."""

import math

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load
from selfsame.data.formats import csv_table
from selfsame.data.formats.csv_table import find_csv, read_csv, read_header
from selfsame.data.tables import matching
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = "user,a,b,note\n7,1,2.5,x\n10,-3e2,4,y\n7, 5 ,6,\n"


def every(header):
    return [name for name in header if name in ("a", "b")]


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


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("\n", "\r\n"),
        "\ufeff" + GOOD,
        GOOD.rstrip("\n"),
        GOOD.replace("\n", "\n\n"),
        GOOD.replace("2.5", '"2.5"').replace("x", '"x, ""y""\nz"'),
        GOOD.replace("user,a", ' user ,"a"'),
    ],
    ids=["plain", "crlf", "bom", "no end", "blank lines", "quotes", "spaces"],
)
def test_the_same_table_in_many_dresses(tmp_path, text):
    file = write(tmp_path, text)
    found = read_csv(file, ("user",), every)
    assert found.columns == ("a", "b") and found.names["user"] == ("7", "10")
    assert found.key_S["user"].tolist() == [0, 1, 0]
    assert found.number_SF.tolist() == [[1.0, 2.5], [-300.0, 4.0], [5.0, 6.0]]
    assert read_header(file, ("note",)) == ["user", "a", "b", "note"]


def test_lines_are_those_of_the_file(tmp_path):
    found = read_csv(write(tmp_path, 'user,a,b\n\n1,2,3\n"2\n",4,5\n3,6,7\n'), ("user",), every)
    assert found.line_S.tolist() == [3, 5, 6] and found.names["user"] == ("1", "2", "3")


def test_names_are_ordered_by_size_and_then_as_text(tmp_path):
    found = read_csv(write(tmp_path, "user,a\nb,1\n10,2\nB,3\n9,4\n\u00b2,5\n"), ("user",), every)
    assert found.names["user"] == ("9", "10", "B", "b", "\u00b2")
    assert [found.names["user"][key] for key in found.key_S["user"]] == ["b", "10", "B", "9", "\u00b2"]


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "line 1: empty, expected a header"),
        ("\n1,2,3\n", "line 1: empty, expected a header"),
        ("1,2,3\n4,5,6\n", "line 1: only numbers, expected a header"),
        ("who,a,b\n1,2,3\n", "line 1: no column 'user'; the columns are: 'who', 'a', 'b'"),
        ("user,a,a\n1,2,3\n", "line 1: two columns are named 'a'"),
        ("user,a,\n1,2,3\n", "line 1: column 3 has no name"),
        ("user,a,b\n", "no rows below the header"),
        ("user,a,b\n1,2,3\n1,2\n", "line 3: 2 cells, but the header has 3 columns"),
        ("user,a,b\n1,2,3,4\n", "line 2: 4 cells"),
        ("user,a,b\n1,2,3\n,2,3\n", "line 3: column 'user' is empty"),
        ("user,a,b\n1,2,3\n1,2,three\n", "line 3: 'b' is not a number: 'three'"),
        ("user,a,b\n1,1_000,3\n", "line 2: 'a' is not a number: '1_000'"),
        ("user,a,b\n1,0x10,3\n", "line 2: 'a' is not a number"),
        ("user,a,b\n1,2,\n", "line 2: 'b' is empty or not finite.*option missing"),
        ("user,a,b\n1,2, \n", "line 2: 'b' is empty or not finite"),
        ("user,a,b\n1,2,3\n1,nan,\n", "line 3: 'a' is empty or not finite"),
        ("user,a,b\n1,-inf,2\n", "line 2: 'a' is empty or not finite"),
        ("user,a,b\n1,1e39,2\n", "line 2: 'a' is empty or not finite"),
        ('user,a,b\n1,2,"3\n1,2,3\n', "line 3: not CSV"),
        ('user,a,b\n1,"2"x,3\n', "line 2: not CSV"),
        ("user,a,b\n1,2,3\r1,2,3\n", "line 2: not CSV"),
        ("user,a,b\n1,2," + "3" * 140_000 + "\n", "line 2: not CSV .field larger than field limit"),
        (b"user,a,b\n1,2,3\n1,2,\xff\n", "line 3: not UTF-8 text"),
        (b"\xff\xfeu\0s\0", "line 1: not UTF-8 text"),
        ("user,a,b\n1,2,\0\n", "line 2: 'b' is not a number"),
    ],
)
def test_broken_files_get_one_line_with_its_number(tmp_path, text, line):
    file = write(tmp_path, text)
    with pytest.raises(SelfsameError, match=line) as caught:
        read_csv(file, ("user",), every)
    assert str(caught.value).startswith(str(file)) and "\n" not in str(caught.value) and len(str(caught.value)) < 400


def test_an_endless_line_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_table, "_LONGEST_LINE", 30)
    with pytest.raises(SelfsameError, match="line 3: longer than 30 bytes"):
        read_csv(write(tmp_path, "user,a,b\n1,2,3\n" + "1," * 100), ("user",), every)


def test_missing_values_are_kept_or_drop_their_row(tmp_path):
    file = write(tmp_path, "user,a,b\n1,2,3\n2,,5\n3,6,inf\n4,8,9\n")
    kept = read_csv(file, ("user",), every, missing="keep")
    expected = [[2.0, 3.0], [math.nan, 5.0], [6.0, math.nan], [8.0, 9.0]]
    np.testing.assert_array_equal(kept.number_SF, expected)
    dropped = read_csv(file, ("user",), every, missing="drop")
    assert dropped.number_SF.tolist() == [[2.0, 3.0], [8.0, 9.0]] and dropped.dropped == 2
    assert dropped.names["user"] == ("1", "4") and dropped.key_S["user"].tolist() == [0, 1]
    assert dropped.line_S.tolist() == [2, 5]
    with pytest.raises(SelfsameError, match="every row has a missing value"):
        read_csv(write(tmp_path, "user,a,b\n1,2,\n"), ("user",), every, missing="drop")


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
    dropped = load("table", tmp_path, user="who", missing="drop", test=3, standardise=False)
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
        ({"missing": "guess"}, "missing must be error, drop or mean, got 'guess'"),
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


def test_the_file_is_found_alone_or_by_name(tmp_path):
    file = write(tmp_path, GOOD)
    assert find_csv(tmp_path, "w") == file == find_csv(file, "w")
    (tmp_path / "y.csv").write_text(GOOD)
    assert find_csv(tmp_path, "w", "y.csv") == tmp_path / "y.csv"
    with pytest.raises(SelfsameError, match=r"2 files \*.csv; wanted: w"):
        find_csv(tmp_path, "w")
    with pytest.raises(SelfsameError, match=r"no file z.csv; wanted: w"):
        find_csv(tmp_path, "w", "z.csv")


def tried(action):
    try:
        return action()
    except SelfsameError as error:
        assert "\n" not in str(error)
        return None


def sound(found):
    assert found is None or (len(found.number_SF) > 0 and np.isfinite(found.number_SF).all())


@FUZZ
@given(raw=st.binary(max_size=80))
def test_random_bytes_are_read_or_get_one_line(tmp_path, raw):
    for text in (raw, b"user,a,b\n" + raw, b"user,a,b\n1,2,3\n" + raw):
        file = write(tmp_path, text)
        sound(tried(lambda file=file: read_csv(file, ("user",), every)))


@FUZZ
@given(cells=st.lists(st.lists(st.text(alphabet='019.,-+eEnaif"\r\n \t_\0', max_size=6), max_size=5), max_size=5))
def test_odd_cells_are_read_or_get_one_line(tmp_path, cells):
    file = write(tmp_path, "user,a,b\n" + "\n".join(",".join(row) for row in cells))
    sound(tried(lambda: read_csv(file, ("user",), every, missing="drop")))


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


@FUZZ
@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_number_comes_back(tmp_path, numbers):
    file = write(tmp_path, "user,a\n" + "\n".join(f"1,{number!r}" for number in numbers))
    assert read_csv(file, ("user",), every).number_SF[:, 0].tolist() == numbers
