"""The kernel, the allocator and the interpreter are told what the service needs."""

import gc
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from service.processes import tuning

linux = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no SCHED_BATCH")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.pthread.rseq=0"),
        ("glibc.malloc.check=1", "glibc.malloc.check=1:glibc.pthread.rseq=0"),
        ("glibc.pthread.rseq=1", "glibc.pthread.rseq=1"),  # the operator's own choice
    ],
)
def test_restartable_sequences_are_left_to_the_allocator_and_other_tunables_are_kept(given, expected):
    found = tuning.library_variables({"GLIBC_TUNABLES": given} if given else {})

    assert found["GLIBC_TUNABLES"] == expected


@pytest.mark.parametrize(("given", "expected"), [({}, "1"), ({"OPENBLAS_NUM_THREADS": "4"}, "4")])
def test_numpy_starts_no_threads_in_a_worker_unless_the_operator_says_so(given, expected):
    assert tuning.library_variables(given)["OPENBLAS_NUM_THREADS"] == expected


@pytest.mark.parametrize(
    ("processors", "kept"), [(1, tuning.MAX_CACHE_BYTES), (8, 512 << 10), (256, tuning.MIN_CACHE_BYTES)]
)
def test_caches_are_smaller_where_there_are_more_processors(processors, kept):
    config = tuning.limit_caches({"admin": {}}, processors=processors)

    assert config["memory_allocator_manager"]["max_per_cpu_cache_size_bytes"] == kept
    assert config["admin"] == {}


@linux
def test_a_process_and_its_children_run_with_the_batch_policy():
    policy = "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    script = (
        "import subprocess, sys; from service.processes.tuning import schedule_as_batch\n"
        f"done = schedule_as_batch(); child = [sys.executable, '-c', {policy!r}]\n"
        "print(done, subprocess.check_output(child, text=True).strip())"
    )

    said = subprocess.check_output([sys.executable, "-c", script], text=True)

    assert said.split() == ["True", "True"]


@linux
def test_a_process_and_its_children_have_no_huge_pages():
    script = (
        "import subprocess; from service.processes.tuning import disable_huge_pages\n"
        "disable_huge_pages(); print(subprocess.check_output(['cat', '/proc/self/status'], text=True))"
    )

    said = subprocess.check_output([sys.executable, "-c", script], text=True)

    assert "THP_enabled:\t0" in said


@pytest.mark.parametrize("has_policy", [pytest.param(True, marks=linux), False])
def test_a_system_without_the_policy_or_a_sandbox_that_forbids_it_is_no_failure(monkeypatch, has_policy):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse, raising=False)
    if not has_policy:
        monkeypatch.delattr(os, "SCHED_BATCH", raising=False)

    assert not tuning.schedule_as_batch()


@pytest.fixture
def interpreter() -> Iterator[None]:
    """The interpreter's settings, restored at the end."""
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.unfreeze()  # what the tests' own conftest froze
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("interpreter")
def test_after_start_up_the_collector_skips_old_objects_and_finds_new_garbage():
    tuning.settle_interpreter(inference_threads=False)

    assert gc.get_freeze_count() > 0
    assert gc.isenabled()
    assert gc.get_threshold()[0] == tuning.COLLECT_AFTER_OBJECTS
    ring = []
    ring.append(ring)
    del ring
    assert gc.collect() > 0


@pytest.mark.usefixtures("interpreter")
@pytest.mark.parametrize("inference_threads", [True, False])
def test_the_loop_keeps_the_gil_less_than_a_batch_only_from_inference_threads(inference_threads):
    before = sys.getswitchinterval()

    tuning.settle_interpreter(inference_threads=inference_threads)

    expected = tuning.SWITCH_SECONDS if inference_threads else before
    assert sys.getswitchinterval() == pytest.approx(expected)
