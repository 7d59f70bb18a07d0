"""What masked sums cost: CPU time of a device and a helper, bytes, and the server's memory.

    python bench/masks.py cost                 CPU milliseconds of a device and of a helper
    python bench/masks.py cost --devices 10000 --parameters 11200000   one cell, however long it takes
    python bench/masks.py memory --devices 1000 --parameters 11181642 --folder DIR   a server's peak; needs 45 GB there

CPU time is the process's own (user and system), on one thread: the least of several runs, with their spread.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from common import header
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from selfsame.deploy.aggregation.contribution import RECORDS, contribution, masked, masked_fields
from selfsame.deploy.aggregation.helper import request
from selfsame.deploy.aggregation.masked import Masked
from selfsame.deploy.aggregation.signing import Signer
from selfsame.deploy.aggregation.store import Store
from selfsame.deploy.aggregation.sum_terms import HelperTerms, SumTerms
from selfsame.deploy.codec import Spec, decode, encode
from selfsame.enclave.ledger import Ledger, Rules
from selfsame.enclave.masks import masks_of
from selfsame.enclave.records import Context, Record, group_digest
from selfsame.enclave.release import Asked, mask_keys
from selfsame.engine.state import State

PLAN, NETWORK = b"p" * 32, b"n" * 32
SEALING = X25519PrivateKey.from_private_bytes(bytes(range(32)))


def spent(work: Callable[[], Any], runs: int) -> tuple[float, float]:
    """(least, spread) of the CPU milliseconds of one call."""
    found = []
    for _ in range(runs):
        begun = time.process_time()
        work()
        found.append(1e3 * (time.process_time() - begun))
    return min(found), max(found) - min(found)


def signers(count: int) -> list[Signer]:
    return [Signer.of(ec.derive_private_key(1000 + number, ec.SECP384R1())) for number in range(count)]


def terms_of(parameters: int, devices: int, bits: int = 32) -> SumTerms:
    key = ec.derive_private_key(7, ec.SECP384R1())
    helper = HelperTerms.signed(key, SEALING.public_key().public_bytes_raw())
    return SumTerms(
        aggregation="masked", numbers=parameters + 1, clip=1.0, reach=1.0, bits=bits, group=max(2, devices),
        least=2, most=max(2, devices), helpers=(helper,),
    )  # fmt: skip


def device_cost(parameters: int, runs: int) -> list[str]:
    terms, (signer,) = terms_of(parameters, 1000), signers(1)
    update_P = torch.randn(parameters) / parameters**0.5
    context = Context("r", PLAN, 0, group_digest([signer.name]), NETWORK)
    whole_P = contribution(terms, update_P, 1)
    rounding = spent(lambda: contribution(terms, update_P, 1), runs)
    hidden = spent(lambda: masked(terms, whole_P, context, signer), runs)
    fields = masked(terms, whole_P, context, signer)
    up = len(encode("trained", 0, {"run": "r", "plan": "0" * 64}, fields))
    return [f"{parameters:,}", _ms(*rounding), _ms(*hidden), f"{up:,}", f"{4 * parameters:,}"]


def helper_cost(parameters: int, devices: int, bits: int, runs: int) -> list[str]:
    """The helper's whole work: signatures, seals, the ledger, the masks."""
    everybody = signers(devices)
    names = tuple(one.name for one in everybody)
    context = Context("r", PLAN, 0, group_digest(names), NETWORK)
    terms, register = terms_of(1, 2), {}
    records = []
    whole_P = torch.zeros(2, dtype=torch.int64)
    for one in everybody:
        public = one.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        register[one.name] = public
        records.append(Record.unpack(bytes(masked(terms, whole_P, context, one)[RECORDS][0].numpy())))
    asked = Asked("r", PLAN, 0, names, NETWORK, tuple(records))
    down, keys = len(request(asked, {})), []

    def checks() -> None:
        keys[:] = mask_keys(asked, register, SEALING, Ledger(Rules(2, 2, 0, 10)))

    checked = spent(checks, runs)
    taken_off = spent(lambda: masks_of(keys, parameters + 1, bits), 1 if parameters * devices > 10**9 else runs)
    total = (checked[0] + taken_off[0]) / 1e3
    row = [f"{parameters:,}", str(bits), f"{devices:,}", f"{checked[0] / devices:.2f}", f"{taken_off[0] / devices:.2f}"]
    return [*row, f"{total:.2f}", f"{down:,}", f"{bits // 8 * (parameters + 1):,}"]


