"""`amnl` and `selfattention`: their widths, what they promise, and what their options do."""

import json
from dataclasses import asdict, replace

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from export.attention import head_redundancy
from export.outputs import MAP, PER_CYCLE, cycles_of
from export.to_onnx import to_onnx
from model.calibration import entropy_references, read_windows
from model.dataset import split_fold
from model.fleet import SHORTEST_CONTEXT, fleet_named
from model.layers import cycles_after, valid_cycles
from model.networks import (
    NETWORKS,
    InvalidOption,
    build_network,
    config_from_json,
    fleet_for,
    network_config,
)
from model.run import prepare
from model.training import TrainConfig
from tests.fleets import PUMPS, worn_pumps
from tests.tiny_bundle import SMALL

pytestmark = pytest.mark.usefixtures("one_thread")

FLEET = replace(PUMPS, context=12)
VARIANTS = [
    ("flagship", {}),
    ("amnl", {}),
    ("amnl", {"score": "dot", "learnable_temperature": True}),
    ("amnl", {"score": "scaled_dot", "age": True}),
    ("amnl", {"last_state": True, "health_task": False}),
    ("selfattention", {}),
    ("selfattention", {"causal": True, "positions": True, "learnable_temperature": True}),
    ("selfattention", {"score": "additive", "age": True}),
    ("selfattention", {"relative_positions": True, "score": "additive"}),
    ("selfattention", {"score": "dot"}),
    ("flagship", {"heads": 1}),
    ("flagship", {"reads_settings": True}),
]
CONFIG = TrainConfig(seed=5, steps=12, batch=16, check_every=4, truncations=4)


def network(name, *, fleet=FLEET, **options):
    torch.manual_seed(0)
    config = network_config(fleet, network=name, regimes=1, options={**SMALL[name], **options})
    net = build_network(config)
    net.oldest.fill_(100.0)
    if config.relative_positions:  # they begin at 0
        torch.nn.init.normal_(net.between.relative.bias)
    return net.eval()


def trainer_of(name, *, units=None, **config):
    """A trainer of a tiny network on worn pumps, its parts and the statistics of the training units."""
    units = units or worn_pumps(units=12, seed=2)
    parts = split_fold(units, FLEET, fold=0, folds=3, seed=5, truncations=4)
    chosen = replace(CONFIG, **config)
    trainer, reference = prepare(parts, FLEET, network=name, config=chosen, options=SMALL[name])
    return trainer, parts, reference


def batch(windows=6, cycles=12, seed=0):
    generator = torch.Generator().manual_seed(seed)
    readings = torch.randn(windows, cycles, len(FLEET.schema), generator=generator)
    lengths = torch.randint(1, cycles + 1, (windows,), generator=generator)
    lengths[0] = cycles
    readings[~valid_cycles(cycles_after(readings, lengths))] = torch.nan
    return readings, lengths, lengths + torch.arange(windows, dtype=torch.float32)


def answers(net, windows):
    with torch.no_grad():
        got = net(*windows)
    return {name: value for name, value in got._asdict().items() if value is not None}


def cmapss(name):
    fleet = fleet_for(fleet_named("cmapss"), name)
    return network_config(fleet, network=name, regimes=1)


def test_amnl_has_the_sizes_of_its_text():
    config = cmapss("amnl")
    net = build_network(config)

    h = net.frontend.second(
        net.frontend.first(torch.zeros(2, 30, 17), torch.ones(2, 30).bool()), torch.ones(2, 30).bool()
    )

    assert config.context == 30
    assert config.columns == 17
    assert config.context * config.columns == 510
    assert h.shape == (2, 30, 64)
    assert net.frontend.recurrent(h, torch.ones(2, 30).bool()).shape == (2, 30, 128)
    assert net.head.in_features == 128
    assert net.health.in_features == 128
    assert net.score.key.weight.shape == (64, 128)


def test_selfattention_has_the_sizes_of_its_text():
    net = build_network(cmapss("selfattention"))

    assert net.config.context == 30
    assert net.head.in_features == 512
    assert (net.between.heads, net.between.head_width) == (8, 64)
    assert net.between.query.weight.shape == (512, 512)
    assert net.after.normalized_shape == (512,)


def test_a_fleet_with_less_context_than_the_text_keeps_its_own():
    assert fleet_for(FLEET, "amnl").context == 12
    assert fleet_for(replace(FLEET, context=200), "amnl").context == 30
    assert fleet_for(replace(FLEET, context=200), "flagship").context == 200


def test_an_option_of_another_network_is_refused():
    with pytest.raises(
        InvalidOption, match="network 'amnl' has no option causal, its options are: convolution, hidden"
    ):
        network_config(FLEET, network="amnl", regimes=1, options={"causal": True})


