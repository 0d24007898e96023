"""TLS and mTLS on the one port, with the commands of docs/tls.md; renewal without a restart."""

from __future__ import annotations

import re
import shutil
import socket
import ssl
from pathlib import Path

import pytest

from model.domain import RulError
from service.choices import FrontEnd
from service.errors import FrontEndFailed
from service.processes.tls import check_certificates
from service.settings import Settings
from tests.commands import rul
from tests.integration import conftest as processes
from tests.integration.conftest import Server, running
from tests.programs import ROOT, bash_blocks, pasted
from tests.waiting import wait_until

BLOCKS = bash_blocks(ROOT / "docs" / "tls.md")
UNITS = ("--units", "2", "--truncate", "--seed", "4", "--output")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the certificates that the documented commands make."""
    folder = tmp_path_factory.mktemp("tls")
    pasted(BLOCKS[0], folder)
    return folder


@pytest.fixture(scope="module")
def secure(folder, tiny_bundle):
    names = {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "ca.pem"}
    settings = {setting: str(folder / name) for setting, name in names.items()}
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    with running(folder, str(tiny_bundle.path), tls=context, **settings) as server:
        yield server


def documented(line: str, server: Server) -> str:
    """The command of the documentation that contains these words, for this server's port."""
    (found,) = [one for one in "\n".join(BLOCKS).splitlines() if line in one]
    return found.replace("localhost:3000", f"localhost:{server.port}")


def test_the_documented_certificates_pass_the_strict_check_of_python_3_13(secure, folder):
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "client.pem", folder / "client.key")
    context.verify_flags |= ssl.VERIFY_X509_STRICT

    with socket.create_connection(("127.0.0.1", secure.port)) as plain:
        context.wrap_socket(plain, server_hostname="localhost").close()


def test_curl_with_a_certificate_is_answered_and_without_one_refused(secure, folder):
    command = documented("curl", secure)
    bare = f"{command.split(' --cert ')[0]} {secure.http}/readyz"

    assert '"ready"' in pasted(command, folder)
    pasted(f"! {bare}", folder)


@pytest.mark.parametrize("scheme", ["https", "grpcs"])
def test_rul_predict_shows_a_certificate_by_http_and_grpc(scheme, secure, folder, tiny_bundle):
    rul("simulate", *UNITS, folder / "units.csv", "--bundle", tiny_bundle.path)
    options = documented(f"{scheme}://localhost:3000 --model", secure).split()[1:]
    given = [str(folder / word) if word.endswith((".pem", ".key", ".csv")) else word for word in options]
    given[given.index("fd001")] = "tiny"

    done = rul(*given, "--format", "csv")
    bare = rul(*given[: given.index("--cert")], "--format", "csv")

    assert done.exit_code == 0, done.output
    assert len(done.stdout.splitlines()) == 3
    assert isinstance(bare.exception, RulError)
    assert "\n" not in str(bare.exception)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("rul top", [r"\btiny\b"]),
        ("rul models", [r"\btiny\b"]),
        ("rul bench", [r"grpc .* none ", r"json .* none "]),
    ],
)
def test_the_other_commands_show_a_certificate_too(command, shown, secure, folder):
    words = documented(command, secure).split()[1:]
    given = [str(folder / word) if word.endswith((".pem", ".key")) else word for word in words]
    quick = ["--callers", "1", "--windows", "1", "--seconds", "0.2"] if command == "rul bench" else []

    done = rul(*given, *quick)
    bare = rul(*given[: given.index("--cert")], *quick)

    assert done.exit_code == 0, done.output
    assert all(re.search(pattern, done.stdout) for pattern in shown)
    assert isinstance(bare.exception, RulError)


def test_a_renewed_certificate_is_shown_without_a_restart(secure, folder):
    def shown() -> bytes:
        context = ssl.create_default_context(cafile=folder / "ca.pem")
        context.load_cert_chain(folder / "client.pem", folder / "client.key")
        with (
            socket.create_connection(("127.0.0.1", secure.port), timeout=10) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as opened,
        ):
            return opened.getpeercert(binary_form=True) or b""

    before = shown()
    names = BLOCKS[0].splitlines()
    renew = "\n".join(names[2:5]).replace("server.key", "new.key").replace("server.pem", "new.pem")
    pasted(renew, folder)
    pasted(BLOCKS[3], folder)

    wait_until(lambda: shown() != before, 60, what="the new certificate")
    assert secure.process.poll() is None


def test_a_certificate_of_a_kubernetes_secret_is_renewed_without_a_restart(folder, tiny_bundle, tmp_path):
    secret, context = tmp_path / "secret", ssl.create_default_context(cafile=folder / "ca.pem")
    for version, name in (("..1", "server"), ("..2", "client")):
        (secret / version).mkdir(parents=True)
        for suffix in ("pem", "key"):
            shutil.copy(folder / f"{name}.{suffix}", secret / version / f"tls.{suffix}")
    (secret / "..data").symlink_to("..1")
    for name in ("tls.pem", "tls.key"):
        (secret / name).symlink_to(f"..data/{name}")
    settings = {"tls_cert": str(secret / "tls.pem"), "tls_key": str(secret / "tls.key")}

    with running(tmp_path, str(tiny_bundle.path), tls=context, **settings) as server:
        (secret / "..data_tmp").symlink_to("..2")
        (secret / "..data_tmp").rename(secret / "..data")

        renewed = (folder / "client.pem").read_text("utf-8")
        wait_until(
            lambda: ssl.get_server_certificate(("127.0.0.1", server.port)) == renewed,
            60,
            what="the new certificate",
        )


@pytest.mark.parametrize(
    ("front_end", "files", "reason"),
    [
        ("envoy", {"cert": "server.pem"}, "both RUL_TLS_CERT and RUL_TLS_KEY"),
        ("envoy", {"cert": "none.pem", "key": "server.key"}, "RUL_TLS_CERT .*No such file"),
        ("envoy", {"cert": "server.key", "key": "server.key"}, "expected PEM"),
        (
            "envoy",
            {"cert": "client.pem", "key": "client.key", "client_ca": "ca.key"},
            "RUL_TLS_CLIENT_CA .*expected certificates",
        ),
        ("uvicorn", {"cert": "client.pem", "key": "client.key"}, "TLS needs the Envoy front end"),
    ],
)
def test_certificates_that_cannot_be_used_are_named_with_the_reason(front_end, files, reason, folder):
    paths = {f"tls_{setting}": str(folder / name) for setting, name in files.items()}

    with pytest.raises(FrontEndFailed, match=reason):
        check_certificates(Settings.model_construct(**paths), FrontEnd(front_end))


def test_certificates_that_cannot_be_used_end_the_start_with_one_line(folder):
    files = {"RUL_TLS_CERT": str(folder / "client.pem"), "RUL_TLS_KEY": str(folder / "ca.key")}

    done = processes.rul("serve", RUL_PORT="0", RUL_FRONT_END="envoy", **files)

    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "the key belongs to another certificate" in line