def table(title: str, heads: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as they need be, numbers to the right."""
    wide = [max(len(row[place]) for row in (heads, *rows)) for place in range(len(heads))]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, wide, strict=True)) for row in (heads, *rows)]
    return "\n".join(["", title, *lines])


def _ms(least: float, spread: float) -> str:
    return f"{least:.1f} (+{spread:.1f})"


def memory(parameters: int, devices: int, folder: Path) -> None:
    """Answers of so many devices, one after another, as bytes to a server's sum; its largest size in memory."""
    terms, everybody = terms_of(parameters, devices), signers(devices)
    group = tuple(one.name for one in everybody)
    fields = masked_fields(terms)
    server = Masked(terms, {"run": "r"}, PLAN.hex(), Store(folder / "kept", "r", fields), 60.0, half=False)
    theta_P = torch.zeros(parameters)
    state = State(0, theta_P, {}, {}, {}, None, torch.zeros(()), devices)
    server.open(0, state, group)
    network = server._network
    context = Context("r", PLAN, 0, group_digest(group), network)
    base = _peak()
    whole_P = contribution(terms, torch.randn(parameters) / parameters**0.5, 1)
    form = Spec("trained", "r", 0, {"plan": str}, fields)
    begun = time.perf_counter()
    for number, one in enumerate(everybody):
        sent = encode("trained", 0, {"run": "r", "plan": "0" * 64}, masked(terms, whole_P, context, one))
        server.take(one.name, 1, dict(decode(sent, expected=form).fields))
        if number in (1, 9, 99, devices - 1):
            print(f"{number + 1:,} answers of {len(sent) / 1e6:.1f} MB: peak {_peak():,.0f} MB", flush=True)
    server.close(group)
    (errand,) = server.errands(0.0, server.helpers)
    took, whole = time.perf_counter() - begun, devices * 4 * (parameters + 1) / 1e9
    print(
        f"{devices:,} devices, {parameters:,} parameters: peak {_peak():,.0f} MB, {base:,.0f} before the first answer;"
    )
    print(f"all answers together are {whole:.1f} GB; {took:.0f} s with the devices' own work;")
    print(f"the request to the helper has {len(errand.payload):,} bytes")


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("cost", "memory"))
    parser.add_argument("--parameters", type=int)
    parser.add_argument("--devices", type=int)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(header(torch.device("cpu")))
    if given.what == "memory":
        with tempfile.TemporaryDirectory(dir=given.folder) as folder:
            memory(given.parameters or 1_000_000, given.devices or 1000, Path(folder))
        return
    sizes = (given.parameters,) if given.parameters else (100_000, 1_000_000, 11_200_000)
    heads = ["parameters", "round, weigh, clip: ms", "mask, seal, sign: ms a helper", "bytes up", "bytes down"]
    print(table("a device", heads, [device_cost(size, given.runs) for size in sizes]))
    rows = []
    for size in sizes:
        for devices in (given.devices,) if given.devices else (10, 100, 1000, 10_000):
            if given.devices or size * devices <= 2 * 10**10:
                rows += [helper_cost(size, devices, bits, given.runs) for bits in (32, 16)]
    heads = [
        "parameters",
        "bits",
        "devices",
        "check, open: ms each",
        "mask: ms each",
        "CPU s in all",
        "bytes in",
        "out",
    ]
    print(table("a helper", heads, rows))


if __name__ == "__main__":
    main()
