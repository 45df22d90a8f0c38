"""Whole models: what is proved, what is counted, and what is left open for a reason."""

from __future__ import annotations

import math
import re

import numpy as np
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.certificate import ProofVerdict
from qgraph.comparison import prove as proving
from qgraph.errors import EquivalenceError, ModelError, OptionError, UndecidedError
from qgraph.exactness import Exactness, Method
from qgraph.execution.inputs import batch_shapes
from qgraph.proof import discharge, regions
from qgraph.proof.functions import decide, enumeration
from tests.verify.checking import verify

HEADER = '<ir_version: 10, opset_import: ["": {opset}, "qonnx.custom_op.general": 2]>'
QUANT = 'qonnx.custom_op.general.Quant <signed = 1, narrow = 0, rounding_mode = "ROUND">'
UNSIGNED = 'qonnx.custom_op.general.Quant <signed = 0, narrow = 0, rounding_mode = "ROUND">'


def model(body: str, *, opset: int = 21) -> ir.Model:
    return ir.from_onnx_text(f"{HEADER.format(opset=opset)} {body}")


def parse(signature: str, constants: str, *lines: str, opset: int = 21) -> ir.Model:
    return model(f"g {signature} <{constants}> {{ {' '.join(lines)} }}", opset=opset)


PLAIN = "float s = {0.1}, float z = {0}, float b = {8}, int8 i = {0}"
PAIR = "q = QuantizeLinear(x, s, i) y = DequantizeLinear(q, s, i)"


def quantizer(*after: str, y: str = "float[N,4] y") -> tuple[ir.Model, ir.Model]:
    """A Quant and its Q/DQ form, followed by the same nodes, which make ``y`` of ``a``."""
    last = after or ("y = Identity(a)",)
    signature = f"(float[N,4] x) => ({y})"
    ours = parse(signature, PLAIN, f"a = {QUANT}(x, s, z, b)", *last)
    theirs = parse(
        signature, PLAIN, "q = QuantizeLinear(x, s, i) a = DequantizeLinear(q, s, i)", *last
    )
    return ours, theirs


def test_a_quantizer_and_its_pair_are_equal_in_value_but_not_in_bits():
    ours, theirs = quantizer()
    found = qgraph.prove(ours, theirs)
    assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.VALUES)
    (region,) = found.regions
    # counted by running all 2**32 inputs
    assert region.zero_sign_inputs == 1_028_443_341
    assert region.nan_differs
    assert any("NaN" in condition for condition in found.conditions)
    strict = qgraph.prove(ours, theirs, exact=Exactness.BITS)
    assert strict.verdict is ProofVerdict.DIFFERENT
    assert strict.regions[0].differing_inputs == 0


def test_only_values_and_bits_can_be_proved():
    ours, theirs = quantizer()
    with pytest.raises(OptionError, match="values or bits"):
        qgraph.prove(ours, theirs, exact=Exactness.CODES)


@pytest.mark.parametrize(
    ("scale", "zero_point", "count"), [(0.25, 127, 1150), (0.1, 128, 912), (0.1, 127, 1098)]
)
def test_inputs_that_a_zero_point_moves_are_counted(scale, zero_point, count):
    constants = f"float s = {{{scale}}}, float z = {{{zero_point}}}, float b = {{8}}"
    ours = parse("(float[4] x) => (float[4] y)", constants, f"y = {UNSIGNED}(x, s, z, b)")
    theirs = parse(
        "(float[4] x) => (float[4] y)",
        f"float s = {{{scale}}}, uint8 i = {{{zero_point}}}",
        PAIR,
    )
    found = qgraph.prove(ours, theirs)
    (region,) = found.regions
    # the counts were confirmed on all 2**32 inputs
    assert (found.verdict, region.differing_inputs) == (ProofVerdict.DIFFERENT, count)
    assert region.largest_steps == pytest.approx(1, abs=1e-3)
    x, s, z = np.float32(region.witness.input), np.float32(scale), np.float32(zero_point)
    assert (np.rint(np.clip(x / s + z, 0, 255)) - z) * s == np.float32(region.witness.reference)
    assert (np.clip(np.rint(x / s) + z, 0, 255) - z) * s == np.float32(region.witness.candidate)


def test_channels_are_counted_one_by_one():
    constants = "float[1,3] s = {{0.1, {}, 0.3}}, float z = {{0}}, float b = {{4}}"
    models = [
        parse("(float[2,3] x) => (float[2,3] y)", constants.format(s), f"y = {QUANT}(x, s, z, b)")
        for s in (0.2, 0.25)
    ]
    (region,) = qgraph.prove(*models).regions
    assert region.channels == 3
    assert [channel for channel, _ in region.differing_channels] == [1]
    assert region.witness_channel == 1


def test_names_and_the_order_of_commuting_operands_do_not_matter():
    ours = parse("(float[4] x) => (float[4] y)", "float c = {2}", "a = Add(x, c) y = Sqrt(a)")
    theirs = parse("(float[4] x) => (float[4] y)", "float d = {2}", "t = Add(d, x) y = Sqrt(t)")
    found = qgraph.prove(ours, theirs)
    assert (found.verdict, found.exactness, found.regions) == ("proved", "bits", ())


