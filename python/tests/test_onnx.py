# SPDX-License-Identifier: MIT
"""The node tests that the package onnx publishes for Attention, opsets 23 to 25, by libattn (onnx_backend.py)."""

import pytest

pytest.importorskip("numpy")
pytest.importorskip("ml_dtypes")
onnx = pytest.importorskip("onnx")
if tuple(map(int, onnx.__version__.split(".")[:2])) < (1, 23):
    pytest.skip(f"onnx {onnx.__version__} is older than 1.23", allow_module_level=True)

import onnx.backend.test.case.node as node_tests  # noqa: E402
from onnx.backend.test.case.node import attention  # noqa: E402, F401  makes its cases
from onnx.backend.test.runner import BackendIsNotSupposedToImplementIt, Runner  # noqa: E402
from onnx_backend import LibattnBackend  # noqa: E402

CASES = {case.name: case for case in node_tests._NodeTestCases
         if [node.op_type for node in case.model.graph.node] == ["Attention"]}


@pytest.mark.parametrize("name", CASES)
def test_node(name):
    case = CASES[name]
    try:
        model = LibattnBackend.prepare(case.model)
    except BackendIsNotSupposedToImplementIt as reason:
        pytest.skip(f"refused: {reason}")
    for inputs, outputs in case.data_sets:
        Runner.assert_similar_outputs(outputs, model.run(inputs), rtol=case.rtol, atol=case.atol)


def test_that_there_are_cases():
    assert len(CASES) >= 93
