"""Beyond one machine: what the server and the devices run around the enclave."""
