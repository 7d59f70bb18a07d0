"""FedHide's negative term alone, without images: how far prototypes go, and what (17) reads: python bench/drift.py.

Prototypes start from N(0, I) and take steps on lambda times (3), ten of 100 clients per round in turn; proxies are (4).
"""

from __future__ import annotations

import argparse

import numpy as np


def unit(x: np.ndarray) -> np.ndarray:
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def turned(free_MD: np.ndarray, row_M: np.ndarray, proxy_ND: np.ndarray, weight: float, lr: float) -> np.ndarray:
    """One step of SGD on lambda times (3), through the normalisation."""
    w_MD = unit(free_MD)
    push_MN = 1 + w_MD @ proxy_ND.T
    push_MN[np.arange(len(row_M)), row_M] = 0
    slope_MD = 2 * weight / (len(proxy_ND) - 1) * push_MN @ proxy_ND
    slope_MD -= (slope_MD * w_MD).sum(1, keepdims=True) * w_MD
    return free_MD - lr * slope_MD / np.linalg.norm(free_MD, axis=1, keepdims=True)


def hidden(w_MD: np.ndarray, row_M: np.ndarray, proxy_ND: np.ndarray, alpha: float, count: int) -> np.ndarray:
    """(4)"""
    near_MN = w_MD @ proxy_ND.T
    near_MN[np.arange(len(row_M)), row_M] = -np.inf
    top_MK = np.argpartition(-near_MN, count, axis=1)[:, :count]
    return unit(alpha * w_MD + (1 - alpha) * unit(proxy_ND[top_MK].sum(1)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--cohort", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=100_000)
    parser.add_argument("--weight", type=float, default=10.0)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--alpha", type=float, default=0.01)
    parser.add_argument("--neighbours", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    random = np.random.default_rng(args.seed)
    first_ND = random.standard_normal((args.clients, args.width)).astype(np.float32)
    proxy_ND = unit(random.standard_normal(first_ND.shape).astype(np.float32))
    free_ND, order_N = first_ND.copy(), np.arange(args.clients)
    print("rounds  cosine to the start  mean cosine of two  leakage (17)")
    for number in range(args.rounds + 1):
        if number % (args.rounds // 5) == 0:
            w_ND = unit(free_ND)
            kept = (w_ND * unit(first_ND)).sum(1).mean()
            apart = ((w_ND.sum(0) ** 2).sum() - args.clients) / args.clients / (args.clients - 1)
            leak = ((proxy_ND @ w_ND.T).argmax(1) == order_N).mean()
            print(f"{number:6}  {kept:19.3f}  {apart:18.4f}  {leak:10.0%}", flush=True)
        row_M = np.arange(number * args.cohort, (number + 1) * args.cohort) % args.clients
        free_ND[row_M] = turned(free_ND[row_M], row_M, proxy_ND, args.weight, args.lr)
        proxy_ND[row_M] = hidden(unit(free_ND[row_M]), row_M, proxy_ND, args.alpha, args.neighbours)


if __name__ == "__main__":
    main()
