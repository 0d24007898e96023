"""ONNX Runtime without its telemetry, and options of sessions: the only module that imports `onnxruntime`.

Its packages report sessions and models to Microsoft, and keep an identifier of the machine in the user's
cache, unless a variable forbids it before the import.
"""

from __future__ import annotations

import os
from typing import Any

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort  # not before the variable is set

__all__ = ["ort", "session_options"]


def session_options() -> Any:  # noqa: ANN401 - untyped library
    """Return options for one thread without spinning, and a graph that reads no file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    # A thread that waits for the next batch must not spin on the core of another one.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # External data of a graph from memory would be read from the working directory.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    return options
