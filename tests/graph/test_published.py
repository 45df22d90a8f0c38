"""The dialects' operators in ``onnx.defs``, beside onnx's reference implementation."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys, warnings
warnings.simplefilter("error")
import onnx, onnx.checker, onnx.shape_inference
{before}
from qgraph.ops.operator import OPERATORS, publish
OPERATORS.names()
assert not onnx.defs.has("Quant", 1, "qonnx.custom_op.general")
assert {imported} == ("onnx.reference" in sys.modules)
publish()
model = onnx.parser.parse_model('''
    <ir_version: 8, opset_import: ["": 13, "qonnx.custom_op.general": 1]>
    g (float[2] x, float s, float z, float b) => (float[2] y) {{
        q = qonnx.custom_op.general.Quant (x, s, z, b)
        y = Neg (q) }}''')
for _ in range(2):
    onnx.checker.check_model(model)
    found = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    assert found.graph.value_info[0].type.tensor_type.shape.dim[0].dim_value == 2
    from onnx.reference import ReferenceEvaluator
    import onnx.reference.op_run
neg = onnx.parser.parse_model('''
    <ir_version: 8, opset_import: ["": 13]>
    g (float[1] x) => (float[1] y) {{ y = Neg (x) }}''')
import numpy as np
assert ReferenceEvaluator(neg).run(None, {{"x": np.float32([2])}})[0] == -2
print("good")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "imported"), [("", False), ("import onnx.reference", True)], ids=["after", "before"]
)
def test_the_reference_implementation_can_be_imported(before, imported):
    program = PROGRAM.format(before=before, imported=imported)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("good", 0), done.stderr
