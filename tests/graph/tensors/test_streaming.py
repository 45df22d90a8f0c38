"""Tensors are read piece by piece, in any view, and a short file is an error that says so."""

from __future__ import annotations

import itertools
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph.errors import ModelError
from qgraph.graph.constants import constant_elements, constant_expression, constant_stream
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import FileRange, Stream, box_at, stream_of


def in_file(path: Path, array: np.ndarray, before: bytes = b"abc") -> ir.ExternalTensor:
    """Write an array behind other bytes, narrow types packed by onnx_ir."""
    data = ir.tensor(array).tobytes()
    path.write_bytes(before + data)
    return ir.ExternalTensor(
        path.name,
        len(before),
        len(data),
        ir.DataType.from_numpy(array.dtype),
        shape=ir.Shape(array.shape),
        name="w",
        base_dir=path.parent,
    )


TYPES = [np.float32, np.float16, np.int8, np.int64, ml_dtypes.bfloat16]
TYPES += [ml_dtypes.int4, ml_dtypes.uint2, ml_dtypes.float6_e2m3fn]


@pytest.mark.parametrize("dtype", TYPES)
def test_any_range_of_elements_is_read(tmp_path, dtype):
    lowest = 0 if dtype is ml_dtypes.uint2 else -3
    array = (np.arange(77) % 7 - 3).clip(lowest, 3).astype(dtype).reshape(7, 11)
    stream = stream_of(in_file(tmp_path / "d", array))
    assert stream.shape == (7, 11)
    assert stream.nbytes == ir.tensor(array).nbytes
    np.testing.assert_array_equal(stream.array().astype(float), array.astype(float))
    flat = array.reshape(-1).astype(float)
    for start, stop in ((0, 77), (1, 2), (3, 40), (5, 6), (76, 77), (10, 10)):
        np.testing.assert_array_equal(stream.read(start, stop).astype(float), flat[start:stop])


def test_views_are_those_of_numpy(tmp_path):
    array = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    stream = stream_of(in_file(tmp_path / "d", array))
    cuts = [slice(None, None, -1), slice(1, 4, 2), slice(2, None)]
    for order in itertools.permutations(range(3)):
        turned, expected = stream.transposed(order), array.transpose(order)
        np.testing.assert_array_equal(turned.array(), expected)
        part = turned.sliced(cuts)
        assert isinstance(part.stored, FileRange)
        np.testing.assert_array_equal(part.array(), expected[tuple(cuts)])
        found = [(start, piece.copy()) for start, piece in part.pieces(5, multiple=3)]
        assert [start for start, _ in found] == list(range(0, part.size, 3))
        joined = np.concatenate([piece for _, piece in found])
        np.testing.assert_array_equal(joined, expected[tuple(cuts)].ravel())


def test_pieces_use_the_same_memory_again(tmp_path):
    stream = stream_of(in_file(tmp_path / "d", np.arange(100, dtype=np.float32)))
    places = {piece.__array_interface__["data"][0] for _, piece in stream.pieces(10)}
    assert len(places) == 1
    assert [start for start, _ in stream.pieces(40, between=(10, 95))] == [10, 50, 90]


def test_a_stream_of_a_file_can_be_pickled_and_read_by_threads(tmp_path):
    array = np.arange(5000, dtype=np.float32)
    stream = pickle.loads(pickle.dumps(stream_of(in_file(tmp_path / "d", array))))
    with ThreadPoolExecutor(4) as pool:
        parts = pool.map(lambda k: stream.read(k * 50, k * 50 + 50), range(100))
        np.testing.assert_array_equal(np.concatenate(list(parts)), array)


def test_a_file_that_is_cut_short_or_gone_is_named(tmp_path):
    path = tmp_path / "d"
    stream = stream_of(in_file(path, np.arange(100, dtype=np.float32)))
    os.truncate(path, 203)
    np.testing.assert_array_equal(stream.read(0, 50), np.arange(50))
    with pytest.raises(ModelError, match=r"d: has 203 bytes, expected 200 from byte 203 on"):
        stream.array()
    path.unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        stream.array()