def test_opsets_that_mean_the_same_are_one():
    body = "g (float[1,4] x) => (float[1,2] y) { y = Softmax<axis = 1>(x) }".replace(
        "[1,2]", "[1,4]"
    )
    assert qgraph.prove(model(body, opset=11), model(body, opset=21)).verdict == "proved"


def test_a_function_of_the_model_is_held_to_the_definition():
    ours, _ = quantizer()
    portable = qgraph.load(ours).clone()
    portable.apply(transforms.MakePortable())
    found = qgraph.prove(ours, portable)
    assert (found.verdict, found.exactness) == ("proved", "bits")
    (function,) = portable.ir.functions.values()
    for node in function:
        if node.op_type == "Round":
            node.op_type = "Floor"
    assert qgraph.prove(ours, portable).verdict == "different"


@pytest.mark.parametrize(
    ("after", "seen"),
    [
        ("y = Relu(a)", False),
        ("y = Softmax(a)", False),
        ("y = Reciprocal(a)", True),
        ("c = Sqrt(a) y = Reciprocal(c)", True),
        ("y = Div(a, s)", False),
        ("y = Pow(a, s)", True),
        ("y = my.domain.Thing(a)", True),
    ],
)
def test_zeros_of_different_signs_must_not_be_seen(after, seen):
    found = qgraph.prove(*quantizer(after))
    assert found.verdict == ("undecided" if seen else "proved")
    if seen:
        assert "distinguishes -0 from +0" in found.regions[-1].reason


def test_a_quantizer_that_forgets_the_sign_may_be_followed_by_anything():
    codes = "c = QuantizeLinear(a, s, i) d = DequantizeLinear(c, s, i) y = Reciprocal(d)"
    assert qgraph.prove(*quantizer(codes)).verdict == "proved"


def layer(weights: str, *, pads: int = 1, bias: float = 0.5) -> ir.Model:
    return parse(
        "(float[1,1,4,4] x) => (float[1,1,4,4] y)",
        f"float[1,1,3,3] w = {{{weights}}}, float[1] c = {{{bias}}}",
        f"y = Conv<pads = [{pads},{pads},{pads},{pads}]>(x, w, c)",
    )


ONES = ", ".join(["1"] * 9)


def test_a_changed_weight_is_a_difference_of_constants():
    found = qgraph.prove(layer(ONES), layer(ONES[:-1] + "2"))
    (region,) = found.regions
    assert (found.verdict, region.method) == ("different", Method.CONSTANT)
    assert region.differing_inputs == 1
    assert (region.witness.input, region.witness.reference, region.witness.candidate) == (8, 1, 2)


def test_a_changed_attribute_is_undecided_and_named():
    found = qgraph.prove(layer(ONES), layer(ONES, pads=2))
    assert found.verdict == "undecided"
    assert "attribute pads" in found.regions[0].reason


def test_defaults_of_attributes_are_filled_in():
    ours = "g (float[1,1,4,4] x) => (float[1,1,2,2] y) <float[1,1,3,3] w> { y = Conv(x, w) }"
    ours = ours.replace("w>", f"w = {{{ONES}}}>")
    theirs = ours.replace("Conv", "Conv<kernel_shape = [3,3], group = 1, strides = [1,1]>")
    assert qgraph.prove(model(ours), model(theirs)).regions == ()


def test_all_differing_places_are_found():
    line = "a = {q}(x, s, z, b) e = MatMul(a, w) y = {q}(e, t, z, b)"
    constants = "float s = {{{}}}, float t = {{{}}}, float z = {{0}}, float b = {{8}}, {}"
    weights = "float[2,2] w = {1, 2, 3, 4}"
    ours, theirs = (
        parse(
            "(float[1,2] x) => (float[1,2] y)", constants.format(*c, weights), line.format(q=QUANT)
        )
        for c in ((0.1, 0.2), (0.11, 0.21))
    )
    found = qgraph.prove(ours, theirs)
    assert [region.verdict for region in found.regions] == ["different", "different"]
    assert [region.reference_value for region in found.regions] == ["a", "y"]
    assert any("assumed equal" in condition for condition in found.conditions)


def test_the_branches_of_a_residual_join_are_proved_before_it():
    constants = f"{PLAIN}, float[4,4] w"
    ours = parse(
        "(float[1,4] x) => (float[1,4] y)",
        constants.replace("float[4,4] w", "float t = {0.2}"),
        f"e = Exp(x) a = {QUANT}(x, s, z, b) c = {QUANT}(e, t, z, b)",
        f"d = Add(a, c) f = Relu(d) y = {QUANT}(f, s, z, b)",
    )
    theirs = parse(
        "(float[1,4] x) => (float[1,4] y)",
        f"{PLAIN}, float t = {{0.2}}",
        "e = Exp(x) qa = QuantizeLinear(x, s, i) a1 = DequantizeLinear(qa, s, i)",
        "qc = QuantizeLinear(e, t, i) c1 = DequantizeLinear(qc, t, i)",
        "d1 = Add(a1, c1) f1 = Relu(d1) qf = QuantizeLinear(f1, s, i)",
        "y = DequantizeLinear(qf, s, i)",
    )
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "proved"
    assert [region.candidate_value for region in found.regions] == ["a1", "c1", "y"]


