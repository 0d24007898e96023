"""The generated gRPC code is what protoc makes of the .proto file today."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROTOS = ["service/proto/open_inference.proto", "service/proto/rul_v1.proto"]
NAMES = [f"{Path(proto).stem}_pb2{end}" for proto in PROTOS for end in (".py", ".pyi")]
NAMES.append("rul_v1_pb2_grpc.py")  # a servicer of ours registers the methods of the other one


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("generated")
    outputs = [f"--{kind}={folder}" for kind in ("python_out", "pyi_out", "grpc_python_out")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I.", *outputs, *PROTOS], cwd=ROOT, check=True
    )
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_the_committed_code_equals_that_of_make_generate(generated, name):
    committed = ROOT / "service" / "proto" / name

    made = (generated / "service" / "proto" / name).read_text("utf-8")

    assert committed.read_text("utf-8") == made, "run make generate"
