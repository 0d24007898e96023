"""The CUDA provider is really used, and answers what the CPU answers. Skipped where there is none."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort
import pytest

from export.bundle import BUNDLED, BundleFolder
from export.outputs import TOLERANCE, output_shapes
from export.probes import probe_windows
from export.seal import read_bundle
from service.core.providers import CPU, CUDA, TENSORRT
from service.core.runtime import OnnxRuntime, replay_golden

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(CUDA not in ort.get_available_providers(), reason=f"this ONNX Runtime has no {CUDA}"),
]

SHIPPED = sorted(folder.name for folder in BUNDLED.iterdir() if (folder / "model.onnx").is_file())


@pytest.fixture(scope="module", params=SHIPPED)
def folder(request) -> BundleFolder:
    return BundleFolder(BUNDLED / request.param)


def assert_agree(gpu, cpu, asked):
    got, expected = gpu.run(*asked), cpu.run(*asked)
    for name in output_shapes(gpu.manifest, windows=1, cycles=1):
        np.testing.assert_allclose(
            getattr(got, name), getattr(expected, name), atol=TOLERANCE[name], err_msg=name
        )


def test_auto_takes_the_gpu(folder):
    runtime = OnnxRuntime.load(folder, provider="auto")

    assert runtime.provider == CUDA


def test_the_gpu_is_asked_through_buffers_of_its_own(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda")

    assert runtime.placement.fallback is None
    assert runtime._bound is not None


def test_a_captured_size_of_batch_answers_after_all_others_are_captured(folder):
    gpu, cpu = (
        OnnxRuntime.load(folder, provider=provider, max_batch_windows=512) for provider in ("cuda", "cpu")
    )
    windows, random = probe_windows(gpu.manifest), np.random.default_rng(0)

    for rows in random.integers(1, 513, 40):
        chosen = windows.take(random.integers(0, len(windows), rows))
        asked = chosen.readings, chosen.lengths, chosen.last_cycle

        assert_agree(gpu, cpu, asked)


def test_every_thread_gets_the_captured_graph(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda")
    windows = probe_windows(runtime.manifest)

    def rul(rows):
        return runtime.run(windows.readings[:rows], windows.lengths[:rows], windows.last_cycle[:rows]).rul

    sizes = [1, 3, 8, 20] * 8
    alone = {rows: rul(rows) for rows in set(sizes)}
    with ThreadPoolExecutor(4) as executor:
        answers = list(executor.map(rul, sizes))

    for rows, answer in zip(sizes, answers, strict=True):
        np.testing.assert_array_equal(answer, alone[rows])


def test_a_model_answers_while_another_is_captured(folder):
    serving = OnnxRuntime.load(folder, provider="cuda")
    windows = probe_windows(serving.manifest)
    asked = windows.readings, windows.lengths, windows.last_cycle
    expected = serving.run(*asked).rul

    with ThreadPoolExecutor(1) as executor:
        loading = executor.submit(OnnxRuntime.load, folder, provider="cuda", max_batch_windows=512)
        while not loading.done():
            np.testing.assert_array_equal(serving.run(*asked).rul, expected)

    np.testing.assert_array_equal(loading.result().run(*asked).rul, expected)


def test_a_gpu_is_warm_at_every_size_of_batch(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda", max_batch_windows=32)

    assert {windows for windows, _ in runtime._bound._buffers} == {1, 2, 4, 8, 16, 32}


def test_the_same_batch_gets_the_same_bits_twice(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda")
    windows = probe_windows(runtime.manifest)

    first, second = (runtime.run(windows.readings, windows.lengths, windows.last_cycle) for _ in range(2))

    for name in output_shapes(runtime.manifest, windows=1, cycles=1):
        np.testing.assert_array_equal(getattr(first, name), getattr(second, name), err_msg=name)


def test_tensorrt_serves_or_says_why_cuda_does(folder):
    runtime = OnnxRuntime.load(folder, provider="tensorrt")

    assert (runtime.provider == TENSORRT) == (runtime.placement.fallback is None)
    replay_golden(runtime, read_bundle(folder).golden, origin=folder.golden)


def test_cpu_is_obeyed_where_there_is_a_gpu(folder):
    runtime = OnnxRuntime.load(folder, provider="cpu")

    assert runtime.provider == CPU


def test_golden_windows_agree_on_the_gpu(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda")

    replay_golden(runtime, read_bundle(folder).golden, origin=folder.golden)


@pytest.mark.parametrize("batch", [1, 2, 3, 5, 33, 64])  # some fit their buffers, some are filled up
def test_the_gpu_answers_like_the_cpu(folder, batch):
    gpu, cpu = (OnnxRuntime.load(folder, provider=provider) for provider in ("cuda", "cpu"))
    windows = probe_windows(gpu.manifest).take(np.arange(batch))

    assert_agree(gpu, cpu, (windows.readings, windows.lengths, windows.last_cycle))


def test_a_batch_on_the_gpu_answers_each_window_as_a_batch_of_one(folder):
    runtime = OnnxRuntime.load(folder, provider="cuda")
    windows = probe_windows(runtime.manifest)
    together = runtime.run(windows.readings, windows.lengths, windows.last_cycle)

    alone = [
        runtime.run(
            windows.readings[i : i + 1], windows.lengths[i : i + 1], windows.last_cycle[i : i + 1]
        ).rul[0]
        for i in range(len(windows))
    ]

    np.testing.assert_allclose(together.rul, alone, atol=TOLERANCE["rul"])