def test_a_region_may_begin_before_what_hides_a_difference():
    # the quantizers differ for negative numbers only, which do not pass the Relu
    constants = "float s = {0.1}, float z = {0}, float b = {9}, float c = {8}, int8 i = {0}"
    ours = parse(
        "(float[N,4] x) => (float[N,4] y)", constants, f"a = Relu(x) y = {QUANT}(a, s, z, b)"
    )
    theirs = parse(
        "(float[N,4] x) => (float[N,4] y)", constants, f"d = Relu(x) y = {UNSIGNED}(d, s, z, c)"
    )
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "proved"
    assert found.regions[0].entries == (("x", "x"),)


@pytest.mark.slow
def test_a_value_that_only_shares_its_name_does_not_mislead():
    # both models have a value 'a', which is another step of the same computation
    ours = parse(
        "(float[4] x) => (float[4] y)",
        "float two = {2}, float s = {0.1}, float z = {0}, float b = {8}",
        f"a = Mul(x, two) c = Div(a, two) y = {QUANT}(c, s, z, b)",
    )
    theirs = parse(
        "(float[4] x) => (float[4] y)",
        "float h = {0.5}, float s = {0.1}, float z = {0}, float b = {8}",
        f"a = Mul(x, h) c = Div(a, h) y = {QUANT}(c, s, z, b)",
    )
    found = qgraph.prove(ours, theirs)
    # doubling overflows and halving underflows, far outside of the steps
    assert found.verdict == "proved", found.regions
    assert [region.reference_value for region in found.regions] == ["y"]


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_short_floats_are_tried_one_by_one(kind):
    signature = f"({kind}[N,3] x) => ({kind}[N,3] y)"
    ours = parse(signature, "", "n = Neg(x) y = Sub(x, n)")
    theirs = parse(signature, "", "y = Add(x, x)")
    other = parse(signature, "", "y = Mul(x, x)")
    found = qgraph.prove(ours, theirs)
    assert (found.verdict, found.regions[0].method) == ("proved", Method.EXHAUSTIVE)
    assert qgraph.prove(ours, other).verdict == "different"


def test_codes_are_tried_one_by_one():
    signature = "(uint8[N,3] x) => (float[N,3] y)"
    constants = "float[3] s = {0.1, 0.2, 0.5}, uint8[3] z = {1, 2, 3}, float[3] f = {1, 2, 3}"
    ours = parse(signature, constants, "y = DequantizeLinear<axis = 1>(x, s, z)")
    lines = "c = Cast<to = 1>(x) d = Sub(c, f) y = Mul(d, s)"
    found = qgraph.prove(ours, parse(signature, constants, lines))
    assert (found.verdict, found.exactness) == ("proved", "bits")
    changed = constants.replace("f = {1, 2, 3}", "f = {1, 2, 4}")
    found = qgraph.prove(ours, parse(signature, changed, lines))
    assert (found.verdict, found.regions[0].differing_inputs) == ("different", 256)


def test_doubles_are_left_open():
    ours = parse("(double[3] x) => (double[3] y)", "double c = {2}", "y = Mul(x, c)")
    theirs = parse("(double[3] x) => (double[3] y)", "", "y = Add(x, x)")
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "undecided"
    assert "DOUBLE" in found.regions[0].reason


def test_random_numbers_are_never_equal():
    body = "g (float[3] x) => (float[3] y) { r = RandomNormalLike(x) y = Add(x, r) }"
    found = qgraph.prove(model(body), model(body))
    assert found.verdict == "undecided"
    assert "random" in found.regions[0].reason


BRANCHES = """g (float[N,4] x, bool c) => (float[N,4] y)
    <float s = {{0.1}}, float z = {{0}}, float b = {{8}}, int8 i = {{0}}> {{
        y = If (c) <
            then_branch = t () => (float[N,4] p) {{ {then} }},
            else_branch = e () => (float[N,4] r) {{ r = Neg(x) }} >
    }}"""


def test_graphs_of_control_flow_are_proved_inside():
    ours = model(BRANCHES.format(then=f"p = {QUANT}(x, s, z, b)"))
    pair = "k = QuantizeLinear(x, s, i) p = DequantizeLinear(k, s, i)"
    found = qgraph.prove(ours, model(BRANCHES.format(then=pair)))
    assert (found.verdict, len(found.regions)) == ("proved", 1)
    wrong = pair.replace("p = Dequant", "m = Dequant") + " p = Abs(m)"
    assert qgraph.prove(ours, model(BRANCHES.format(then=wrong))).verdict == "different"


def test_reshaped_data_are_one_however_they_are_reshaped():
    ours = parse(
        "(float[2,6] x) => (float[12] y)", "int64[1] n = {-1}", "r = Reshape(x, n) y = Exp(r)"
    )
    theirs = parse(
        "(float[2,6] x) => (float[12] y)", "int64[1] n = {12}", "r = Reshape(x, n) y = Exp(r)"
    )
    assert qgraph.prove(ours, theirs).verdict == "proved"


OVERRIDABLE = (
    "g (float[2] x, float[2] c) => (float[4] y) <float[2] c = {{{}}}> "
    "{{ y = Concat<axis = 0>(x, c) }}"
)


def test_initializers_that_can_be_fed_are_frozen_unless_kept():
    same, other = (model(OVERRIDABLE.format(values)) for values in ("1, 2", "1, 3"))
    found = qgraph.prove(same, same)
    assert found.verdict == "proved"
    assert any("also graph inputs" in condition for condition in found.conditions)
    assert qgraph.prove(same, other).verdict == "different"
    assert qgraph.prove(same, same, keep_inputs=True).verdict == "proved"
    found = qgraph.prove(same, other, keep_inputs=True)
    assert found.verdict == "undecided"
    assert "defaults" in found.regions[0].reason