def test_bytes_are_copied_to_the_same_place_of_another_file(tmp_path):
    content = np.random.default_rng(0).integers(0, 256, 3_000_000, np.uint8)
    (tmp_path / "a").write_bytes(content.tobytes())
    (tmp_path / "b").write_bytes(b"x" * 10)
    os.truncate(tmp_path / "b", content.size)
    source = FileRange(str(tmp_path / "a"), 5, content.size - 5)
    target = FileRange(str(tmp_path / "b"), 3, content.size - 5)
    source.copy(100, 2_500_000, target)
    found = np.fromfile(tmp_path / "b", np.uint8)
    np.testing.assert_array_equal(found[103:2_500_103], content[105:2_500_105])
    assert bytes(found[:12]) == b"x" * 10 + b"\0\0"


def test_boxes_follow_c_order():
    shape = (3, 4, 5)
    places = np.arange(60).reshape(shape)
    for first in range(60):
        for most in (1, 4, 5, 7, 20, 33, 60):
            corner, sizes = box_at(shape, first, most)
            box = places[tuple(slice(c, c + n) for c, n in zip(corner, sizes, strict=True))]
            assert 1 <= box.size <= most
            np.testing.assert_array_equal(box.ravel(), np.arange(first, first + box.size))
    assert box_at((), 0, 1) == ([], [])


EXPRESSIONS = {
    "Identity (w)": lambda w: w,
    "Transpose <perm = [1, 0, 2]> (w)": lambda w: w.transpose(1, 0, 2),
    "Transpose (w)": lambda w: w.T,
    "Flatten <axis = 2> (w)": lambda w: w.reshape(12, 5),
    "Reshape (w, shape)": lambda w: w.reshape(5, 12),
    "Unsqueeze (w, ends)": lambda w: w.reshape(1, 3, 4, 5, 1),
    "Slice (w, from, to, axes, steps)": lambda w: w[:, 1:3, ::-2],
    "Slice (w, from, to)": lambda w: w[1:3],
}


@pytest.mark.parametrize("spelling", EXPRESSIONS)
def test_constants_are_seen_through_operators_without_being_read(tmp_path, spelling):
    numbers = {"shape": "2] shape = {-1, 12", "ends": "2] ends = {0, -1"}
    if "axes" in spelling:
        numbers |= {"from": "2] from = {1, -1", "to": "2] to = {3, -99", "axes": "2] axes = {1, 2"}
        numbers |= {"steps": "2] steps = {1, -2"}
    elif "from" in spelling:
        numbers |= {"from": "1] from = {1", "to": "1] to = {99"}
    used = ", ".join(f"int64[{text}}}" for name, text in numbers.items() if f"{name}" in spelling)
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]> g () => (float[a] y)
        <float[60] w = {{0{", 0" * 59}}}{", " + used if used else ""}> {{
            y = {spelling} }}"""
    )
    array = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    weight = model.graph.initializers["w"]
    weight.const_value, weight.shape = in_file(tmp_path / "d", array), ir.Shape((3, 4, 5))
    stream = constant_stream(model.graph.outputs[0])
    assert stream is not None
    if spelling != "Transpose (w)":
        assert isinstance(stream.stored, FileRange)
    expected = EXPRESSIONS[spelling](array)
    np.testing.assert_array_equal(stream.array(), expected)
    np.testing.assert_array_equal(constant_expression(model.graph.outputs[0]), expected)


def test_elements_in_memory_are_streamed_too():
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    value = ir.Value(name="w", const_value=ir.tensor(array))
    ir.Graph([], [], nodes=[], initializers=[value])
    stream = constant_elements(value)
    assert isinstance(stream, Stream)
    np.testing.assert_array_equal(stream.transposed((1, 0)).read(2, 7), array.T.ravel()[2:7])


class Doubling:
    """A job of eight parts that doubles the elements of another constant."""

    def __init__(self, source: Stream) -> None:
        self.source = source
        self.runs = 0

    def parts(self):
        self.runs += 1
        return [lambda sinks, at=at: self._part(at, sinks[0]) for at in range(0, 64, 8)]

    def _part(self, at, sink):
        sink.write(at, 2 * self.source.read(at, at + 8))

    def conclude(self, results):
        """Accept all results."""


def test_a_tensor_that_is_read_in_parts_is_computed_once():
    array = np.arange(64, dtype=np.uint8)
    first = Doubling(Stream("UINT8", (64,), array))
    second = Doubling(Stream("UINT8", (64,), DeferredTensor(first, 0, ir.DataType.UINT8, [64])))
    stream = Stream("UINT8", (64,), DeferredTensor(second, 0, ir.DataType.UINT8, [64]))
    read = np.concatenate([piece.copy() for _, piece in stream.pieces(4)])
    np.testing.assert_array_equal(read, 4 * array)
    assert (first.runs, second.runs) == (1, 1)
