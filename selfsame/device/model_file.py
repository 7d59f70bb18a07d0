"""Model files as bytes: sealed with a digest, and looked through before any library is given them.

The digest is taken over the whole file with zeros in its own place, so every changed byte is found. It protects from
damage and not from forgery: whoever changes a file can also compute its digest anew. Then still only a plain graph of
known operators gets through: no control flow, no functions, no operators from elsewhere, no other files.
"""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Iterator
from pathlib import Path

from selfsame.device.card import Card
from selfsame.errors import SelfsameError

KEY = "selfsame"  # under which the card stands in the metadata
INPUT, OUTPUT = "selfsame.raw", "selfsame.embedding"  # no name of Python's, so no exporter has them for anything else
MOST_BYTES = 2**30

_MARK = b'"digest":"'
_BLANK = b"0" * 64

_PLAIN = """
Abs Add And AveragePool BatchNormalization Cast Ceil Clip Concat Constant Conv ConvInteger Cos DequantizeLinear Div
DynamicQuantizeLinear Elu Equal Erf Exp Expand Flatten Floor Gather GatherElements GatherND Gelu Gemm
GlobalAveragePool GlobalMaxPool Greater GreaterOrEqual GroupNormalization GRU HardSigmoid HardSwish Identity
InstanceNormalization LayerNormalization LeakyRelu Less LessOrEqual Log LogSoftmax LSTM MatMul MatMulInteger Max
MaxPool Mean Min Mod Mul Neg Not Or Pad Pow PRelu QLinearConv QLinearMatMul QuantizeLinear Range Reciprocal ReduceL1
ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Round Selu Shape Sigmoid
Sign Sin Slice Softmax Softplus Split Sqrt Squeeze Sub Sum Tanh Transpose Unsqueeze Where
"""
OPERATORS = frozenset(_PLAIN.split())

# The fields of ONNX's messages that are needed here, by number, and those that a plain graph with its numbers inside
# may have at all. Wire types: 0 varint, 1 eight bytes, 2 a length and so many bytes, 5 four bytes.
_MODEL_GRAPH, _MODEL_OPSET, _MODEL_META = 7, 8, 14
_MODEL_KNOWN = {1, 2, 3, 4, 5, 6, 7, 8, 14}
_GRAPH_NODE, _GRAPH_TENSOR, _GRAPH_IN, _GRAPH_OUT = 1, 5, 11, 12
_GRAPH_KNOWN = {1, 2, 5, 10, 11, 12, 13}
_NODE_OPERATOR, _NODE_ATTRIBUTE, _NODE_DOMAIN = 4, 5, 7
_NODE_KNOWN = {1, 2, 3, 4, 5, 6, 7}
_ATTRIBUTE_TENSOR, _ATTRIBUTE_KNOWN = 5, {1, 2, 3, 4, 5, 7, 8, 9, 13, 20}
_TENSOR_KNOWN = {1, 2, 4, 5, 7, 8, 9, 10, 11, 12}  # without 13 and 14, which say that the numbers lie elsewhere
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_OPSET_DOMAIN, _OPSET_VERSION = 1, 2
_DEFAULT_DOMAIN = (b"", b"ai.onnx")

Field = tuple[int, int | memoryview]


