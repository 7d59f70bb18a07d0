"""Small folders of images, laid out as their publishers do."""

import numpy as np
from PIL import Image


def picture(seed, width=12, height=10, mode="RGB"):
    """An image of its own: no two seeds give the same."""
    shape = (height, width, 3) if mode == "RGB" else (height, width)
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8))


def put(path, seed, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    picture(seed, **options).save(path)


def people_tree(root, counts, ending="png"):
    """One folder a person, p00 on, each with as many images as its count."""
    for person, count in enumerate(counts):
        (root / f"p{person:02d}").mkdir(parents=True, exist_ok=True)
        for number in range(count):
            put(root / f"p{person:02d}" / f"{number:03d}.{ending}", 1000 * person + number)
    return root


def rows_of(federation, client):
    """All training samples of a client."""
    import torch

    index = torch.arange(int(federation.count_N[client]))[None]
    return federation.source.rows(torch.tensor([client]), index)[0]