def test_parameters_must_not_enlarge_the_data():
    signature = "(float[N,4] x) => (float[K,N,4] y)"
    ours = parse(signature, "float c = {2}", "y = Mul(x, c)")
    theirs = parse(signature, "float[3,1,1] c = {2, 2, 2}", "y = Mul(x, c)")
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "undecided"
    assert "shapes" in found.regions[0].reason


def test_interfaces_must_be_one():
    ours = parse("(float[2] x) => (float[2] y)", "", "y = Exp(x)")
    theirs = parse("(float[2] x, float[2] u) => (float[2] y)", "", "y = Add(x, u)")
    with pytest.raises(ModelError, match="inputs"):
        qgraph.prove(ours, theirs)
    renamed = parse("(float[2] v) => (float[2] w)", "", "w = Exp(v)")
    found = qgraph.prove(ours, renamed)
    assert found.verdict == "proved"
    assert len(found.notes) == 2


@pytest.mark.parametrize(("line", "named"), [("e = Exp(c)", True), ("e = Neg(c)", False)])
def test_constants_whose_last_bits_are_open_are_a_condition(line, named):
    value = np.float32(math.exp(np.float32(0.3)) if named else -0.3)
    ours = parse("(float[4] x) => (float[4] y)", "float c = {0.3}", f"{line} y = Add(x, e)")
    theirs = parse("(float[4] x) => (float[4] y)", f"float e = {{{value!s}}}", "y = Add(x, e)")
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "proved"
    assert any("Exp" in condition for condition in found.conditions) == named


def test_errors_name_the_place():
    qgraph.prove(*quantizer()).raise_if_not_proved()
    with pytest.raises(EquivalenceError, match="1 element has another value than") as caught:
        qgraph.prove(layer(ONES), layer(ONES[:-1] + "2")).raise_if_not_proved()
    assert not isinstance(caught.value, UndecidedError)
    with pytest.raises(UndecidedError, match="attribute pads"):
        qgraph.prove(layer(ONES), layer(ONES, pads=2)).raise_if_not_proved()


def test_an_input_is_found_on_which_a_difference_shows():
    constants = "float s = {{0.25}}, float z = {{{}}}, float b = {{8}}"
    lines = f"t = Add(x, c) a = {UNSIGNED}(t, s, z, b) y = Neg(a)"
    ours = parse(
        "(float[N,4] x) => (float[N,4] y)", f"{constants.format(127)}, float c = {{0}}", lines
    )
    theirs = parse(
        "(float[N,4] x) => (float[N,4] y)",
        f"{constants.format(127)}, float c = {{0}}, uint8 i = {{127}}",
        "t = Add(x, c) q = QuantizeLinear(t, s, i) a = DequantizeLinear(q, s, i) y = Neg(a)",
    )
    found = qgraph.prove(ours, theirs, runs=20)
    assert found.verdict == "different"
    a, b = (qgraph.load(m).run(found.counterexample, backend="numpy")["y"] for m in (ours, theirs))
    assert (a != b).any()
    # of the samples that were run together, the one that shows it
    assert found.counterexample["x"].shape == (1, 4)


def test_samples_that_are_run_together_are_as_many_as_fit():
    large, small = (
        parse(f"(float[N,{size}] x) => (float[N,{size}] y)", "", "y = Neg(x)")
        for size in (1 << 18, 4)
    )
    limits = proving._BATCH, proving._ELEMENTS
    assert batch_shapes(qgraph.load(large).inputs, *limits)["x"][0] == 2
    assert batch_shapes(qgraph.load(small).inputs, *limits)["x"][0] == 32


def test_what_sees_a_sign_in_both_models_is_told_once():
    regions_found = qgraph.prove(*quantizer("y = Reciprocal(a)")).regions
    assert len(regions_found) == len(set(regions_found)) == 2


class TestRealModels:
    """Every rewrite of the project, on models that others exported."""

    @pytest.mark.cases(fast=2, slow=5)
    @pytest.mark.parametrize("to", ["qdq", "qonnx", "openvino", "onnx"])
    @pytest.mark.parametrize("name", ["brev_cnn_w4a4_trunc", "nncf_mlp_int8_mixed", "TFC_1W2A"])
    def test_some_conversions_are_proved(self, real_models, name, to):
        model = qgraph.load(real_models[name])
        converted = model.clone()
        converted.apply(transforms.ConvertDialect(to=to))
        found = qgraph.prove(model, converted)
        assert found.verdict == "proved", found.regions

    @pytest.mark.cases(fast=0, slow=4)
    @pytest.mark.parametrize(
        "spec",
        [
            "convert{to=qdq}",
            "convert{to=qonnx}",
            "convert{to=openvino}",
            "convert{to=onnx}",
            "fold-weights",
            "make-portable",
        ],
    )
    def test_every_rewrite_is_proved(self, real_models, model_name, spec):
        model = qgraph.load(real_models[model_name])
        changed = model.clone()
        changed.apply(transforms.parse_spec(spec))
        found = qgraph.prove(model, changed)
        assert found.verdict == "proved", found.regions

    def test_a_truncation_exported_as_a_rounding_differs_in_one_place(self, real_models):
        model = qgraph.load(real_models["brev_cnn_w4a4_trunc"])
        exported = as_rounding(model.ir.clone())
        exported = qgraph.load(exported)
        exported.apply(transforms.ConvertDialect(to="qdq"))
        found = qgraph.prove(model, exported)
        differing = [region for region in found.regions if region.verdict == "different"]
        assert [region.reference_nodes[-1] for region in differing] == [
            "/pool/trunc_quant/export_handler/Trunc"
        ]
        (region,) = differing
        assert len(found.regions) == 11
        x = np.float32(region.witness.input)
        (trunc,) = (n for n in model.ir.graph if n.op_type == "Trunc")
        s, out = (np.float32(trunc.inputs[i].const_value.numpy()) for i in (1, 4))
        dropped = np.float32(2) ** np.round(np.log2(out / s))
        assert np.clip(np.floor(np.rint(x / s) / dropped), 0, 15) * out == np.float32(
            region.witness.reference
        )
        assert np.clip(np.rint(x / out), 0, 15) * out == np.float32(region.witness.candidate)


