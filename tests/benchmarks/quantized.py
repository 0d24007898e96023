"""What int8 does to a graph: its file, its promises, its accuracy and its CPU, side by side in one run.

    python -m tests.benchmarks.quantized --data FOLDER     # with train_FD001.txt and so on

`weights` is what `rul export --quantize` does. `lstm` and `all` are ONNX Runtime's own
`quantize_dynamic`, which rounds what flows into a weight as well, on one scale for the whole batch.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from pathlib import Path
from statistics import median
from time import process_time
from typing import Final

import numpy as np
from onnxruntime.quantization import QuantType, quantize_dynamic

from export.bundle import BundleFolder, Manifest, find_bundle
from export.evaluation_windows import labelled_windows, matching_fleet
from export.probes import simulated_windows
from export.promises import measure_promises
from export.quantization import quantize_weights
from export.session import Session, open_bundle
from model.domain import WindowSet, capped_rul
from model.evaluation import root_mean_square_error
from model.readers import read_trajectories
from tests.benchmarks.comparable import NAME, make_comparable_bundle

BATCHES: Final = (1, 16, 32)
DYNAMIC: Final = {"lstm": ["LSTM"], "all": ["LSTM", "MatMul", "Gemm"]}
ROUNDS: Final = 25
WINDOWS_A_ROUND: Final = 240
IN_A_BATCH: Final = "alone or in a batch, cycles over the cap"


def variants(model: Path, folder: Path) -> dict[str, Session]:
    """The graph as it is and three ways to round it."""
    files = {"float": model, "weights": folder / "weights.onnx"}
    quantize_weights(model, files["weights"])
    for name, operators in DYNAMIC.items():
        files[name] = folder / f"{name}.onnx"
        quantize_dynamic(
            model, files[name], op_types_to_quantize=operators, weight_type=QuantType.QInt8, per_channel=True
        )
    for name, file in files.items():
        print(f"  {name:8} {file.stat().st_size / 1000:6.0f} kB")
    return {name: Session(file) for name, file in files.items()}


def report_answers(sessions: dict[str, Session], manifest: Manifest, windows: WindowSet) -> None:
    """Accuracy and the promise that a batch changes nothing."""
    truth = capped_rul(windows.rul, cap=manifest.cap)
    answers = {
        name: session.answer_all(windows.readings, windows.lengths, windows.last_cycle)["rul"]
        for name, session in sessions.items()
    }
    for name, rul in answers.items():
        (batch,) = (f for f in measure_promises(sessions[name], manifest) if f.promise == IN_A_BATCH)
        print(
            f"  {name:8} RMSE {root_mean_square_error(rul - truth):7.3f}, farthest "
            f"{np.abs(rul - answers['float']).max():5.2f} cycles; in another batch {batch.worst:.1e} of the "
            f"cap: {'kept' if batch.kept else 'BROKEN'}"
        )


def report_cpu(sessions: dict[str, Session], windows: WindowSet) -> None:
    """CPU a window, each round one after the other; the ratio is the median of the rounds'."""
    longest = np.argsort(-windows.lengths, kind="stable")
    for batch in BATCHES:
        rows = longest[:batch]
        asked = windows.readings[rows], windows.lengths[rows], windows.last_cycle[rows]
        calls = WINDOWS_A_ROUND // batch
        spent: dict[str, list[float]] = {name: [] for name in sessions}
        for _ in range(ROUNDS):
            for name, session in sessions.items():
                start = process_time()
                for _ in range(calls):
                    session.answer(*asked)
                spent[name].append((process_time() - start) / calls / batch * 1e6)
        ratios = {
            name: median(a / b for a, b in zip(seconds, spent["float"], strict=True))
            for name, seconds in spent.items()
        }
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items())
        print(f"  batch {batch:2}: float {median(spent['float']):.0f} us a window; CPU {shown}")


def main() -> None:
    """Every bundle in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the C-MAPSS files")
    parser.add_argument("--bundles", nargs="+", default=["fd001", "fd002", "fd003", "fd004", NAME])
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # quantize_dynamic advises to preprocess, which changes nothing here
    for name in options.bundles:
        with tempfile.TemporaryDirectory() as work:
            folder = Path(work)
            bundle = find_bundle(name) if name != NAME else BundleFolder(make_comparable_bundle(folder))
            print(name)
            sessions = variants(bundle.model, folder)
            _, manifest = open_bundle(bundle)
            if name == NAME:  # random weights: its answers mean nothing
                windows = simulated_windows(manifest, count=64, seed=0)
            else:
                file = options.data / f"train_{name.upper()}.txt"
                kind = matching_fleet(manifest, "cmapss")
                windows = labelled_windows(read_trajectories([file], kind), manifest)
            report_answers(sessions, manifest, windows)
            report_cpu(sessions, windows)


if __name__ == "__main__":
    main()
