"""Zero points of packed weights are made only for matrices that the stored codes fill."""

import onnx_ir as ir

from qgraph.quantizers.on_codes import coded_tensors


def zero_points(columns: int) -> object:
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
        net (float[1,32] x) => (float[1,n] y)
        <uint8[2,2,8] w = {{{", ".join(map(str, range(32)))}}}, float[4] s = {{1, 2, 3, 4}}> {{
            y = com.microsoft.MatMulNBits <K = 32, N = {columns}, bits = 4, block_size = 16>
                (x, w, s)
        }}""")
    (node,) = model.graph
    (tensor,) = coded_tensors(node)
    return tensor.zero_point


def test_missing_zero_points_are_half_of_the_codes():
    assert zero_points(2).tolist() == [[8, 8], [8, 8]]


def test_a_matrix_beyond_all_memory_has_none():
    """2 columns are stored; zero points of all would take 16 GB."""
    assert zero_points(2**31 - 1) is None
