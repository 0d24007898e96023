"""How Envoy is told to keep memory."""

import pytest

from service.processes.allocator import LEAST_BYTES, MOST_BYTES, by_processor, sparing


def test_restartable_sequences_are_left_to_the_allocator():
    assert by_processor({}) == {"GLIBC_TUNABLES": "glibc.pthread.rseq=0"}


def test_what_the_operator_tells_glibc_besides_stays():
    given = {"GLIBC_TUNABLES": "glibc.malloc.check=1"}

    assert by_processor(given) == {"GLIBC_TUNABLES": "glibc.malloc.check=1:glibc.pthread.rseq=0"}


def test_an_operator_who_has_decided_on_sequences_is_obeyed():
    assert by_processor({"GLIBC_TUNABLES": "glibc.pthread.rseq=1"}) == {}


@pytest.mark.parametrize(("processors", "kept"), [(1, MOST_BYTES), (8, 512 << 10), (256, LEAST_BYTES)])
def test_the_more_processors_the_less_each_of_their_caches_keeps(processors, kept):
    config = sparing({"admin": {}}, processors=processors)

    assert config["memory_allocator_manager"]["max_per_cpu_cache_size_bytes"] == kept
    assert config["admin"] == {}
