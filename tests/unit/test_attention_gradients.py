"""Gradients of attention against finite differences, in float64."""

import pytest
import torch
from torch.autograd import gradcheck

from model.attention import (
    SCORES,
    RelativePositions,
    Score,
    Temperature,
    TemporalScore,
    causal_mask,
    entropy_ratio,
    padding_mask,
)
from model.layers import cycles_after, masked_softmax, valid_cycles
from model.losses import heads_alike
from tests.attention_reference import SEED, drawn, self_attention

pytestmark = pytest.mark.usefixtures("one_thread")


def tensor(*shape, seed=SEED):
    return torch.from_numpy(drawn(*shape, seed=seed)).requires_grad_()


def with_parameters(module, *inputs):
    """What gradcheck varies: inputs and every parameter, so that each weight's gradient is checked."""
    names = [name for name, _ in module.named_parameters()]
    weights = [parameter for _, parameter in module.named_parameters()]

    def run(*given):
        chosen = dict(zip(names, given[len(inputs) :], strict=True))
        return torch.func.functional_call(module, chosen, given[: len(inputs)])

    return run, (*inputs, *weights)


VALID = torch.tensor([[True] * 5, [True, True, False, False, False], [False] * 5])


def test_the_softmax_of_padded_and_of_empty_windows():
    assert gradcheck(lambda score: masked_softmax(score, VALID), tensor(3, 5))


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize("heads", [1, 2])
def test_each_score_function(name, heads):
    torch.manual_seed(SEED)
    score = Score(name, width=3, heads=heads).double()

    assert gradcheck(*with_parameters(score, tensor(2, heads, 4, 3, seed=1), tensor(2, heads, 5, 3, seed=2)))


@pytest.mark.parametrize(
    "layer",
    [Temperature(learnable=True, heads=2), RelativePositions(heads=2, furthest=2)],
    ids=["temperature", "relative positions"],
)
def test_what_changes_the_scores_of_heads(layer):
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(SEED))

    assert gradcheck(*with_parameters(layer.double(), tensor(2, 2, 4, 4)))


@pytest.mark.parametrize("name", SCORES)
def test_temporal_attention_to_its_weighted_sum(name):
    torch.manual_seed(SEED)
    layer = TemporalScore(4, 3, score=name, learnable_temperature=True).double()
    run, given = with_parameters(layer, tensor(3, 5, 4))

    def weighted_sum(h, *weights):
        return (masked_softmax(run(h, *weights), VALID).unsqueeze(-1) * h).sum(1)

    assert gradcheck(weighted_sum, given)


@pytest.mark.parametrize("mask", [padding_mask, causal_mask])
@pytest.mark.parametrize("score", SCORES)
def test_self_attention_with_every_option(score, mask):
    options = {"score": score, "learnable_temperature": True, "furthest": 2}
    layer = self_attention(4, heads=2, head_width=2, **options)
    allowed = mask(valid_cycles(cycles_after(torch.zeros(2, 3, 1), torch.tensor([3, 2]))))

    assert gradcheck(*with_parameters(layer, tensor(2, 3, 4), allowed))


def test_the_entropy_of_attention_to_its_scores():
    lengths = torch.tensor([5, 2, 1])
    valid = valid_cycles(cycles_after(torch.zeros(3, 5, 1), lengths))

    assert gradcheck(lambda score: entropy_ratio(masked_softmax(score, valid), lengths), tensor(3, 5))


def test_the_likeness_of_heads_to_their_scores():
    lengths = torch.tensor([5, 2, 1])
    valid = valid_cycles(cycles_after(torch.zeros(3, 5, 1), lengths))[:, None].expand(-1, 2, -1)

    assert gradcheck(lambda score: heads_alike(masked_softmax(score, valid), lengths), tensor(3, 2, 5))
