"""Seal of a bundle: `SHA256SUMS` of its files, and an optional Ed25519 signature of that file.

Both follow common tools: `sha256sum -c SHA256SUMS` and `openssl pkeyutl -verify -rawin` check them too. The
files are read once; their content, not their path, goes on to parsers and ONNX Runtime.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from export.arrays import MOST_BYTES, one_line
from export.bundle import CARD, GOLDEN, MODEL, BundleFolder, InvalidBundle
from export.golden import Golden

SUMS: Final = "SHA256SUMS"
SIGNATURE: Final = "SHA256SUMS.sig"
COVERED: Final = (CARD, GOLDEN, MODEL)
"""Files with a digest; a bundle may come without its card."""
_LINE: Final = re.compile(r"([0-9a-f]{64})  ([\w.-]+)")


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """Contents of a bundle's files, compared with their digests."""

    model: bytes
    golden: Golden
    sha256: str
    """The digest of `model`: graph, manifest and drift reference."""


def read_bundle(folder: BundleFolder, *, public_key: Path | None = None) -> Contents:
    """Read a bundle's files and check their digests; with a key, also the signature of the digests.

    Raises:
        InvalidBundle: a file is missing, unreadable, too large, damaged or altered, or the signature is
            missing or not from this key.
    """
    sums = read_digests(folder.path, public_key=public_key)
    files = {name: read_file(folder.path / name) for name in sums}
    for name, expected in sums.items():
        if hashlib.sha256(files[name]).hexdigest() != expected:
            raise InvalidBundle(
                f"{folder.path / name}: its SHA-256 is not the one in {SUMS}: the file is damaged or "
                "altered, copy or export the bundle again"
            )
    golden = Golden.parse(files[GOLDEN], origin=folder.golden)
    return Contents(files[MODEL], golden, sums[MODEL])


def write_sums(path: Path, *, signing_key: Path | None = None) -> None:
    """Write the digests of a bundle's files, and sign them with an Ed25519 private key in PEM."""
    names = [name for name in COVERED if (path / name).is_file()]
    lines = [f"{hashlib.sha256(read_file(path / name)).hexdigest()}  {name}\n" for name in names]
    (path / SUMS).write_text("".join(lines), encoding="ascii")
    (path / SIGNATURE).unlink(missing_ok=True)
    if signing_key is not None:
        (path / SIGNATURE).write_bytes(_sign(signing_key, (path / SUMS).read_bytes()))


def read_file(path: Path) -> bytes:
    """Read a regular file of limited size.

    Raises:
        InvalidBundle: there is no such file, it cannot be read, or it is too large.
    """
    try:
        if not path.is_file():
            raise InvalidBundle(f"{path}: missing, or not a file: copy or export the bundle again")
        with path.open("rb") as file:
            too_large = os.fstat(file.fileno()).st_size > MOST_BYTES
            stored = b"" if too_large else file.read(MOST_BYTES + 1)
    except OSError as error:
        raise InvalidBundle(
            f"{path}: cannot be read: {error.strerror}; check its permissions, or export the model again"
        ) from error
    if too_large or len(stored) > MOST_BYTES:
        raise InvalidBundle(f"{path}: over {MOST_BYTES:,} bytes: not from `rul export`")
    return stored


def read_digests(path: Path, *, public_key: Path | None = None) -> dict[str, str]:
    """Read the digests by name, once; those of graph and golden windows are among them."""
    file = path / SUMS
    if not file.exists():
        raise InvalidBundle(f"{path}: {SUMS} is missing; if you trust this bundle, run `rul convert {path}`")
    stored = read_file(file)
    if public_key is not None:
        _verify(path, stored, public_key)
    lines = stored.decode("utf-8", errors="replace").splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    sums = {match[2]: match[1] for match in found if match is not None}
    if None in found or len(sums) < len(lines) or not {MODEL, GOLDEN} <= {*sums} <= {*COVERED}:
        raise InvalidBundle(
            f"{file}: expected one line `SHA-256  NAME` for each of {', '.join(COVERED)}: "
            "copy or export the bundle again"
        )
    return sums


def _verify(path: Path, sums: bytes, public_key: Path) -> None:
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415 only signed bundles need it
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_public_key  # noqa: PLC0415

    try:
        key = load_pem_public_key(public_key.read_bytes())
    except (OSError, ValueError) as error:
        raise InvalidBundle(
            f"{public_key}: cannot be read as a public key in PEM: {one_line(error)}"
        ) from error
    if not isinstance(key, Ed25519PublicKey):
        raise InvalidBundle(f"{public_key}: expected an Ed25519 public key, got another kind")
    if not (path / SIGNATURE).exists():
        raise InvalidBundle(f"{path}: not signed: {SIGNATURE} is missing; export it with --sign KEY")
    try:
        key.verify(read_file(path / SIGNATURE), sums)
    except InvalidSignature as error:
        raise InvalidBundle(
            f"{path / SIGNATURE}: not the signature of {SUMS} by the key in {public_key}: the bundle is "
            "altered or signed with another key"
        ) from error


def _sign(signing_key: Path, data: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(signing_key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError) as error:
        raise InvalidBundle(
            f"{signing_key}: cannot be read as a private key in PEM without a password: {one_line(error)}"
        ) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InvalidBundle(f"{signing_key}: expected an Ed25519 private key, got another kind")
    return key.sign(data)
