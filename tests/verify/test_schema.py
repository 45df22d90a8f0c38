"""Certificates fit their JSON Schema, and documents that do not are refused as certificates."""

from __future__ import annotations

import json

import jsonschema
import pytest

from qgraph.certificate import Certificate, json_schema
from qgraph.errors import ModelError
from tests.verify.test_bounds import proof_of_pair
from tests.verify.test_tampering import MAKERS, certificate


def test_the_schema_is_valid():
    jsonschema.Draft202012Validator.check_schema(json_schema())


@pytest.mark.cases(fast=1, slow=4)
@pytest.mark.parametrize("name", MAKERS)
def test_certificates_fit_the_schema(name):
    document = proof_of_pair() if name == "bounded" else certificate(MAKERS[name]())
    jsonschema.validate(document, json_schema())
    assert json.loads(json.dumps(Certificate.from_json(document).to_json())) is not None


@pytest.mark.parametrize(
    ("name", "value"), [("verdict", "true"), ("semantics", 1), ("order", "chunk:0")]
)
def test_what_the_schema_refuses_is_no_certificate(name, value):
    document = proof_of_pair() | {name: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, json_schema())
    with pytest.raises(ModelError):
        Certificate.from_json(document)


def test_a_number_beyond_float64_is_no_number_of_a_certificate():
    document = proof_of_pair()
    (region,) = [each for each in document["regions"] if each["bound"]]
    region["bound"]["reference_error"] = 10**400
    with pytest.raises(ModelError, match="beyond float64"):
        Certificate.from_json(document)
