"""Oracles by name, with settings that are known, typed and in range."""

import pytest

from selfsame.errors import SelfsameError
from selfsame.methods import METHODS
from selfsame.methods.oracles import ORACLES, make_oracle, settings_of
from selfsame.methods.sleec import Sleec


def test_an_oracle_is_made_by_its_name_and_is_no_method():
    assert make_oracle("sleec", {"rank": 7, "ridge": 2}) == Sleec(rank=7, ridge=2.0)
    assert settings_of(make_oracle("sleec", {"rank": 7}))["voters"] == Sleec().voters
    assert not set(ORACLES) & set(METHODS)


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("slec", {}, "unknown oracle 'slec'; did you mean 'sleec'?"),
        ("fedaws", {}, "unknown oracle 'fedaws'"),
        ("sleec", {"name": "x"}, "sleec: unknown option 'name'"),
        ("sleec", {"voters": 1.5}, "sleec: option voters: expected a whole number"),
        ("sleec", {"unit_labels": 1}, "sleec: option unit_labels: expected true or false"),
        ("sleec", {"ridge": 0.0}, "ridge above 0"),
    ],
)
def test_what_it_does_not_take_is_one_line(name, options, said):
    with pytest.raises(SelfsameError) as error:
        make_oracle(name, options)
    assert said in str(error.value) and "\n" not in str(error.value)
