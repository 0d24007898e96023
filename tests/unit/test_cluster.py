"""The choice between this process and a cluster; tests/integration/test_ray.py has a cluster."""

import pytest

from model.cluster import ClusterFailed, connected, mapped
from tests.integration.conftest import free_port


def test_without_an_address_items_are_mapped_here_one_at_a_time():
    begun = []

    with connected(None, threads=1, start=lambda: None) as cluster:
        results = mapped(begun.append, [1, 2], cluster)
        next(results)

    assert cluster is None
    assert begun == [1]


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "127.0.0.1:here", "ray://127.0.0.1:{port}"])
def test_an_address_without_a_cluster_is_refused_by_its_name(address):
    pytest.importorskip("ray", reason="Ray is not installed")
    address = address.format(port=free_port())

    with (
        pytest.raises(ClusterFailed, match=f"--ray {address}: expected a running Ray cluster"),
        connected(address, threads=1, start=lambda: None),
    ):
        pass
