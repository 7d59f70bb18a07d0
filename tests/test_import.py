"""Importing is quick: what is heavy comes with the first use."""

import os
import subprocess
import sys

import pytest

import selfsame

HEAVY = ("torch", "sklearn", "scipy", "matplotlib")


def python(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "what",
    [
        "selfsame",
        "selfsame.cli",
        "selfsame.config.recipe",
        "selfsame.config.presets",
        "selfsame.commands.evaluate",
        "selfsame.commands.privacy",
    ],
)
def test_nothing_heavy_is_imported(what):
    code = f"import {what}, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code) == "[]"


def test_reports_and_recipes_need_no_torch():
    assert python("import selfsame.report.table, sys; print('torch' in sys.modules)") == "False"


def test_version():
    done = subprocess.run([sys.executable, "-m", "selfsame", "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"selfsame {selfsame.__version__}")


def test_the_installed_command():
    command = os.path.join(os.path.dirname(sys.executable), "selfsame")
    if not os.path.exists(command):
        pytest.skip("selfsame is not installed beside this Python")
    done = subprocess.run([command, "--version"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, f"selfsame {selfsame.__version__}")


def test_every_public_name_is_there():
    from selfsame import Federation, Recipe, Run, SelfsameError, load, train

    assert all(map(callable, (Federation, Recipe, Run, SelfsameError, load, train)))
    for name in selfsame.__all__:
        assert getattr(selfsame, name) is not None


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nosuch"):
        selfsame.nosuch  # noqa: B018


@pytest.mark.parametrize("words", [[], ["cluster"], ["enrol"], ["export"]])
def test_help_is_plain_and_whole(words, monkeypatch):
    """No markup of a library that does not print it, and no summary that is cut off at 80 columns."""
    from typer.testing import CliRunner

    from selfsame.cli import app

    done = CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "80"})
    assert done.exit_code == 0
    assert "\\[" not in done.output and "...\n" not in done.output.partition("\n")[2]
    if words[-1:] == ["enrol"]:
        assert "[required]" in done.output
