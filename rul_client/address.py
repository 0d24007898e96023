"""Addresses, paths and API keys of servers. Every `rul` command loads it: it imports nothing heavy."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from functools import wraps
from inspect import Signature, signature
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar
from urllib.parse import quote, urlsplit

import typer

from rul_client.errors import RemoteFailed

Result = TypeVar("Result")
LOCAL: Final = "http://localhost:3000"


class InvalidAddress(typer.BadParameter, RemoteFailed):
    """An invalid address; wrong usage of a command."""


class InvalidKey(typer.BadParameter, RemoteFailed):
    """An API key that cannot be sent; wrong usage of a command."""


class Tls(NamedTuple):
    """PEM files of a TLS connection.

    Attributes:
        ca: Authorities that the server's certificate may come from; None: those of docs/install.md.
        cert: Certificate of the client; None: without.
        key: Private key of that certificate.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


def http_address(url: str) -> str:
    """Accept http:// or https://HOST:PORT."""
    return _checked(url, ("http", "https"))


def any_address(url: str | None) -> str | None:
    """Accept http://, https://, grpc:// or grpcs://HOST:PORT, or nothing."""
    return None if url is None else _checked(url, ("http", "https", "grpc", "grpcs"))


def _checked(url: str, schemes: tuple[str, ...]) -> str:
    try:
        parts = urlsplit(url)
        is_known = parts.scheme in schemes and parts.hostname and parts.port != 0
        keeps_all = not parts.query and (parts.scheme in {"http", "https"} or parts.path in {"", "/"})
        if is_known and keeps_all and "@" not in parts.netloc:
            return url
    except ValueError:  # the port is no number
        pass
    # Errors, screens and reports show addresses.
    has_password = "@" in url
    got = (
        "one with a user or password; --key-file and RUL_API_KEY take the key" if has_password else repr(url)
    )
    raise InvalidAddress(f"expected {', '.join(schemes)}://HOST:PORT, got {got}")


def chosen_key(api_key: str | None, key_file: Path | None) -> str | None:
    """Return the key in the file, if one is given, else the key itself."""
    if key_file is None:
        return api_key  # checked where a service is asked
    try:
        return checked_key(key_file.read_text(encoding="utf-8-sig").strip(), hint="--key-file")
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{key_file} cannot be read: {error}", param_hint="--key-file") from None


def checked_key(api_key: str | None, *, hint: str | None = None) -> str | None:
    """Return the key, if there is one; its errors never quote it.

    Raises:
        InvalidKey: it is empty, or not one line of printable ASCII; `hint` names the option.
    """
    if api_key is not None and not re.fullmatch(r"[!-~](?:[ -~]*[!-~])?", api_key):
        got = "other characters" if api_key else "nothing"
        raise InvalidKey(f"API key: expected one line of printable ASCII, got {got}", param_hint=hint)
    return api_key


class Credentials(NamedTuple):
    """The API key and the TLS files that a command shows a server."""

    api_key: str | None = None
    tls: Tls = Tls()


def _credentials(
    *,
    api_key: Annotated[
        str | None, typer.Option(help="With a service: its API key.", envvar="RUL_API_KEY")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="With a service: file with its API key (keeps it out of `ps`).")
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(help="With a service: PEM file of its certificate authority.")
    ] = None,
    cert: Annotated[
        Path | None, typer.Option(help="With a service: PEM file of your client certificate (mTLS).")
    ] = None,
    key: Annotated[Path | None, typer.Option(help="With --cert: its private key, PEM.")] = None,
) -> Credentials:
    return Credentials(chosen_key(api_key, key_file), Tls(ca, cert, key))


OF_CREDENTIALS: Final = tuple(signature(_credentials).parameters)
"""Names of the options that `asks_a_service` adds."""


def in_place_of(
    parameter: str, maker: Callable[..., Any]
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Replace one parameter of a command by the options of a function, whose result it gets."""
    options = signature(maker, eval_str=True).parameters

    def change(command: Callable[..., Result]) -> Callable[..., Result]:
        own = dict(signature(command, eval_str=True).parameters)
        del own[parameter]

        @wraps(command)
        def run(**given: Any) -> Result:  # noqa: ANN401 whatever the command takes
            made = maker(**{name: given.pop(name) for name in options})
            return command(**{parameter: made}, **given)

        vars(run)["__signature__"] = Signature([*own.values(), *options.values()])  # what Typer reads
        return run

    return change


asks_a_service: Final = in_place_of("credentials", _credentials)
"""Give a command the options of an API key and of TLS, in place of its parameter `credentials`."""


def is_loopback(host: str | None) -> bool:
    """Return whether a host is this machine, which is reached without a proxy."""
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return host == "localhost"


def in_path(name: str) -> str:
    """Quote a name as a part of a path, also `.` and `..`, which would mean folders."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")
