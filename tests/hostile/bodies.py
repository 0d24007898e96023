"""Hostile bodies: below the size limit, with as much work as possible."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from itertools import repeat
from typing import NamedTuple

import numpy as np

from service.core.turns import LARGE_BYTES
from service.grpc.over_asgi import PREFIX
from service.grpc.predict import tag
from service.proto import open_inference_pb2 as oip
from service.proto import rul_v1_pb2 as rul

SIZE = 16 * 1024 * 1024 - 1024
"""Just below RUL_MAX_BODY_BYTES."""

JSON = {"content-type": "application/json"}
GRPC = {"content-type": "application/grpc", "te": "trailers"}
PREDICT = "/v1/predict"
INFER = "/v2/models/fake/infer"
COLUMNS = 3
MOST_CYCLES = 10_000
"""Default of RUL_MAX_WINDOW_CYCLES."""


class Hostile(NamedTuple):
    """A request."""

    path: str
    headers: dict[str, str]
    body: bytes


def _filled(head: str, part: str, tail: str, *, last: str = "") -> bytes:
    """Repeat the part as often as it fits between head and tail."""
    count = (SIZE - len(head) - len(tail) - len(last)) // len(part)
    return (head + part * count + (last or part[:-1]) + tail).encode()


def _json(head: str, part: str, tail: str, **options: str) -> Hostile:
    return Hostile(PREDICT, JSON, _filled('{"windows":[' + head, part, tail + "]}", **options))


def _columns(values: str) -> str:
    return ",".join(f'"{name}":[{values}]' for name in ("setting_1", "sensor_1", "sensor_2"))


def _windows(window: str) -> Hostile:
    return Hostile(PREDICT, JSON, ('{"windows":[' + ",".join(repeat(window, 1024)) + "]}").encode())


def unknown_columns() -> Hostile:
    names = ",".join(f'"c{i}":[1]' for i in range(1_000_000))
    return Hostile(PREDICT, JSON, f'{{"windows":[{{"columns":{{{names}}}}}]}}'.encode())


def some_unknown_columns() -> Hostile:
    names = ",".join(f'"c{i}":[1]' for i in range(900))
    return _windows(f'{{"columns":{{{names}}}}}')


def bad_rows() -> Hostile:
    return _windows('{"readings":[' + ",".join(["[1]"] * 2000) + "]}")


def _numbers(value: str, *, width: int) -> Callable[[], Hostile]:
    """Make 1,024 windows filled with one value; `width` is the bytes of a cycle in all columns."""
    return lambda: _windows(f'{{"columns":{{{_columns(",".join([value] * (SIZE // 1024 // width)))}}}}}')


LONG = "1." + "123456789" * 77
SMALLEST, LARGEST = "1e-310", "1.7976931348623158e308"
"""Numbers at the ends of float64's range; some decoders need 300 times as long for them."""


def _oip(head: str, part: str, tail: str, **options: str) -> Hostile:
    return Hostile(INFER, JSON, _filled(head, part, tail, **options))


def _tensor(shape: object, *, rest: str) -> str:
    return f'{{"name":"readings","datatype":"FP32","shape":{json.dumps(shape)}{rest}}}'


def oip_good() -> Hostile:
    cycles = SIZE // 4 // COLUMNS // 1024
    values = ",".join(["1.5"] * (1024 * cycles * COLUMNS))
    body = '{"inputs":[' + _tensor([1024, cycles, COLUMNS], rest=f',"data":[{values}]') + "]}"
    return Hostile(INFER, JSON, body.encode())


def oip_smallest() -> Hostile:
    count = (SIZE - 200) // 7
    body = '{"inputs":[' + _tensor([1, count, 1], rest=f',"data":[{",".join([SMALLEST] * count)}]') + "]}"
    return Hostile(INFER, JSON, body.encode())


