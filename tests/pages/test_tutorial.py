"""The tutorial runs, and its output is the real one."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from shell import PAGES, Shell, Step, alike, blocks, differences, prose, steps

TUTORIAL = (PAGES / "docs" / "tutorial.md").read_text(encoding="utf-8")
# Seconds, bytes, and what an attacker gets of sums, which is luck.
LOOSE = re.compile(r"^feduv\(secrets=seeded\) \d|^bytes|^ms per sample|^updates a sum")
NOWHERE = re.compile(r"(?!)")


def test_every_command_prints_what_the_page_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "")  # the page exports its own
    shell = Shell()
    for block in blocks(TUTORIAL):
        if block.title:
            Path(block.title).write_text(block.text, encoding="utf-8")
            continue
        for step in steps(block.text):
            told = differences(step.shown, shell.run(step.command), LOOSE)
            assert not told, f"$ {step.command}\n{told}"
    assert {"run", "phone", "face.onnx"} <= {path.name for path in tmp_path.iterdir()}


def test_nothing_in_the_tutorial_is_shown_without_being_run():
    assert all(block.language == "console" or block.title for block in blocks(TUTORIAL))
    assert "```" not in prose(TUTORIAL)
    whole = " ".join(step.command for block in blocks(TUTORIAL) if not block.title for step in steps(block.text))
    for verb in ("data check", "train", "evaluate", "export", "enrol", "verify", "wire", "audit"):
        assert f"selfsame {verb}" in whole


def test_blocks_and_steps_are_read():
    page = 'a\n```console\n$ one \\\n    more\nout\n\n$ two\n```\nb\n```python title="x.py"\npass\n```\n'
    console, file = blocks(page)
    assert steps(console.text) == [Step("one more", ("out", "")), Step("two", ())]
    assert (file.language, file.title, file.text) == ("python", "x.py", "pass\n")
    assert prose(page) == "a\n\nb\n\n"
    with pytest.raises(AssertionError, match="before the first command"):
        steps("out\n$ one\n")


@pytest.mark.parametrize(
    ("shown", "real", "same"),
    [
        ("accepted", "accepted", True),
        ("accepted", "rejected", False),
        ("0", "1", False),
        ("20 clients", "21 clients", False),
        ("EER 4.7", "EER 5.1", True),
        ("EER 4.7", "EER 12.3", False),
        ("let in 3 % of them", "let in 4 % of them", True),
        ("let in 3 % of them", "let in 30 % of them", False),
        ("threshold 0.7108 (tpr)", "threshold 0.7111 (tpr)", True),
        ("threshold 0.7108 (tpr)", "threshold 0.1111 (tpr)", False),
        ("difference 2.1e-06", "difference 1.9e-05", True),
        ("a: digest 5b11c56ba724a7be", "a: digest 257a9f365073da19", True),
        ("bytes 319,395", "bytes 400,000", True),
        ("bytes 319,395", "bytes some", False),
        ("12 s", "s", False),
    ],
)
def test_what_counts_as_the_same_line(shown, real, same):
    assert alike(shown, real, LOOSE) is same


def test_what_counts_as_the_same_output():
    real = ["a  b", "───", "", "c 1", "d", "e"]
    for shown in (real, ["a b", "c 1", "d", "e"], ["a b", "...", "e"], ["...", "d", "e"], ["a b", "..."], ["..."]):
        assert not differences(tuple(shown), real, NOWHERE)
    for shown in ((), ("a b",), ("c 1", "..."), ("...", "d"), ("a b", "...", "x", "..."), ("a b", "c 2", "d", "e")):
        assert differences(tuple(shown), real, NOWHERE)


@given(st.lists(st.text("abz019. %", max_size=12)))
def test_any_output_is_the_same_as_itself_and_never_with_a_word_more(lines):
    lines = [line for line in lines if line.strip() != "..."]
    assert not differences(tuple(lines), lines, NOWHERE)
    assert differences((*lines, "another"), lines, NOWHERE)