def read_bytes(path: Path) -> bytes:
    """The file's bytes, if it is a plain file of a size that a model can have."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise SelfsameError(f"{path}: not a file")
        if found.st_size > MOST_BYTES:
            raise SelfsameError(f"{path}: {found.st_size:,} bytes, a model file has at most {MOST_BYTES:,}")
        with open(path, "rb") as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        raise SelfsameError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name with a zero byte
        raise SelfsameError(f"{path}: cannot be read ({error})") from None


def _place(data: bytes) -> int:
    """Where the digest stands, or -1 unless there is one mark with room behind it."""
    at = data.find(_MARK)
    end = at + len(_MARK) + len(_BLANK)
    if at < 0 or data.find(_MARK, at + 1) >= 0 or data[end : end + 1] != b'"':
        return -1
    return at + len(_MARK)


def _digest(data: bytes, at: int) -> bytes:
    view = memoryview(data)
    total = hashlib.sha256(view[:at])
    total.update(_BLANK)
    total.update(view[at + len(_BLANK) :])
    return total.hexdigest().encode()


def sealed(data: bytes) -> bytes:
    """A serialised model with the digest put where its card has zeros."""
    at = _place(data)
    if at < 0 or data[at : at + len(_BLANK)] != _BLANK:
        raise SelfsameError("export: the model carries no card, or more than one")
    return data[:at] + _digest(data, at) + data[at + len(_BLANK) :]


def read_card(data: bytes, name: str) -> Card:
    """The card of a model file, after its bytes and its graph have been checked; `name` is for the message."""
    at = _place(data)
    if at < 0:
        raise SelfsameError(f"{name}: damaged, or not a model file that selfsame wrote")
    if data[at : at + len(_BLANK)] != _digest(data, at):
        raise SelfsameError(f"{name}: damaged, its digest does not fit its content")
    try:
        card, opset = _walk(memoryview(data))
    except SelfsameError as error:
        raise SelfsameError(f"{name}: {error}") from None
    if card.digest.encode() != data[at : at + len(_BLANK)] or card.opset != opset:
        raise SelfsameError(f"{name}: its card does not describe this file")
    return card


def _walk(model: memoryview) -> tuple[Card, int]:
    """The card and the opset of a model whose every part is known and allowed."""
    cards, opsets, graphs = [], [], []
    for number, value in _fields(model, _MODEL_KNOWN, "the model"):
        if number == _MODEL_META:
            entry = dict(_fields(_part(value), {_ENTRY_KEY, _ENTRY_VALUE}, "the metadata"))
            if _text(entry.get(_ENTRY_KEY)) == KEY.encode():
                cards.append(_text(entry.get(_ENTRY_VALUE)))
        elif number == _MODEL_OPSET:
            entry = dict(_fields(_part(value), {_OPSET_DOMAIN, _OPSET_VERSION}, "the operator sets"))
            if _text(entry.get(_OPSET_DOMAIN)) not in _DEFAULT_DOMAIN:
                raise SelfsameError("uses operators that are not ONNX's own")
            opsets.append(entry.get(_OPSET_VERSION))
        elif number == _MODEL_GRAPH:
            graphs.append(_part(value))
    if len(cards) != 1 or len(opsets) != 1 or len(graphs) != 1 or not isinstance(opsets[0], int):
        raise SelfsameError("must have one graph, one operator set and one card")
    _check_graph(graphs[0])
    try:
        return Card.from_json(cards[0].decode("utf-8")), opsets[0]
    except UnicodeDecodeError:
        raise SelfsameError("its card is not text") from None


def _check_graph(graph: memoryview) -> None:
    names: dict[int, list[bytes]] = {_GRAPH_IN: [], _GRAPH_OUT: []}
    for number, value in _fields(graph, _GRAPH_KNOWN, "the graph"):
        if number == _GRAPH_NODE:
            _check_node(_part(value))
        elif number == _GRAPH_TENSOR:
            _check_tensor(_part(value))
        elif number in names:
            names[number] += [_text(text) for key, text in _fields(_part(value), None, "an input") if key == 1]
    if names != {_GRAPH_IN: [INPUT.encode()], _GRAPH_OUT: [OUTPUT.encode()]}:
        raise SelfsameError(f"must have the one input {INPUT} and the one output {OUTPUT}")


def _check_node(node: memoryview) -> None:
    operators = []
    for number, value in _fields(node, _NODE_KNOWN, "an operator"):
        if number == _NODE_OPERATOR:
            operators.append(_text(value).decode("utf-8", "replace"))
        elif number == _NODE_DOMAIN and _text(value) not in _DEFAULT_DOMAIN:
            raise SelfsameError("uses operators that are not ONNX's own")
        elif number == _NODE_ATTRIBUTE:
            for key, part in _fields(_part(value), _ATTRIBUTE_KNOWN, "an operator's attribute"):
                if key == _ATTRIBUTE_TENSOR:
                    _check_tensor(_part(part))
    if len(operators) != 1 or operators[0] not in OPERATORS:
        raise SelfsameError(f"uses the operator {', '.join(operators)[:40]!r}, which a model file may not have")


def _check_tensor(tensor: memoryview) -> None:
    for _ in _fields(tensor, _TENSOR_KNOWN, "a tensor (its numbers must lie in the file itself)"):
        pass


def _part(value: int | memoryview | None) -> memoryview:
    if not isinstance(value, memoryview):
        raise SelfsameError("is not laid out as an ONNX file")
    return value


def _text(value: int | memoryview | None) -> bytes:
    return b"" if value is None else bytes(_part(value))


def _fields(message: memoryview, known: set[int] | None, what: str) -> Iterator[Field]:
    """The fields of a protobuf message in order; `known`: which may be there."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if known is not None and number not in known:
            raise SelfsameError(f"has an unexpected part (number {number}) in {what}")
        if wire == 0:
            value, at = _varint(message, at)
            yield number, value
            continue
        size, at = _varint(message, at) if wire == 2 else ({1: 8, 5: 4}.get(wire, -1), at)
        if not 0 <= size <= len(message) - at:
            raise SelfsameError("is not laid out as an ONNX file")
        yield number, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where the next thing begins."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            break
        byte = message[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
    raise SelfsameError("is not laid out as an ONNX file")
