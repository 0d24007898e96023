"""A broken bundle is refused with one line that names it, by every command, whatever is broken."""

import pytest

from export.bundle import BundleFolder, InvalidBundle, find_bundle
from export.drift_reference import REFERENCE_KEY
from export.outputs import OUTPUTS
from export.session import open_bundle
from rul_client.commands.predict.offline import open_offline
from service.choices import ProviderChoice
from service.core.bundles import load_bundles
from service.settings import Settings
from tests.broken_bundles import WAYS, sealed, without_output
from tests.commands import rul

pytestmark = pytest.mark.usefixtures("one_thread", "no_settings")


@pytest.fixture
def broken(copied):
    """The folder of a bundle that a test may break."""
    return copied.path


def settings(*folders, **more):
    return Settings.model_construct(
        bundles=tuple(map(str, folders)), provider=ProviderChoice.CPU, max_batch_windows=32, **more
    )


WORDS = {
    "zip bomb": "bytes when unpacked",
    "pickled objects": "allow_pickle=False",
    "golden answers of another model": "golden rul",
    "no graph": "ONNX Runtime cannot open it, export it again",
    "no manifest": "not a rulserve model, export it again",
    "missing: golden.npz": "golden.npz missing",
    "two heads of one name": "expected different names of columns and of attention heads",
    **{f"drift reference is {how}": f"'{REFERENCE_KEY}' in the ONNX metadata is missing or damaged, export"
       for how in ("missing", "no base85", "cut", "empty")},
}  # fmt: skip
"""Text of the line with which the service ends, and `rul check`."""


@pytest.mark.parametrize("way", WAYS)
def test_serving_and_checking_refuse_a_broken_bundle_with_one_line(broken, way, monkeypatch):
    WAYS[way](broken)
    monkeypatch.chdir(broken)  # ONNX Runtime searches it for files that a graph from memory names

    with pytest.raises(InvalidBundle) as served:
        load_bundles(settings(broken))
    checked = rul("check", broken).exception

    assert isinstance(checked, InvalidBundle)
    for line in (str(served.value), str(checked)):
        assert WORDS.get(way, "") in line
        assert str(broken) in line
        assert line.isprintable()
        assert len(line) < 800


@pytest.mark.parametrize("output", OUTPUTS)
def test_a_graph_without_an_output_is_not_opened(broken, output):
    sealed(without_output(output), broken)

    with pytest.raises(InvalidBundle, match=f"graph outputs: expected rul, .*{output}") as refusal:
        open_bundle(BundleFolder(broken))

    assert str(broken) in str(refusal.value)


def test_a_bundle_whose_graph_answers_differently_is_not_opened(broken):
    WAYS["golden answers of another model"](broken)

    with pytest.raises(InvalidBundle, match=rf"{broken}.*golden rul\["):
        open_bundle(BundleFolder(broken))


@pytest.mark.parametrize("way", ["missing: SHA256SUMS", "zip bomb", "cap too low"])
async def test_predicting_refuses_a_broken_bundle_with_one_line(broken, way):
    WAYS[way](broken)

    with pytest.raises(InvalidBundle, match=str(broken)) as refusal:
        async with open_offline(str(broken)):
            pass

    assert str(refusal.value).isprintable()


def test_two_bundles_of_one_name_are_refused_with_both_folders(tiny_bundle, broken):
    with pytest.raises(InvalidBundle, match="both are named tiny") as refusal:
        load_bundles(settings(tiny_bundle.path, broken))

    assert {str(tiny_bundle.path), str(broken)} <= set(str(refusal.value).replace(":", " ").split())


@pytest.mark.parametrize("name", ["x" * 300, "no\0name", "no-such-bundle", ""])
def test_a_name_that_cannot_be_found_is_refused_with_one_line(name):
    with pytest.raises(InvalidBundle) as refusal:
        find_bundle(name)

    assert "\n" not in str(refusal.value)
