"""What each client's program is given and leaves behind: arrays in, arrays and facts out.

Runs in the clients' environment, which has neither the service nor its tests.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "tiny"


class Tour:
    """A folder with `asked.npz`; `finish` adds `answered.npz` and `facts.json` to it."""

    def __init__(self, target: str, folder: str) -> None:
        self.target = target
        self._folder = Path(folder)
        with np.load(self._folder / "asked.npz") as asked:
            self.inputs: dict[str, Any] = {name: asked[name] for name in asked.files}
        self.facts: dict[str, Any] = {}
        self._answered: dict[str, Any] = {}

    @classmethod
    def from_arguments(cls) -> Tour:
        """The program's arguments: where the service is, and the folder."""
        return cls(*sys.argv[1:])

    def answer(self, title: str, **tensors: Any) -> None:
        """Keep the answer to one way of asking."""
        self._answered |= {f"{title}/{name}": values for name, values in tensors.items()}

    def refused(self, title: str, kind: type[Exception], call: Callable[[], object]) -> None:
        """Keep what a call that must fail says."""
        try:
            call()
        except kind as error:
            self.facts[title] = str(error)
        else:
            raise AssertionError(f"{title} was answered")

    def ask_in_vain(self, triton: Any, client: Any, tensors: Callable[[dict[str, Any]], Any]) -> None:
        """Ask a client of Triton for what there is not."""
        from tritonclient.utils import InferenceServerException

        def infer(model: str = MODEL, *, version: str = "", outputs: Any = None, **changed: Any) -> object:
            arrays = {key: value for key, value in (self.inputs | changed).items() if value is not None}
            return client.infer(model, tensors(arrays), model_version=version, outputs=outputs)

        readings = self.inputs["readings"]
        nothing = [triton.InferRequestedOutput("nothing")]
        for title, call in {
            "unknown model": lambda: infer("other"),
            "unknown version": lambda: infer(version="9"),
            "unknown input": lambda: infer(nothing=readings),
            "no readings": lambda: infer(readings=None),
            "wrong datatype": lambda: infer(readings=readings.astype(np.float64)),
            "wrong shape": lambda: infer(readings=readings[..., 1:].copy()),
            "unknown output": lambda: infer(outputs=nothing),
            "infinite": lambda: infer(readings=np.full_like(readings, np.inf)),
            "no such config": lambda: client.get_model_config(MODEL),
        }.items():
            self.refused(title, InferenceServerException, call)

    def finish(self) -> None:
        """Leave everything for the test."""
        np.savez(self._folder / "answered.npz", **self._answered)
        (self._folder / "facts.json").write_text(json.dumps(self.facts), encoding="utf-8")
