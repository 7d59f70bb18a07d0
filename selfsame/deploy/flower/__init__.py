"""Flower carries the messages: one ServerApp, one ClientApp, their keys, and a cluster on loopback to try them."""

import os

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # read when flwr is imported
