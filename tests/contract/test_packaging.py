"""Lock files fit pyproject.toml, and an installation without an extra says which one to install."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
PROJECT, BUILD = PYPROJECT["project"], PYPROJECT["build-system"]
WHEEL = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
LOCKS = {
    "serve-cpu": ("cpu", "postgresql"),
    "serve-gpu": ("gpu", "postgresql"),
    "dev": ("cpu", "train", "dev"),
    "build": (),
}
UNLOCKED = {"torch"}  # see the Makefile
PIN = re.compile(r"^(?P<name>[\w.-]+)==(?P<version>[^\s;]+)(?P<rest>.*(?:\n    --hash=.*)*)", re.MULTILINE)


def lock(name: str) -> str:
    return (ROOT / "requirements" / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize(("name", "extras"), LOCKS.items())
def test_a_lock_holds_every_requirement_in_a_version_that_fits(name, extras):
    pins = {canonicalize_name(pin["name"]): pin["version"] for pin in PIN.finditer(lock(name))}
    optional = PROJECT["optional-dependencies"]
    wanted = [*PROJECT["dependencies"], *(text for extra in extras for text in optional[extra])]
    if name == "build":
        wanted = BUILD["requires"]
    requirements = [Requirement(text) for text in wanted]

    unfit = [
        str(wish)
        for wish in requirements
        if wish.name not in UNLOCKED
        and not wish.specifier.contains(pins.get(canonicalize_name(wish.name), "0"))
    ]

    assert unfit == [], "run: make lock"


@pytest.mark.parametrize("name", LOCKS)
def test_every_locked_package_has_a_hash_and_no_lock_names_a_registry(name):
    text = lock(name)

    pins = list(PIN.finditer(text))

    assert pins
    assert [pin["name"] for pin in pins if "--hash=sha256:" not in pin["rest"]] == []
    assert "://" not in text


@pytest.mark.parametrize("package", WHEEL["packages"])
def test_a_package_says_that_it_is_typed(package):
    assert (ROOT / package / "py.typed").is_file()


ON_WINDOWS = "fcntl grp pwd resource termios envoy pyvoy uvloop"
"""Modules that Python on Windows, and the lock files there, do not have."""
HIDE_POSIX = """
import asyncio, os, signal
for module, names in {
    os: "SCHED_BATCH chown fchmod fdatasync geteuid getuid posix_fallocate sched_getaffinity statvfs",
    signal: "SIGHUP SIGKILL SIGUSR1 alarm pthread_sigmask setitimer",
}.items():
    for name in names.split():
        delattr(module, name)

def no_signals(*_):
    raise NotImplementedError

asyncio.unix_events._UnixSelectorEventLoop.add_signal_handler = no_signals
"""
"""Removes names that Python on Windows does not have."""


def rul(*arguments: str, without: str = "nothing", first: str = "") -> subprocess.CompletedProcess[str]:
    """The command `rul` in a Python that cannot import these modules, and runs `first`."""
    code = f"""
import sys
{first}

class Without:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {without.split()!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Without())
for name in {without.split()!r}:
    sys.modules.pop(name, None)
