"""Somebody else's run folder: what it names is not imported unless that is asked for."""

import sys

import pytest

from selfsame import cli
from selfsame.config.recipe import stored_recipe
from selfsame.errors import SelfsameError
from selfsame.export.opened import open_model
from selfsame.runs.run import load_run, open_run

GIFT = "from pathlib import Path\nPath('ran').touch()\n"
COMMANDS = [
    ("resume", "run"),
    ("export", "run"),
    ("evaluate", "run"),
    ("verify", "run", "ann", "sample.npy"),
    ("enrol", "run", "--user", "ann", "sample.npy"),
    ("warm-up", "run", "ann", "sample.npy"),
    ("cluster", "resume", "cluster"),
    ("cluster", "terms", "cluster"),
]


@pytest.fixture(params=["method", "net"])
def gift(request, tmp_path, monkeypatch):
    """A folder with a run that names a module beside it; the current directory is the folder that holds both."""
    (tmp_path / "gift.py").write_text(GIFT)
    rest = '[net]\nname = "gift:Net"\n' if request.param == "net" else ""
    method = "fedhide" if request.param == "net" else "gift:Net"
    for place in (tmp_path / "run", tmp_path / "cluster" / "server"):
        place.mkdir(parents=True)
        (place / "recipe.toml").write_text(f'[method]\nname = "{method}"\n[data]\nname = "digits"\n{rest}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    yield tmp_path
    sys.modules.pop("gift", None)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(words[:2]))
def test_no_command_imports_what_a_folder_names(gift, monkeypatch, capsys, words):
    """On the review's commit each of these ran the module."""
    monkeypatch.setattr(sys, "argv", ["selfsame", *words])
    with pytest.raises(SystemExit) as end:
        cli.main()
    said = capsys.readouterr().err
    assert end.value.code == 2 and "imports and runs gift:Net" in said and "--trust-code" in said
    assert said.count("\n") == 1 and not (gift / "ran").exists() and "gift" not in sys.modules


@pytest.mark.parametrize("opened", [load_run, open_run, open_model, stored_recipe])
def test_nor_does_a_program(gift, opened):
    with pytest.raises(SelfsameError, match="imports and runs gift:Net"):
        opened(gift / "run")
    assert not (gift / "ran").exists()


def test_with_the_word_it_is_imported(gift, monkeypatch, capsys):
    """And what is no method or network is refused after that."""
    monkeypatch.setattr(sys, "argv", ["selfsame", "resume", "run", "--trust-code"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2 and "has no 'Net'" in capsys.readouterr().err and (gift / "ran").exists()
