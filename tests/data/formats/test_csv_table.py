"""CSV files: the same table in many dresses, and one line with its number for whatever is wrong with one."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data.formats import csv_table
from selfsame.data.formats.csv_table import find_csv, read_csv, read_header
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
GOOD = "user,a,b,note\n7,1,2.5,x\n10,-3e2,4,y\n7, 5 ,6,\n"


def every(header):
    return [name for name in header if name in ("a", "b")]


def write(folder, text):
    (folder / "x.csv").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder / "x.csv"


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
@given(numbers=st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_number_comes_back(tmp_path, numbers):
    file = write(tmp_path, "user,a\n" + "\n".join(f"1,{number!r}" for number in numbers))
    assert read_csv(file, ("user",), every).number_SF[:, 0].tolist() == numbers
