"""Extreme classification files: the right rows from good ones, one line with its number from any others."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from selfsame.data import load, load_whole
from selfsame.data.formats import xc_text
from selfsame.data.formats.xc_text import read_xc
from selfsame.data.sets import xc
from selfsame.data.sets.xc import load_xc
from selfsame.errors import SelfsameError

FUZZ = settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
TRAIN = """7 6 5
0,3 0:1 5:0.5
3 1:2 2:-1.5e-1 4:+3
 2:1
1,3,0 0:4

4
0 3:1 1:2
"""
TEST = """4 6 5
3,0 5:2
2 1:1
 0:1
4,2,1 0:1 1:-9 2:3 3:.5
"""


def write(folder, train=TRAIN, test=TEST, stem="toy_"):
    for name, text in (("train", train), ("test", test)):
        (folder / f"{stem}{name}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


def parsed(text):
    """Rows by splitting: ([labels], [(index, value)])."""
    rows = []
    for line in text.split("\n")[1:]:
        words = line.split()
        labels = [] if not words or ":" in words[0] else sorted({int(word) for word in words.pop(0).split(",")})
        rows.append((labels, [(int(word.split(":")[0]), np.float32(word.split(":")[1])) for word in words]))
    return rows


def lists(rows):
    """What was read, in the same form."""
    out = []
    for r in range(len(rows)):
        pairs = slice(rows.offset[r], rows.offset[r + 1])
        labels = rows.label[rows.label_offset[r] : rows.label_offset[r + 1]].tolist()
        out.append((labels, list(zip(rows.index[pairs].tolist(), rows.value[pairs]))))
    return out


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\n", "\n\n\n"])
def test_rows_are_read_as_they_stand(tmp_path, end, last):
    text = TRAIN.rstrip("\n")
    (tmp_path / "x").write_bytes((text + last).replace("\n", end).encode())
    rows = read_xc(tmp_path / "x")
    assert (rows.features, rows.labels) == (6, 5)
    assert lists(rows) == parsed(text)


def random_text(rng, rows, features=40, labels=30):
    lines = [f"{rows} {features} {labels}"]
    for _ in range(rows):
        own = ",".join(map(str, rng.integers(0, labels, rng.integers(0, 4))))
        pairs = " ".join(f"{i}:{v:.4g}" for i, v in zip(rng.integers(0, features, 5), rng.normal(size=5)))
        lines.append(f"{own} {pairs}")
    return "\n".join(lines)


@pytest.mark.parametrize("block", [7, 100, 1 << 22])
def test_blocks_do_not_show(tmp_path, monkeypatch, block):
    text = random_text(np.random.default_rng(0), 60)
    (tmp_path / "x").write_text(text)
    monkeypatch.setattr(xc_text, "_BLOCK", block)
    assert lists(read_xc(tmp_path / "x")) == parsed(text)


def test_the_parser_of_lines_agrees_with_that_of_blocks():
    text = (random_text(np.random.default_rng(1), 200).split("\n", 1)[1] + "\n").encode()
    fast, slow = xc_text._fast(text, 40, 30), xc_text._slow("x", text, 2, 40, 30)
    for one, other in zip(fast, slow, strict=True):
        assert one.dtype == other.dtype and np.array_equal(one, other)


def test_clients_hold_the_rows_of_their_label(tmp_path):
    fed = load_xc(write(tmp_path), every_label=True)
    assert fed.name == "toy" and fed.shape == (2, 4) and fed.source.features == 6
    assert fed.class_names == ("0", "1", "3", "4") and fed.class_of_N.tolist() == [0, 1, 2, 3]
    rows = parsed(TRAIN.rstrip("\n"))
    for client, label in enumerate((0, 1, 3, 4)):
        expected = [pairs for labels, pairs in rows if label in labels]
        assert int(fed.count_N[client]) == len(expected)
        got = fed.source.rows(torch.tensor([client]), torch.arange(len(expected))[None])
        assert got.shape == (1, len(expected), 2, 4) and got.dtype == torch.float32
        for sample, pairs in zip(got[0].tolist(), expected):
            pad = [0.0] * (4 - len(pairs))
            assert sample == [[float(i) for i, _ in pairs] + pad, [float(v) for _, v in pairs] + pad]
    assert fed.notes == (
        "2 of 7 training rows have no label and are left out",
        "1 of 5 labels have no training row, so no client",
        "1 of 4 test rows have no label and are left out",
        "1 of 3 test rows have only labels without a client: misses at every k",
    )


def test_test_rows_keep_all_labels_that_a_client_holds(tmp_path):
    test = load_xc(write(tmp_path), every_label=True).test
    assert test.x.shape == (2, 2, 4) and test.missed == 1
    assert test.labels.offset.tolist() == [0, 2, 4] and test.labels.value.tolist() == [0, 2, 1, 3]
    assert all(int(y) in own for y, own in zip(test.y, ([0, 2], [1, 3])))
    assert test.x[1].tolist() == [[0.0, 1.0, 2.0, 3.0], [1.0, -9.0, 3.0, 0.5]]
    assert test.to("cpu").labels.value.tolist() == [0, 2, 1, 3] and test.to("cpu").missed == 1


def test_a_cohort_gets_each_clients_own_rows(tmp_path):
    fed = load_xc(write(tmp_path), every_label=True)
    client, index = torch.tensor([2, 0]), torch.tensor([[1, 0], [2, 2]])
    both = fed.source.to("cpu").rows(client, index)
    for m in range(2):
        assert torch.equal(both[m], fed.source.rows(client[m : m + 1], index[m : m + 1])[0])


def test_drawing_a_batch_never_waits_for_a_value(tmp_path):
    """On the meta device there are shapes alone: what works there can be captured in a CUDA graph."""
    source = load_xc(write(tmp_path), every_label=True).source.to("meta")
    index = torch.empty(3, 8, dtype=torch.int64, device="meta")
    batch = source.rows(index[:, 0], index)
    assert batch.shape == (3, 8, 2, 4) and batch.device.type == "meta" and not source.on_host


def test_one_label_a_row_is_drawn_evenly_and_from_the_seed_alone(tmp_path):
    number = 3000
    text = f"{number} 2 7\n" + "\n".join("1,4,6 0:1" if row % 2 else "2 1:1" for row in range(number))
    write(tmp_path, text, "1 2 7\n4 0:1\n")
    fed = load_xc(tmp_path)
    assert int(fed.count_N.sum()) == number and fed.class_names == ("1", "2", "4", "6")
    counts = fed.count_N.tolist()
    assert counts[1] == number // 2
    for drawn in (counts[0], counts[2], counts[3]):
        assert abs(drawn - 500) < 4 * np.sqrt(1500 * 2 / 9)
    again, other = load_xc(tmp_path), load_xc(tmp_path, seed=1)
    assert torch.equal(fed.source.row_S, again.source.row_S)
    assert not torch.equal(fed.source.row_S[: counts[0]], other.source.row_S[: counts[0]])


def test_labels_that_lose_all_their_rows_are_reported(tmp_path):
    write(tmp_path, "1 2 3\n0,1,2 0:1\n", "1 2 3\n0,1,2 0:1\n")
    fed = load_xc(tmp_path)
    assert fed.clients == 1 and len(fed.test.labels.value) == 1
    assert fed.notes == ("2 of 3 labels lost all their rows when one label per row was drawn: no client",)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(longest=st.integers(1, 9), seed=st.integers(0, 1000))
def test_long_rows_keep_their_largest_features(tmp_path, longest, seed):
    rng = np.random.default_rng(seed)
    rows = [[(int(i), float(rng.integers(-4, 5))) for i in range(rng.integers(0, 9))] for _ in range(6)]
    text = "6 9 1\n" + "\n".join("0 " + " ".join(f"{i}:{v}" for i, v in pairs) for pairs in rows)
    fed = load_xc(write(tmp_path, text, text), longest=longest)
    most = max(1, *map(len, rows))
    width = min(longest, most)
    assert fed.shape == (2, width)
    for got in (fed.source.rows(torch.tensor([0]), torch.arange(6)[None])[0], fed.test.x):
        for sample, pairs in zip(got.tolist(), rows):
            kept = sorted(sorted(pairs, key=lambda pair: (-abs(pair[1]), pair[0]))[:width])
            pad = [0.0] * (width - len(kept))
            assert sample == [[float(i) for i, _ in kept] + pad, [v for _, v in kept] + pad]
    cut = sum(len(pairs) > width for pairs in rows)
    note = (
        f"cut to their {width} largest features: {cut} of 6 training and {cut} of 6 test rows (the longest has {most})"
    )
    assert fed.notes == ((note,) if cut else ())


def test_the_test_set_can_be_bounded(tmp_path, monkeypatch):
    write(tmp_path, test="5 6 5\n" + "\n".join(f"0 {i}:1" for i in range(5)))
    fed = load_xc(tmp_path, test_rows=2, every_label=True)
    assert fed.test.x[:, 0, 0].tolist() == [0.0, 2.0] and "tested on 2 of 5 labelled test rows" in fed.notes
    monkeypatch.setattr(xc, "_MOST_BYTES", 5 * 3 * 8 - 1)
    with pytest.raises(SelfsameError, match="5 test rows of 3 features need 0 GiB; set longest or test_rows"):
        load_xc(tmp_path, every_label=True)


def test_several_sets_need_a_name(tmp_path):
    write(write(tmp_path), stem="other_")
    with pytest.raises(SelfsameError, match="several sets; option which must be one of: other, toy"):
        load_xc(tmp_path)
    with pytest.raises(SelfsameError, match="no set 'mine'"):
        load_xc(tmp_path, which="mine")
    assert load_xc(tmp_path, which="other").name == "other"


def test_an_empty_folder_is_told_what_it_lacks(tmp_path):
    (tmp_path / "lonely_train.txt").write_text(TRAIN)
    with pytest.raises(SelfsameError, match=r"wanted: NAME_train.txt and NAME_test.txt.*http"):
        load_xc(tmp_path)


@pytest.mark.parametrize(
    "text, line",
    [
        ("", "empty"),
        ("3 4\n", "line 1: expected the numbers of rows, features and labels, got '3 4'"),
        ("3 4 x\n", "line 1: expected the numbers"),
        ("1 99999999 2\n0 1:1\n", "1 to 16777216 features"),
        ("0 5 5\n", "1 or more rows"),
        ("2 5 5\n", "no rows below the first line, which promises 2"),
        ("2 5 5\n0 1:1\n", "promises 2 rows, the file has 1"),
        ("1 5 5\n0 1:1\n0 1:1\n", "promises 1 rows, the file has 2"),
        ("1 5 5\n0,1\n", "no row has a feature"),
        ("1 5 5\n5 1:1\n", "line 2: expected a label from 0 to 4, got '5'"),
        ("2 5 5\n1 1:1\n-1 1:1\n", "line 3: expected a label from 0 to 4, got '-1'"),
        ("1 5 5\n1,,2 1:1\n", "line 2: expected a label from 0 to 4, got ''"),
        ("1 5 5\n1, 1:1\n", "line 2: expected a label"),
        ("1 5 5\n1.0 1:1\n", "line 2: expected a label"),
        ("1 5 5\n1 5:1\n", "line 2: expected a feature from 0 to 4, got '5'"),
        ("1 5 5\n1 1e0:1\n", "line 2: expected a feature"),
        ("1 5 5\n1 2 1:1\n", "line 2: expected index:value with a finite number, got '2'"),
        ("1 5 5\n 1,2 1:1\n", "line 2: expected a feature from 0 to 4, got '1,2'"),
        ("1 5 5\n1 2: 1:1\n", "line 2: expected index:value with a finite number, got '2:'"),
        ("1 5 5\n1 :2\n", "line 2: expected a feature"),
        ("1 5 5\n1 2:3:4\n", "got '2:3:4'"),
        ("1 5 5\n1 2:1.2.3\n", "got '2:1.2.3'"),
        ("1 5 5\n1 2:1,3\n", "got '2:1,3'"),
        ("1 5 5\n1 2:nan\n", "got '2:nan'"),
        ("1 5 5\n1 2:inf\n", "got '2:inf'"),
        ("1 5 5\n1 2:1e39\n", "got '2:1e39'"),
        ("1 5 5\n1 2:1_0\n", "got '2:1_0'"),
        ("1 5 5\n1 2:\xff\n", "line 2"),
        ("1 5 5\n1 2:1\0\n", "line 2"),
    ],
)
def test_broken_files_get_one_line_with_its_number(tmp_path, text, line):
    (tmp_path / "x").write_bytes(text.encode("latin-1"))
    with pytest.raises(SelfsameError, match=line) as caught:
        read_xc(tmp_path / "x")
    assert str(caught.value).startswith(str(tmp_path / "x")) and "\n" not in str(caught.value)


@pytest.mark.parametrize("block", [16, 1 << 22])
def test_lines_are_counted_over_blocks(tmp_path, monkeypatch, block):
    monkeypatch.setattr(xc_text, "_BLOCK", block)
    (tmp_path / "x").write_text("60 5 5\n" + "1 1:1\n" * 40 + "1 1:x\n" + "1 1:1\n" * 19)
    with pytest.raises(SelfsameError, match="line 42: expected index:value"):
        read_xc(tmp_path / "x")


def test_an_endless_line_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(xc_text, "_BLOCK", 10)
    monkeypatch.setattr(xc_text, "_LONGEST_LINE", 50)
    (tmp_path / "x").write_text("1 5 5\n1 " + "2:1 " * 1000)
    with pytest.raises(SelfsameError, match="line 2: longer than 50 bytes"):
        read_xc(tmp_path / "x")


def test_both_files_must_agree(tmp_path):
    write(tmp_path, test="1 7 5\n0 1:1\n")
    with pytest.raises(SelfsameError, match=r"toy_test.txt: 7 features and 5 labels, but toy_train.txt has 6 and 5"):
        load_xc(tmp_path)
    write(tmp_path, "1 6 5\n 1:1\n")
    with pytest.raises(SelfsameError, match="no row has a label"):
        load_xc(tmp_path)
    with pytest.raises(SelfsameError, match="longest and test_rows must be 0 or more, got -1"):
        load_xc(tmp_path, longest=-1)


def loads(folder):
    try:
        fed = load_xc(folder)
    except SelfsameError as error:
        assert "\n" not in str(error)
        return None
    every = fed.source.padded(torch.arange(len(fed.source.offset) - 1))
    for x in (every, fed.test.x):
        assert bool(torch.isfinite(x).all()) and bool(((x[:, 0] >= 0) & (x[:, 0] < 6)).all())
    return fed


ODD = st.text(alphabet="0123456789,:. -+eE\n\t\rnaif_x", max_size=60)


@FUZZ
@given(body=ODD, rows=st.integers(0, 4))
def test_text_of_the_right_letters_loads_or_gets_one_line(tmp_path, body, rows):
    loads(write(tmp_path, f"{rows} 6 5\n{body}"))


@FUZZ
@given(body=ODD)
def test_both_parsers_say_the_same(body):
    text = body.encode() + b"\n"
    fast = xc_text._fast(text, 6, 5)
    try:
        slow = xc_text._slow("x", text, 2, 6, 5)
    except SelfsameError:
        assert fast is None
        return
    assert fast is None or all(np.array_equal(one, other) for one, other in zip(fast, slow, strict=True))


@FUZZ
@given(raw=st.binary(max_size=80))
def test_random_bytes_load_or_get_one_line(tmp_path, raw):
    loads(write(tmp_path, raw))
    loads(write(tmp_path, b"2 6 5\n" + raw))


@FUZZ
@given(data=st.data())
def test_changed_files_load_or_get_one_line(tmp_path, data):
    raw = bytearray(TRAIN.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    loads(write(tmp_path, bytes(raw[: data.draw(st.integers(0, len(raw)))])))


# ---- rows set apart, for choosing settings


def rows_of(samples):
    """Padded samples as sorted lists of (index, value)."""
    return sorted(sorted((float(i), float(v)) for i, v in zip(*one) if v) for one in samples.tolist())


def test_rows_set_apart_take_the_place_of_the_test_whose_file_is_not_read(tmp_path):
    write(tmp_path, test="not a file of this kind")
    for options in (
        {"rows_apart": 0.4},
        {"apart": "samples", "apart_share": 0.4},
        {"apart": "auto", "apart_share": 0.4},
    ):
        made = load("xc", tmp_path, every_label=True, **options)
        trained = rows_of(made.source.padded(made.source.row_S.unique()))
        tested = rows_of(made.test.x)
        every = [sorted((float(i), float(v)) for i, v in features) for labels, features in parsed(TRAIN)[:7] if labels]
        assert all(row in every for row in trained + tested) and not any(row in trained for row in tested if row)
        assert isinstance(made.test, xc.MultiLabelled) and len(made.test.y) + made.test.missed <= 3
        assert any(note == "for choosing settings: 3 of 7 training rows set apart" for note in made.notes)


@FUZZ
@given(st.data())
def test_picked_rows_are_those_rows(tmp_path, data):
    write(tmp_path)
    rows = read_xc(tmp_path / "toy_train.txt")
    kept = np.array(sorted(data.draw(st.sets(st.integers(0, len(rows) - 1)))), np.int64)
    assert lists(xc._picked(rows, kept)) == [lists(rows)[number] for number in kept]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rows_apart": 1.0}, "xc: rows_apart must be 0 or more and below 1"),
        ({"apart": "people"}, "xc: has samples to set apart, no people"),
        ({"apart": "samples", "apart_share": -0.5}, "xc: apart_share must lie between 0 and 1"),
    ],
)
def test_rows_that_cannot_be_set_apart(tmp_path, options, words):
    with pytest.raises(SelfsameError, match=words):
        load("xc", write(tmp_path), **options)


def dense(found):
    return found.x_SF.toarray().tolist(), found.y_SC.toarray().tolist()


def wanted_rows(text, longest=99):
    """The same of a text by splitting: rows that have a label, with their features of largest magnitude."""
    x, y = [], []
    for labels, pairs in parsed(text):
        kept = sorted(pairs, key=lambda pair: -abs(pair[1]))[:longest]
        if labels:
            x.append([sum(float(value) for index, value in kept if index == column) for column in range(6)])
            y.append([float(label in labels) for label in range(5)])
    return x, y


@pytest.mark.parametrize("longest", [0, 1, 2])
def test_whole_rows_have_all_their_labels(tmp_path, longest):
    train, test = load_whole("xc", write(tmp_path), longest=longest)
    assert dense(train) == wanted_rows(TRAIN.rstrip("\n"), longest or 99) and train.x_SF.shape == (5, 6)
    assert dense(test) == wanted_rows(TEST.rstrip("\n"), longest or 99) and test.y_SC.shape == (3, 5)


def test_whole_rows_are_tested_on_those_of_the_federation(tmp_path):
    rng = np.random.default_rng(3)
    write(tmp_path, random_text(rng, 60), random_text(rng, 40))
    for options in ({}, {"test_rows": 7}, {"rows_apart": 0.25}, {"rows_apart": 0.25, "seed": 1, "test_rows": 5}):
        (train, test), found = load_whole("xc", tmp_path, **options), load_xc(tmp_path, **options)
        held = [int(name) for name in found.class_names]
        assert test.y_SC.shape[0] == len(found.test.y) + found.test.missed
        assert train.x_SF.shape[0] == int(found.count_N.sum())
        labels = found.test.labels
        mine = [[held[one] for one in labels.value[a:b]] for a, b in zip(labels.offset[:-1], labels.offset[1:])]
        true = [sorted(set(row.indices.tolist()) & set(held)) for row in test.y_SC]
        assert [one for one in true if one] == mine


def test_whole_rows_that_cannot_be_had(tmp_path):
    write(tmp_path, TRAIN, "2 6 5\n 0:1\n 1:2\n")
    with pytest.raises(SelfsameError, match=r"toy_test\.txt: no row has a label"):
        load_whole("xc", tmp_path)
    with pytest.raises(SelfsameError, match="longest and test_rows must be 0 or more, got -1"):
        load_whole("xc", tmp_path, longest=-1)
    with pytest.raises(SelfsameError, match="xc: unknown option 'more'"):
        load_whole("xc", tmp_path, more=1)
    with pytest.raises(SelfsameError, match=r"digits: has no rows with several labels.*there is: xc"):
        load_whole("digits")


def test_rows_set_apart_are_those_that_choosing_asks_for(tmp_path):
    write(tmp_path)
    mine, by_share = (load_whole("xc", tmp_path, **some) for some in (
        {"apart": "samples", "apart_share": 0.3}, {"rows_apart": 0.3}))  # fmt: skip
    assert [dense(part) for part in mine] == [dense(part) for part in by_share]