def as_rounding(model: ir.Model) -> ir.Model:
    """Replace the truncation by the Q/DQ pair of its results, as an exporter did."""
    (trunc,) = (node for node in model.graph if node.op_type == "Trunc")
    scale = ir.tensor(trunc.inputs[4].const_value.numpy(), name="out_scale")
    constants = {"out_scale": scale} | {
        name: ir.tensor(np.array(code, np.uint8), name=name)
        for name, code in (("zero", 0), ("low", 0), ("high", 15))
    }
    values = {
        name: ir.Value(name=name, type=ir.TensorType(tensor.dtype), const_value=tensor)
        for name, tensor in constants.items()
    }
    for value in values.values():
        model.graph.register_initializer(value)
    step = values["out_scale"], values["zero"]
    codes = ir.node("QuantizeLinear", [trunc.inputs[0], *step], name="pool_codes")
    kept = ir.node("Clip", [codes.outputs[0], values["low"], values["high"]], name="pool_clip")
    result = ir.node("DequantizeLinear", [kept.outputs[0], *step], name="pool_values")
    for node in (codes, kept, result):
        node.outputs[0].name = f"{node.name}_out"
    model.graph.insert_before(trunc, [codes, kept, result])
    trunc.outputs[0].replace_all_uses_with(result.outputs[0])
    model.graph.remove(trunc, safe=True)
    return model


PACKED = """
    <ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
    g (float[N,16] x) => (float[N,2] y)
    <float[2,1] s = {0.5, 0.25}, uint8[2,1,8] w = {
        16, 50, 84, 118, 152, 186, 220, 254, 1, 35, 69, 103, 137, 171, 205, 239},
     float[2] c = {1, 2}> {
        y = com.microsoft.MatMulNBits <K = 16, N = 2, bits = 4, block_size = 16> (x, w, s, , , c)
    }"""


def unpacked(change: int = 0) -> ir.Model:
    """The weights of the packed product, decoded by hand: low nibble first, zero point 8."""
    rows = [[16, 50, 84, 118, 152, 186, 220, 254], [1, 35, 69, 103, 137, 171, 205, 239]]
    codes = np.array(
        [[nibble for byte in row for nibble in (byte & 15, byte >> 4)] for row in rows]
    )
    codes[0, 3] += change
    weights = ((codes - 8) * np.array([[0.5], [0.25]])).T.astype(np.float32)
    return parse(
        "(float[N,16] x) => (float[N,2] y)",
        "float[16,2] w = {" + ", ".join(map(str, weights.reshape(-1))) + "}, float[2] c = {1, 2}",
        "m = MatMul(x, w) y = Add(m, c)",
    )


def test_packed_products_are_products_of_what_they_decode_to():
    packed = ir.from_onnx_text(PACKED)
    found = qgraph.prove(packed, unpacked())
    assert found.verdict == "proved"
    assert any("order of MatMul" in condition for condition in found.conditions)
    assert not any("accuracy_level" in condition for condition in found.conditions)
    found = qgraph.prove(packed, unpacked(1))
    assert (found.verdict, found.regions[0].differing_inputs) == ("different", 1)
    rounding = ir.from_onnx_text(PACKED.replace("K = 16", "K = 16, accuracy_level = 4"))
    found = qgraph.prove(rounding, unpacked())
    assert any("accuracy_level 4" in condition for condition in found.conditions)


@pytest.mark.slow
def test_nothing_is_called_different_on_a_guess():
    # an Exp is no Softmax, so what is made of them says nothing
    ours = parse(
        "(float[4,4] x) => (float[4,4] y)", "float two = {2}", "e = Exp(x) y = Mul(e, two)"
    )
    theirs = parse(
        "(float[4,4] x) => (float[4,4] y)", "float two = {3}", "e = Softmax(x) y = Mul(e, two)"
    )
    found = qgraph.prove(ours, theirs)
    assert found.verdict == "undecided"
    assert {region.verdict for region in found.regions} == {"undecided"}


