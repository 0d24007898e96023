"""The hostile runs, short: every answer is right or a documented error, and nothing acknowledged is lost."""

import re
import subprocess
import sys

import pytest

from tests.hostile.soak import Sample, growth_of

SECONDS = 600

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the runs read /proc")


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *arguments], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_chaos_costs_no_answer_and_no_acknowledged_write():
    # This seed brings each kind of fault once where no file system can be mounted.
    options = "--minutes 0 --faults 7 --seed 381 --pace 0.05 --recovery 60"
    output = run("tests.hostile.chaos", *options.split())

    assert "7 faults; calls: " in output
    assert output.rstrip().endswith("0 findings.")


def test_a_soak_leaves_descriptors_and_threads_as_they_were():
    output = run("tests.hostile.soak", "--requests", "300")

    assert re.search(r"slope of memory, 95 % interval \| -?[\d.]+ ± [\d.]+ KiB", output)
    assert "\n0 findings." in output


def samples(*, threads: list[int]) -> list[Sample]:
    return [Sample(60 + i, 2**29, 90, count) for i, count in enumerate(threads)]


def test_a_soak_names_a_thread_that_each_fifty_requests_leave_behind():
    leaking = samples(threads=[31 + i // 50 for i in range(240)])

    assert growth_of(leaking) == ["threads grew by at least 4.2, from 31"]


def test_a_soak_names_no_thread_that_a_pool_opens_late():
    assert growth_of(samples(threads=[31] * 120 + [32] * 120)) == []
