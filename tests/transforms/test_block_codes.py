"""Packed weights of MatMulNBits that are written, and compared in proofs, strip by strip."""

from __future__ import annotations

import gc
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from qgraph import load, prove
from qgraph.errors import ModelError
from qgraph.graph import deferred
from qgraph.graph.constants import constant_elements
from qgraph.graph.deferred import DeferredTensor
from qgraph.graph.streaming import Stream, stream_of
from qgraph.numerics.formats import pack
from qgraph.ops.kernels.mat_mul_n_bits import Weights
from qgraph.proof.matching import products
from qgraph.quantizers.dialects import qdq
from qgraph.quantizers.weights import codes_job, job
from qgraph.transforms import ConvertDialect, LowerMatMulNBits, RaiseMatMulNBits
from qgraph.transforms.weights import packed_blocks

K, N, SIZE = 160, 6, 32
MOST_ELEMENTS = "qgraph.proof.matching.constant_rows._WHOLE_ELEMENTS"


def weights(bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(bits)
    blocks = -(-K // SIZE)
    packed = random.integers(0, 256, (N, blocks, SIZE * bits // 8)).astype(np.uint8)
    points = random.integers(0, 256, (N, -(-blocks * bits // 8))).astype(np.uint8)
    return packed, random.uniform(0.5, 2, (N, blocks)).astype(np.float32), points


def field(row: np.ndarray, place: int, bits: int) -> int:
    return int(row[place * bits // 8]) >> place * bits % 8 & (1 << bits) - 1


def matrix(bits: int) -> np.ndarray:
    """Return the weights [K, N] as the documentation of MatMulNBits has them."""
    packed, scales, points = weights(bits)
    w = np.empty((K, N), np.float32)
    for k, n in np.ndindex(K, N):
        code, zero = field(packed[n].ravel(), k, bits), field(points[n], k // SIZE, bits)
        w[k, n] = np.float32(code - zero) * scales[n, k // SIZE]
    return w


def saved(path: Path, bits: int) -> Path:
    """Write a model with its weights in a data file, and return its path."""
    tensors = dict(zip("wsz", weights(bits), strict=True))
    known = [ir.Value(name=n, const_value=ir.tensor(a, name=n)) for n, a in tensors.items()]
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([K, K]))
    y = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([K, N]))
    attributes = {"K": K, "N": N, "bits": bits, "block_size": SIZE}
    node = ir.node(
        "MatMulNBits", [x, *known], attributes, domain="com.microsoft", outputs=[y], name="m"
    )
    imports = {"": 21, "com.microsoft": 1}
    graph = ir.Graph([x], [y], nodes=[node], initializers=known, opset_imports=imports, name="g")
    ir.save(ir.Model(graph, ir_version=10), path, external_data="weights", size_threshold_bytes=0)
    return path


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_strips_give_the_weights_of_the_documentation(
    bits: int, signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_blocks, "_PART_BYTES", 200)
    monkeypatch.setattr(products, "_STRIP_BYTES", 200)
    monkeypatch.setattr(MOST_ELEMENTS, 1)
    source = saved(tmp_path / "a.onnx", bits)
    model = load(source)
    model.apply(LowerMatMulNBits(signed=signed))
    model.save(tmp_path / "b.onnx")
    eye = {"x": np.eye(K, dtype=np.float32)}
    y = load(tmp_path / "b.onnx").run(eye, backend="numpy")["y"]
    assert y.tolist() == matrix(bits).tolist()
    assert str(prove(source, tmp_path / "b.onnx").verdict) == "proved"


def test_rows_are_those_of_the_whole_matrix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "_STRIP_BYTES", 200)
    (node,) = load(saved(tmp_path / "a.onnx", 4)).nodes()
    w, s, z = map(constant_elements, node.inputs[1:])
    rows = products.PackedRows(Weights.of(node), w, s, z.array(), "w")
    for start, stop in ((0, 32), (32, 96), (100, 110), (7, 160)):
        assert rows.rows(start, stop).tolist() == matrix(4)[start:stop].tolist()
    assert rows.numpy().tolist() == matrix(4).tolist()


def test_a_weight_that_differs_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MOST_ELEMENTS, 1)
    source = saved(tmp_path / "a.onnx", 4)
    model = load(source)
    model.apply(LowerMatMulNBits())
    data = tmp_path / "weights"
    content = bytearray(data.read_bytes())
    content[5] ^= 1
    model.save(tmp_path / "b.onnx")
    data.write_bytes(content)
    assert str(prove(source, tmp_path / "b.onnx").verdict) == "different"


def test_codes_that_vanish_stop_the_save(tmp_path: Path) -> None:
    model = load(saved(tmp_path / "a.onnx", 4))
    model.apply(LowerMatMulNBits())
    (tmp_path / "weights").write_bytes(b"short")
    with pytest.raises(ModelError, match="weights"):
        model.save(tmp_path / "b.onnx")


@pytest.mark.cases(fast=2)
@pytest.mark.parametrize(("rows", "columns"), [(160, 16), (159, 6), (133, 32), (160, 7)])
def test_every_flipped_code_of_four_bits_is_found(
    rows: int, columns: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{__name__}.K", rows)
    monkeypatch.setattr(f"{__name__}.N", columns)
    monkeypatch.setattr(products, "_STRIP_BYTES", 300)
    monkeypatch.setattr(products, "_ELEMENTS", 5 * columns)
    form = Weights(rows, columns, 4, SIZE)
    packed, scales, points = weights(4)
    codes = np.empty((rows, columns), np.uint8)
    for k, n in np.ndindex(rows, columns):
        codes[k, n] = field(packed[n].ravel(), k, 4)
    streams = Stream("UINT8", packed.shape, packed), Stream("FLOAT", scales.shape, scales)
    own = products.PackedRows(form, *streams, points, "w")
    data = tmp_path / "codes"

    def is_same(changed: np.ndarray) -> bool:
        data.write_bytes(pack(changed.reshape(-1), 4).tobytes())
        place = ("codes", 0, data.stat().st_size, ir.DataType.UINT4)
        shape = ir.Shape(changed.shape)
        tensor = ir.ExternalTensor(*place, shape=shape, name="c", base_dir=str(tmp_path))
        with ThreadPoolExecutor(2) as threads:
            return products._is_transposed(own, stream_of(tensor), 0, threads)

    assert is_same(codes)
    for k, n in [(0, 0), (rows - 1, 0), (rows - 1, columns - 1), (rows - 2, 1), (64, 3), (65, 2)]:
        codes[k, n] ^= 4
        assert not is_same(codes), (k, n)
        codes[k, n] ^= 4


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_codes_are_proved_without_decoding_and_a_flipped_bit_is_found(
    bits: int, signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MOST_ELEMENTS, 1)
    monkeypatch.setattr(products, "_STRIP_BYTES", 200)
    monkeypatch.setattr(products, "_ELEMENTS", 40)
    source = saved(tmp_path / "a.onnx", bits)
    model = load(source)
    model.apply(LowerMatMulNBits(signed=signed))
    model.save(tmp_path / "b.onnx", external_data=True, size_threshold=0)
    monkeypatch.setattr("qgraph.proof.matching.constant_rows._compared_by_rows", None)
    assert str(prove(source, tmp_path / "b.onnx").exactness) == "bits"
    monkeypatch.undo()
    monkeypatch.setattr(MOST_ELEMENTS, 1)
    data = tmp_path / "b.onnx.data"
    content = data.read_bytes()
    for place in range(0, len(content), len(content) // 7):
        data.write_bytes(content[:place] + bytes([content[place] ^ 0x20]) + content[place + 1 :])
        assert str(prove(source, tmp_path / "b.onnx").verdict) == "different"


def test_parameters_are_given_without_the_codes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(saved(tmp_path / "a.onnx", 4))
    model.apply(LowerMatMulNBits())
    monkeypatch.setattr(packed_blocks.BlockCodes, "_rows", None)
    _, scales, points = weights(4)
    (node,) = model.nodes("DequantizeLinear")
    scale, zero = (value.const_value.numpy() for value in node.inputs[1:])
    assert scale.tolist() == scales.T.tolist()
    expected = [[field(points[n], b, 4) for n in range(N)] for b in range(K // SIZE)]
    assert zero.astype(int).tolist() == expected


@pytest.mark.parametrize("bits", [2, 4])
def test_values_for_other_dialects_are_computed_strip_by_strip(
    bits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1)
    monkeypatch.setattr(job, "PIECE", 100)
    monkeypatch.setattr(packed_blocks, "_PART_BYTES", 200)
    model = load(saved(tmp_path / "a.onnx", bits))
    report = model.apply(ConvertDialect(to="qonnx"))
    assert [str(entry.verdict.exactness) for entry in report] == ["bits", "bits"]
    (weight,) = (
        tensor
        for value in model.ir.graph.initializers.values()
        if isinstance(tensor := value.const_value, DeferredTensor) and tensor.size == K * N
    )
    assert pickle.loads(pickle.dumps(weight.job.parts()))
    assert weight.numpy().reshape(K, N).tolist() == matrix(bits).tolist()
    model.save(tmp_path / "b.onnx")
    eye = {"x": np.eye(K, dtype=np.float32)}
    y = load(tmp_path / "b.onnx").run(eye, backend="numpy")["y"]
    assert y.tolist() == matrix(bits).tolist()
    monkeypatch.setattr(MOST_ELEMENTS, 1)
    assert str(prove(tmp_path / "a.onnx", tmp_path / "b.onnx").exactness) == "bits"


@pytest.mark.parametrize("dialect", ["qonnx", "openvino", "onnx"])
def test_scales_are_computed_again_when_the_model_is_saved(
    dialect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1)
    monkeypatch.setattr(deferred, "LARGE", 1)
    monkeypatch.setattr(qdq, "_FEW", 1)
    monkeypatch.setattr(deferred, "_MOST_KEPT", 0)
    model = load(saved(tmp_path / "a.onnx", 4))
    gc.disable()  # cycles of drafts must not hold them either
    try:
        model.apply(ConvertDialect(to=dialect))
        assert not [held for held in deferred._COMPUTED.values() if held() is not None]
    finally:
        gc.enable()
    tensors = [value.const_value for value in model.ir.graph.initializers.values()]
    (scale,) = (t for t in tensors if isinstance(t, DeferredTensor) and t.place == 1)
    assert scale.numpy().reshape(-1, N).T.tolist() == weights(4)[1].tolist()
    for each in (t for t in tensors if isinstance(t, DeferredTensor)):
        assert pickle.loads(pickle.dumps(each.job.parts()))
    model.save(tmp_path / "b.onnx")
    y = load(tmp_path / "b.onnx").run({"x": np.eye(K, dtype=np.float32)}, backend="numpy")["y"]
    assert y.tolist() == matrix(4).tolist()


def test_values_of_codes_that_vanish_stop_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codes_job, "LEAST_BYTES", 1)
    model = load(saved(tmp_path / "a.onnx", 4))
    model.apply(ConvertDialect(to="qonnx"))
    (tmp_path / "weights").write_bytes(b"short")
    with pytest.raises(ModelError, match="weights"):
        model.save(tmp_path / "b.onnx")


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_codes_are_raised_strip_by_strip(
    bits: int, signed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_blocks, "_PART_BYTES", 200)
    model = load(saved(tmp_path / "a.onnx", bits))
    model.apply(LowerMatMulNBits(signed=signed, opset=25))
    model.save(tmp_path / "b.onnx", external_data=True, size_threshold=0)
    model = load(tmp_path / "b.onnx")
    model.apply(RaiseMatMulNBits())
    assert all(
        isinstance(value.const_value, DeferredTensor)
        for value in model.ir.graph.initializers.values()
    )
    model.save(tmp_path / "c.onnx")
    (node,) = load(tmp_path / "c.onnx").nodes()
    codes, scales, points = (value.const_value.numpy() for value in node.inputs[1:])
    expected_codes, expected_scales, expected_points = weights(bits)
    assert codes.tolist() == expected_codes.tolist()
    assert scales.tolist() == expected_scales.tolist()
    for n, b in np.ndindex(N, K // SIZE):
        assert field(points[n], b, bits) == field(expected_points[n], b, bits)


def test_rows_of_codes_are_raised_without_a_transpose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packed_blocks, "_PART_BYTES", 200)
    source = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[{K},{K}] x) => (float[{K},{N}] y) <int4[1] c = {{0}}, float[1] s = {{0}}> {{
            w = DequantizeLinear <axis = 1, block_size = {SIZE}> (c, s)
            t = Transpose (w)
            y = MatMul (x, t)
        }}"""
    )
    packed, scales, _ = weights(4)
    numbers = [[field(packed[n].ravel(), k, 4) - 8 for k in range(K)] for n in range(N)]
    for name, tensor in (
        ("c", ir.tensor(np.array(numbers, ml_dtypes.int4), name="c")),
        ("s", ir.tensor(scales, name="s")),
    ):
        value = source.graph.initializers[name]
        value.const_value, value.shape = tensor, tensor.shape
    ir.save(source, tmp_path / "a.onnx", external_data="codes", size_threshold_bytes=0)
    model = load(tmp_path / "a.onnx")
    model.apply(RaiseMatMulNBits())
    (node,) = model.nodes()
    assert len(node.inputs) == 3
    codes, found_scales = (value.const_value.numpy() for value in node.inputs[1:])
    assert codes.tolist() == packed.tolist()
    assert found_scales.tolist() == scales.tolist()


def test_raised_codes_that_vanish_stop_the_save(tmp_path: Path) -> None:
    model = load(saved(tmp_path / "a.onnx", 4))
    model.apply(LowerMatMulNBits())
    model.save(tmp_path / "b.onnx", external_data=True, size_threshold=0)
    model = load(tmp_path / "b.onnx")
    model.apply(RaiseMatMulNBits())
    (tmp_path / "b.onnx.data").write_bytes(b"short")
    with pytest.raises(ModelError, match=r"b\.onnx\.data"):
        model.save(tmp_path / "c.onnx")


def test_codes_that_are_not_transposed_stop_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(saved(tmp_path / "a.onnx", 4))
    model.apply(LowerMatMulNBits(), RaiseMatMulNBits())
    monkeypatch.setattr(packed_blocks, "transpose_packed", lambda *_: False)
    with pytest.raises(ModelError, match="packed"):
        model.save(tmp_path / "c.onnx")
