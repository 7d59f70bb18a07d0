"""A network as devices receive it: what the server takes the digest of is what they take it of."""

import torch

from selfsame.deploy.codec import Field, Spec, decode, encode
from selfsame.deploy.received import as_received, theta_digest

SIZE = 257


def read(theta_P, half):
    """As a device reads it from its request."""
    sent = encode("embed", 3, {"run": "r"}, {"network": theta_P}, frozenset({"network"} if half else ()))
    fields = {"network": Field((SIZE,), theta_P.dtype, half=half)}
    return decode(sent, expected=Spec("embed", fields=fields)).fields["network"]


def test_both_ends_have_one_digest():
    drawn_P = torch.randn(SIZE, generator=torch.Generator().manual_seed(5))
    for theta_P in (drawn_P, 1e-6 * drawn_P, 1e6 * drawn_P, torch.zeros(SIZE), drawn_P.double()):
        for half in (False, True):
            here_P, there_P = as_received(theta_P, half), read(theta_P, half)
            assert torch.equal(here_P, there_P) and here_P.dtype == theta_P.dtype
            assert theta_digest(here_P) == theta_digest(there_P)
    assert not torch.equal(as_received(drawn_P, True), drawn_P)


def test_one_changed_number_is_another_network():
    theta_P = torch.ones(SIZE)
    other_P = theta_P.clone()
    other_P[-1] += 2**-23
    assert theta_digest(theta_P) != theta_digest(other_P)


def test_a_network_that_is_not_finite_has_a_digest_all_the_same():
    """It is the devices who refuse it, and the round ends as other rounds do that nobody answers."""
    theta_P = torch.full((SIZE,), float("inf"))
    assert len(theta_digest(as_received(theta_P, True))) == len(theta_digest(as_received(theta_P, False))) == 32
