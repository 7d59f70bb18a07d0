"""What a node's configuration may hold, each key with what it is."""

DEVICE = {
    "samples": "folder with the owner's samples, read as `selfsame enrol` reads them; or `digits:3`, to try it",
    "state": "folder of private state; one folder in it for each key",
    "key": "the public key (NAME.pub), by which that state is found",
    "private": "the private key that signs records; by default NAME.key beside the public one",
    "conditions": "JSON file with `charging`, `unmetered`, `idle`; the device takes part while all are true",
    "owner": "a word that devices of one person share: they are one class",
    "policy": "TOML file with the owner's policy; without it the defaults hold",
    "agreed": "digest of the only terms to agree to, as `selfsame cluster terms FOLDER` prints it on the server",
    "trial": "`true`, to try it: the first terms are taken without `agreed`; without a `policy` all but too much work",
    "simulate": "`true`: a trial that agrees to seeded runs",
    "methods": "import paths of methods of your own, with commas: a server cannot have code imported",
    "start": "a copy of the server's `run/start.safetensors`, for runs in which a part of the network does not learn",
    "measurements": "which enclaves to trust, with commas",
    "statuses": "states of their machines that are accepted, with commas",
    "collateral": "file with Intel's collateral, by which a quote is checked",
    "simulated-enclave": "`true`: also an enclave that no hardware protects, to try it",
}
HELPER = {
    "helper": "the helper's NAME.seal file",
    "devices": "folder with the NAME.pub of every device, from whoever registers devices and not from the server",
    "state": "folder of its ledger; one folder in it for each key",
    "key": "the public key (NAME.pub), by which that ledger is found",
    "least-group": "the fewest devices in a sum; 2 by default",
}
NEEDED = ("helper", "devices", "state", "key")
