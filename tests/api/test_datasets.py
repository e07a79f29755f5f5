"""Data sets as arrays: what is read as an array, what is refused, and copies of device arrays."""

from __future__ import annotations

import ctypes
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import gcnbatch
from gcnbatch.api.arrays import to_host
from gcnbatch.backends.cuda.runtime import foreign
from gcnbatch.errors import InputError, MachineError


class Exported:
    """An array of another library: DLPack alone."""

    def __init__(self, values: Any, device: int = 1) -> None:
        self.values, self.device = np.asarray(values), device

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device, 0

    def __dlpack__(self, *, dl_device: Any = None, **options: Any) -> Any:
        if self.device == 8 and dl_device != (1, 0):
            raise BufferError("not in host memory")
        return self.values.__dlpack__()


class OnDevice:
    """An array of a device, by ``__cuda_array_interface__``; here its memory is the host's."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values
        self.__cuda_array_interface__ = {
            "shape": values.shape,
            "typestr": values.dtype.str,
            "data": (values.ctypes.data, False),
            "strides": None if values.flags.c_contiguous else values.strides,
            "version": 3,
        }


class FakeDriver:
    """The calls that a copy makes; `failing` returns an error."""

    def __init__(self, failing: str = "") -> None:
        self.failing, self.calls = failing, list[str]()

    def __getattr__(self, name: str) -> Any:
        def called(*arguments: Any) -> int:
            self.calls.append(name)
            if name == "cuMemcpyDtoH_v2" and not self.failing:
                target, source, size = arguments
                ctypes.memmove(target, source.value, size.value)
            return 700 if name == self.failing else 0

        return called


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(foreign, "loader", SimpleNamespace(open_driver=lambda: fake))
    return fake


ARRAYS = [
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.arange(12, dtype=np.int64).reshape(3, 4).T,
    np.arange(12, dtype=np.uint8)[::-2],
    np.arange(24.0).reshape(2, 3, 4)[:, 1:, ::3],
    np.zeros((0, 3), np.float32),
    np.array(2.5),
]


@pytest.mark.parametrize("values", ARRAYS)
def test_device_arrays_are_copied_with_their_strides(values: np.ndarray[Any, Any], driver: FakeDriver) -> None:
    found = to_host(OnDevice(values), "x")
    np.testing.assert_array_equal(found, values)
    assert found.dtype == values.dtype
    if values.size:
        order = ("cuCtxPushCurrent_v2", "cuCtxSynchronize", "cuMemcpyDtoH_v2", "cuCtxPopCurrent_v2")
        assert [call for call in driver.calls if call in order] == list(order)


def test_a_copy_that_fails_says_which_call(driver: FakeDriver) -> None:
    driver.failing = "cuMemcpyDtoH_v2"
    with pytest.raises(MachineError, match=r"cuMemcpyDtoH failed with error 700.*Or copy x to a NumPy array first"):
        to_host(OnDevice(np.ones(3)), "x")
    assert driver.calls[-2:] == ["cuCtxPopCurrent_v2", "cuDevicePrimaryCtxRelease_v2"]


def test_dlpack_is_read_from_the_host_and_asked_for_from_other_devices() -> None:
    assert to_host(Exported([1.5, 2.5]), "x").tolist() == [1.5, 2.5]
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        assert to_host(Exported([1.5, 2.5], device=8), "x").tolist() == [1.5, 2.5]


@pytest.mark.parametrize("values", [*ARRAYS, np.array([True, False]), np.arange(3, dtype=np.uint16)])
def test_dlpack_of_cuda_devices_is_copied_with_its_strides(values: np.ndarray[Any, Any], driver: FakeDriver) -> None:
    found = to_host(Exported(values, device=2), "x")
    np.testing.assert_array_equal(found, values)
    assert found.dtype == values.dtype
    assert driver.calls.count("cuMemcpyDtoH_v2") == bool(values.size)


def test_dlpack_of_complex_numbers_of_a_device_is_refused(driver: FakeDriver) -> None:
    with pytest.raises(InputError, match=r"x: a Exported that cannot be read \(numbers of DLPack type 5, 128 bits\)"):
        to_host(Exported([1j], device=2), "x")


@pytest.mark.parametrize("wrong", [[[1], [1, 2]], OnDevice(np.array([None], object))])
def test_what_is_no_array_is_refused(wrong: object) -> None:
    with pytest.raises(
        InputError, match=r"x: a .* that cannot be read .*; expected an array. Copy it to a NumPy array"
    ):
        to_host(wrong, "x")


@pytest.mark.gpu
def test_an_array_of_the_device_is_copied() -> None:
    from gcnbatch.backends import registry

    backend: Any = registry.open_backend("batched", 0)
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    array = backend.device.upload(values)
    interface = {"shape": (2, 3), "typestr": "<f4", "data": (array.ptr, False), "version": 3}
    np.testing.assert_array_equal(foreign.download(interface), values)


class OnlyDlpack:
    """An array without ``__cuda_array_interface__``."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__, self.__dlpack_device__ = array.__dlpack__, array.__dlpack_device__


