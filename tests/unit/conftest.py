"""What unit tests share."""

import pytest


@pytest.fixture(scope="session")
def one_thread():
    """Torch with one thread: small tensors gain nothing from more, and bits stay the same."""
    import torch

    torch.set_num_threads(1)