class TestTwoInputs:
    """Regions that join two quantized tensors, over all pairs of codes."""

    CONSTANTS = (
        "float s = {0.1}, float t = {0.07}, float u = {0.2}, uint8 i = {3}, uint8 j = {128}, "
        "uint8 k = {10}"
    )
    SIGNATURE = "(float[N,4] x, float[N,4] z) => (float[N,4] y)"
    BEFORE = (
        "p = QuantizeLinear(x, s, i) q = QuantizeLinear(z, t, j)"
        " a = DequantizeLinear(p, s, i) c = DequantizeLinear(q, t, j)"
    )
    AFTER = "r = QuantizeLinear(d, u, k) y = DequantizeLinear(r, u, k)"

    def pair(self, join: str) -> tuple[ir.Model, ir.Model]:
        ours = f"{self.BEFORE} d = Add(a, c) {self.AFTER}"
        return tuple(
            parse(self.SIGNATURE, self.CONSTANTS, lines)
            for lines in (ours, f"{self.BEFORE} {join} {self.AFTER}")
        )

    def test_a_sum_may_be_written_as_a_difference(self):
        found = qgraph.prove(*self.pair("n = Neg(c) d = Sub(a, n)"))
        assert found.verdict == "proved"
        (region,) = found.regions
        assert region.method is Method.EXHAUSTIVE
        assert set(region.entries) == {("a", "a"), ("c", "c")}

    def test_another_operation_is_counted_in_pairs(self):
        found = qgraph.prove(*self.pair("d = Mul(a, c)"))
        (region,) = found.regions
        assert found.verdict == "different"
        a = (np.arange(256, dtype=np.float32) - np.float32(3)) * np.float32(0.1)
        c = (np.arange(256, dtype=np.float32) - np.float32(128)) * np.float32(0.07)
        assert region.differing_inputs == np.count_nonzero(
            a[:, None] + c[None] != a[:, None] * c[None]
        )

    def test_nothing_is_said_where_the_sign_of_a_zero_decides(self):
        ours = f"{self.BEFORE} d = Div(a, c) {self.AFTER}"
        theirs = f"{self.BEFORE} e = Reciprocal(c) d = Mul(a, e) {self.AFTER}"
        found = qgraph.prove(
            *(parse(self.SIGNATURE, self.CONSTANTS, lines) for lines in (ours, theirs))
        )
        assert found.verdict == "undecided"
        assert "distinguishes -0 from +0" in found.regions[0].reason

    def test_it_can_be_verified(self):
        models = self.pair("n = Neg(c) d = Sub(a, n)")
        document = qgraph.prove(*models, evidence=True).to_json()
        assert verify(document, *models) == "proved"
        document["regions"][0]["entries"][0] = ["x", "x"]
        with pytest.raises(EquivalenceError, match="does not hold"):
            verify(document, *self.pair("d = Mul(a, c)"))


