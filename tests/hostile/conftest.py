"""A generous time limit for each hostile test, so that none hangs."""

import signal

import pytest

SECONDS = 300
SECONDS_AN_EXAMPLE = 0.1


@pytest.fixture(autouse=True)
def time_limit(request):
    """Raise TimeoutError in a test that takes too long, repeatedly until it ends."""

    def end(*_):
        raise TimeoutError(f"{request.node.name} took more than {limit:g} s")

    limit = SECONDS + SECONDS_AN_EXAMPLE * request.config.getoption("--examples")
    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, limit, 10)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)
