"""Whatever is changed in a certificate, so that it says something else, is refused."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import pkgutil
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import onnx_ir as ir
import pytest

import qgraph
from qgraph import transforms
from qgraph.certificate import RegionVerdict, json_schema
from qgraph.comparison.prove import prove
from qgraph.comparison.replay import read
from qgraph.conditions import Condition
from qgraph.errors import QGraphError
from qgraph.text import json_text
from tests.verify.checking import verify
from tests.verify.tampering import HOW, RUNGS, mutant, tamperings
from tests.verify.test_bounds import pair as bounded_pair

HEADER = '<ir_version: 10, opset_import: ["": 21, "qonnx.custom_op.general": 2]>'

CHAIN = f"""{HEADER} g (float[N,2] x, float[2] unused) => (float[N,2] y)
    <float[1,2] s = {{0.1, 0.3}}, float z = {{0}}, float b = {{3}}, float t = {{0.25}},
     float[2,2] w = {{1, -0.26, 0.6, 0.1}}, float[2] unused = {{1, 2}}> {{
        [act] a = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 0, rounding_mode = "ROUND">(x, s, z, b)
        [weight] v = qonnx.custom_op.general.Quant
            <signed = 1, narrow = 1, rounding_mode = "ROUND">(w, t, z, b)
        [product] m = MatMul(a, v)
        [kept] r = Add(m, unused)
        [out] y = qonnx.custom_op.general.Quant
            <signed = 0, narrow = 0, rounding_mode = "FLOOR">(r, t, z, b)
    }}"""

HALF = [
    f"""<ir_version: 10, opset_import: ["": 21]> g (float16[N,2] x) => (float16[N,2] y)
    <float[2] f = {{1, 2}}, float[2] g = {{-1, -2}}> {{
        [cast] c = Cast <to = 10> ({of}) [last] y = {body} }}"""
    for body, of in (("Add(x, c)", "f"), ("Sub(x, c)", "g"))
]

RESIDUAL = [
    f"""<ir_version: 10, opset_import: ["": 21]> g (float[N] x, float[N] u) => (float[N] y)
    <float s = {{0.5}}, float t = {{0.25}}, int8 z = {{0}}> {{
        [qx] c = QuantizeLinear(x, s, z)  [dx] a = DequantizeLinear(c, s, z)
        [qu] d = QuantizeLinear(u, t, z)  [du] b = DequantizeLinear(d, t, z)
        {body} }}"""
    for body in (
        "[sum] p = Add(a, b)  [last] y = Relu(p)",
        "[minus] n = Neg(b)  [sum] p = Sub(a, n)  [last] y = Relu(p)",
    )
]


LAYERS = [
    f"""<ir_version: 10, opset_import: ["": 21]> g (float[1,2] x) => (float[1,2] y)
    <float s = {{0.3}}, float t = {{0.7}}, float u = {{0.9}}, uint8 z = {{3}}, int8 n = {{0}},
     float[2] b = {{1, -3}}, float[2,2] w = {{1, -0.7, 0.3, 2}},
     float[2,2] v = {{0.1, -2, 3, 1}}> {{
        [qx] c = QuantizeLinear(x, s, z)  [dx] a = DequantizeLinear(c, s, z)
        {first}
        [qp] d = QuantizeLinear(p, t, z)  [dp] e = DequantizeLinear(d, t, z)
        [second] m = MatMul(e, v)
        [qm] f = QuantizeLinear(m, u, n)  [last] y = DequantizeLinear(f, u, n) }}"""
    for first in ("[sum] k = MatMul(a, w) [bias] p = Add(k, b)", "[sum] p = Gemm(a, w, b)")
]

OPEN = [
    f"""<ir_version: 10, opset_import: ["": 21]> g (uint8[N,2,3] x) => (uint8[N,2] y)
    <float s = {{0.25}}, float t = {{0.7}}, uint8 z = {{3}}, int64[2] k = {{-1, 6}},
     float[6,2] w = {{1, -0.7, 0.3, 2, 1, -0.7, 0.3, 2, 1, -0.7, 0.3, 2}}> {{
        [dx] a = DequantizeLinear(x, s, z)  {body}  [last] y = QuantizeLinear(p, t, z) }}"""
    for body in (
        "[rows] r = Reshape(a, k) [sum] p = MatMul(r, w)",
        "[rows] r = Flatten(a) [sum] p = Gemm(r, w)",
    )
]

KERNEL = [
    f"""<ir_version: 10, opset_import: ["": 21]> g (uint8[1,2] x) => (uint8[1,2] y)
    <float s = {{0.3}}, float t = {{0.07}}, float u = {{0.9}}, uint8 z = {{3}}, int8 n = {{0}},
     int8[2,2] w = {{1, -3, 2, 5}}> {{ {body} }}"""
    for body in (
        """[dx] a = DequantizeLinear(x, s, z) [dw] v = DequantizeLinear(w, t, n)
        [sum] m = MatMul(a, v) [last] y = QuantizeLinear(m, u, z)""",
        "[last] y = QLinearMatMul(x, s, z, w, t, n, u, z)",
    )
]


def chain(*, differs: bool) -> tuple[ir.Model, ir.Model]:
    ours = ir.from_onnx_text(CHAIN)
    theirs = qgraph.load(ours).clone()
    theirs.apply(transforms.ConvertDialect(to="qdq"))
    if differs:
        for node in theirs.ir.graph:
            if node.op_type == "Clip":
                high = node.inputs[2]
                high.const_value = ir.tensor(high.const_value.numpy() - 1, name=high.name)
                break
    return ours, theirs.ir


def pair(texts: list[str]) -> tuple[ir.Model, ir.Model]:
    ours, theirs = map(ir.from_onnx_text, texts)
    return ours, theirs


NO_BOUNDS = {"accumulate: left out", "ranges: left out"}
BOUNDED = NO_BOUNDS | {
    "keep_inputs: the opposite",
    "exactness: None",  # there is none besides the bounds
    "limits: 0 missing",
    "limits: 0 twice",
}
HARMLESS = {
    "chain": NO_BOUNDS | {"regions: 1 missing"},  # constants equal in bits are seen to be
    # in bits, the last region differs too; what is not counted is the least number
    "different": NO_BOUNDS
    | {"regions: 1 missing", "exactness: None", "regions.2.verdict: different"}
    | {"regions.0.counted: the opposite"},
    # none of its initializers can be fed; equal operators need no region; values are less than bits
    "half": NO_BOUNDS | {"keep_inputs: the opposite", "regions: 0 missing", "exactness: values"},
    "residual": NO_BOUNDS | {"keep_inputs: the opposite", "regions: 0 missing"},
    # one row is for all channels; no input differs where a region is proved, whoever counts; and
    # with equal codes, codes are equal in bits, as a proof of bits says
    "bounded": BOUNDED
    | {"regions.0.bound.channels: 1 missing", "regions.1.counted: the opposite"}
    | {"regions.1.exactness: bits"},
    "layers": BOUNDED
    | {f"regions.{number}.counted: the opposite" for number in (0, 2, 3)}
    | {f"regions.{number}.exactness: bits" for number in (0, 2, 3)}
    | {"regions.1.bound.channels: 0 missing"},
    "open": BOUNDED
    | {"regions.0.bound.channels: 0 missing", "regions.1.counted: the opposite"}
    | {"regions.1.exactness: bits"},
    "kernel": BOUNDED
    | {"regions.0.bound.channels: 0 missing", "regions.1.counted: the opposite"}
    | {"regions.1.exactness: bits"},
}
"""Changes after which a certificate says no more than before; what is left out has its default."""

IGNORED = re.compile(
    r"regions\.\d+\.((noise_ulps|noise_steps|differing_codes): left out"
    r"|differing_codes: 1 (more|less)|bound\.(levels: less|(code_shift|seen): left out)"
    r"|method: congruence)|conditions\.\d+: [a-z-]+: .*_"
)
"""Changes of what is not known, of codes that differ where no input does, of percents, of how
equality was shown, and of the wording of a condition behind its kind."""

NAMES = re.compile(r"regions\.\d+\.(reference|candidate)_nodes: \d+ (missing|twice)")
"""Changes that leave the nodes of a region by name, but not all, or not each once."""

MAKERS = {
    "chain": lambda: chain(differs=False),
    "different": lambda: chain(differs=True),
    "half": lambda: pair(HALF),
    "residual": lambda: pair(RESIDUAL),
    "bounded": bounded_pair,
    "layers": lambda: pair(LAYERS),
    "kernel": lambda: pair(KERNEL),
    "open": lambda: pair(OPEN),
}


WITHIN = dict.fromkeys(("bounded", "layers", "kernel", "open"), "1step")
"""Limits of some pairs."""


def certificate(models: tuple[ir.Model, ir.Model], within: str | tuple[()] = ()) -> dict[str, Any]:
    found = qgraph.prove(*models, evidence=True, within=within)
    document = json.loads(json_text(found.to_json()))
    jsonschema.validate(document, json_schema())
    return document


def survivors(
    document: dict[str, Any], models: tuple[Any, Any], *, step: int = 1
) -> tuple[int, list[str]]:
    """Return how many changed certificates were tried, and the changes of those confirmed."""
    found, count = [], 0
    for what, changed in itertools.islice(tamperings(document), 0, None, step):
        count += 1
        with contextlib.suppress(QGraphError):
            if verify(changed, *models) != "undecided" and not IGNORED.fullmatch(what):
                found.append(what)
    return count, found


@pytest.mark.cases(fast=1, slow=2)
@pytest.mark.parametrize("name", MAKERS)
def test_few_of_all_changes(name):
    models = MAKERS[name]()
    document = certificate(models, WITHIN.get(name, ()))
    expected = "different" if name == "different" else "bounded" if name in WITHIN else "proved"
    assert verify(document, *models) == expected
    count, found = survivors(document, models, step=17)
    assert count >= 6
    assert set(found) <= HARMLESS[name]


@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.slow
@pytest.mark.parametrize("name", MAKERS)
def test_an_eighth_of_all_changes(name):
    models = MAKERS[name]()
    count, found = survivors(certificate(models, WITHIN.get(name, ())), models, step=8)
    assert count > 12
    assert set(found) <= HARMLESS[name]


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", MAKERS)
def test_all_changes(name, monkeypatch):
    models = MAKERS[name]()
    document = certificate(models, WITHIN.get(name, ()))
    compute_once(monkeypatch)
    count, found = survivors(document, tuple(map(qgraph.load, models)))
    assert count > 100
    assert set(found) == HARMLESS[name]


def compute_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let mutants share what depends on the models and on an unchanged region alone."""
    for place in (
        "qgraph.proof.bounds.regions.certify",
        "qgraph.verify.verify.Reading",
        "qgraph.verify.verify.check",
    ):
        monkeypatch.setattr(place, once(pkgutil.resolve_name(place)))


