import numpy as np
import pytest
import torch

from export.attention import head_redundancy
from model.losses import AdaptiveNormaliser, entropy_loss, heads_alike, health_labels, rul_loss, task_losses
from model.network import Estimate
from tests.unit.test_network import CONFIG

pytestmark = pytest.mark.usefixtures("one_thread")


def estimate(unclipped, *, health=None, attention=None, head_attention=None):
    nothing = torch.zeros(len(unclipped), 1)
    attention = torch.ones(len(unclipped), 1) if attention is None else attention
    return Estimate(unclipped, nothing, attention, nothing, nothing, head_attention, health)


def test_without_a_weight_the_rul_loss_is_the_mean_square_error_over_the_cap():
    loss = rul_loss(torch.tensor([50.0, 90.0]), torch.tensor([60.0, 110.0]), cap=100.0, low_rul_weight=0.0)

    assert loss.item() == pytest.approx((0.1**2 + 0.2**2) / 2)


@pytest.mark.parametrize(("rul", "weight"), [(0.0, 3.0), (50.0, 2.0), (100.0, 1.0)])
def test_an_error_near_failure_weighs_more(rul, weight):
    truth = torch.tensor([rul])

    loss = rul_loss(truth + 10.0, truth, cap=100.0, low_rul_weight=2.0)

    assert loss.item() == pytest.approx(weight * 0.01)


def test_an_answer_above_the_lower_bound_of_a_censored_unit_is_no_error():
    rul, censored = torch.tensor([50.0, 50.0, 50.0]), torch.tensor([True, True, False])

    loss = rul_loss(torch.tensor([70.0, 40.0, 60.0]), rul, cap=100.0, low_rul_weight=0.0, censored=censored)

    assert loss.item() == pytest.approx((0.0 + 0.1**2 + 0.1**2) / 3)


def test_health_labels_follow_the_bounds():
    rul = torch.tensor([0.0, 20.0, 20.5, 60.0, 61.0, 100.0])

    assert health_labels(rul, CONFIG).tolist() == [2, 2, 1, 1, 0, 0]


def test_a_network_has_the_tasks_that_it_has_heads_for():
    rul = torch.tensor([10.0, 80.0])
    logits = torch.tensor([[0.0, 0.0, 9.0], [9.0, 0.0, 0.0]])

    one = task_losses(estimate(rul), rul, CONFIG, low_rul_weight=0.0)
    two = task_losses(estimate(rul, health=logits), rul, CONFIG, low_rul_weight=0.0)

    assert list(one) == ["rul"]
    assert list(two) == ["rul", "health"]
    assert two["health"].item() < 1e-3  # both are told rightly


def test_one_task_alone_is_left_as_it_is():
    normalise = AdaptiveNormaliser()
    loss = torch.tensor(0.037)

    assert normalise({"rul": loss}) is loss
    assert normalise.averages == {}


def test_each_task_is_divided_by_its_own_running_average():
    normalise = AdaptiveNormaliser()
    small, large = torch.tensor(0.01, requires_grad=True), torch.tensor(100.0, requires_grad=True)

    total = normalise({"rul": small, "health": large})
    total.backward()

    assert total.item() == pytest.approx(2.0)
    assert (small.grad * small).item() == pytest.approx((large.grad * large).item())


def test_the_running_average_follows_a_loss_that_falls():
    normalise = AdaptiveNormaliser()
    for _ in range(600):
        total = normalise({"rul": torch.tensor(1.0), "health": torch.tensor(5.0)})
    for _ in range(600):
        total = normalise({"rul": torch.tensor(0.1), "health": torch.tensor(5.0)})

    assert total.item() == pytest.approx(2.0, abs=0.05)
    assert normalise.averages["rul"] == pytest.approx(0.1, rel=0.05)


def test_a_loss_of_zero_does_not_divide_by_zero():
    normalise = AdaptiveNormaliser()

    total = normalise({"rul": torch.tensor(0.0), "health": torch.tensor(0.0)})

    assert total.item() == 0.0


def test_the_entropy_loss_is_nothing_for_even_attention_and_one_for_a_single_cycle():
    lengths = torch.tensor([4])
    even, single = torch.full((1, 4), 0.25), torch.tensor([[0.0, 1.0, 0.0, 0.0]])

    assert entropy_loss(estimate(torch.ones(1), attention=even), lengths).item() == pytest.approx(
        0.0, abs=1e-6
    )
    assert entropy_loss(estimate(torch.ones(1), attention=single), lengths).item() == pytest.approx(1.0)


def test_the_entropy_loss_counts_the_heads_as_much_as_the_attention():
    lengths = torch.tensor([4])
    even, single = torch.full((1, 4), 0.25), torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    heads = torch.stack((single, even), dim=1)  # [1, 2, 4]

    loss = entropy_loss(estimate(torch.ones(1), attention=even, head_attention=heads), lengths)

    assert loss.item() == pytest.approx(0.25)


ONE_HOT = torch.eye(4)


@pytest.mark.parametrize(
    ("heads", "likeness"),
    [
        ([ONE_HOT[0], ONE_HOT[0]], 1.0),
        ([torch.full((4,), 0.25)] * 3, 1.0),
        ([ONE_HOT[0], ONE_HOT[1]], 0.0),
        ([ONE_HOT[0], ONE_HOT[1], ONE_HOT[2]], 0.0),
        ([torch.tensor([0.5, 0.5, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.5, 0.5])], 0.0),
    ],
)
def test_heads_are_alike_from_no_shared_cycle_to_the_same_weights(heads, likeness):
    weights = torch.stack(heads)[None]

    assert heads_alike(weights, torch.tensor([4])).item() == pytest.approx(likeness, abs=1e-6)


def test_the_likeness_of_two_heads_is_one_minus_the_divergence_that_rul_attention_reports():
    weights = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(1)).softmax(-1)

    apart = head_redundancy(weights.numpy(), np.full(6, 5))[0, 1]

    assert heads_alike(weights, torch.full((6,), 5)).item() == pytest.approx(1.0 - apart, abs=1e-6)


@pytest.mark.parametrize("heads", [None, torch.full((2, 1, 4), 0.25)])
def test_without_two_heads_there_is_nothing_to_drive_apart(heads):
    assert heads_alike(heads, torch.tensor([4, 4])) == 0.0
