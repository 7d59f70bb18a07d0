"""The page of the networks."""

from __future__ import annotations

import functools
import sys

from reference.comments import meanings
from reference.keys import kind_words
from reference.markdown import code, page, prose, table
from selfsame.fields import options_of
from selfsame.nets import NETS, size

_SHAPES = {  # an example of what each network takes
    "feduv-mnist": (4, 28, 28),
    "feduv-celeba": (3, 64, 64),
    "mobilefacenet": (3, 64, 64),
    "feduv-voxceleb": (1, 2**14),
    "fast-resnet34": (1, 40, 200),
    "fast-resnet34-mel": (1, 32000),
    "lenet-mel": (1, 8000),
    "lenet": (1, 28, 28),
    "touchauth": (1, 30, 10),
    "embedding-bag": (2, 20),
    "mlp": (30,),
    "dlib-face": (3, 64, 64),
    "ge2e-voice": (1, 16000),
}
_EXAMPLES = {"embedding-bag": {"features": 203_882}}


def networks_page() -> str:
    rows, sections = [], []
    for name, factory in NETS.items():
        shape, options = _SHAPES.get(name, (3, 32, 32)), _EXAMPLES.get(name, {})
        count = f"{size(name, shape, 64, **options):,}"
        rows.append((f"[`{name}`](#{name})", " x ".join(map(str, shape)), count))
        made = factory.func if isinstance(factory, functools.partial) else factory
        source = made.__init__ if isinstance(made, type) else made
        said = meanings(source, made)
        own = [(f"`{key}`", kind_words(type(v)), code(v), said.get(key, "")) for key, v in options_of(factory).items()]
        about = prose(sys.modules[made.__module__]).splitlines()[0]
        listed = table(("option", "type", "default", "meaning"), own) or "It has no options.\n"
        sections.append(f"## {name}\n\n*{about.rstrip('.')}.*\n\n{prose(made)}\n\n{listed}")
    opening = """
    Set one by `--set net.name=NAME` or in `[net]` of a recipe, which also has [the keys that all networks
    share](recipe.md#net). Parameters are counted with `width` 64 for samples of the shape beside them.
    [The guide](../guides/network.md) says what the options of residual networks do, and how to bring your own network.
    """
    return page("Networks", opening, table(("network", "samples of shape", "parameters"), rows), *sections)
