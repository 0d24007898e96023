"""Processes of a command."""

import threading
import time

import pytest

from rul_client.commands.processes import process_pool


def interrupted():
    with process_pool(1) as pool:
        assert pool.submit(int).result() == 0
        pool.submit(time.sleep, 60)
        raise KeyboardInterrupt


def test_an_interrupted_pool_leaves_no_thread_that_ends_while_the_command_exits():
    before = {*threading.enumerate()}

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert {*threading.enumerate()} <= before
