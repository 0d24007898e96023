"""Ways to break a bundle. Those of `BROKEN` have fresh digests, as from a forger or a faulty exporter."""

from __future__ import annotations

import base64
import io
import json
import os
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from export.bundle import GOLDEN, METADATA_KEY, MODEL
from export.drift_reference import LAYOUT, REFERENCE_KEY
from export.seal import SUMS, write_sums

Way = Callable[[Path], Any]


def replaced(name: str, by: Callable[[Path], object]) -> Way:
    def way(folder: Path) -> None:
        (folder / name).unlink()
        by(folder / name)

    return way


def flipped(name: str) -> Way:
    def way(folder: Path) -> None:
        stored = bytearray((folder / name).read_bytes())
        stored[len(stored) // 2] ^= 1
        (folder / name).write_bytes(stored)

    return way


def _sparse(file: Path) -> None:
    with file.open("wb") as opened:
        opened.truncate(2**32)


DAMAGED: dict[str, Way] = {
    f"{what}: {name}": way
    for name in (MODEL, GOLDEN, SUMS)
    for what, way in {
        "missing": lambda folder, name=name: (folder / name).unlink(),
        "empty": lambda folder, name=name: (folder / name).write_bytes(b""),
        "truncated": lambda folder, name=name: os.truncate(
            folder / name, (folder / name).stat().st_size // 2
        ),
        "random bytes": lambda folder, name=name: (folder / name).write_bytes(
            np.random.default_rng(1).bytes(9999)
        ),
        "one bit": flipped(name),
        "a folder": replaced(name, Path.mkdir),
        "a link to itself": replaced(name, lambda file: file.symlink_to(file)),
        "a link to a device": replaced(name, lambda file: file.symlink_to("/dev/zero")),
        "cannot be read": replaced(name, lambda file: file.symlink_to("/proc/self/mem")),
        "four gigabytes": replaced(name, _sparse),
    }.items()
}
"""Bundles with wrong or missing digests."""


def golden_with(change: Callable[[dict[str, Any]], object]) -> Way:
    """Rewrite the golden windows with other arrays."""

    def way(folder: Path) -> None:
        with np.load(folder / GOLDEN) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        change(arrays)
        np.savez_compressed(folder / GOLDEN, **arrays)

    return way


def item(name: str, at: Any, value: float) -> Way:
    return golden_with(lambda arrays: arrays[name].__setitem__(at, value))


def array(name: str, change: Callable[[Any], Any]) -> Way:
    return golden_with(lambda arrays: arrays.update({name: change(arrays[name])}))


def _bomb(folder: Path) -> None:
    header = {"descr": "<f4", "fortran_order": False, "shape": (2**26,)}
    with (
        zipfile.ZipFile(folder / GOLDEN, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("readings.npy", "w", force_zip64=True) as entry,
    ):
        np.lib.format.write_array_header_1_0(entry, header)
        for _ in range(256):
            entry.write(bytes(2**20))


def _header_bomb(folder: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": (2**60, 2**60)}
    )
    with zipfile.ZipFile(folder / GOLDEN, "w") as archive:
        archive.writestr("readings.npy", header.getvalue())


def _encrypted(folder: Path) -> None:
    stored = (folder / GOLDEN).read_bytes()
    at = stored.index(b"PK\x01\x02") + 8
    (folder / GOLDEN).write_bytes(stored[:at] + b"\x01" + stored[at + 1 :])


def _text(folder: Path) -> None:
    golden_with(lambda arrays: arrays.pop("lengths"))(folder)
    with zipfile.ZipFile(folder / GOLDEN, "a") as archive:
        archive.writestr("lengths.npy", "sixteen")


def _pickled(folder: Path) -> None:
    np.savez(folder / GOLDEN, readings=np.array([os.system], dtype=object), allow_pickle=True)


def graph_with(change: Callable[[onnx.ModelProto], object]) -> Way:
    def way(folder: Path) -> None:
        graph = onnx.load(str(folder / MODEL))
        change(graph)
        (folder / MODEL).write_bytes(graph.SerializeToString())

    return way


def metadata_with(key: str, change: Callable[[str], str]) -> Way:
    def way(graph: onnx.ModelProto) -> None:
        for entry in graph.metadata_props:
            if entry.key == key:
                entry.value = change(entry.value)

    return graph_with(way)


def manifest_with(change: Callable[[dict[str, Any]], object]) -> Way:
    def altered(text: str) -> str:
        fields: dict[str, Any] = json.loads(text)
        change(fields)
        return json.dumps(fields)

    return metadata_with(METADATA_KEY, altered)


def field(name: str, value: Any) -> Way:
    return manifest_with(lambda fields: fields.update({name: value}))


def degradation_with(change: Callable[[dict[str, Any]], object]) -> Way:
    return manifest_with(lambda fields: change(fields["degradation"]))


def regimes_with(name: str, value: float) -> Way:
    """Set a statistic of every first column."""
    return manifest_with(lambda fields: [regime[name].__setitem__(0, value) for regime in fields["regimes"]])


def exchange_columns(fields: dict[str, Any]) -> None:
    """Exchange the ranges of two sensors, as if the graph read these sensors in the other order."""
    first, second = fields["columns"][2], fields["columns"][4]
    for name in ("low", "high"):
        first[name], second[name] = second[name], first[name]


def reference_with(change: Callable[[dict[str, Any]], object]) -> Way:
    def altered(text: str) -> str:
        with np.load(io.BytesIO(base64.b85decode(text))) as stored:
            arrays: dict[str, Any] = {name: stored[name] for name in stored.files}
        change(arrays)
        packed = io.BytesIO()
        np.savez_compressed(packed, **arrays)
        return base64.b85encode(packed.getvalue()).decode()

    return metadata_with(REFERENCE_KEY, altered)


def _external_data(graph: onnx.ModelProto) -> None:
    first = graph.graph.initializer[0]
    first.ClearField("raw_data")
    first.data_location = TensorProto.EXTERNAL
    entry = first.external_data.add()
    entry.key, entry.value = "location", "../../../../etc/passwd"


def _external_data_beside_it(folder: Path) -> None:
    graph = onnx.load(str(folder / MODEL))
    onnx.save(graph, folder / MODEL, save_as_external_data=True, location="weights.bin")


def _foreign_operator(graph: onnx.ModelProto) -> None:
    graph.opset_import.append(helper.make_opsetid("evil", 1))
    graph.graph.node[-1].domain, graph.graph.node[-1].op_type = "evil", "Shell"


def _without_reference(graph: onnx.ModelProto) -> None:
    kept = {entry.key: entry.value for entry in graph.metadata_props if entry.key != REFERENCE_KEY}
    helper.set_model_props(graph, kept)


def without_output(name: str) -> Way:
    def change(graph: onnx.ModelProto) -> None:
        (output,) = (each for each in graph.graph.output if each.name == name)
        graph.graph.output.remove(output)

    return graph_with(change)


def _failing_node(graph: onnx.ModelProto) -> None:
    shape = helper.make_tensor("far_shape", TensorProto.INT64, [1], [-1])
    index = helper.make_tensor("far_index", TensorProto.INT64, [1], [10**9])
    graph.graph.initializer.extend([shape, index])
    answers = next(node for node in graph.graph.node if "rul" in node.output)
    answers.output[list(answers.output).index("rul")] = "inner_rul"
    graph.graph.node.append(helper.make_node("Gather", ["inner_rul", "far_index"], ["rul"]))


BROKEN: dict[str, Way] = {
    "no zip": lambda folder: (folder / GOLDEN).write_bytes(b"golden"),
    "zip bomb": _bomb,
    "header of an array bomb": _header_bomb,
    "encrypted": _encrypted,
    "pickled objects": _pickled,
    "text instead of an array": _text,
    "an array is missing": golden_with(lambda arrays: arrays.pop("lengths")),
    "an array more": golden_with(lambda arrays: arrays.update(more=np.zeros(3))),
    "float64": array("readings", lambda values: values.astype(np.float64)),
    "big-endian": array("readings", lambda values: values.astype(">f4")),
    "int32 lengths": array("lengths", lambda values: values.astype(np.int32)),
    "one window less": array("readings", lambda values: values[1:]),
    "one column less": array("readings", lambda values: values[:, :, 1:]),
    "no windows": golden_with(lambda arrays: arrays.update({k: v[:0] for k, v in arrays.items()})),
    "too many windows": golden_with(
        lambda arrays: arrays.update({k: np.repeat(v, 40, axis=0) for k, v in arrays.items()})
    ),
    "answers of another shape": array("expected_rul", lambda values: values[:, None]),
    "length 0": item("lengths", 0, 0),
    "length beyond the window": item("lengths", 0, 999),
    "NaN in golden answers": item("expected_rul", 0, np.nan),
    "infinity in golden answers": item("expected_attention", (0, 0), np.inf),
    "infinite novelty in golden answers": item("expected_novelty", 0, np.inf),
    "golden answers of another model": array("expected_rul", lambda values: values + 1),
    "external data": graph_with(_external_data),
    "external data in the working directory": _external_data_beside_it,
    "foreign operator": graph_with(_foreign_operator),
    "a graph that fails": graph_with(_failing_node),
    "an output is missing": without_output("evidence"),
    "no graph": lambda folder: (folder / MODEL).write_bytes(b"ORTM" * 100),
    "no manifest": graph_with(lambda graph: graph.ClearField("metadata_props")),
    "manifest is no JSON": metadata_with(METADATA_KEY, lambda text: text[:-5]),
    "manifest is too deep": metadata_with(METADATA_KEY, lambda _: "[" * 100_000),
    "manifest of another graph": manifest_with(lambda fields: fields["columns"].pop()),
    "NaN in the manifest": field("baseline", float("nan")),
    "infinity in the manifest": field("cap", float("inf")),
    "cap too high": field("cap", 60.0),
    "cap too low": field("cap", 20.0),
    "other baseline": field("baseline", 1.0),
    "context beyond the graph's": field("context", 13),
    "context beyond memory": field("context", 2**50),
    "escapes in the version": field("version", "1\x1b[2J"),
    "two columns of one name": manifest_with(
        lambda fields: fields["columns"][2].update(name=fields["columns"][3]["name"])
    ),
    "two heads of one name": manifest_with(lambda fields: fields["entropy"].append(fields["entropy"][0])),
    "bands of entropy in descending order": manifest_with(
        lambda fields: fields["entropy"][0]["bands"].reverse()
    ),
    "a window needs more cycles than there are": field("min_cycles", 13),
    "health bounds exchanged": field("health_bounds", {"critical_below": 30.0, "degrading_below": 10.0}),
    "a horizon that no float holds": field("horizons", [5, 10**400]),
    "a standard deviation of 0": regimes_with("standard_deviation", 0.0),
    "noise below 0": degradation_with(lambda fields: fields["noise"].__setitem__(0, -1.0)),
    "noise beyond any data": degradation_with(lambda fields: fields["noise"].__setitem__(0, 1e308)),
    "a mean beyond any reading": regimes_with("mean", 1e38),
    "spread below 0": degradation_with(lambda fields: fields["spread"][0].__setitem__(0, -1.0)),
    "ages in descending order": degradation_with(lambda fields: fields["rul"].reverse()),
    "horizons in descending order": field("horizons", [15, 5]),
    "lives in descending order": degradation_with(lambda fields: fields["life_quantiles"].reverse()),
    "lives of one cycle": degradation_with(lambda fields: fields.update(life_quantiles=[1.0] * 11)),
    "lives that no clock counts": degradation_with(
        lambda fields: fields["life_quantiles"].__setitem__(10, 1e300)
    ),
    "columns exchanged": manifest_with(exchange_columns),
    "columns renamed": manifest_with(lambda fields: fields["columns"][2].update(name="other")),
    "drift reference is missing": graph_with(_without_reference),
    "drift reference is empty": metadata_with(REFERENCE_KEY, lambda _: ""),
    "drift reference is no base85": metadata_with(REFERENCE_KEY, lambda text: '"' + text),
    "drift reference is cut": metadata_with(REFERENCE_KEY, lambda text: text[: len(text) // 8 * 4]),
    "drift reference with other settings": reference_with(
        lambda arrays: arrays["settings"].__setitem__(0, 99)
    ),
    "drift reference with other shapes": reference_with(
        lambda arrays: arrays.update(left_by_age=np.zeros((2, 2)))
    ),
    "drift reference with NaN": reference_with(lambda arrays: arrays["cuts"].__setitem__((0, 0, 0), np.nan)),
    "drift reference of one regime": reference_with(
        lambda arrays: arrays.update({k: arrays[k][:1] for k, (_, axes) in LAYOUT.items() if axes[:1] == "R"})
    ),
    "drift reference with fewer cuts": reference_with(
        lambda arrays: arrays.update(cuts=arrays["cuts"][..., 1:])
    ),
    "drift reference with fewer bins": reference_with(
        lambda arrays: arrays.update({k: arrays[k][..., 1:] for k in ("low", "high")})
    ),
    "drift reference with one edge of entropy": reference_with(
        lambda arrays: arrays.update(entropy_edges=arrays["entropy_edges"][..., 1:])
    ),
    "drift reference of another cap": reference_with(lambda arrays: arrays.update(believed=np.array(9.0))),
    "drift reference without ages": reference_with(
        lambda arrays: arrays.update(left_by_age=np.zeros(0))
    ),
    "drift reference without lengths": reference_with(
        lambda arrays: arrays.update(entropy_edges=arrays["entropy_edges"][:, :0])
    ),
    "drift reference with other edges": reference_with(
        lambda arrays: arrays.update(rul_edges=np.zeros(3))
    ),
}  # fmt: skip


def sealed(way: Way, folder: Path) -> None:
    """Break a bundle and write fresh digests."""
    way(folder)
    write_sums(folder)


WAYS: dict[str, Way] = {**DAMAGED, **{name: partial(sealed, way) for name, way in BROKEN.items()}}
