"""Derivatives of derivatives as one list of operations: the same numbers, compiled once for what is done alike."""

import torch

from selfsame.audit import traced as module
from selfsame.audit.traced import traced


def twice(x, weight):
    """The derivative of the squared length of the derivative of |tanh(W x)|^2."""
    x, weight = x.detach().requires_grad_(), weight.detach().requires_grad_()
    first = torch.autograd.grad((weight @ x).tanh().square().sum(), weight, create_graph=True)[0]
    return torch.autograd.grad(first.square().sum(), (x, weight))


def draws(seed, *shapes):
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(shape, generator=draw, dtype=torch.float64) for shape in shapes)


def test_other_numbers_and_the_same_derivatives():
    run = traced(twice, draws(0, (3,), (2, 3)), "eager")
    for seed in (1, 2):
        given = draws(seed, (3,), (2, 3))
        torch.testing.assert_close(run(*given), twice(*given))
        assert not any(one.requires_grad for one in run(*given))


def test_compiled_once_for_what_is_alike(monkeypatch):
    monkeypatch.setattr(module, "_compiled", {})
    first = traced(twice, draws(0, (3,), (2, 3)), "eager")
    assert traced(twice, draws(1, (3,), (2, 3)), "eager") is first
    assert traced(twice, draws(1, (4,), (2, 4)), "eager") is not first


def test_what_is_read_beside_the_arguments_is_not_mistaken_for_anothers():
    def scaled(factor):
        return lambda x: (factor * x.square(),)

    given = draws(0, (3,))
    two, three = (traced(scaled(torch.tensor(value, dtype=torch.float64)), given, "eager") for value in (2.0, 3.0))
    torch.testing.assert_close(two(*given)[0], 2 * given[0].square())
    torch.testing.assert_close(three(*given)[0], 3 * given[0].square())