def once(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that keeps its results, and its arguments so that these stay alive."""
    known: dict[Any, Any] = {}

    def call(*arguments: Any, **options: Any) -> Any:
        # what was decided before saves time, and changes no result
        stated = sorted(each for each in options.items() if each[0] != "decided")
        key = (*map(_key, arguments), *stated)
        if key not in known:
            known[key] = arguments, function(*arguments, **options)
        return known[key][1]

    def _key(argument: Any) -> Any:
        if isinstance(argument, tuple):
            return tuple(map(_key, argument))
        return argument if isinstance(argument, RegionVerdict) else id(argument)

    return call


def accepted(
    name: str, count: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> list[list[str]]:
    """Return the changes of mutants that claim more, and are confirmed all the same."""
    models = [folder / f"{side}.onnx" for side in ("reference", "candidate")]
    for model, path in zip(MAKERS[name](), models, strict=True):
        qgraph.load(model).save(path)
    compute_once(monkeypatch)
    sides = [qgraph.load(path) for path in models]

    @functools.cache
    def true(exact: str) -> dict[str, Any]:
        within = WITHIN.get(name, ())
        made = prove(*models, exact=exact, evidence=True, hashes=True, within=within)
        return dict(json.loads(json_text(made.to_json())))

    document, rng, found = true("values"), random.Random(name), []
    for _ in range(count):
        changes, changed = mutant(document, rng)
        path = folder / "mutant.json"
        path.write_text(json.dumps(changed))
        with contextlib.suppress(QGraphError):
            read(path, *models)
            verdict = verify(changed, *sides)
            if verdict == "undecided" or claims_no_more(changed, document):
                continue
            if not claims_no_more(changed, true("bits")):
                found.append(changes)
    return found


def _claims(region: dict[str, Any]) -> dict[str, Any]:
    """What a region says; levels of a bound only make limits in percent wider."""
    bound = region["bound"] and {k: v for k, v in region["bound"].items() if k != "levels"}
    free = HOW | {"differing_codes"}  # 0 whatever is stated, where values are equal
    if region["verdict"] == "proved":
        free |= {"counted"}  # no input differs, whether they were counted or not
    return {k: v for k, v in region.items() if k not in free} | {"bound": bound}


def _conditions(document: dict[str, Any]) -> set[Any]:
    return {(each.kind, each.values) for each in map(Condition.from_json, document["conditions"])}


COUNTS = {"differing_inputs", "zero_sign_inputs", "largest_steps"}
UNCOUNTED = {"method", "counted", "differing_channels"}


def _is_like(claims: dict[str, Any], original: dict[str, Any]) -> bool:
    """Whether a region says what another one says; one channel may stand for all if it is worst."""
    if claims["bound"] and original["bound"] and len(claims["bound"]["channels"]) == 1:
        worst = [list(map(max, zip(*original["bound"]["channels"], strict=True)))]
        original = original | {"bound": original["bound"] | {"channels": worst}}
    if claims["method"] == "congruence":  # only how equality was shown
        original = original | {"method": "congruence"}
    if (claims["verdict"], claims["method"]) == ("proved", "bound"):  # with equal codes
        original = original | {"exactness": claims["exactness"]}
    if claims["verdict"] == "different" and not claims["counted"]:  # at least so many differ
        known, stated = (dict(each["differing_channels"]) for each in (original, claims))
        if any(known.get(channel, 0) < number for channel, number in stated.items()):
            return False
        if any((original[name] or 0) < (claims[name] or 0) for name in COUNTS):
            return False
        claims, original = (
            {k: v for k, v in each.items() if k not in COUNTS | UNCOUNTED}
            for each in (claims, original)
        )
    return claims == original


def claims_no_more(changed: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a certificate says nothing that another one does not say.

    Regions that others make needless may be missing, but none where all have bounds. Without a
    limit, no bound is within it.
    """
    same = ("verdict", "against", "order", "accumulate", "ranges", "shown_by")
    regions, kept = ([_claims(region) for region in d["regions"]] for d in (document, changed))
    levels = [[*RUNGS[1:], None].index(d["exactness"]) for d in (document, changed)]
    return (
        all(changed.get(name, document[name]) == document[name] for name in same)
        and all(changed[side] == document[side] for side in ("reference", "candidate"))
        and _conditions(document) <= _conditions(changed)
        and set(document["notes"]) <= set(changed["notes"])
        and set(changed["limits"]) in (set(), set(document["limits"]))
        and all(any(_is_like(claims, each) for each in regions) for claims in kept)
        and (document["verdict"] != "bounded" or len(kept) == len(regions))
        and levels[1] >= levels[0]
    )


@pytest.mark.cases(fast=0, slow=3)
@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(
    "count",
    [pytest.param(30, marks=pytest.mark.slow), pytest.param(2000, marks=pytest.mark.exhaustive)],
)
def test_no_mutant_of_a_file_is_accepted(name, count, tmp_path, monkeypatch):
    assert accepted(name, count, tmp_path, monkeypatch) == []


@pytest.mark.exhaustive
@pytest.mark.cases(fast=0, slow=1)
@pytest.mark.parametrize(
    ("name", "to"),
    [("brev_cnn_fp8e4m3", "qdq"), ("nncf_cnn_w4a4", "qdq"), ("brev_cnn_w4a4", "openvino")],
)
def test_changes_in_certificates_of_real_models(real_models: dict[str, Path], name, to):
    model = qgraph.load(real_models[name])
    changed = model.clone()
    changed.apply(transforms.ConvertDialect(to=to))
    document = certificate((model, changed))
    assert verify(document, model, changed) == "proved"
    found = survivors(document, (model, changed), step=97)[1]
    if model.ir.opset_imports[""] != changed.ir.opset_imports[""]:
        # Rules that give both one opset may have split nodes, or left some out.
        found = [change for change in found if not NAMES.fullmatch(change)]
    assert found == []


@pytest.mark.cases(fast=0, slow=2)
@pytest.mark.parametrize("to", ["qdq", "openvino", "onnx", "qonnx", "folded"])
def test_certificates_of_all_models_hold(real_models: dict[str, Path], model_name, to):
    model = qgraph.load(real_models[model_name])
    changed = model.clone()
    changed.apply(transforms.FoldWeights() if to == "folded" else transforms.ConvertDialect(to=to))
    document = certificate((model, changed))
    assert verify(document, model, changed) == document["verdict"] == "proved"


@pytest.mark.slow
def test_a_witness_has_to_show_the_difference():
    models = chain(differs=True)
    document = certificate(models)
    region = next(r for r in document["regions"] if r["verdict"] == "different")
    assert region["witness"]["input"] != 0.0
    region["witness"] |= {"input": 0.0, "reference": 0.0, "candidate": 0.0}
    with pytest.raises(QGraphError, match="prover finds another result"):
        verify(document, *models)