from service.cli import main
main()
"""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


TRAIN = ("train", "--data", "pyproject.toml", "--name", "x", "--output", "runs/none")

SEARCH = (
    *("experiment", "--row", "amnl", "--search", "1", "--set", "noise=0.1..0.2"),
    *("--data", "pyproject.toml"),
)


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("torch", "train", TRAIN),
        ("torch", "train", ("export", "runs/none", "--output", "bundles/none")),
        ("onnxruntime", "cpu", ("serve", "--port", "0")),
        ("onnxruntime", "cpu", ("predict", "--bundle", "fd001", "--input", "pyproject.toml")),
        ("optuna", "ray", SEARCH),
        ("ray", "ray", ("score", "--bundle", "fd001", "--input", "x", "--output", "y", "--ray", "auto")),
    ],
)
def test_a_missing_extra_is_one_line_with_the_command_to_run(module, extra, arguments):
    done = rul(*arguments, without=module)

    assert done.returncode == 1
    assert done.stderr == f"rul: rul {arguments[0]} needs {module}: pip install 'rulserve[{extra}]'\n"


def test_without_any_extra_rul_lists_its_commands():
    listed = rul("--help", without="torch onnx onnxruntime matplotlib sklearn").stdout

    assert {"train", "export", "serve", "predict"} <= set(re.findall(r"^  (\w+)  ", listed, re.MULTILINE))


@pytest.fixture(scope="module")
def units(tmp_path_factory):
    """A file of two simulated units."""
    file = tmp_path_factory.mktemp("units") / "units.csv"
    assert rul("simulate", "--bundle", "fd001", "--units", "2", "--output", str(file)).returncode == 0
    return file


def test_without_what_windows_lacks_a_bundle_answers_a_file(units):
    asked = ("predict", "--bundle", "fd001", "--input", str(units), "--last")

    assert rul(*asked, without=ON_WINDOWS, first=HIDE_POSIX).stdout == rul(*asked).stdout != ""


def test_without_what_windows_lacks_a_service_is_asked(units):
    done = rul(
        *("predict", "--url", "http://localhost:1", "--input", str(units)),
        without=ON_WINDOWS,
        first=HIDE_POSIX,
    )

    assert done.stderr.startswith("rul: http://localhost:1 cannot be reached")


@pytest.mark.parametrize(
    "arguments", [("serve", "--port", "0"), ("keys", "add", "x", "--scope", "predict", "--file", "x")]
)
def test_on_windows_a_command_that_cannot_run_says_where_it_can(arguments):
    done = rul(*arguments, without=ON_WINDOWS, first=HIDE_POSIX)

    needs = f"rul: rul {arguments[0]} needs Linux or macOS: on Windows run it in a container or in WSL\n"
    assert (done.returncode, done.stderr) == (1, needs)


def test_a_file_whose_name_is_not_utf_8_is_one_line():
    done = rul("score", "--bundle", "fd001", "--input", os.fsdecode(b"caf\xe9.parquet"), "--output", "scored")

    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert r"caf\udce9.parquet" in done.stderr


def test_rul_prints_its_version():
    done = rul("--version")

    assert (done.returncode, done.stdout) == (0, f"rulserve {version('rulserve')}\n")


def targets(folder: Path) -> Path:
    """A folder with the targets of the Makefile."""
    folder.mkdir()
    for name in ("Makefile", "requirements", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def dry_run(folder: Path, target: str) -> str:
    """Return the commands of a target."""
    command = ["make", "--dry-run", "--no-print-directory", target]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_an_environment_is_kept_in_its_folder_and_made_anew_in_another(tmp_path):
    first, second = targets(tmp_path / "first"), tmp_path / "it's the second"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv/dev"], cwd=first, check=True)
    (first / ".venv" / "dev" / ".made").touch()

    kept = dry_run(first, "setup")
    first.rename(second)
    made = dry_run(second, "setup")

    assert "-m venv" not in kept
    assert "-m venv .venv/dev\n" in made


def checked(folder: Path, replaced: str) -> subprocess.CompletedProcess[str]:
    """Run `make python` with a Python whose start-up module replaces what it says of the system."""
    (folder / "sitecustomize.py").write_text(f"import ensurepip, platform, sys, venv\n{replaced}", "utf-8")
    command = ["make", "--no-print-directory", "python", f"PYTHON={sys.executable}"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def linux(machine: str, kind: str, number: str) -> str:
    return (
        f"sys.platform = 'linux'; platform.system = lambda: 'Linux'; platform.machine = lambda: {machine!r}; "
        f"platform.release = lambda: '6.1'; platform.libc_ver = lambda: ({kind!r}, {number!r})"
    )


def mac(machine: str, number: str) -> str:
    return (
        f"sys.platform = 'darwin'; platform.system = lambda: 'Darwin'; "
        f"platform.machine = lambda: {machine!r}; platform.mac_ver = lambda: ({number!r}, ('', '', ''), '')"
    )


@pytest.mark.parametrize(
    "replaced",
    [
        linux("x86_64", "glibc", "2.31"),
        linux("aarch64", "glibc", "2.40"),
        linux("x86_64", "glibc", "3.0"),
        mac("arm64", "15.0"),
        mac("arm64", "26.1.1"),
    ],
)
def test_make_goes_on_where_all_packages_have_wheels(replaced, tmp_path):
    done = checked(tmp_path, replaced)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("replaced", "expected"),
    [
        (linux("x86_64", "glibc", "2.28"), "got Linux x86_64 glibc 2.28;"),
        (linux("x86_64", "", ""), "got Linux x86_64 6.1;"),
        (linux("ppc64le", "glibc", "2.40"), "got Linux ppc64le glibc 2.40;"),
        (mac("arm64", "14.7"), "got Darwin arm64 "),
        (mac("x86_64", "15.0"), "got Darwin x86_64 "),
        ("sys.version_info = (3, 10, 9)", "needs Python 3.11 or later: make PYTHON=python3.12"),
        ("sys.modules['ensurepip'] = None", "install its venv package"),
    ],
)
def test_make_says_in_one_line_what_a_python_or_system_lacks(replaced, expected, tmp_path):
    done = checked(tmp_path, replaced)

    said = done.stderr.splitlines()
    assert done.returncode != 0
    assert expected in said[0]
    assert len(said) == 2, "the second line is make's own"


@pytest.mark.parametrize("target", ["demo", "tour", "bundles"])
def test_a_target_names_programs_in_a_folder_whose_name_has_a_space(target, tmp_path):
    folder = targets(tmp_path / "a b")

    words = shlex.split(dry_run(folder, target))

    assert [word for word in words if word.startswith(f"{folder}/.venv")]
    assert str(tmp_path / "a") not in words


@pytest.mark.parametrize(
    ("package", "file", "pattern"),
    [
        ("grpcio", "rul_v1_pb2_grpc.py", r"GRPC_GENERATED_VERSION = '(\d+)\.(\d+)\.(\d+)'"),
        ("protobuf", "rul_v1_pb2.py", r"Domain\.PUBLIC,\s+(\d+),\s+(\d+),\s+(\d+),"),
    ],
)
def test_generated_code_runs_with_the_oldest_version_allowed(package, file, pattern):
    generated = re.search(pattern, (ROOT / "service" / "proto" / file).read_text("utf-8"))
    [wish] = [each for each in map(Requirement, PROJECT["dependencies"]) if each.name == package]

    [oldest] = [bound.version for bound in wish.specifier if bound.operator == ">="]

    assert generated is not None
    assert Version(oldest) >= Version(".".join(generated.groups()))
