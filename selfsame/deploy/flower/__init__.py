"""Flower carries the messages: one ServerApp, one ClientApp, their keys, and a cluster on loopback to try them."""