def test_a_config_comes_back_from_json():
    config = network_config(FLEET, network="selfattention", regimes=1, options={"score": "dot"})

    assert config_from_json(json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_a_window_alone_answers_as_in_a_ragged_batch_whatever_its_padding(name, options):
    net = network(name, **options)
    readings, lengths, last_cycle = batch()
    together = answers(net, (readings, lengths, last_cycle))
    readings[~valid_cycles(cycles_after(readings, lengths))] = 1e30

    for i, n in enumerate(lengths.tolist()):
        alone = answers(net, (readings[i : i + 1, :n], lengths[i : i + 1], last_cycle[i : i + 1]))
        padded = answers(net, (readings[i : i + 1], lengths[i : i + 1], last_cycle[i : i + 1]))

        for got, cycles in ((alone, n), (padded, readings.shape[1])):
            for output, value in got.items():
                expected = together[output][i]
                if output == MAP:
                    expected = expected[:, :cycles, :cycles]
                if output in PER_CYCLE:
                    expected = expected[cycles_of(output, slice(cycles))]
                torch.testing.assert_close(value[0], expected, rtol=1e-5, atol=1e-5, msg=output)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_baseline_and_contributions_are_the_unclipped_rul(name, options):
    net = network(name, **options)
    net.baseline.fill_(41.0)
    windows = batch(windows=32)

    with torch.no_grad():
        got = net(*windows)
        total = 41.0 + got.contribution.double().sum(-1)
        if got.window_contribution is not None:
            total += got.window_contribution
        unclipped = net.estimate(*windows).unclipped.double()

    torch.testing.assert_close(total, unclipped, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("name", "options"), VARIANTS)
def test_probabilities_and_attention_sum_to_one(name, options):
    net = network(name, **options)
    readings, lengths, last_cycle = batch(windows=16)

    got = answers(net, (readings, lengths, last_cycle))

    torch.testing.assert_close(got["health_state"].sum(-1), torch.ones(16))
    torch.testing.assert_close(got["attention"].sum(-1), torch.ones(16))
    assert (got["attention"][~valid_cycles(cycles_after(readings, lengths))] == 0).all()
    for head in got["head_attention"].unbind(1) if net.config.heads else ():
        torch.testing.assert_close(head.sum(-1), torch.ones(16))
        assert (head[~valid_cycles(cycles_after(readings, lengths))] == 0).all()


@pytest.mark.parametrize("option", ["positions", "causal"])
def test_an_option_of_self_attention_changes_the_answer(option):
    plain, other = network("selfattention"), network("selfattention", **{option: True})
    other.load_state_dict(plain.state_dict())

    assert not torch.equal(answers(plain, batch())["contribution"], answers(other, batch())["contribution"])


def test_relative_positions_begin_as_none_and_are_learnt_like_any_weight():
    windows, plain = batch(), network("selfattention")
    placed = network("selfattention", relative_positions=True)
    placed.load_state_dict(plain.state_dict(), strict=False)
    bias = placed.between.relative.bias

    moved = answers(placed, windows)["contribution"]
    with torch.no_grad():
        bias.zero_()
    placed.estimate(*windows).unclipped.sum().backward()

    assert torch.equal(answers(placed, windows)["contribution"], answers(plain, windows)["contribution"])
    assert not torch.equal(moved, answers(plain, windows)["contribution"])
    assert bias.shape == (2, 2 * 11 + 1)  # distances -11 to 11 in windows of 12
    assert (bias.grad.abs() > 0).all()


@pytest.mark.parametrize("name", ["amnl", "selfattention"])
def test_the_age_is_read_where_that_is_asked_for_and_not_otherwise(name):
    readings, lengths, last_cycle = batch()
    older = (readings, lengths, last_cycle + 40.0)

    for asked in (False, True):
        net = network(name, age=asked)
        one, two = answers(net, (readings, lengths, last_cycle)), answers(net, older)
        assert torch.equal(one["contribution"], two["contribution"]) is not asked


@pytest.mark.parametrize("name", ["amnl", "selfattention"])
def test_attention_dropout_acts_in_training_alone(name):
    net, windows = network(name, attention_dropout=0.5), batch()

    assert torch.equal(answers(net, windows)["contribution"], answers(net, windows)["contribution"])
    with torch.no_grad():
        first, second = net.train().estimate(*windows), net.estimate(*windows)

    assert not torch.equal(first.unclipped, second.unclipped)
    torch.testing.assert_close(first.attention.sum(-1), torch.ones(6))


def test_the_health_head_of_amnl_changes_no_answer():
    net, windows = network("amnl"), batch()
    before = answers(net, windows)
    with torch.no_grad():
        net.health.bias.copy_(torch.tensor([0.0, 50.0, 0.0]))

    after = answers(net, windows)
    assert [name for name, value in after.items() if not torch.equal(value, before[name])] == []


def test_both_tasks_of_amnl_teach_what_they_share():
    net = network("amnl").train()
    estimate = net.estimate(*batch())

    grads = [
        torch.autograd.grad(loss, net.score.key.weight, retain_graph=True)[0]
        for loss in (estimate.unclipped.square().mean(), estimate.health.square().mean())
    ]

    assert all(grad.abs().sum() > 0 for grad in grads)


def test_the_last_state_is_that_of_each_direction_and_its_head_reads_nothing_else():
    net, (readings, lengths, last_cycle) = network("amnl", last_state=True, health_task=False), batch()
    states = []
    net.frontend.register_forward_hook(lambda layer, inputs, output: states.append(output))

    with torch.no_grad():
        estimate = net.estimate(readings, lengths, last_cycle)

    (h,) = states
    for i, n in enumerate(lengths.tolist()):
        last = torch.cat((h[i, n - 1, :8], h[i, 0, 8:]))  # forward to the last cycle, backward to the first
        torch.testing.assert_close(estimate.context[i], last)
        assert estimate.attention[i].tolist() == [float(t == n - 1) for t in range(12)]
    torch.testing.assert_close(estimate.unclipped, net.config.cap * net.head(estimate.context).squeeze(-1))
    assert not hasattr(net, "score")


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_answers_on_another_device(name):
    net, windows = network(name).to("meta"), batch()

    got = net(*(each.to("meta") for each in windows))

    assert {each.device.type for each in got if each is not None} == {"meta"}


def test_without_its_task_the_health_state_comes_from_the_distribution_of_the_rul():
    net, windows = network("amnl", health_task=False), batch()

    with torch.no_grad():
        assert net.estimate(*windows).health is None
        rul = net(*windows).rul[:, None]
        _, _, expected = net.distribution(rul, net.error_scale(net.estimate(*windows).context, rul))

    torch.testing.assert_close(answers(net, windows)["health_state"], expected)
    assert not hasattr(net, "health")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("amnl", {"last_state": True, "health_task": False}),
        ("amnl", {"score": "scaled_dot", "learnable_temperature": True}),
        ("selfattention", {"relative_positions": True, "learnable_temperature": True}),
        (
            "selfattention",
            {"relative_positions": True, "positions": True, "causal": True, "score": "additive"},
        ),
    ],
)
def test_every_option_exports_with_dynamic_batch_and_cycles(name, options, tmp_path):
    net = network(name, **options).train()
    to_onnx(net, tmp_path / "model.onnx", with_map=net.has_self_attention)
    assert not any(part.training for part in net.modules())
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")

    for windows, cycles in ((6, 12), (1, 3), (4, 1)):
        given = batch(windows, cycles)
        feeds = dict(
            zip(("readings", "lengths", "last_cycle"), (each.numpy() for each in given), strict=True)
        )
        got = dict(zip((o.name for o in session.get_outputs()), session.run(None, feeds), strict=True))

        for output, expected in answers(net, given).items():
            np.testing.assert_allclose(got[output], expected, atol=1e-4, err_msg=output)


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_network_of_the_shortest_context_exports_with_every_input_in_the_contracts_order(name, tmp_path):
    net = network(name, fleet=replace(FLEET, shortest=1, context=SHORTEST_CONTEXT))

    to_onnx(net, tmp_path / "model.onnx")

    inputs = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_inputs()
    assert [(each.name, each.type) for each in inputs] == [
        ("readings", "tensor(float)"), ("lengths", "tensor(int64)"), ("last_cycle", "tensor(float)")
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["flagship", "amnl"])
def test_a_graph_computes_nothing_that_nobody_reads(name, tmp_path):
    to_onnx(network(name), tmp_path / "model.onnx")

    graph = onnx.load(str(tmp_path / "model.onnx")).graph
    read = {each.name for each in graph.output}.union(*(node.input for node in graph.node))
    assert [node.name for node in graph.node if read.isdisjoint(node.output)] == []


