"""A trained network as one ONNX file: raw samples in, embeddings out, its card inside; in float32 or with int8 weights.

Preparation is part of the graph: the division by full scale, the standardisation and, for speech, the mel filterbank.
"""

from __future__ import annotations

import copy
import logging
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from selfsame.data import Federation
from selfsame.device.card import Card, Raw
from selfsame.device.embedder import Embedder
from selfsame.device.model_file import INPUT, KEY, MOST_BYTES, OPERATORS, OUTPUT, sealed
from selfsame.device.runtime import onnxruntime
from selfsame.errors import SelfsameError, not_installed, one_line
from selfsame.export.trained import shortest
from selfsame.nets.norm import StandardConv2d

if TYPE_CHECKING:
    import onnx

OPSET = 18  # what PyTorch's exporter writes by itself, and onnxruntime has known since 1.14
CLOSE = 1e-4  # the largest difference from PyTorch, in units of the mean length of an embedding

_WEIGHED = ("Conv", "Gemm", "MatMul")  # operators whose weights become int8
_RECURRENT = ("LSTM", "GRU", "RNN")
_CALIBRATION = 256  # training samples from which the ranges of activations are taken
_TIMED = 200  # calls
T = TypeVar("T", bound=nn.Module)
_LONG = 2**14  # numbers in a group that onnxruntime adds up well


class Raws(nn.Module):
    """The network behind the preparation of raw samples."""

    def __init__(self, federation: Federation, net: nn.Module) -> None:
        super().__init__()
        self.net, self._scale = net, federation.scale

    def forward(self, raw: Tensor) -> Tensor:
        out: Tensor = self.net(self._scale(raw))
        return out