@pytest.mark.gpu
@pytest.mark.parametrize("values", ARRAYS)
@pytest.mark.parametrize("library", ["cupy", "torch"])
def test_arrays_of_other_libraries_are_copied_from_the_device(library: str, values: np.ndarray[Any, Any]) -> None:
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    copied = np.ascontiguousarray(values).reshape(values.shape)
    array = module.asarray(copied) if library == "cupy" else module.from_numpy(copied).cuda()
    for given, expected in ((array, copied), (array.T, copied.T)) if values.ndim == 2 else ((array, copied),):
        for form in (given, OnlyDlpack(given)):
            found = to_host(form, "x")
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == expected.dtype


def small(**other: Any) -> gcnbatch.GraphSet:
    about = {"x": np.eye(4), "src": [0, 1], "dst": [1, 2], "node_ptr": [0, 3, 4], "edge_ptr": [0, 2, 2], "y": [1, 0]}
    return gcnbatch.graph_set(**(about | other))


def test_arrays_become_those_of_the_format() -> None:
    graphs = small(
        x=sp.csr_array(np.eye(4)), channel=[0, 1], weight=[1, 2], groups=[3, 4], y=Exported([[1.5, np.nan], [2, 0.25]])
    )
    assert graphs.header.target == "regression"
    assert graphs.header.channel_names == ("channel0", "channel1")
    kinds = [array.dtype.name for array in (graphs.x, graphs.src, graphs.node_ptr, graphs.channel, graphs.weight)]
    assert kinds == ["float32", "int32", "int64", "uint8", "float32"]
    assert small(x=np.eye(4, dtype=np.float16)).x.dtype == np.float16
    assert small(x=np.eye(4, dtype=bool)).x.dtype == np.uint8
    assert small(x=np.eye(4, dtype=int) * 300).x.dtype == np.float32


def test_what_a_notebook_shows_of_tables_and_sets_is_a_line() -> None:
    assert repr(small()) == "<GraphSet arrays: 2 graphs, 4 nodes, 2 edges, binary targets of 2 rows>"
    about = {"level": "graph", "target": "binary", "n_features": 1, "channel_names": ("bond",)}
    for count, shown in ((1, "t0"), (3, "t0, t1, t2")):
        header = gcnbatch.Header(name="set", task_names=tuple(f"t{k}" for k in range(count)), **about)
        table = gcnbatch.Predictions(header, np.array(["a"]), np.zeros((1, count), np.float32))
        assert repr(table) == f"<Predictions: 1 row of {shown}>"


