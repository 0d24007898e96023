"""A silenced head: nothing that it reads reaches the answer, and its worth is the RMSE that it saves."""

import copy

import numpy as np
import pytest
import torch

from model.calibration import read_windows
from model.crossfit import held_out_fold
from model.experiments import NoHeads, ablate_heads, without_head
from tests.unit.test_networks_of_the_texts import FLEET, batch, network, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

WITH_HEADS = ["selfattention", "flagship"]


def unclipped(net):
    with torch.no_grad():
        return net.estimate(*batch()).unclipped


@pytest.mark.parametrize("head", [0, 1])
def test_silencing_a_head_of_self_attention_is_to_take_its_output_away(head):
    net = network("selfattention")
    width = net.between.head_width

    def silent(layer, inputs):
        kept = inputs[0].clone()
        kept[..., head * width : (head + 1) * width] = 0.0
        return (kept,)

    with net.between.out.register_forward_pre_hook(silent):
        expected = unclipped(net)

    torch.testing.assert_close(unclipped(without_head(net, head)), expected)
    assert not torch.equal(unclipped(net), expected)


def looking_elsewhere(net, head):
    """The network, whose head attends more evenly than it learnt to."""
    net = copy.deepcopy(net)
    look = net.look

    def elsewhere(*given):
        lag, content, attention = look(*given)
        even = attention[:, [head]].sqrt()
        return lag, content, attention.index_copy(1, torch.tensor([head]), even / even.sum(-1, keepdim=True))

    net.look = elsewhere
    return net


@pytest.mark.parametrize("head", range(5))
def test_where_a_silenced_head_of_the_flagship_looks_changes_nothing(head):
    net = network("flagship")
    torch.nn.init.normal_(net.mix)
    silent = without_head(net, head)

    torch.testing.assert_close(unclipped(looking_elsewhere(silent, head)), unclipped(silent))
    assert not torch.allclose(unclipped(looking_elsewhere(net, head)), unclipped(net))
    assert not torch.allclose(unclipped(silent), unclipped(net))


def test_a_network_without_heads_has_none_to_silence():
    with pytest.raises(NoHeads, match="'amnl' has no heads to silence"):
        without_head(network("amnl"), 0)


@pytest.mark.parametrize("name", WITH_HEADS)
def test_a_heads_worth_is_the_rmse_that_it_saves_on_held_out_units(name):
    trainer, parts, reference = trainer_of(name, steps=30)
    for _ in range(30):
        trainer.update()
    fold = held_out_fold(trainer.net, parts, reference)

    found = ablate_heads([fold])

    def rmse(net):
        rul = np.clip(read_windows(net, fold.windows).unclipped, 0, FLEET.cap)
        return np.sqrt(np.mean((rul - np.minimum(fold.windows.rul, FLEET.cap)) ** 2))

    assert [each.head for each in found] == list(range(trainer.net.config.heads))
    for each in found:
        assert each.rmse.value == pytest.approx(rmse(without_head(trainer.net, each.head)))
        assert each.more.value == pytest.approx(each.rmse.value - rmse(trainer.net), abs=1e-5)
    assert any(each.more.value != 0 for each in found)
