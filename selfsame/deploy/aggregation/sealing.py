"""A device's side of sums in an enclave: the enclave is proved first, then an update is sealed to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from selfsame.deploy.aggregation.contribution import weighed
from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.aggregation.sum_terms import SumTerms
from selfsame.deploy.agreement import Agreement
from selfsame.deploy.codec import Field, Json, Refused, as_tensor
from selfsame.deploy.split.attest import Attested, Policy, check
from selfsame.enclave import quote
from selfsame.enclave.adder import record_size, update_bytes
from selfsame.enclave.mandate import SumPlan
from selfsame.enclave.records import HASH, Context, seal_record
from selfsame.errors import SelfsameError

RECORD = "record"
ENCLAVES = 16  # that a device attests in one run: each new one knows nothing of what was released before
_NONCE = b"selfsame sums 1\n"


def sum_plan(agreement: Agreement, register: str) -> SumPlan:
    """The enclave's plan as it follows from the terms, and from the digest of the devices' public keys."""
    sums = agreement.sums
    return SumPlan(
        run=agreement.run,
        terms=agreement.digest,
        register=register,
        parameters=sums.numbers - 1,
        clip=float(sums.clip),
        cap=sums.cap,
        noise=float(sums.noise),
        group=sums.group,
        least=sums.least,
        stand_ins=sums.stand_ins,
        rounds=agreement.recipe.run.rounds,
        polls=_poll_plan(agreement.polls[0]) if agreement.polls else {},
    )


def _poll_plan(terms: SumTerms) -> dict[str, Any]:
    found = {"parameters": terms.numbers - 1, "clip": float(terms.clip), "noise": float(terms.noise)}
    return {**found, "group": terms.group, "least": terms.least}


def run_nonce(run: str) -> bytes:
    """The nonce of every quote of a run: the enclave's key is as old as its process, and the plan names the run."""
    return hashlib.sha256(_NONCE + run.encode()).digest()


def attest(
    agreement: Agreement, told: str, before: Mapping[str, Any], policy: Policy, collateral: str | None
) -> dict[str, Json]:
    """What a device notes of an enclave: `told` is the register's digest, the enclave's key and its quote.

    `before` is what it noted of the last one. Refused unless the quote proves what the policy asks for.
    """
    try:
        whole = bytes.fromhex(told)
        register, key, raw = whole[:HASH], whole[HASH : 2 * HASH], whole[2 * HASH :]
        expected = quote.report_data(key, run_nonce(agreement.run), sum_plan(agreement, register.hex()).digest())
        found = check(raw, expected, policy, collateral)
    except (ValueError, SelfsameError):
        raise Refused("quote") from None
    count = before.get("count", 0) + (before.get("key") != key.hex())
    if count > ENCLAVES:
        raise Refused("quote")
    return {"key": key.hex(), "attested": asdict(found), "count": count}


def trusted_key(noted: Mapping[str, Any], policy: Policy) -> bytes:
    """The key of the enclave that was proved, as long as the policy of today accepts it."""
    if not noted or not policy.accepts(Attested.remembered(noted["attested"])):
        raise Refused("quote")
    return bytes.fromhex(noted["key"])


def sealed_fields(terms: SumTerms) -> dict[str, Field]:
    """What a device sends in place of its network."""
    return {RECORD: Field((record_size(terms.numbers - 1),), torch.uint8)}


def sealed(
    terms: SumTerms, update_P: Tensor, samples: int, context: Context, signer: Signer, key: bytes
) -> dict[str, Tensor]:
    """The update and its weight, which the enclave with this key alone can open, and for this context alone."""
    update_P, weight = weighed(terms, update_P, samples)
    text = update_bytes(update_P.detach().cpu().numpy().astype(np.float32), weight)
    return {RECORD: as_tensor(seal_record(text, key, context, signer.key, signer.name).pack())}