class TestFunctionsWithoutSteps:
    """Regions on all inputs one by one, some of which are tried here: see ``few_inputs``."""

    SIGNATURE = "(float[N,4] x) => (float[N,4] y)"
    FACTORS = "float two = {2}, float c = {2.0000002}"

    def prove(self, constants: str, ours: str, theirs: str, **options):
        return qgraph.prove(
            *(parse(self.SIGNATURE, constants, lines) for lines in (ours, theirs)), **options
        )

    def test_equal_ones_are_proved(self):
        found = self.prove("float two = {2}", "y = Mul(x, two)", "y = Add(x, x)")
        (region,) = found.regions
        assert (found.verdict, found.exactness) == (ProofVerdict.PROVED, Exactness.BITS)
        assert region.method is Method.EXHAUSTIVE
        assert "one by one" in region.reason

    def test_different_ones_are_counted(self):
        found = self.prove(self.FACTORS, "y = Mul(x, two)", "y = Mul(x, c)")
        (region,) = found.regions
        assert (found.verdict, region.method) == (ProofVerdict.DIFFERENT, Method.EXHAUSTIVE)
        starts = enumeration._starts()
        bits = np.concatenate([s + np.arange(enumeration._BLOCK) for s in starts])
        x = bits.astype(np.uint32).view(np.float32)
        with np.errstate(over="ignore"):
            differ = x * np.float32(2) != x * np.float32(2.0000002)
        assert region.differing_inputs == np.count_nonzero(differ)
        assert "floats apart" in region.reason
        assert region.largest_steps is None
        assert region.boxes == ()

    def test_a_second_operator_without_effect_is_proved_from_the_input(self):
        """The second one changes numbers that the first one never gives."""
        found = self.prove("", "y = Round(x)", "a = Round(x) y = Floor(a)")
        assert (found.verdict, found.regions[0].method) == (ProofVerdict.PROVED, Method.EXHAUSTIVE)
        assert found.regions[0].entries == (("x", "x"),)

    @pytest.mark.exhaustive
    def test_all_inputs_are_counted(self):
        found = self.prove(self.FACTORS, "y = Mul(x, two)", "y = Mul(x, c)")
        differing = 0
        with np.errstate(over="ignore"):
            for start in range(0, 0x7F800000, 1 << 20):
                bits = np.arange(start, min(start + (1 << 20), 0x7F800000), dtype=np.uint32)
                x = bits.view(np.float32)
                differing += np.count_nonzero(x * np.float32(2) != x * np.float32(2.0000002))
        assert found.regions[0].differing_inputs == 2 * differing

    def test_a_farther_entry_with_steps_is_preferred(self):
        constants = f"{PLAIN}, float near = {{1.0000001}}"
        quant = f"a = {QUANT}(x, s, z, b)"
        found = self.prove(constants, f"{quant} y = Neg(a)", f"{quant} c = Mul(a, near) y = Neg(c)")
        region = found.regions[0]
        assert (found.verdict, region.method) == (ProofVerdict.DIFFERENT, Method.INTERVALS)
        assert region.entries == (("x", "x"),)
        # all inputs but those that are rounded to zero
        x = np.float32(0.05)
        zeros = 2 * int(x.view(np.uint32)) + 2
        assert region.differing_inputs == 2 * 0x7F800000 - zeros

    def test_the_sign_of_a_zero_is_seen_at_the_level_of_bits(self):
        constants = "float zero = {0}"
        found = self.prove(constants, "y = Identity(x)", "y = Add(x, zero)", exact=Exactness.BITS)
        (region,) = found.regions
        assert (found.verdict, region.exactness) == (ProofVerdict.DIFFERENT, Exactness.VALUES)
        assert (region.differing_inputs, region.zero_sign_inputs) == (0, 1)
        assert self.prove(constants, "y = Identity(x)", "y = Add(x, zero)").verdict == "proved"

    def test_too_many_channels_are_not_tried_but_a_difference_is_seen(self, monkeypatch):
        monkeypatch.setattr(discharge, "_MOST_OPERATIONS", 0)
        constants = "float two = {2}, float zero = {0}, float c = {2.0000002}"
        found = self.prove(constants, "y = Mul(x, two)", "y = Mul(x, c)")
        (region,) = found.regions
        assert (found.verdict, region.method) == (ProofVerdict.DIFFERENT, Method.NONE)
        assert "not counted, there are more" in region.reason
        assert found.to_json()["regions"][0]["counted"] is False
        with pytest.raises(EquivalenceError) as refusal:
            found.raise_if_not_proved()
        assert re.search(r": (Some|At least [\d,]+) inputs? gives? another", str(refusal.value))
        x = np.float32(region.witness.input)
        with np.errstate(over="ignore"):
            results = x * np.float32(2), x * np.float32(2.0000002)
        assert (region.witness.reference, region.witness.candidate) == results
        found = self.prove(constants, "y = Mul(x, two)", "y = Add(x, x)")
        assert (found.verdict, found.regions[0].reason[-10:]) == ("undecided", "all inputs")
        # that a zero has another sign decides the question of bits, and that only
        bits = {"exact": Exactness.BITS}
        found = self.prove(constants, "y = Identity(x)", "y = Add(x, zero)", **bits)
        assert (found.verdict, found.exactness) == ("different", None)
        found = self.prove(constants, "y = Identity(x)", "y = Add(x, zero)")
        assert found.verdict == "undecided"

    def test_one_function_is_tried_once(self, monkeypatch):
        calls = []
        original = regions.enumerate_inputs
        monkeypatch.setattr(
            regions, "enumerate_inputs", lambda *a, **k: calls.append(1) or original(*a, **k)
        )
        lines = "a = {0} e = Exp(a) y = {1}"
        found = self.prove(
            "float two = {2}",
            lines.format("Mul(x, two)", "Mul(e, two)"),
            lines.format("Add(x, x)", "Add(e, e)"),
        )
        assert (found.verdict, len(found.regions), len(calls)) == ("proved", 2, 1)


