"""An ONNX graph under construction, whose values are written like NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gcnbatch.errors import MachineError

if TYPE_CHECKING:
    from onnx import ModelProto

OPSET, ML_OPSET, IR_VERSION = 20, 5, 10  # ONNX Runtime 1.20 reads them
Operand = "Value | NDArray[Any] | np.generic"
_TYPES = {np.float32: "FLOAT", np.float64: "DOUBLE", np.int64: "INT64"}


def load_onnx() -> Any:
    """Return the package ``onnx``.

    Raises
    ------
    MachineError
        When it is not installed.
    """
    try:
        import onnx
    except ImportError as error:
        raise MachineError("onnx", "not installed", hint="Install it: pip install 'gcnbatch[onnx]'") from error
    return onnx


class Graph:
    """Nodes, constants, inputs and outputs; NumPy arrays and scalars become constants of their type."""

    def __init__(self) -> None:
        self._onnx = load_onnx()
        self._nodes: list[Any] = []
        self._constants: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []

    def input(self, name: str, kind: type[np.generic], *shape: str | int) -> Value:
        """Return an input; a text in its shape is a dimension of any length."""
        self._inputs.append(self._about(name, kind, shape))
        return Value(self, name)

    def output(self, name: str, value: Value, kind: type[np.generic], *shape: str | int) -> None:
        """Name a value as an output."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [value.name], [name]))
        self._outputs.append(self._about(name, kind, shape))

    def __call__(self, kind: str, *operands: Any, domain: str = "", **attributes: Any) -> Value:
        """Return the result of a node; an operand of None is left out."""
        names = ["" if of is None else self.value(of).name for of in operands]
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(kind, names, [name], domain=domain, **attributes))
        return Value(self, name)

    def value(self, of: Any) -> Value:
        """Return a value as it is, an array or a scalar as a constant."""
        if isinstance(of, Value):
            return of
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(of), name))
        return Value(self, name)

    def tensor(self, array: NDArray[Any]) -> Any:
        """Return an array as an attribute of a node."""
        return self._onnx.numpy_helper.from_array(array)

    def model(self, producer: tuple[str, str], doc: str, about: dict[str, str]) -> ModelProto:
        """Return the graph as a checked model.

        Parameters
        ----------
        producer : (str, str)
            Name and version.
        doc : str
            What the model is, for people.
        about : dict of str
            Metadata by key.
        """
        helper = self._onnx.helper
        doc = doc.encode("utf-8", "backslashreplace").decode()  # names of files may be any bytes
        graph = helper.make_graph(self._nodes, "gcnbatch", self._inputs, self._outputs, self._constants, doc)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
        found: ModelProto = helper.make_model(
            graph, opset_imports=opsets, producer_name=producer[0], producer_version=producer[1], doc_string=doc
        )
        found.ir_version = IR_VERSION
        helper.set_model_props(found, about)
        self._onnx.checker.check_model(found)
        return found

    def _about(self, name: str, kind: type[np.generic], shape: tuple[str | int, ...]) -> Any:
        tensor = getattr(self._onnx.TensorProto, _TYPES[kind])
        return self._onnx.helper.make_tensor_value_info(name, tensor, shape)


@dataclass(frozen=True)
class Value:
    """The result of a node, an input or a constant. Operators are those of NumPy arrays of the same type."""

    graph: Graph
    name: str

    def __add__(self, other: Any) -> Value:
        return self.graph("Add", self, other)

    def __sub__(self, other: Any) -> Value:
        return self.graph("Sub", self, other)

    def __mul__(self, other: Any) -> Value:
        return self.graph("Mul", self, other)

    def __truediv__(self, other: Any) -> Value:
        return self.graph("Div", self, other)

    def __matmul__(self, other: Any) -> Value:
        return self.graph("MatMul", self, other)

    def __ge__(self, other: Any) -> Value:
        return self.graph("GreaterOrEqual", self, other)

    def sum(self, axis: int, keep: bool = True) -> Value:
        """Return the sum over an axis."""
        return self.graph("ReduceSum", self, np.array([axis]), keepdims=int(keep))

    def mean(self, axis: int) -> Value:
        """Return the mean over an axis, which stays as one of length 1."""
        return self.graph("ReduceMean", self, np.array([axis]), keepdims=1)

    def relu(self) -> Value:
        """Return max(x, 0)."""
        return self.graph("Relu", self)

    def clip(self, low: Any, high: Any) -> Value:
        """Return values cut to a range; bounds are scalars of the same type, or arrays that broadcast."""
        return self.graph("Min", self.graph("Max", self, low), high)

    def take(self, rows: Any, axis: int = 0) -> Value:
        """Return the entries at these positions of an axis."""
        return self.graph("Gather", self, rows, axis=axis)

    def reshape(self, *shape: int) -> Value:
        """Return the same values in another shape; a 0 keeps a dimension, one -1 is what is left."""
        return self.graph("Reshape", self, np.array(shape, np.int64))

    def length(self, axis: int) -> Value:
        """Return the length of an axis, int64 (1,)."""
        return self.graph("Shape", self, start=axis, end=axis + 1)

    def astype(self, kind: type[np.generic]) -> Value:
        """Return values of another type."""
        return self.graph("Cast", self, to=getattr(load_onnx().TensorProto, _TYPES[kind]))

    def where(self, true: Any, false: Any) -> Value:
        """Return `true` where this value holds, else `false`."""
        return self.graph("Where", self, true, false)

    def is_nan(self) -> Value:
        """Return where values are NaN."""
        return self.graph("IsNaN", self)
