"""The one error a user can cause, and how the errors of libraries become it."""

from __future__ import annotations

# Packages that come with an extra of selfsame: (the extra, what it is for people).
_EXTRAS = {
    **dict.fromkeys(
        ("torch", "scipy", "sklearn", "safetensors", "matplotlib", "jinja2"), ("[train]", "the training part")
    ),
    "keyring": ("[keyring]", "keyring"),
    "soundfile": ("[audio]", "soundfile"),
    "onnx": ("[export]", "onnx"),
    "onnxscript": ("[export]", "onnxscript"),
    "dp_accounting": ("[privacy]", "dp-accounting"),
    "dcap_qvl": ("[enclave]", "dcap-qvl"),
    "flwr": ("[deploy]", "Flower"),
    **{name: ("", name) for name in ("onnxruntime", "cryptography")},
}


class SelfsameError(Exception):
    """Bad input: one line that names the file or option and says what was expected. The command line exits with 2."""


def not_installed(error: ModuleNotFoundError) -> SelfsameError:
    """One line that says what to install for a package that a part of selfsame needs; of another package, the error."""
    package = (error.name or "").partition(".")[0]
    if package not in _EXTRAS:
        raise error
    extra, what = _EXTRAS[package]
    return SelfsameError(f'this needs {what}: pip install "selfsame{extra}"')


def one_line(error: BaseException, path: object = None) -> str:
    """What a library says is wrong, in one short line; the file at `path` is "it"."""
    text = str(error) if path is None else str(error).replace(str(path), "it")
    return " ".join(text.split())[:200] or type(error).__name__
