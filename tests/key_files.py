"""Key files with a known key."""

from __future__ import annotations

from pathlib import Path

from service.edge.keys import GRANTABLE, digest_of


def key_file(folder: Path, key: str) -> Path:
    """Write a key file with one key of all scopes."""
    file = folder / "keys.toml"
    listed = ", ".join(f'"{scope}"' for scope in GRANTABLE)
    file.write_text(f'[keys.known]\nsha256 = "{digest_of(key).hex()}"\nscopes = [{listed}]\n', "utf-8")
    return file
