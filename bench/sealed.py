"""What sums in an enclave cost: CPU time of a device and of the enclave for one update, and bytes.

    python bench/sealed.py

CPU time is the process's own (user and system), on one thread: the least of several updates, with their spread.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from common import header
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from selfsame.enclave.adder import Adder, register_bytes, register_digest, update_bytes
from selfsame.enclave.mandate import SumPlan
from selfsame.enclave.message import Order
from selfsame.enclave.records import Context, group_digest, node_name, seal_record

TERMS, NETWORK, FIRST = "ab" * 32, b"n" * 32, (0).to_bytes(8, "little")


def cost(parameters: int, devices: int) -> str:
    """A row of the table."""
    keys = [ec.derive_private_key(7000 + number, ec.SECP384R1()) for number in range(devices)]
    public = [key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo) for key in keys]
    names = [node_name(pem) for pem in public]
    rest = {"clip": 2.0, "cap": 1, "noise": 0.0, "group": devices, "least": 2, "stand_ins": 0, "rounds": 1}
    plan = SumPlan("bench", TERMS, register_digest(public), parameters, **rest)
    enclave = Adder(plan)

    def ask(order: Order, payload: bytes) -> tuple[bytes, float]:
        begun = time.process_time()
        answer = enclave.handle(bytes([order]) + payload)
        assert answer[:1] == b"\x01", answer
        return answer[1:], 1e3 * (time.process_time() - begun)

    ask(Order.REGISTER, register_bytes(public))
    key = ask(Order.ATTEST, bytes(32))[0][:32]
    ask(Order.OPEN, FIRST + NETWORK + b"".join(map(bytes.fromhex, names)))
    context = Context("bench", bytes.fromhex(TERMS), 0, group_digest(names), NETWORK)
    update_P = np.random.default_rng(0).normal(size=parameters).astype(np.float32) / np.float32(parameters**0.5)
    sealing, adding = [], []
    for private, name in zip(keys, names, strict=True):
        begun = time.process_time()
        record = seal_record(update_bytes(update_P, 1), key, context, private, name).pack()
        sealing.append(1e3 * (time.process_time() - begun))
        adding.append(ask(Order.ADD, record)[1])
    _, releasing = ask(Order.RELEASE, FIRST)
    shown = [f"{min(found):.1f} (+{max(found) - min(found):.1f})" for found in (sealing, adding)]
    return f"| {parameters:,} | {shown[0]} | {shown[1]} | {releasing:.1f} | {len(record):,} |"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--parameters", type=int, nargs="+", default=[100_000, 1_000_000, 11_000_000])
    words.add_argument("--devices", type=int, default=5)
    given = words.parse_args()
    print(header(torch.device("cpu")))
    print("| parameters | device: seal, ms | enclave: add, ms | enclave: release, ms | record, bytes |")
    print("|---:|---:|---:|---:|---:|")
    for parameters in given.parameters:
        print(cost(parameters, given.devices), flush=True)


if __name__ == "__main__":
    main()
