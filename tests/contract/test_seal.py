"""Digests and signatures of bundles, as common tools read them too."""

import os
import shutil
import subprocess
import threading

import pytest

from export.bundle import BUNDLED, BundleFolder, InvalidBundle
from export.handover import export_bundle
from export.seal import COVERED, SIGNATURE, SUMS, read_bundle, write_sums
from model.checkpoint import Checkpoint
from service.core.bundles import load_bundles
from service.settings import Settings
from tests.commands import rul

pytestmark = pytest.mark.usefixtures("one_thread", "no_settings")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    """Two pairs of keys, as the documents make them: `own` and `other`."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "other"):
        private, public = folder / f"{name}.pem", folder / f"{name}.pub"
        openssl("genpkey", "-algorithm", "ed25519", "-out", private)
        openssl("pkey", "-in", private, "-pubout", "-out", public)
    return folder


def openssl(*arguments):
    return subprocess.run(
        ["openssl", *map(str, arguments)], check=True, capture_output=True, text=True
    ).stdout


def forge(folder):
    """Change a file and write fresh digests beside the old signature."""
    signature = (folder.path / SIGNATURE).read_bytes()
    (folder.path / "MODEL_CARD.md").write_text("better than it is", encoding="utf-8")
    write_sums(folder.path)
    (folder.path / SIGNATURE).write_bytes(signature)


@pytest.fixture
def signed(tiny_bundle, tmp_path, keys):
    folder = shutil.copytree(tiny_bundle.path, tmp_path / "signed")
    write_sums(folder, signing_key=keys / "own.pem")
    return BundleFolder(folder)


def test_sha256sum_accepts_the_digests(tiny_bundle):
    done = subprocess.run(["sha256sum", "-c", SUMS], cwd=tiny_bundle.path, capture_output=True, check=False)

    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", ["fd001", "fd002", "fd003", "fd004"])
def test_a_shipped_bundle_has_its_digests_and_its_card_names_the_graphs(name):
    if not (BUNDLED / name / "model.onnx").is_file():
        pytest.skip("the bundles do not ship with this copy")
    contents = read_bundle(BundleFolder(BUNDLED / name))

    assert f"`{contents.sha256}`" in (BUNDLED / name / "MODEL_CARD.md").read_text("utf-8")


def test_a_signed_bundle_passes_with_its_key_and_openssl_agrees(signed, keys):
    read_bundle(signed, public_key=keys / "own.pub")

    verdict = openssl(
        "pkeyutl", "-verify", "-pubin", "-inkey", keys / "own.pub", "-rawin",
        "-in", signed.path / SUMS, "-sigfile", signed.path / SIGNATURE,
    )  # fmt: skip
    assert "Signature Verified Successfully" in verdict


def test_a_signature_by_openssl_is_accepted(signed, keys):
    (signed.path / SIGNATURE).unlink()
    openssl(
        "pkeyutl", "-sign", "-inkey", keys / "own.pem", "-rawin",
        "-in", signed.path / SUMS, "-out", signed.path / SIGNATURE,
    )  # fmt: skip

    read_bundle(signed, public_key=keys / "own.pub")


@pytest.mark.parametrize("name", [*COVERED, SUMS, SIGNATURE])
def test_a_signed_bundle_of_which_any_file_is_altered_is_refused(signed, keys, name):
    stored = bytearray((signed.path / name).read_bytes())
    stored[len(stored) // 2] ^= 1
    (signed.path / name).write_bytes(stored)

    with pytest.raises(InvalidBundle, match=str(signed.path)):
        read_bundle(signed, public_key=keys / "own.pub")


def test_a_forger_with_fresh_digests_but_without_the_key_is_refused(signed, keys):
    forge(signed)

    with pytest.raises(InvalidBundle, match=r"SHA256SUMS\.sig: not the signature of SHA256SUMS"):
        read_bundle(signed, public_key=keys / "own.pub")


def test_a_forger_who_puts_the_signed_digests_back_during_the_check_is_refused(signed, keys, tmp_path):
    genuine = (signed.path / SUMS).read_bytes()
    forge(signed)
    pipe = tmp_path / "key.pub"
    os.mkfifo(pipe)

    def replace_digests():
        with pipe.open("wb") as key:  # opens when it is read
            (signed.path / SUMS).write_bytes(genuine)
            key.write((keys / "own.pub").read_bytes())

    replacing = threading.Thread(target=replace_digests)
    replacing.start()
    with pytest.raises(InvalidBundle, match="not the signature"):
        read_bundle(signed, public_key=pipe)
    replacing.join()


def test_a_bundle_signed_by_another_key_or_not_at_all_is_refused_where_a_key_is_demanded(
    signed, keys, tiny_bundle
):
    with pytest.raises(InvalidBundle, match="signed with another key"):
        read_bundle(signed, public_key=keys / "other.pub")
    with pytest.raises(InvalidBundle, match=r"not signed: SHA256SUMS\.sig is missing"):
        read_bundle(tiny_bundle, public_key=keys / "own.pub")
    settings = Settings(bundles=str(tiny_bundle.path), provider="cpu", bundle_public_key=keys / "own.pub")
    with pytest.raises(InvalidBundle, match="not signed"):
        load_bundles(settings)


@pytest.mark.parametrize("key", ["missing.pub", "own.pem", "rsa.pub", "text.pub"])
def test_a_key_that_cannot_be_used_is_named_in_one_line(signed, keys, tmp_path, key):
    (tmp_path / "text.pub").write_text("no key", encoding="utf-8")
    if key == "rsa.pub":
        openssl("genpkey", "-algorithm", "rsa", "-out", tmp_path / "rsa.pem")
        openssl("pkey", "-in", tmp_path / "rsa.pem", "-pubout", "-out", tmp_path / "rsa.pub")
    file = (keys if key == "own.pem" else tmp_path) / key

    with pytest.raises(InvalidBundle, match=str(file)) as refusal:
        read_bundle(signed, public_key=file)

    assert "\n" not in str(refusal.value)


def test_a_private_key_of_another_kind_does_not_sign(signed, tmp_path):
    openssl("genpkey", "-algorithm", "x25519", "-out", tmp_path / "other.pem")

    with pytest.raises(InvalidBundle, match="expected an Ed25519 private key"):
        write_sums(signed.path, signing_key=tmp_path / "other.pem")


@pytest.mark.parametrize("change", [lambda lines: lines[1:], lambda lines: [*lines, lines[0]]])
def test_digests_other_than_one_of_each_file_are_refused(copied, change):
    lines = (copied.path / SUMS).read_text("ascii").splitlines(keepends=True)
    (copied.path / SUMS).write_text("".join(change(lines[::-1])), "ascii")

    with pytest.raises(InvalidBundle, match=r"expected one line `SHA-256  NAME`"):
        read_bundle(copied)


def test_rul_export_signs_and_rul_check_demands_the_key(tiny_bundle, tmp_path, keys):
    run, out = tiny_bundle.path.parent / "tiny-run", tmp_path / "out"

    assert rul("export", run, "--output", out, "--sign", keys / "own.pem").exit_code == 0
    assert rul("check", out, "--public-key", keys / "own.pub").exit_code == 0
    assert isinstance(rul("check", out, "--public-key", keys / "other.pub").exception, InvalidBundle)

    export_bundle(Checkpoint.load(run), out)
    assert not (out / SIGNATURE).exists()