class TestFaultsOfOtherTypes:
    """What is not float32, or not known to be, is not taken for it."""

    def test_levels_of_integers_are_not_those_of_real_numbers(self):
        # the square of an int8 wraps around, so e is -1 for some x, which real numbers do not show
        constants = "int8 n = {-1}, int8 p = {1}"
        before = (
            "m = Mul(x, x) a = Abs(x) g = Neg(a) c = Less(m, g) e = Where(c, n, p) t = Less(z, x) "
        )
        signature = "(int8[4] x, float[4] z) => (float[4] y)"
        lines = "f = Cast<to = 1>(e) b = Sign(z) "
        ours, theirs = (
            parse(signature, constants, before.replace("t = Less(z, x) ", "") + lines + last)
            for last in ("y = Add(f, b)", "r = Relu(f) k = Neg(r) y = Sub(b, k)")
        )
        assert qgraph.prove(ours, theirs).verdict != "proved"
        feeds = {"x": np.full(4, 12, np.int8), "z": np.full(4, 2, np.float32)}
        a, b = (qgraph.load(m).run(feeds, backend="numpy")["y"] for m in (ours, theirs))
        assert (a != b).any()

    @pytest.mark.parametrize("rank", ["[]", ""])
    def test_a_parameter_must_not_give_a_dimension_to_a_short_float(self, rank):
        models = [
            parse(f"(float16{rank} x) => (float16 y)", f"float16{shape} c = {{{value}}}", line)
            for shape, value, line in (
                ("", "1", "y = Add(x, c)"),
                ("[1]", "-1", "y = Sub(x, c)"),
            )
        ]
        if not rank:
            for each in models:
                each.graph.inputs[0].shape = None
        found = qgraph.prove(*models)
        assert found.verdict == "undecided"
        assert "shape" in found.regions[0].reason

    def test_axes_are_counted_from_the_dimensions_that_the_data_has_by_then(self):
        scales = [", ".join(str(first if k == 0 else 1) for k in range(256)) for first in (1, 2)]
        ours, theirs = (
            parse(
                "(int8[256,256] x) => (float[1,256,256] y)",
                f"int8[1,1,1] c = {{{bound}}}, float[256] s = {{{scale}}}",
                f"m = {op}(x, c) y = DequantizeLinear<axis = 1>(m, s)",
            )
            for op, bound, scale in (("Max", -128, scales[0]), ("Min", 127, scales[1]))
        )
        # The first scale is 1 in one model and 2 in the other. A constant that adds an axis to its
        # data has no bound, so the difference is not shown.
        assert qgraph.prove(ours, theirs).verdict == "undecided"

    def test_and_so_they_are_behind_a_reshape(self):
        constants = (
            "float[2] s = {0.1, 0.2}, int8[2] z = {0, 0}, float[1,1,1] o = {1}, "
            "int64[2] flat = {2, 2}, int64[3] back = {1, 2, 2}, float two = {2}"
        )
        quant = "q = QuantizeLinear<axis = 1>(m, s, z) d = DequantizeLinear<axis = 1>(q, s, z)"
        ours, theirs = (
            parse("(float[1,2,2] x) => (float[1,2,2] y)", constants, first, quant, last)
            for first, last in (
                (
                    "p = Add(x, x) r = Reshape(p, flat) m = Mul(r, o)",
                    "e = Reshape(d, back) y = Mul(e, two)",
                ),
                ("p = Mul(x, two) m = Reshape(p, flat)", "e = Reshape(d, back) y = Add(e, e)"),
            )
        )
        assert qgraph.prove(ours, theirs).verdict == "undecided"

    def test_a_sequence_is_no_tensor(self):
        ours = model("g (seq(float[4]) x) => (seq(float[4]) y) { y = Identity(x) }")
        theirs = model("g (float[4] x) => (float[4] y) { y = Identity(x) }")
        found = qgraph.prove(ours, theirs)
        assert found.verdict == "undecided"
        assert "in the reference" in found.regions[0].reason

    def test_results_of_unknown_operators_have_no_type(self):
        ours, theirs = (
            parse("(float[4] x) => (bool[4] y)", "float one = {1}", "o = my.domain.Op(x) " + last)
            for last in ("y = Cast<to = 9>(o)", "f = Cast<to = 1>(o) y = Cast<to = 9>(f)")
        )
        found = qgraph.prove(ours, theirs)
        assert found.verdict == "undecided"
        assert "type" in found.regions[0].reason


class TestChainsOfClaims:
    """Values that are equal by way of others, some of which differ in the sign of zero."""

    KEPT = "d = Div(x, s) r = Round(d) c = Clip(r, l, h) a3 = Mul(c, s)"
    KEPT_TOO = "d = Div(x, s) c = Clip(d, l, h) r = Round(c) b3 = Mul(r, s)"
    LOST = "q = QuantizeLinear(x, s, i) a2 = DequantizeLinear(q, s, i)"
    LOST_TOO = "q = QuantizeLinear(x, s, i) k = Cast<to = 1>(q) b2 = Mul(k, s)"

    @pytest.mark.exhaustive
    def test_a_sign_is_seen_wherever_it_comes_from(self):
        signature = "(float[4] x) => (float[4] o0, float[4] o1, float[4] o2, float[4] o3)"
        constants = "float s = {0.1}, int8 i = {0}, float l = {-128}, float h = {127}"
        ours = parse(
            signature,
            constants,
            self.LOST,
            self.KEPT,
            "o0 = Identity(a2) o1 = Identity(a3) o2 = Identity(a3) o3 = Reciprocal(a2)",
        )
        theirs = parse(
            signature,
            constants,
            self.LOST_TOO,
            self.KEPT_TOO,
            "o0 = Identity(b2) o1 = Identity(b2) o2 = Identity(b3) o3 = Reciprocal(b3)",
        )
        assert qgraph.prove(ours, theirs).verdict == "undecided"

    def test_a_cast_to_text_like_another_tensor_sees_it(self):
        lines = 't = Constant <value_strings = ["a"]> () y = CastLike(a, t)'
        assert qgraph.prove(*quantizer(lines, y="string[N,4] y")).verdict == "undecided"


@pytest.mark.slow
def test_what_is_one_function_is_judged_once(monkeypatch):
    judged: list[object] = []
    grade = decide.grade
    monkeypatch.setattr(decide, "grade", lambda *given: [judged.append(given), grade(*given)][1])
    signature = "(float[N,4] x) => (float[N,4] y)"
    constants = "float s = {0.3}, float z = {0}, float b = {8}, int8 i = {0}"
    ours, theirs = [], []
    for place in range(6):
        x, a = f"e{place - 1}" if place else "x", f"a{place}"
        after = f"r{place} = Relu({a}) e{place} = Exp(r{place})"
        ours.append(f"{a} = {QUANT}({x}, s, z, b) {after}")
        theirs.append(
            f"q{place} = QuantizeLinear({x}, s, i) f{place} = DequantizeLinear(q{place}, s, i) "
            f"{a} = Neg(f{place}) {after}"
        )
    pair = [parse(signature, constants, *lines, "y = Identity(e5)") for lines in (ours, theirs)]
    found = qgraph.prove(*pair, evidence=True)
    assert (found.verdict, len(found.regions)) == ("different", 6)
    # with Relu and without: names lead to one of the two, what is not named to the other one; the
    # normal form has a Max for the Relu
    assert len(judged) <= 4
    assert len({id(region.boxes) for region in found.regions}) == 1
    assert verify(found.to_json(), *pair) == "different"
