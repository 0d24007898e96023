"""A service keeps copies of the bundles that serve."""

import shutil

import pytest

from export.bundle import BundleFolder, InvalidBundle
from export.seal import SUMS, read_bundle
from service.core.changes import Action, Candidate, Change, Changed
from service.core.queries import ModelName
from service.processes.copies import Copies


@pytest.fixture
def digest(tiny_bundle):
    return read_bundle(tiny_bundle).sha256


@pytest.fixture
def served(tiny_bundle, tmp_path):
    return shutil.copytree(tiny_bundle.path, tmp_path / "a, b")


@pytest.fixture
def copies(tmp_path):
    return Copies(tmp_path / "copies")


def serving(path, digest, **candidates):
    return Changed(bundles={"fake": str(path)}, digests={"fake": digest}, candidates=candidates)


def canary(path, digest, returned=""):
    change = Change(Action.CANARY, "fake", str(path), sha256=digest)
    return Candidate(change, ModelName("fake", "2", digest), returned)


def test_a_copy_stays_when_the_files_change(copies, served, digest):
    kept = copies.of(serving(served, digest))
    shutil.rmtree(served)
    again = copies.of(serving(served, digest))

    assert again == kept
    assert read_bundle(BundleFolder(served.parent / "copies" / digest)).sha256 == digest


def test_the_bundle_of_a_candidate_is_copied_too(copies, tiny_bundle, served, digest):
    kept = copies.of(serving(tiny_bundle.path, digest, fake=canary(served, digest)))

    assert kept.candidates["fake"].change.bundle == kept.bundles["fake"]


def test_the_bundle_of_a_candidate_that_was_returned_is_not_needed(copies, tiny_bundle, tmp_path, digest):
    returned = canary(tmp_path / "gone", "another", returned="1 requests failed")

    assert copies.of(serving(tiny_bundle.path, digest, fake=returned)).candidates["fake"] == returned


def test_a_bundle_that_has_changed_since_it_was_read_is_refused_and_not_kept(copies, served, digest):
    with pytest.raises(InvalidBundle, match="a, b: the bundle changed"):
        copies.of(serving(served, "0" * 64))

    assert not (served.parent / "copies" / ("0" * 64)).exists()
    assert copies.of(serving(served, digest)).bundles["fake"].endswith(digest)


def test_a_bundle_that_is_replaced_meanwhile_is_refused(copies, served, digest):
    (served / SUMS).write_text("")

    with pytest.raises(InvalidBundle, match="a, b: the bundle changed"):
        copies.of(serving(served, digest))


def test_copies_that_no_model_needs_any_more_are_removed(copies, served, tmp_path, digest):
    kept = copies.of(serving(served, digest))
    (tmp_path / "copies" / "earlier").mkdir()

    copies.remove_others(kept)

    assert [copy.name for copy in (tmp_path / "copies").iterdir()] == [digest]
