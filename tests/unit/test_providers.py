"""Where a model runs: what is asked for, what comes of it, and buffers of fixed shapes as a GPU has them."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import get_ident
from types import SimpleNamespace

import numpy as np
import onnxruntime as ort
import pytest

from export.bundle import InvalidBundle
from export.outputs import output_shapes
from export.probes import probe_windows
from service.choices import ProviderChoice
from service.core import session
from service.core.providers import (
    CPU,
    CUDA,
    TENSORRT,
    Placement,
    attempts,
    order,
    placement,
    with_options,
)
from service.core.runtime import OnnxRuntime
from service.core.session import BoundSession, gpu_session, padded
from service.machine import usable_cores
from service.models import batches_at_once
from service.settings import Settings
from tests.fakes import make_manifest

GPU_BUILD = [TENSORRT, CUDA, CPU]
CPU_BUILD = ["AzureExecutionProvider", CPU]


@pytest.mark.parametrize(
    ("choice", "available", "expected"),
    [
        ("cpu", GPU_BUILD, [CPU]),
        ("auto", GPU_BUILD, [CUDA, CPU]),
        ("auto", CPU_BUILD, [CPU]),
        ("cuda", GPU_BUILD, [CUDA, CPU]),
        ("tensorrt", GPU_BUILD, [TENSORRT, CUDA, CPU]),
        ("tensorrt", [CUDA, CPU], [CUDA, CPU]),
    ],
)
def test_providers_are_asked_for_best_first(choice, available, expected):
    assert order(ProviderChoice(choice), available) == expected


@pytest.mark.parametrize("choice", ["cuda", "tensorrt"])
def test_a_gpu_is_refused_where_onnx_runtime_can_use_none(choice):
    with pytest.raises(InvalidBundle, match=f"expected provider {choice}.*extra `gpu`"):
        order(ProviderChoice(choice), CPU_BUILD)


@pytest.mark.parametrize(
    ("choice", "available", "got", "driver", "why"),
    [
        ("cpu", GPU_BUILD, [CPU], True, None),
        ("cuda", GPU_BUILD, [CUDA, CPU], True, None),
        ("auto", CPU_BUILD, [CPU], False, None),
        ("auto", CPU_BUILD, [CPU], True, f"this ONNX Runtime was built without {CUDA}"),
        ("auto", GPU_BUILD, [CPU], False, f"ONNX Runtime could not load {CUDA}: its log says which"),
        ("tensorrt", GPU_BUILD, [TENSORRT, CUDA, CPU], True, None),
        ("tensorrt", GPU_BUILD, [CUDA, CPU], True, f"ONNX Runtime could not load {TENSORRT}"),
        ("tensorrt", [CUDA, CPU], [CUDA, CPU], True, f"this ONNX Runtime was built without {TENSORRT}"),
    ],
)
def test_a_fallback_says_why(choice, available, got, driver, why):
    found = placement(ProviderChoice(choice), available, got, driver=driver)

    assert found.providers == tuple(got)
    assert (found.fallback is None) if why is None else found.fallback.startswith(why)


@pytest.mark.parametrize("choice", ["cuda", "tensorrt"])
def test_a_gpu_that_was_asked_for_by_name_is_not_replaced_by_the_cpu(choice):
    with pytest.raises(InvalidBundle, match=r"export .* again.*RUL_PROVIDER=auto"):
        placement(ProviderChoice(choice), GPU_BUILD, [CPU], driver=True, failure="the graph is not captured")


@pytest.mark.parametrize(("asked", "on_cpu"), [(0, usable_cores()), (3, 3)])
def test_a_gpu_runs_one_batch_at_a_time(asked, on_cpu):
    settings = Settings(inference_threads=asked)

    assert batches_at_once(settings, CPU) == on_cpu
    assert batches_at_once(settings, CUDA) == 1


def test_the_error_of_a_provider_is_the_reason_of_its_fallback():
    found = placement(
        ProviderChoice.TENSORRT, GPU_BUILD, [CUDA, CPU], driver=True, failure="libnvinfer.so.10 is missing"
    )

    assert found.fallback == f"{TENSORRT} failed: libnvinfer.so.10 is missing"


def test_a_provider_that_fails_gives_its_place_to_the_next(shipped):
    malformed = (CUDA, "options that are no dictionary")

    found, failure = gpu_session(shipped.model.read_bytes(), [[malformed, CPU], [CPU]])

    assert found.get_providers() == [CPU]
    assert "dict" in failure


def test_the_first_of_several_errors_is_told(monkeypatch):
    errors = iter([ValueError("of the best provider"), ValueError("of the next")])

    def opened(_, wanted):
        if wanted == [CPU]:
            return SimpleNamespace(get_providers=lambda: [CPU])
        raise next(errors)

    monkeypatch.setattr(session, "_session", opened)

    _, failure = gpu_session(b"", attempts([TENSORRT, CUDA, CPU], make_manifest(), most_windows=32))

    assert failure == "of the best provider"


def test_what_onnx_runtime_prints_while_it_loads_cuda_is_no_part_of_a_commands_output(
    shipped, monkeypatch, capsys
):
    monkeypatch.setattr(ort, "preload_dlls", lambda: sys.stdout.write("libcudnn is missing"), raising=False)

    gpu_session(shipped.model.read_bytes(), [[CPU]])

    assert capsys.readouterr() == ("", "libcudnn is missing")


def test_a_provider_that_onnx_runtime_leaves_out_gives_its_place_to_the_next(monkeypatch):
    tried = []

    def opened(_, wanted):
        tried.append(wanted)
        return SimpleNamespace(get_providers=lambda: [CUDA, CPU])

    monkeypatch.setattr(session, "_session", opened)
    wanted = attempts([TENSORRT, CUDA, CPU], make_manifest(), most_windows=32)

    _, failure = gpu_session(b"", wanted)

    assert tried == wanted[:2]
    assert failure is None


@pytest.mark.parametrize(("wanted", "planned"), [([CPU], True), ([(CUDA, {}), CPU], False)])
def test_memory_is_planned_by_shape_on_the_cpu_alone(monkeypatch, wanted, planned):
    given = []
    monkeypatch.setattr(ort, "InferenceSession", lambda _, *, sess_options, **__: given.append(sess_options))

    session._session(b"", wanted)

    assert [options.enable_mem_pattern for options in given] == [planned]


def test_a_gpu_computes_with_all_bits(shipped, monkeypatch):
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "1")

    _, failure = gpu_session(shipped.model.read_bytes(), [[CPU]])

    assert failure is None
    assert os.environ["NVIDIA_TF32_OVERRIDE"] == "0"


def test_cuda_does_not_try_convolutions_out_and_replays_its_kernels():
    options = {"cudnn_conv_algo_search": "HEURISTIC", "enable_cuda_graph": "1"}

    assert with_options([CUDA, CPU], make_manifest(), most_windows=32) == [(CUDA, options), CPU]


def test_each_attempt_leaves_the_best_provider_out_and_only_one_that_runs_every_node_replays_kernels():
    found = attempts([TENSORRT, CUDA, CPU], make_manifest(), most_windows=32)

    names = [[each if isinstance(each, str) else each[0] for each in wanted] for wanted in found]
    replayed = ["enable_cuda_graph" in dict(wanted[:-1]).get(CUDA, {}) for wanted in found]
    assert names == [[TENSORRT, CUDA, CPU], [CUDA, CPU], [CPU]]
    assert replayed == [False, True, False]


def test_tensorrt_is_told_which_shapes_come():
    manifest = make_manifest()

    (name, options), *_ = with_options([TENSORRT, CUDA, CPU], manifest, most_windows=32)

    t, f = manifest.context, len(manifest.columns)
    assert name == TENSORRT
    assert options["trt_profile_min_shapes"] == f"readings:1x{t}x{f},lengths:1,last_cycle:1"
    largest = f"readings:32x{t}x{f},lengths:32,last_cycle:32"
    assert options["trt_profile_opt_shapes"] == options["trt_profile_max_shapes"] == largest


@pytest.fixture(scope="module")
def runtime(shipped):
    return OnnxRuntime.load(shipped, provider=ProviderChoice.CPU)


@pytest.fixture
def bound(runtime):
    """The graph behind buffers, on the device that there is."""
    return BoundSession(runtime.session, runtime.manifest, device="cpu")


def asked(manifest, rows):
    windows = probe_windows(manifest).take(np.arange(rows))
    return windows.readings, windows.lengths, windows.last_cycle


def test_the_cpu_is_asked_without_buffers(runtime):
    assert runtime.placement == Placement((CPU,))
    assert runtime._bound is None


@pytest.mark.parametrize("rows", [1, 2, 8, 64])
def test_a_batch_that_fits_its_buffers_gets_the_same_bits(runtime, bound, rows):
    question = asked(runtime.manifest, rows)
    expected = runtime.run(*question)

    got = bound.run(*question)

    assert set(got) == set(output_shapes(runtime.manifest, windows=1, cycles=1))
    for name, value in got.items():
        np.testing.assert_array_equal(value, getattr(expected, name), err_msg=name)


@pytest.mark.parametrize(("rows", "cycles"), [(3, 12), (5, 7), (1, 1), (33, 12)])
def test_a_padded_batch_answers_in_the_shape_that_was_asked(runtime, bound, rows, cycles):
    readings, lengths, last_cycle = asked(runtime.manifest, rows)
    question = readings[:, :cycles], np.minimum(lengths, cycles), last_cycle
    expected = runtime.run(*question)

    got = bound.run(*question)

    for name, value in got.items():
        wanted = getattr(expected, name)
        scale = runtime.manifest.cap if name in {"rul", "rul_interval", "contribution"} else 1.0
        assert value.shape == wanted.shape
        np.testing.assert_allclose(value / scale, wanted / scale, atol=1e-5, rtol=1e-5, err_msg=name)


def test_an_answer_is_not_overwritten_by_the_next(runtime, bound):
    first = bound.run(*asked(runtime.manifest, 4))
    kept = first["rul"].copy()
    readings, lengths, last_cycle = asked(runtime.manifest, 4)

    bound.run(readings[::-1], lengths[::-1], last_cycle[::-1])

    np.testing.assert_array_equal(first["rul"], kept)


def test_buffers_are_shared_by_sizes_and_by_threads(runtime, bound):
    sizes = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    expected = {size: runtime.run(*asked(runtime.manifest, size)).rul for size in set(sizes)}

    with ThreadPoolExecutor(4) as executor:
        answers = list(executor.map(lambda size: bound.run(*asked(runtime.manifest, size))["rul"], sizes))

    for size, answer in zip(sizes, answers, strict=True):
        np.testing.assert_allclose(answer, expected[size], atol=1e-4)
    assert sorted(windows for windows, _ in bound._buffers) == [1, 2, 4, 8]


def test_one_thread_uses_the_gpu_for_all_models_and_callers(runtime, monkeypatch):
    run, threads = session._Buffers.run, set[int]()

    def noted(buffers, *question):
        threads.add(get_ident())
        return run(buffers, *question)

    monkeypatch.setattr(session._Buffers, "run", noted)
    models = [BoundSession(runtime.session, runtime.manifest, device="cpu") for _ in range(2)]

    with ThreadPoolExecutor(4) as executor:
        list(executor.map(lambda i: models[i % 2].run(*asked(runtime.manifest, 3)), range(16)))

    assert len(threads) == 1


def test_a_warm_graph_has_buffers_and_captured_kernels_of_every_size_of_batch(runtime, bound):
    bound.warm_up(6)

    captured = {each._options.get_run_config_entry("gpu_graph_id") for each in bound._buffers.values()}
    assert sorted(bound._buffers) == [(windows, runtime.manifest.context) for windows in (1, 2, 4, 8)]
    assert captured == {"1", "2", "3", "4"}


def test_windows_longer_than_the_model_reads_have_buffers_of_their_own(runtime, bound):
    readings, lengths, last_cycle = asked(runtime.manifest, 2)
    longer = np.concatenate([readings, readings], axis=1), lengths, last_cycle

    got, expected = bound.run(*longer), runtime.run(*longer)

    assert got["attention"].shape == expected.attention.shape
    np.testing.assert_allclose(got["rul"], expected.rul, atol=1e-4)


def test_what_fills_a_batch_up_are_windows_that_the_graph_allows():
    readings, lengths, last_cycle = padded(
        np.ones((2, 3, 4), np.float32),
        np.array([3, 2]),
        np.array([9, 8], np.float32),
        windows=4,
        cycles=5,
    )

    assert readings.shape == (4, 5, 4)
    assert lengths.tolist() == [3, 2, 1, 1]
    assert np.isnan(readings[2:]).all()
    assert np.isnan(last_cycle[2:]).all()
    assert (readings.dtype, lengths.dtype, last_cycle.dtype) == (np.float32, np.int64, np.float32)


def test_this_onnx_runtime_has_the_names_that_we_ask_for():
    assert {CPU, CUDA, TENSORRT} <= set(ort.get_all_providers())
