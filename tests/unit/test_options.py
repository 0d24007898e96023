import pytest

from model.networks import InvalidOption, UnknownNetwork
from model.options import read_options


def test_options_go_to_the_network_or_to_its_training_by_their_name():
    network, training = read_options(
        ["score=dot", "hidden=16", "positions=true", "noise=0.2", "entropy_weight=-0.01"],
        network="selfattention",
    )

    assert network == {"score": "dot", "hidden": 16, "positions": True}
    assert training == {"batch": 64, "learning_rate": 1e-3, "noise": 0.2, "entropy_weight": -0.01}


def test_an_option_beats_the_networks_own_recipe():
    _, training = read_options(["low_rul_weight=0"], network="amnl")

    assert training == {"low_rul_weight": 0.0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("score=cosine", "score: expected one of additive, dot, scaled_dot, got 'cosine'"),
        ("hidden=0", "hidden: expected a whole number above 0, got '0'"),
        ("hidden=many", "hidden: expected a whole number above 0, got 'many'"),
        ("age=yes", "age: expected true or false, got 'yes'"),
        ("attention_dropout=1", "attention_dropout: expected a share from 0 to below 1, got '1'"),
        ("low_rul_weight=-1", "low_rul_weight: expected a number, 0 or more, got '-1'"),
        ("noise=nan", "noise: expected a number, 0 or more, got 'nan'"),
        ("noise", "noise: expected a number, 0 or more, got ''"),
    ],
)
def test_a_value_that_cannot_be_is_refused_with_what_was_expected(text, message):
    with pytest.raises(InvalidOption) as refused:
        read_options([text], network="amnl")

    assert str(refused.value) == message


@pytest.mark.parametrize("text", ["causal=true", "heads=4", "seed=3", "context=10", "=1", ""])
def test_a_name_that_the_network_does_not_go_by_is_refused_with_those_it_does(text):
    with pytest.raises(
        InvalidOption, match=r"expected NAME=VALUE with a name of network 'amnl' \(convo.*score=addi"
    ):
        read_options([text], network="amnl")


def test_heads_are_driven_apart_only_where_there_are_heads():
    with pytest.raises(InvalidOption, match="heads_apart: network 'amnl' has no heads to drive apart"):
        read_options(["heads_apart=0.1"], network="amnl")

    assert read_options(["heads_apart=0"], network="amnl")[1]["heads_apart"] == 0.0
    assert read_options(["heads_apart=0.1"], network="selfattention")[1]["heads_apart"] == 0.1


def test_options_of_an_unknown_network_are_refused_by_its_name():
    with pytest.raises(
        UnknownNetwork, match="no network 'transformer', there are: flagship, amnl, selfattention"
    ):
        read_options([], network="transformer")
