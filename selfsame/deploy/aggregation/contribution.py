"""A device's contribution to a sum: clipped, weighted, in whole numbers, under masks that the helpers know."""

from __future__ import annotations

import os
import secrets

import torch
from torch import Tensor

from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.aggregation.sum_terms import SumTerms
from selfsame.deploy.codec import Field, as_tensor
from selfsame.enclave.masks import NUMBERS, add_masks, mask_key
from selfsame.enclave.records import OVERHEAD, SEED, Context, seal_record

MASKED, RECORDS = "masked", "records"
RECORD = OVERHEAD + SEED  # bytes of one helper's
_DTYPE = {16: torch.int16, 32: torch.int32}


def masked_fields(terms: SumTerms) -> dict[str, Field]:
    """What a device sends in place of its network."""
    return {
        MASKED: Field((terms.numbers,), _DTYPE[terms.bits]),
        RECORDS: Field((len(terms.helpers), RECORD), torch.uint8),
    }


def weighed(terms: SumTerms, update_P: Tensor, samples: int) -> tuple[Tensor, int]:
    """(an update, its weight); whether it is sent at all is chance."""
    if terms.quiet and secrets.randbelow(2**53) < terms.quiet * 2**53:
        return torch.zeros_like(update_P), 0
    return update_P, min(samples, terms.cap) if terms.cap > 1 else 1


def contribution(terms: SumTerms, update_P: Tensor, samples: int) -> Tensor:
    """The whole numbers of one update, int64. The rounding and the noise are chance."""
    update_P, weight = weighed(terms, update_P, samples)
    draw = torch.Generator().manual_seed(secrets.randbits(63))
    one, weight_1 = update_P.detach().cpu()[None], torch.tensor([weight])
    uniform = torch.rand(one.shape, generator=draw)
    normal = _normal(one.shape[1])[None] if terms.noise and weight else None
    return terms.code.contribution(one, weight_1, uniform, normal)[0]


def masked(
    terms: SumTerms, whole_P: Tensor, context: Context, signer: Signer, enclave: bytes = b""
) -> dict[str, Tensor]:
    """The contribution under one mask for each helper, and each mask's seed, sealed to that helper.

    `enclave`: the key of the run's enclave, where it is one of them.
    """
    numbers = whole_P.numpy().astype(NUMBERS[terms.bits])  # modulo 2^bits
    seeds = [os.urandom(SEED) for _ in terms.helpers]
    add_masks(numbers, [mask_key(seed, context.digest()) for seed in seeds])
    records = [
        seal_record(seed, enclave if helper.enclosed else helper.recipient, context, signer.key, signer.name).pack()
        for seed, helper in zip(seeds, terms.helpers, strict=True)
    ]
    sent = torch.from_numpy(numbers.view(numbers.dtype.str.replace("u", "i")))
    return {MASKED: sent, RECORDS: as_tensor(b"".join(records)).reshape(len(records), RECORD)}


def _normal(count: int) -> Tensor:
    """Standard normal numbers from the system's generator: noise that somebody else can draw again hides nothing."""
    words = torch.frombuffer(bytearray(os.urandom(16 * count)), dtype=torch.int64).reshape(2, count)
    uniform = (words.double() / 2.0**64 + 0.5).clamp(2.0**-65, 1.0)
    return torch.sqrt(-2 * torch.log(uniform[0])) * torch.cos(2 * torch.pi * uniform[1])