def test_one_graph_needs_no_pointers_and_has_classes_of_nodes(tmp_path: Any) -> None:
    graphs = gcnbatch.graph_set(
        np.eye(3), [0, 1], [1, 2], [0, None, 2], level="node", task="multiclass", class_names=["a", "b", "c"]
    )
    gcnbatch.write(tmp_path / "one.h5", graphs)
    found = gcnbatch.read(tmp_path / "one.h5")
    assert found.y.tolist() == [[0], [-1], [2]]
    assert found.header == graphs.header
    np.testing.assert_array_equal(found.x, graphs.x)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"x": np.ones(3)}, r"x: float64 \(3,\); expected numbers of shape \(N, F\)"),
        ({"src": [0.5, 1]}, r"src: float64 \(2,\); expected whole numbers of one dimension"),
        ({"channel": [0, 300]}, "channel: 0 to 300; expected 0 to 255"),
        ({"src": [0, 5]}, r"graph_set:/edges/src\[1\]: node 5 in graph 0; expected 0 to 2"),
        ({"node_ptr": [0, 9, 4]}, "graph_set:/graphs/node_ptr"),
        ({"ids": ["a"]}, "ids: 1; expected 2, one per row"),
        ({"channel": [0, 1], "channel_names": ["a"]}, r"graph_set:/edges/channel\[1\]: 1; expected 0 to 0"),
        ({"y": [1, 0, 1]}, r"y: shape \(3, 1\); expected \(2,\) or \(2, K\)"),
        ({"y": ["a", "b"]}, "y: could not convert string to float"),
        ({"y": [1, 2], "task": "binary"}, r"y\[1, 0\]: 2; expected 0, 1 or NaN"),
        ({"y": [1, np.inf]}, r"y\[1, 0\]: inf; expected finite numbers or NaN"),
        ({"y": [0, 1.5], "task": "multiclass"}, r"y\[1, 0\]: 1.5; expected a class 0 to 1, or -1"),
        ({"y": [0, 0], "task": "multiclass"}, "y: only one class; expected at least 2"),
        ({"y": np.eye(2), "task": "multiclass"}, "y: 2 columns of classes; expected one"),
        ({"task_names": ["a", "b"]}, "task_names: 2 names; expected 1, one per column of y"),
        ({"y": [1j, 0]}, "y: complex numbers; expected numbers"),
    ],
)
def test_wrong_arrays_are_refused_by_name(other: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        small(**other)


def test_molecules_that_give_no_graph_are_refused_by_row() -> None:
    pytest.importorskip("rdkit")
    with pytest.raises(InputError, match=r"smiles, row 2, 'C\(': .*; expected a molecule"):
        gcnbatch.from_smiles(["CCO", "C("])
    with pytest.raises(InputError, match="smiles: no molecule; expected at least one"):
        gcnbatch.from_smiles([])


def test_molecules_in_memory_take_the_options_of_a_table(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    table = tmp_path / "molecules.csv"
    table.write_text("smiles,logp,assay\nCCO,0.5,1\nc1ccccc1,2,\n")
    options: dict[str, Any] = {
        "bond_properties": ["ring"],
        "atom_features": "extended86",
        "positional": "rw4",
        "descriptors": "rdkit2d",
        "fingerprint": "morgan,atompair",
        "fingerprint_radius": 1,
        "fingerprint_size": 16,
    }
    gcnbatch.import_smiles(
        table, tmp_path / "set.h5", target_columns=["logp"], feature_columns=["assay"], processes=1, **options
    )
    stored, smiles = gcnbatch.read(tmp_path / "set.h5"), ["CCO", "c1ccccc1"]
    own = {"features": [[1], [None]], "feature_names": ["assay"]}
    found = gcnbatch.from_smiles(smiles, [0.5, 2], task_names=["logp"], processes=1, **own, **options)
    for name in ("x", "channel", "graph_features", "smiles"):
        np.testing.assert_array_equal(getattr(found, name), getattr(stored, name), err_msg=name)
    for name in ("graph_feature_names", "graph_feature_counts", "feature_names", "channel_names"):
        assert getattr(found.header, name) == getattr(stored.header, name)
    assert found.take([1]).smiles.tolist() == ["c1ccccc1"]
    for wrong, message in (
        ({"features": [[1]]}, r"features: \(1, 1\); expected \(2, D\)"),
        ({**own, "feature_names": ["a", "b"]}, "feature_names: 2; expected 1, one per column"),
        ({**own, "feature_names": ["MolWt"]}, "'MolWt' is a descriptor, too"),
    ):
        with pytest.raises(InputError, match=message):
            gcnbatch.from_smiles(smiles, **options, **wrong)
    with pytest.raises(InputError, match=r"wrong\.h5: smiles: 1; expected 2, one per graph"):
        gcnbatch.write(tmp_path / "wrong.h5", found, smiles=["C"])
