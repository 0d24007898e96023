"""ONNX Runtime without its telemetry: the only module that imports `onnxruntime`.

Its packages report sessions and models to Microsoft, and keep an identifier of the machine in the user's
cache, unless a variable forbids it before the import.
"""

from __future__ import annotations

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

import onnxruntime as ort  # not before the variable is set

__all__ = ["ort"]
