from __future__ import annotations

import json

import numpy as np
import onnx_ir as ir

from qgraph.reporting import rewrite_view


def network(layers: int) -> ir.Model:
    names = [f"w{i}" for i in range(layers)]
    weights = ", ".join(f"float[8, 8] {name} = {{{', '.join('0' * 64)}}}" for name in names)
    nodes = "\n".join(f"x{i + 1} = MatMul (x{i}, w{i})" for i in range(layers))
    model = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[1, 8] x0) => (float[1, 8] x{layers}) <{weights}> {{ {nodes} }}""")
    random = np.random.default_rng(0)
    for name in names:
        array = random.standard_normal((8, 8)).astype(np.float32)
        model.graph.initializers[name].const_value = ir.Tensor(array, name=name)
    return model


def test_the_error_of_each_weight_is_shown_and_in_the_report(qgraph, tmp_path):
    ir.save(network(2), tmp_path / "m.onnx")
    out, report = tmp_path / "o.onnx", tmp_path / "r.json"
    spec = "quantize-weights{min_elements=1}"
    outcome = qgraph("transform", tmp_path / "m.onnx", "-o", out, "-p", spec, "--report", report)
    assert outcome.status == 0
    sites = json.loads(report.read_text())["sites"]
    for name, site in zip(("w0", "w1"), sites, strict=True):
        (line,) = [line for line in outcome.out.splitlines() if line.startswith(f"{name} ")]
        assert "INT8" in line
        assert f" {site['figures']['sqnr_db']:.1f} " in line
        assert 30 < site["figures"]["sqnr_db"] < 60


def test_of_many_weights_the_range_and_the_worst_are_shown(qgraph, tmp_path, monkeypatch):
    monkeypatch.setattr(rewrite_view, "MANY", 2)
    ir.save(network(3), tmp_path / "m.onnx")
    spec = "quantize-weights{format=int4,min_elements=1}"
    command = ("transform", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "-p", spec)
    outcome = qgraph(*command, "--report", tmp_path / "r.json")
    sites = json.loads((tmp_path / "r.json").read_text())["sites"]
    levels = sorted((site["figures"]["sqnr_db"], site["node"]) for site in sites)
    assert f"SQNR {levels[0][0]:.1f} .. {levels[-1][0]:.1f} dB, worst first" in outcome.out
    lines = outcome.out.splitlines()
    rows = lines[next(n for n, line in enumerate(lines) if "largest error" in line) + 1 :]
    assert rows[0].startswith(f"w{int(levels[0][1][1:]) - 1} ")
    assert "w2 " in outcome.out or "and 1 more; -v shows all" in rows
    assert "w2 " in qgraph(*command, "-v").out
