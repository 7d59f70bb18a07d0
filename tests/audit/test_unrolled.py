"""The attacker who unrolls several local steps."""

import torch

from selfsame.audit.layers import Layer
from selfsame.audit.unrolled import first_features, fit, local_steps
from selfsame.methods.base import Cohort, unit
from selfsame.methods.fedhide import FedGN
from selfsame.methods.update_attack import seen_of

CLIENTS, SAMPLES, DIM, FEATURES, STEPS, RATE = 2, 4, 10, 16, 3, 1.0
METHOD = FedGN()
WHO = Cohort(torch.arange(CLIENTS), torch.arange(CLIENTS), torch.ones(CLIENTS).bool())


def scene():
    """(a last layer, features of each client's samples, prototypes, the table of proxies)."""
    draw = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    layer = Layer(0.3 * normal(DIM, FEATURES), 0.1 * normal(DIM))
    feature = normal(CLIENTS, 1, FEATURES).abs() + 0.2 * normal(CLIENTS, SAMPLES, FEATURES)
    sent = {"proxies": unit(normal(CLIENTS, DIM)), "proxy_classes": torch.arange(CLIENTS)}
    return layer, feature, 2 * unit(normal(CLIENTS, DIM)), sent


def plain_step(weight, bias, feature, vector, sent, client):
    """(1)-(3) and their derivatives by hand, for one client: what one local SGD step makes of layer and prototype."""
    length = float(vector.norm())
    w = vector / length
    dW, db, dw = torch.zeros_like(weight), torch.zeros_like(bias), torch.zeros_like(vector)
    for h in feature:
        z = weight @ h + bias
        u = z / z.norm()
        cosine = float(u @ w)
        pull = -2 * (1 - cosine) / len(feature)  # d loss / d cosine
        slope = pull * (w - cosine * u) / z.norm()
        dW += torch.outer(slope, h)
        db += slope
        dw += pull * (u - cosine * w) / length
    others = [row for row in range(len(sent["proxies"])) if row != client]
    for row in others:
        p = sent["proxies"][row]
        cosine = float(p @ w)
        dw += METHOD.negative_weight * 2 * (1 + cosine) / len(others) * (p - cosine * w) / length
    return weight - RATE * dW, bias - RATE * db, vector - RATE * dw


def seen():
    """(the layer before, the update of every client, its prototype after, everything else)."""
    before, feature, vector, sent = scene()
    made = []
    for client in range(CLIENTS):
        state = before.weight, before.bias, vector[client]
        for _ in range(STEPS):
            state = plain_step(*state[:2], feature[client], state[2], sent, client)
        made.append(state)
    weight, bias, after = (torch.stack(part) for part in zip(*made, strict=True))
    return before, Layer(weight - before.weight, bias - before.bias), after, (feature, vector, sent)


def test_the_steps_are_the_devices_own():
    before, change, after, (feature, vector, sent) = seen()
    free = vector.clone().requires_grad_()
    layer, moved = local_steps(METHOD, before, feature.requires_grad_(), free, sent, WHO, RATE, STEPS)
    torch.testing.assert_close((layer.weight - before.weight).detach(), change.weight)
    torch.testing.assert_close((layer.bias - before.bias).detach(), change.bias)
    torch.testing.assert_close(moved.detach(), after)


def test_it_goes_beyond_the_analytic_answer():
    """Here the cosine changes so much on the way that one step's formula is far off."""
    before, change, after, (_, _, sent) = seen()
    scale = RATE * STEPS
    moments = seen_of(change.weight / scale, change.bias / scale, before.weight, before.bias)
    first = METHOD.attack_updates(moments)
    found = fit(METHOD, before, change, DIM**0.5 * first, sent, WHO, RATE, STEPS, tries=40)
    analytic, unrolled = ((unit(guess) * unit(after)).sum(1) for guess in (first, found.vector_MD))
    assert float(analytic.mean()) < 0.9 < float(unrolled.mean())
    assert float(found.gap_M.max()) < 0.2


def test_the_gap_is_what_is_left_unexplained():
    before, change, _, (_, vector, sent) = seen()
    found = fit(METHOD, before, change, vector, sent, WHO, RATE, STEPS, tries=0, samples=2)
    start = first_features(before, change, 2)
    free = vector.clone().requires_grad_()
    layer, moved = local_steps(METHOD, before, start.requires_grad_(), free, sent, WHO, RATE, STEPS)
    for client in range(CLIENTS):
        off = layer.weight[client].detach() - before.weight - change.weight[client]
        shift = layer.bias[client].detach() - before.bias - change.bias[client]
        expected = float(off.norm() ** 2 / change.weight[client].norm() ** 2)
        expected += float(shift.norm() ** 2 / change.bias[client].norm() ** 2)
        assert abs(float(found.gap_M[client]) - expected) < 1e-9
    torch.testing.assert_close(found.vector_MD, moved.detach())
