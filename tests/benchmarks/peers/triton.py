"""Triton from the wheel of PyTriton, without PyTriton: the server, and a model of the Python back end.

PyTriton's path to Python costs two milliseconds of CPU per call, which would not represent Triton.
"""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
from pathlib import Path

from tests.benchmarks.comparable import NAME

SERVERS = Path(__file__).parent / "servers"
OUTPUTS = {
    "rul": 1, "rul_interval": 2, "failure_probability": -1, "health_state": 3, "attention": -1,
    "contribution": -1, "novelty": 1,
}  # fmt: skip


def start_triton(programs: Path, folder: Path, ports: tuple[int, int]) -> list[str]:
    """Write a model repository, one instance per core; return the command that serves it on these ports."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    site = programs.parent / "lib" / f"python{version}" / "site-packages"
    server = site / "pytriton" / "tritonserver"
    repository = folder / "models"
    (repository / NAME / "1").mkdir(parents=True)
    (repository / NAME / "config.pbtxt").write_text(_configuration())
    # In sys.path the back end keeps the environment that is first in PATH, and adds this folder.
    shutil.copy2(SERVERS / "triton_model.py", repository / NAME / "1" / "model.py")
    shutil.copy2(SERVERS / "graph.py", repository / NAME / "1")
    # The wheel has a stub for each Python version; the server expects one beside the back end.
    back_ends = Path(shutil.copytree(server / "backends", folder / "backends"))
    shutil.copy2(
        server / "python_backend_stubs" / version / "triton_python_backend_stub", back_ends / "python"
    )
    libraries = [str(site / "nvidia_pytriton.libs"), sysconfig.get_config_var("LIBDIR") or ""]
    paths = f"LD_LIBRARY_PATH={os.pathsep.join(libraries)}"
    options = {
        "model-repository": repository, "backend-directory": back_ends, "http-address": "127.0.0.1",
        "http-port": ports[0], "grpc-port": ports[1], "allow-metrics": "false",
    }  # fmt: skip
    flags = [f"--{name}={value}" for name, value in options.items()]
    return ["env", paths, str(server / "bin" / "tritonserver"), *flags]


def _configuration() -> str:
    outputs = ", ".join(
        f'{{ name: "{name}" data_type: TYPE_FP32 dims: [ {size} ] }}' for name, size in OUTPUTS.items()
    )
    return f"""
name: "{NAME}"
backend: "python"
max_batch_size: 64
input [
  {{ name: "readings" data_type: TYPE_FP32 dims: [ -1, -1 ] }},
  {{ name: "last_cycle" data_type: TYPE_FP32 dims: [ 1 ] }}
]
output [ {outputs} ]
instance_group [ {{ count: {len(os.sched_getaffinity(0))} kind: KIND_CPU }} ]
dynamic_batching {{ max_queue_delay_microseconds: 2000 }}
"""