def test_the_output_of_an_lstm_is_transposed_once(tmp_path):
    to_onnx(network("flagship"), tmp_path / "model.onnx")

    nodes = onnx.load(str(tmp_path / "model.onnx")).graph.node
    (lstm,) = (node for node in nodes if node.op_type == "LSTM")
    assert len(lstm.input) == 4  # what it reads, its weights and biases: no lengths, no first state
    followed, names = [], {lstm.output[0]}
    for node in nodes:
        if names & set(node.input) and node.op_type in {"Transpose", "Reshape"}:
            followed.append(node.op_type)
            names.update(node.output)
    assert followed == ["Transpose", "Reshape"]


def test_heads_that_are_driven_apart_in_training_diverge():
    apart = {}
    for weight in (0.0, 1.0):
        trainer, parts, _ = trainer_of("selfattention", steps=40, learning_rate=1e-2, heads_apart=weight)
        for _ in range(40):
            trainer.update()

        read = read_windows(trainer.net, parts.held_out)

        apart[weight] = head_redundancy(read.head_attention, parts.held_out.lengths)[0, 1]
    assert apart[1.0] > apart[0.0] + 0.1


def test_spreading_attention_out_in_training_raises_its_entropy():
    median = {}
    for weight in (-1.0, 1.0):
        trainer, parts, _ = trainer_of("amnl", steps=40, learning_rate=1e-2, entropy_weight=weight)
        with torch.no_grad():  # even attention is a saddle: begin beside it
            trainer.net.score.score.vector.mul_(20.0)
        for _ in range(40):
            trainer.update()

        median[weight] = entropy_references(trainer.net, parts.held_out)[0]["median"]
    assert median[1.0] > median[-1.0] + 0.2