def cycles_of_a_unit() -> Hostile:
    values = ",".join([SMALLEST] * (LARGE_BYTES // 7 - 20))
    return Hostile("/v1/units/1/cycles", JSON, f'{{"columns":{{"sensor_1":[{values}]}}}}'.encode())


def oip_nested() -> Hostile:
    cycles = SIZE // 14 // 1024
    window = "[" + ",".join(["[1.5,1.5,1.5]"] * cycles) + "]"
    data = ",".join(repeat(window, 1024))
    body = '{"inputs":[' + _tensor([1024, cycles, COLUMNS], rest=f',"data":[{data}]') + "]}"
    return Hostile(INFER, JSON, body.encode())


def _binary(value: float) -> Hostile:
    cycles = SIZE // 12 // 1024
    values = np.full((1024, cycles, COLUMNS), value, "<f4").tobytes()
    head = '{"inputs":[' + _tensor(
        [1024, cycles, 3], rest=f',"parameters":{{"binary_data_size":{len(values)}}}'
    )
    text = (head + "]}").encode()
    headers = {"inference-header-content-length": str(len(text))}
    return Hostile(INFER, headers, text + values)


def _delimited(field: int, content: bytes) -> bytes:
    return tag(field, len(content)) + content


def _message(path: str, message: bytes) -> Hostile:
    return Hostile(path, GRPC, PREFIX.pack(0, len(message)) + message)


def _predict(message: bytes) -> Hostile:
    return _message("/rul.v1.RulService/Predict", message)


def _infer(message: bytes) -> Hostile:
    return _message("/inference.GRPCInferenceService/ModelInfer", message)


def empty_readings() -> Hostile:
    readings = rul.AppendCyclesRequest.DESCRIPTOR.fields_by_name["readings"].number
    return _message("/rul.v1.RulService/AppendCycles", _delimited(readings, b"") * (SIZE // 2))


def short_readings() -> Hostile:
    reading = rul.Reading(cycle=1, columns={"sensor_1": 1.5})
    message = rul.AppendCyclesRequest(readings=[reading]).SerializeToString()
    return _message("/rul.v1.RulService/AppendCycles", message * min(MOST_CYCLES, SIZE // len(message)))


def map_entries() -> Hostile:
    names = (_delimited(1, _delimited(1, b"%d" % i)) for i in range(1_200_000))
    return _predict(_delimited(4, _delimited(3, b"".join(names))))


def _readings(value: float) -> Hostile:
    values = np.full((SIZE // 1024 // 12 - 3, COLUMNS), value, "<f4").tobytes()
    return _predict(_delimited(4, _delimited(4, _delimited(1, values))) * 1024)


def oip_message(value: float) -> Hostile:
    cycles = SIZE // 12 // 1024 - 1
    values = np.full((1024, cycles, COLUMNS), value, "<f4").tobytes()
    given = oip.ModelInferRequest.InferInputTensor(name="readings", datatype="FP32", shape=[1024, cycles, 3])
    request = oip.ModelInferRequest(model_name="fake", inputs=[given], raw_input_contents=[values])
    return _infer(request.SerializeToString())


def stream_map() -> Hostile:
    names = (_delimited(1, _delimited(1, b"%d" % i)) for i in range(1_000_000))
    opened = rul.StreamRequest.DESCRIPTOR.fields_by_name["open"].number
    columns = rul.StreamOpen.DESCRIPTOR.fields_by_name["columns"].number
    message = _delimited(opened, _delimited(columns, b"".join(names)))
    return _message("/rul.v1.RulService/PredictStream", message)


WIDE = ("setting_1", *(f"sensor_{i}" for i in range(1, 17)))
"""As many columns as the C-MAPSS bundles read."""
CYCLES = 60


def _explained(level: str) -> Hostile:
    columns = {name: [1.5] * CYCLES for name in WIDE}
    body = {"explain": level, "windows": [{"last_cycle": CYCLES, "columns": columns}] * 1024}
    return Hostile(PREDICT, JSON, json.dumps(body).encode())


def _explained_messages() -> Hostile:
    values = rul.Readings(values=[1.5] * (CYCLES * len(WIDE)))
    windows = [rul.Window(last_cycle=CYCLES, readings=values)] * 1024
    return _predict(rul.PredictRequest(explain=rul.EXPLAIN_FULL, windows=windows).SerializeToString())


def _all_outputs() -> Hostile:
    shape = [1024, CYCLES, len(WIDE)]
    values = ",".join(["1.5"] * (1024 * CYCLES * len(WIDE)))
    return Hostile(INFER, JSON, ('{"inputs":[' + _tensor(shape, rest=f',"data":[{values}]') + "]}").encode())


LARGE_ANSWERS: dict[str, Callable[[], Hostile]] = {
    "attention": lambda: _explained("attention"),
    "full explanations": lambda: _explained("full"),
    "gRPC, full explanations": _explained_messages,
    "Open Inference, all outputs": _all_outputs,
}
"""Make requests of a model with `WIDE` columns whose answers are as large as possible."""

HOSTILE: dict[str, Callable[[], Hostile]] = {
    "a million unknown columns": unknown_columns,
    "1,024 windows with 900 unknown columns": some_unknown_columns,
    "1,024 windows with 2,000 bad rows": bad_rows,
    "a string for every number": _numbers('""', width=10),
    "every number beyond float32": _numbers("1e39", width=16),
    "every number beyond float64": _numbers("1e999", width=19),
    "every number at the low end of float64": _numbers(SMALLEST, width=22),
    "every number at the high end of float64": _numbers(LARGEST, width=70),
    "a column of numbers at the low end": lambda: _json('{"columns":{"sensor_1":[', f"{SMALLEST},", "]}}"),
    "a row of numbers at the low end": lambda: _json('{"readings":[[', f"{SMALLEST},", "]]}"),
    "a unit's cycles at the low end": cycles_of_a_unit,
    "1,024 good windows": _numbers("1.5", width=13),
    "numbers of 700 digits, then 1e999": lambda: _json('{"columns":{"a":[', LONG + ",", "]}}", last="1e999"),
    "1,024 windows with numbers of 700 digits": _numbers(LONG, width=2300),
    "empty windows": lambda: _json("", "{},", ""),
    "numbers for windows": lambda: _json("", "1,", ""),
    "brackets": lambda: _json("", "[", ""),
    "braces": lambda: _json("", '{"columns":', ""),
    "empty rows": lambda: _json('{"readings":[', "[],", "]}"),
    "a row of millions": lambda: _json('{"readings":[[', "1,", "]]}"),
    "a column of millions": lambda: _json('{"columns":{"sensor_1":[', "1,", "]}}"),
    "a list of lists for a column": lambda: _json('{"columns":{"sensor_1":[', "[],", "]}}"),
    "an object for a column": lambda: _json('{"columns":{"sensor_1":{', '"":1,', "}}}"),
    "a cycle number that is a list": lambda: _json('{"last_cycle":[', "1,", "]}"),
    "one key many times": lambda: _json('{"unit":"a",', '"unit":"b",', "}"),
    "a unit's name of 16 MB": lambda: _json('{"unit":"', "aa", '"}'),
    "a column's name of 16 MB": lambda: _json('{"columns":{"', "aa", '":[1]}}'),
    "escapes": lambda: _json('{"columns":{"', "\\u00e9", 'a":[1]}}', last="a"),
    "a number of 16 MB": lambda: _json('{"last_cycle":', "11", "}"),
    "white space": lambda: _json("{", "  ", "}"),
    "keys that are unknown": lambda: Hostile(PREDICT, JSON, _filled("{", '"a":1,', "}")),
    "zeros, compressed": lambda: Hostile(
        PREDICT, {**JSON, "content-encoding": "gzip"}, gzip.compress(bytes(SIZE), 1)
    ),
    "Open Inference, good": oip_good,
    "Open Inference, nested": oip_nested,
    "Open Inference, numbers at the low end": oip_smallest,
    "Open Inference, NaN": lambda: _oip('{"inputs":[{"data":[', "NaN,", "]}]}"),
    "Open Inference, strings": lambda: _oip('{"inputs":[{"data":[', '"",', "]}]}"),
    "Open Inference, flat": lambda: _oip(
        '{"inputs":[{"name":"readings","datatype":"FP32","shape":[1,9,3],"data":[', "1,", "]}]}"
    ),
    "Open Inference, empty lists": lambda: _oip(
        '{"inputs":[{"name":"readings","datatype":"FP32","shape":[1,9,3],"data":[', "[],", "]}]}"
    ),
    "Open Inference, inputs": lambda: _oip('{"inputs":[', '{"name":"","shape":[],"datatype":""},', "]}"),
    "Open Inference, outputs": lambda: _oip('{"inputs":[],"outputs":[', '{"name":""},', "]}"),
    "Open Inference, a shape of millions": lambda: _oip(
        '{"inputs":[{"name":"readings","datatype":"FP32","shape":[', "1,", '],"data":[1]}]}'
    ),
    "Open Inference, parameters": lambda: _oip('{"inputs":[],"parameters":{"a":[', "1,", "]}}"),
    "Open Inference, many parameters": lambda: _oip('{"inputs":[],"parameters":{', '"":1,', "}}"),
    "Open Inference, infinite": lambda: _binary(float("inf")),
    "Open Inference, missing": lambda: _binary(float("nan")),
    "the index's body": lambda: Hostile("/v2/repository/index", JSON, _filled('{"a":[', "1,", "]}")),
    "an outcome's body": lambda: Hostile("/v1/units/1/outcomes", JSON, _filled('{"kind":"', "aa", '"}')),
    "gRPC, empty windows": lambda: _predict(_delimited(4, b"") * (SIZE // 2)),
    "gRPC, empty readings": empty_readings,
    "gRPC, readings of one column": short_readings,
    "gRPC, a million columns": map_entries,
    "gRPC, unknown fields": lambda: _predict(b"\x78\x00" * (SIZE // 2)),
    "gRPC, unknown groups": lambda: _predict(b"\x7b\x7c" * (SIZE // 2)),
    "gRPC, infinite": lambda: _readings(float("inf")),
    "gRPC, good": lambda: _readings(1.5),
    "gRPC, numbers one by one": lambda: _predict(
        _delimited(4, _delimited(4, b"\x0d\0\0\0\0" * (SIZE // 5 - 10)))
    ),
    "gRPC, inputs": lambda: _infer(_delimited(5, b"") * (SIZE // 2)),
    "gRPC, raw contents": lambda: _infer(_delimited(7, b"") * (SIZE // 2)),
    "gRPC, a shape of millions": lambda: _infer(_delimited(5, _delimited(3, b"\1" * (SIZE - 10)))),
    "gRPC, bytes": lambda: _infer(_delimited(5, _delimited(5, _delimited(8, b"") * (SIZE // 2 - 10)))),
    "gRPC, tensor infinite": lambda: oip_message(float("inf")),
    "gRPC, tensor good": lambda: oip_message(1.5),
    "gRPC, a stream's history": stream_map,
}
