"""docs/install.md is true: what its commands collect on one machine, another installs without an index."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from tests.programs import ROOT, bash_blocks, pasted

PAGE = ROOT / "docs" / "install.md"
COLLECT, INSTALL = bash_blocks(PAGE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
CLONED = ("pyproject.toml", "README.md", "LICENSE", "requirements", "deploy")
LOCKED = ("idna", "h11")
"""Small packages of the lock that stand for all, which take a minute."""
BUILDS = """\
python3 -m venv .venv/wheels
.venv/wheels/bin/pip install --quiet --require-hashes --requirement requirements/build.txt
"""
"""Makes an environment that builds; the one that runs this test was made so too, and takes its place."""
NO_INDEX = {"PIP_CONFIG_FILE": "/dev/null", "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}


@pytest.fixture
def clone(tmp_path) -> Path:
    """The files that the commands read, with a lock of two packages."""
    folder = tmp_path / "clone"
    folder.mkdir()
    for name in CLONED:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)
    for name in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / ".venv").mkdir()
    (folder / ".venv" / "wheels").symlink_to(Path(sys.executable).parents[1], target_is_directory=True)
    lock = folder / "requirements" / "serve-cpu.txt"
    pins = re.findall(r"^[\w.-]+==[^\n]*(?:\n    --hash=.*)*\n", lock.read_text("utf-8"), re.MULTILINE)
    lock.write_text("".join(pin for pin in pins if pin.startswith(tuple(f"{name}==" for name in LOCKED))))
    return folder


def test_what_the_page_collects_is_installed_without_an_index(clone, tmp_path):
    server = tmp_path / "server"
    server.mkdir()

    assert COLLECT.startswith(BUILDS)
    pasted(COLLECT.removeprefix(BUILDS), clone)
    shutil.copy(clone / "rulserve.tar", server)
    pasted(INSTALL.replace("/opt/rulserve", str(server / "opt")), server, **NO_INDEX)

    listed = subprocess.run(
        [server / "opt/bin/pip", "list", "--format=json"], capture_output=True, check=True, text=True
    ).stdout
    names = {canonicalize_name(package["name"]) for package in json.loads(listed)}
    assert names - {"pip", "setuptools"} == {"rulserve", *LOCKED}
    assert (server / "opt/bin/rul").is_file()
    assert (server / "rulserve/rulserve.service").is_file()


def test_the_page_collects_and_installs_the_torch_of_the_project():
    [wanted] = [
        text for text in PROJECT["project"]["optional-dependencies"]["train"] if text.startswith("torch")
    ]

    assert re.findall(r"torch==\S+", PAGE.read_text("utf-8")) == [wanted] * 2