class LongNorm(nn.Module):
    """Group norm that adds up channel by channel first where groups are large.

    onnxruntime adds numbers of float32 one after another, which loses three digits over a hundred thousand of them.
    """

    def __init__(self, norm: nn.GroupNorm) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor) -> Tensor:
        groups = self.norm.num_groups
        if x[0].numel() <= groups * _LONG:
            out: Tensor = self.norm(x)
            return out
        each_nGCL = x.reshape(x.shape[0], groups, x.shape[1] // groups, -1)
        off_nGCL = each_nGCL - each_nGCL.mean(3, keepdim=True).mean(2, keepdim=True)
        variance_nG11 = off_nGCL.square().mean(3, keepdim=True).mean(2, keepdim=True)
        hat = (off_nGCL / (variance_nG11 + self.norm.eps).sqrt()).reshape(x.shape)
        if not self.norm.affine:
            return hat
        channel = (-1, *(1 for _ in x.shape[2:]))
        return hat * self.norm.weight.reshape(channel) + self.norm.bias.reshape(channel)


def finished_kernels(conv: StandardConv2d) -> nn.Conv2d:
    """A plain convolution with the kernels that the other one computes: what quantises weights then finds these."""
    out = copy.deepcopy(conv)
    out.__class__ = nn.Conv2d  # type: ignore[assignment]
    out.weight = nn.Parameter(conv.standard_weight.detach())
    return out


def with_other_layers(net: nn.Module, kind: type[T], other: Callable[[T], nn.Module]) -> nn.Module:
    """A copy of the network with `other` in place of each layer of a kind; the remaining parameters are shared."""
    if isinstance(net, kind):
        return other(net)
    out = copy.copy(net)
    out._modules = {name: child and with_other_layers(child, kind, other) for name, child in net._modules.items()}
    return out


def to_onnx(net: nn.Module, federation: Federation, raw: Tensor) -> onnx.ModelProto:
    """The graph of a network with its preparation; `raw` are a few samples (S, *shape) to trace it with."""
    try:
        import onnx  # noqa: F401
        import onnxscript  # noqa: F401
    except ModuleNotFoundError as error:
        raise not_installed(error) from None
    sizes = {0: torch.export.Dim("samples")}
    least = shortest(net)
    net = with_other_layers(net, StandardConv2d, finished_kernels)
    if least is None:
        net = with_other_layers(net, nn.GroupNorm, LongNorm)  # asks for sizes, which must be known
    else:
        sizes[raw.dim() - 1] = torch.export.Dim("time", min=least)
    example = raw if len(raw) > 1 else torch.cat([raw, raw])  # one sample would look like a fixed number
    try:
        with torch.no_grad(), _quiet():
            program = torch.onnx.export(
                Raws(federation, net).eval(),
                (example,),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=(sizes,),
                input_names=[INPUT],
                output_names=[OUTPUT],
                verbose=False,
            )
    except Exception as error:  # whatever stops the exporter in a network of the user's own
        raise SelfsameError(f"export: PyTorch cannot put this network into ONNX: {one_line(error)}") from error
    if program is None:
        raise SelfsameError("export: PyTorch's exporter gave no graph")
    model: onnx.ModelProto = program.model_proto
    return model


def finished(model: onnx.ModelProto, card: Card) -> bytes:
    """The bytes of a model file: the graph without traces of how it was made, with its card and digest."""
    import onnx

    clean = onnx.ModelProto()
    clean.CopyFrom(model)
    graph = clean.graph
    for part in (clean, graph):
        part.doc_string = ""
        del part.metadata_props[:]
    del graph.value_info[:], graph.quantization_annotation[:]
    for item in (*graph.node, *graph.initializer, *graph.input, *graph.output):
        item.doc_string = ""  # the exporter notes the lines of source that a node came from
        del item.metadata_props[:]
    for tensor in graph.initializer:
        if not tensor.external_data:
            tensor.ClearField("data_location")  # the quantiser says of some what is so of all: here
    graph.name = card.method
    clean.producer_name, clean.producer_version = "selfsame", card.version
    used = {node.domain for node in graph.node} | {""}
    kept = [entry for entry in clean.opset_import if entry.domain in used]
    del clean.opset_import[:]
    clean.opset_import.extend(kept)
    odd = sorted({node.op_type for node in graph.node} - OPERATORS)
    if odd or len(kept) != 1 or clean.functions:
        raise SelfsameError(f"export: the network needs operators that a model file may not have: {', '.join(odd)}")
    clean.metadata_props.add(key=KEY, value=replace(card, digest="0" * 64).to_json())
    if clean.ByteSize() > MOST_BYTES:
        raise SelfsameError(f"export: {clean.ByteSize():,} bytes, a model file has at most {MOST_BYTES:,}")
    return sealed(clean.SerializeToString(deterministic=True))


def to_int8(model: onnx.ModelProto, samples: Raw) -> onnx.ModelProto:
    """The same graph with int8 weights; `samples` are raw training samples, one row each.

    With convolutions, activations become int8 too, their ranges taken from the samples once and for all. Without, they
    are measured anew for every sample, which costs linear layers little. What stands before a logarithm or a recurrent
    layer (the mel filterbank) keeps float32: a spectrum's range is too wide for eight bits. A recurrent layer computes
    in float32 with weights that are kept in two tables of int8.
    """
    import onnx

    quantise, shapes = onnxruntime("quantization"), onnxruntime("quantization.shape_inference")
    kinds = quantise.QuantType

    class Samples(quantise.CalibrationDataReader):  # type: ignore[name-defined,misc]
        def __init__(self) -> None:
            self.rows = iter(samples)

        def get_next(self) -> dict[str, Raw] | None:
            row = next(self.rows, None)
            return None if row is None else {INPUT: row[None]}

    try:
        with tempfile.TemporaryDirectory() as folder, _quiet():
            plain, ready, done = (str(Path(folder) / f"{name}.onnx") for name in ("plain", "ready", "done"))
            onnx.save(model, plain)
            shapes.quant_pre_process(plain, ready, skip_symbolic_shape=True)
            prepared = onnx.load(ready)
            # Gemm becomes MatMul with its weights turned, which shapes noted earlier would contradict.
            del prepared.graph.value_info[:]
            onnx.save(prepared, ready)
            wide = before_wide(prepared)
            common = {"op_types_to_quantize": list(_WEIGHED), "nodes_to_exclude": wide, "per_channel": True}
            # Seven of the eight bits: x86_64 processors with AVX2 and no VNNI add products in pairs, in 16 bits, and
            # 255 times 127 twice is too much for those. Embeddings would be off by a tenth and more there.
            common |= {"weight_type": kinds.QInt8, "reduce_range": True}
            if any(node.op_type == "Conv" and node.name not in wide for node in prepared.graph.node):
                common |= {"quant_format": quantise.QuantFormat.QDQ, "activation_type": kinds.QUInt8}
                quantise.quantize_static(ready, done, Samples(), **common)
            else:
                quantise.quantize_dynamic(ready, done, **common)
            return with_small_cells(onnx.load(done))
    except Exception as error:  # of kinds that onnx and onnxruntime do not name together
        raise SelfsameError(f"export: onnxruntime cannot quantise this network: {one_line(error)}") from error


def before_wide(model: onnx.ModelProto) -> list[str]:
    """The names of all nodes from which a logarithm or the input of a recurrent layer is computed."""
    makers = {name: node for node in model.graph.node for name in node.output}
    found: dict[str, None] = {}
    ends = {"Log", *_RECURRENT}
    open_nodes = [node for node in model.graph.node if node.op_type in ends]
    while open_nodes:
        node = open_nodes.pop()
        if node.name not in found:
            found[node.name] = None
            open_nodes += [makers[name] for name in node.input if name in makers]
    return list(found)


def with_small_cells(model: onnx.ModelProto) -> onnx.ModelProto:
    """The graph with the weights of recurrent layers in two tables of int8, each row with a scale of its own.

    The second holds what rounding left of the first, 254 times as fine: a state that is fed back collects the errors of
    every step, and a layer of constants behind it can make them long.
    """
    import onnx
    from onnx import helper, numpy_helper

    graph = model.graph
    held = {tensor.name: tensor for tensor in graph.initializer}
    nodes = []
    for node in graph.node:
        for place, name in enumerate(node.input[:3]):
            if node.op_type not in _RECURRENT or not place or name not in held:
                continue
            left_1RC = numpy_helper.to_array(held[name]).astype(np.float64)
            scale_R = np.maximum(np.abs(left_1RC).max((0, 2)), 1e-12).astype(np.float32) / 127
            for table in ("coarse", "fine"):
                small_1RC = np.round(left_1RC / scale_R[None, :, None].astype(np.float64)).astype(np.int8)
                left_1RC = left_1RC - small_1RC * scale_R[None, :, None].astype(np.float64)
                inputs = [f"{name}_{table}", f"{name}_{table}_scale"]
                for value, called in zip((small_1RC, scale_R), inputs, strict=True):
                    graph.initializer.append(numpy_helper.from_array(value, called))
                wide = f"{name}_{table}_wide"
                nodes.append(helper.make_node("DequantizeLinear", inputs, [wide], name=f"{wide}ned", axis=1))
                scale_R = scale_R / np.float32(254)
            tables = [f"{name}_coarse_wide", f"{name}_fine_wide"]
            nodes.append(helper.make_node("Add", tables, [f"{name}_wide"], name=f"{name}_both"))
            node.input[place] = f"{name}_wide"
            graph.initializer.remove(held.pop(name))
        nodes.append(node)
    kept = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del graph.node[:]
    graph.node.extend(kept)
    return model


def calibration(federation: Federation, number: int = _CALIBRATION) -> Raw:
    """Raw training samples (n, *shape), spread evenly over the clients and over each client's samples."""
    device = federation.class_of_N.device
    per = max(1, number // federation.clients)
    client_M = torch.linspace(0, federation.clients - 1, min(number, federation.clients)).long().to(device)
    count_M1 = federation.count_N[client_M][:, None]
    index_MB = torch.arange(per, device=device)[None] * count_M1 // per
    return federation.source.rows(client_M, index_MB).flatten(0, 1).cpu().numpy()


def difference(one_SD: Raw, two_SD: Raw) -> float:
    """The largest distance between two embeddings of a sample, in units of the mean length of the second ones."""
    apart = float(np.linalg.norm(one_SD - two_SD, axis=1).max())
    length = float(np.linalg.norm(two_SD, axis=1).mean())
    return apart / length if length else apart


def seconds_a_sample(embedder: Embedder, raw: Raw, calls: int = _TIMED) -> float:
    """The median time of embedding one sample."""
    one = raw[:1]
    took = []
    for _ in range(calls):
        begun = time.perf_counter()
        embedder.embed(one)
        took.append(time.perf_counter() - begun)
    return statistics.median(took)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's and the quantiser's remarks to their own developers."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
