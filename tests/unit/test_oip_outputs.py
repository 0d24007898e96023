"""Each window's answer comes back to its own place, whatever batches it was answered in."""

import numpy as np
import pytest
from service.oip.outputs import Gathering
from service.oip.windows import checked_group

from service.core.answers import Answers, WindowOutputs
from service.core.window import WindowRules
from service.oip.tensors import Signature
from tests.fakes import fake_outputs, make_manifest

MANIFEST = make_manifest(context=4, heads=2)
RULES = WindowRules.of(MANIFEST, max_window_cycles=10)
SPECS = {spec.name: spec for spec in Signature.of(MANIFEST).outputs}


def group_of(lengths, cycles):
    """Windows whose RUL is 10, 20, 30, ..."""
    readings = np.zeros((len(lengths), cycles, 3), np.float32)
    readings[:, :, 1] = np.arange(1, len(lengths) + 1)[:, None] * 10
    return checked_group({"readings": readings, "lengths": np.array(lengths)}, RULES)


def answered(group, batches, *, width):
    """Outputs of the group's windows, dealt into batches that are `width` cycles wide."""
    outputs = [None] * len(group.windows)
    for batch in batches:
        readings = np.full((len(batch), width, 3), np.nan, np.float32)
        for row, i in zip(readings, batch, strict=True):
            row[: len(group.windows[i])] = group.windows[i].readings
        lengths = np.array([len(group.windows[i]) for i in batch])
        last_cycle = np.array([group.windows[i].last_cycle for i in batch])
        answers = Answers(fake_outputs(readings, lengths, MANIFEST), lengths, MANIFEST, last_cycle=last_cycle)
        for row, i in enumerate(batch):
            outputs[i] = WindowOutputs(answers, row)
    return Gathering(outputs, group)


@pytest.mark.parametrize("batches", [[[0, 1, 2, 3]], [[3, 1], [2, 0]], [[2], [0], [1], [3]]])
def test_rows_come_back_in_the_order_of_the_request(batches):
    gathering = answered(group_of([2, 3, 4, 1], 4), batches, width=4)

    assert gathering.tensor(SPECS["rul"]).values.tolist() == [10, 20, 30, 40]


@pytest.mark.parametrize("name", SPECS)
def test_every_output_has_the_shape_that_its_metadata_announces(name):
    values = answered(group_of([2, 3], 3), [[0], [1]], width=4).tensor(SPECS[name]).values

    announced = [2, *SPECS[name].shape[1:]]
    assert values.shape == tuple(3 if size == -1 else size for size in announced)
    assert values.dtype == np.float32
    assert values.flags.c_contiguous


@pytest.mark.parametrize("width", [4, 9])
def test_attention_stands_at_its_cycles_and_padding_weighs_nothing(width):
    attention = answered(group_of([2, 4], 5), [[0, 1]], width=width).tensor(SPECS["attention"]).values

    np.testing.assert_allclose(attention, [[0.5, 0.5, 0, 0, 0], [0.25, 0.25, 0.25, 0.25, 0]])


def test_cycles_before_the_context_weigh_nothing():
    group = group_of([6, 3], 7)
    attention = answered(group, [[0, 1]], width=4).tensor(SPECS["attention"]).values
    heads = answered(group, [[0, 1]], width=4).tensor(SPECS["head_attention"]).values

    np.testing.assert_allclose(attention[0], [0, 0, 0.25, 0.25, 0.25, 0.25, 0])
    np.testing.assert_allclose(attention[1], [1 / 3, 1 / 3, 1 / 3, 0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_array_equal(heads[:, 0], attention)


def test_a_rul_near_the_cap_is_the_cap_as_everywhere():
    group = group_of([2] * 13, 2)  # the last: 130, which the network cuts to 125; the twelfth: 120

    rul = answered(group, [list(range(13))], width=2).tensor(SPECS["rul"]).values

    assert rul[11:].tolist() == [120, 125]
