"""Threads of the service let each other finish, where the system knows how."""

import os
import subprocess
import sys

import pytest

from service.processes import scheduling

linux = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="this system has no SCHED_BATCH")


@linux
def test_a_process_and_its_children_run_as_batch_work():
    policy = "import os; print(os.sched_getscheduler(0) == os.SCHED_BATCH)"
    script = (
        "import subprocess, sys; from service.processes.scheduling import yield_to_running\n"
        f"told = yield_to_running(); child = [sys.executable, '-c', {policy!r}]\n"
        "print(told, subprocess.check_output(child, text=True).strip())"
    )

    said = subprocess.check_output([sys.executable, "-c", script], text=True)

    assert said.split() == ["True", "True"]


@linux
def test_a_sandbox_that_does_not_allow_it_is_no_failure(monkeypatch):
    def refuse(*_):
        raise PermissionError("not here")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)

    assert not scheduling.yield_to_running()


def test_a_system_without_it_is_no_failure(monkeypatch):
    monkeypatch.delattr(os, "SCHED_BATCH", raising=False)

    assert not scheduling.yield_to_running()
