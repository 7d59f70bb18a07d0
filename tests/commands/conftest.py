"""What tests of commands share."""

import sys

import pytest

from selfsame import cli


@pytest.fixture
def call(monkeypatch, capsys):
    """The command in this process: (exit code, standard output, standard error)."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["selfsame", *map(str, words)])
        capsys.readouterr()
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return run
