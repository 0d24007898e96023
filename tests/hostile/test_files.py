"""Short runs of the fuzzers of `files`, with the same inputs each time."""

import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from export.bundle import BundleFolder, InvalidBundle
from export.seal import COVERED, SUMS
from service.choices import ProviderChoice
from service.core.runtime import OnnxRuntime
from tests.examples import examples
from tests.hostile.files import PARSERS, fuzz


@pytest.mark.parametrize("parser", PARSERS)
def test_no_input_gives_a_traceback_or_takes_a_second(parser):
    fuzz(parser, examples=200, repeatable=True)


@examples(30)
@given(data=st.data())
def test_a_bundle_with_a_random_part_damaged_answers_as_before_or_is_refused(tiny_bundle, tmp_path, data):
    folder = shutil.copytree(tiny_bundle.path, tmp_path / "damaged", dirs_exist_ok=True)
    file = folder / data.draw(st.sampled_from([*COVERED, SUMS]))
    before = file.read_bytes()
    start = data.draw(st.integers(0, len(before)))
    damaged = (
        before[:start] + data.draw(st.binary(max_size=99)) + before[start + data.draw(st.integers(0, 99)) :]
    )
    file.write_bytes(damaged)

    if damaged == before:
        OnnxRuntime.load(BundleFolder(folder), provider=ProviderChoice.CPU)
        return
    with pytest.raises(InvalidBundle) as refusal:
        OnnxRuntime.load(BundleFolder(folder), provider=ProviderChoice.CPU)
    assert str(refusal.value).isprintable()
