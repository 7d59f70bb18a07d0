"""The README is short, its quick starts run."""

import os
import re

from shell import PAGES, Shell, blocks, prose

README = (PAGES / "README.md").read_text(encoding="utf-8")


def words(page):
    """Words that a reader reads: no code blocks, no pictures, no addresses, no rules of tables."""
    text = re.sub(r"<!--.*?-->", "", prose(page), flags=re.DOTALL)
    text = re.sub(r"!\[[^]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return [word for word in re.sub(r"[|\[\]*`]", " ", text).split() if re.search(r"\w", word)]


def test_words_are_counted():
    page = "# One two\n\n![no](a.svg) <!-- no -->\n```sh\nno no\n```\n[three](no.md) `four`\n\n| five |\n|---|\n| – |\n"
    assert words(page) == ["One", "two", "three", "four", "five"]


def test_two_screens():
    assert len(words(README)) <= 900


def test_the_order_of_the_page():
    places = [README.index(part) for part in ("frontier.svg", "make demo", "selfsame compare", "selfsame enrol")]
    places += [README.index(part) for part in ("## Methods", "## Figures", "## Manual")]
    assert places == sorted(places)


def repeatable(line):
    """FedUV's codewords come from the seed here, and not from the system."""
    return line.replace("train feduv", "train feduv --set secrets=seeded")


def test_the_quick_starts_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SELFSAME_PASSPHRASE", "correct horse battery")
    shell, said = Shell(), {}
    for block in blocks(README):
        if block.language == "python":
            exec(compile(block.text, "README.md", "exec"), {})
        if block.language == "sh":
            said |= {line: shell.run(repeatable(line)) for line in block.text.splitlines()}
    verdicts = [lines for line, lines in said.items() if line.startswith("selfsame verify")]
    assert verdicts == [["accepted", "0"], ["rejected", "1"]]
    assert {"model.onnx", "kept", "runs"} <= set(os.listdir())


def test_only_make_is_not_run():
    rest = [block.text for block in blocks(README) if block.language not in ("sh", "python")]
    assert len(rest) == 1 and all(line.startswith("make ") for line in rest[0].splitlines())
    for block in blocks(README):
        assert block.language != "sh" or all(line.startswith("selfsame ") for line in block.text.splitlines())
