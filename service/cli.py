"""The command `rul`: its error handling, and the commands `serve`, `settings` and `keys`.

Each package registers its commands under the entry point group `rul.commands`. A command imports its
dependencies when it runs, so that `rul serve` never loads torch.
"""

from __future__ import annotations

import os
import signal
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import FrameType
from typing import Annotated, Final, NoReturn

import typer

from model.domain import RulError, printable
from model.outputs import whole_file
from model.usage import QuotingGroup
from model.version import VERSION
from service.choices import FrontEnd, LogFormat, LogLevel, ProviderChoice
from service.edge.keys import GRANTABLE, InvalidKeys, add_key, read_keys, revoke_key

SERVE_HELP = """
Serve bundles by HTTP and gRPC.

Example: rul serve --bundle fd001 --port 3000

Every option has an environment variable (RUL_PORT=3000). `rul settings` lists all variables.
"""
ON_WINDOWS: Final = not hasattr(signal, "SIGHUP")
NOT_ON_WINDOWS: Final = {"fcntl", "resource"}
"""Modules of Python that serving, and changes of key files, need."""
STANDARD_ERROR: Final = 2
END_SECONDS: Final = 5
NAME_HELP: Final = "Name of the key, in logs and for `revoke`."
KeyFile = Annotated[Path | None, typer.Option("--file", help="The key file; default: RUL_KEYS_FILE.")]

EXTRAS: Final = {
    "onnxruntime": "cpu",
    "matplotlib": "train",
    "onnx": "train",
    "optuna": "ray",
    "ray": "ray",
    "sklearn": "train",
    "torch": "train",
}
"""The extra of `rulserve` that installs each optional module."""


def _show_version(wanted: bool) -> None:  # noqa: FBT001 Typer calls it
    if wanted:
        typer.echo(f"rulserve {VERSION}")
        raise typer.Exit


def main() -> None:
    """Run `rul`: exit with 2 for wrong usage and 1 for a failure, with the reason on standard error."""
    _open_streams()
    signal.signal(signal.SIGTERM, _end)
    if not ON_WINDOWS and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as nohup sets it
        signal.signal(signal.SIGHUP, _end)
    app = typer.Typer(
        cls=QuotingGroup,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        help="Remaining useful life: train, export, check, serve and predict.",
    )
    app.callback()(_root)
    try:
        for entry_point in sorted(entry_points(group="rul.commands"), key=lambda found: found.name):
            entry_point.load()(app)
        app()
    except (
        RulError,
        OSError,
    ) as error:  # an OSError that is not caught before is the machine's: a full disk, a missing folder
        _fail(str(error))
    except KeyboardInterrupt:  # Typer handles it in commands, not while they are imported
        sys.exit(128 + signal.SIGINT)
    except UnicodeEncodeError as error:  # Arrow and text files have names in UTF-8 only
        near = error.object[max(error.start - 20, 0) : error.end + 20]
        _fail(f"expected names of files in UTF-8, got {near!r}; rename the file, or set LC_ALL=C.UTF-8")
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        command = " ".join(["rul", *sys.argv[1:2]])
        if module in NOT_ON_WINDOWS:
            _fail(f"{command} needs Linux or macOS: on Windows run it in a container or in WSL")
        if module not in EXTRAS:
            raise
        _fail(f"{command} needs {module}: pip install 'rulserve[{EXTRAS[module]}]'")


def _end(number: int, _frame: FrameType | None) -> NoReturn:
    """Unwind on a signal, so that no part of a file, temporary folder or process is left."""
    if not ON_WINDOWS:
        signal.alarm(END_SECONDS)  # the default action ends the process: a library may swallow the exit
    sys.exit(128 + number)


def _open_streams() -> None:
    """Open closed standard streams to nothing; escape letters that standard output cannot encode."""
    # Otherwise a later file or socket takes the number of a closed stream, and text meant for that.
    while (number := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        os.set_inheritable(number, True)  # noqa: FBT003 its only argument
    os.close(number)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name) or os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
        stream.reconfigure(errors="backslashreplace")
        setattr(sys, name, stream)


def _fail(reason: str) -> NoReturn:
    lines = [printable(line) for line in f"rul: {reason}".splitlines()]
    print(*lines, sep="\n", file=sys.stderr)  # noqa: T201
    sys.exit(1)


def _root(
    *,
    _version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_show_version),
    ] = False,
) -> None:
    """Take the options of `rul` itself."""


def register(app: typer.Typer) -> None:
    """Add `serve`, `settings` and `keys`."""
    app.command(help=SERVE_HELP)(serve)
    app.command(name="settings")(show_settings)
    keys = typer.Typer(no_args_is_help=True, help="API keys of a service, with scopes and tenants.")
    for name, command in (("add", keys_add), ("list", keys_list), ("revoke", keys_revoke)):
        keys.command(name)(command)
    app.add_typer(keys, name="keys")


def serve(
    bundle: Annotated[
        list[str] | None,
        typer.Option(help="Name of a shipped bundle, or a folder; repeatable, or separated by commas."),
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port of HTTP and gRPC.", min=0, max=65535)] = None,
    provider: Annotated[ProviderChoice | None, typer.Option(help="Where inference runs.")] = None,
    front_end: Annotated[
        FrontEnd | None, typer.Option(help="envoy: HTTP and gRPC on one port; uvicorn: BentoML's own server.")
    ] = None,
    log_level: Annotated[LogLevel | None, typer.Option(help="Minimum log level.")] = None,
    log_format: Annotated[
        LogFormat | None, typer.Option(help="json, console, or auto: console on a terminal.")
    ] = None,
) -> None:
    """Serve bundles by HTTP and gRPC."""
    from service.processes.front_end import run  # noqa: PLC0415 only this command needs it
    from service.settings import Settings, parts  # noqa: PLC0415 few commands need them, and they load for 0.05 s

    given = {
        "bundles": parts(",".join(bundle or ())) or None,  # workers read it from the variable
        "host": host,
        "port": port,
        "provider": provider,
        "front_end": front_end,
        "log_level": log_level,
        "log_format": log_format,
    }
    settings = Settings.read().model_copy(update={k: v for k, v in given.items() if v is not None})
    raise typer.Exit(run(settings))


def show_settings(
    output: Annotated[Path | None, typer.Option(help="Write a new .env file instead of printing it.")] = None,
) -> None:
    """List every environment variable of the service, with its default and description.

    Example: rul settings --output .env
    """
    from service.settings import env_example  # noqa: PLC0415 as above

    if output is None:
        typer.echo(env_example(), nl=False)
        return
    if output.exists():
        raise FileExistsError(f"{output}: the file exists: choose another --output")
    with whole_file(output) as part:
        part.touch(mode=0o600, exist_ok=False)  # it will hold keys and passwords
        part.write_text(env_example(), encoding="utf-8")


def keys_add(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    scope: Annotated[list[str], typer.Option(help=f"One of {', '.join(GRANTABLE)}; repeatable.")],
    tenant: Annotated[str, typer.Option(help="Owner of the units that this key names.")] = "",
    file: KeyFile = None,
) -> None:
    """Add a key and print it, once: the file keeps its SHA-256 only.

    Example: rul keys add line-1 --scope predict --scope ingest --tenant plant-a
    """
    path = _key_file(file)
    print(add_key(path, name, scope, tenant))  # noqa: T201 the output
    print(f"rul: {path} has the key {name!r}; it is shown this once", file=sys.stderr)  # noqa: T201


def keys_list(file: KeyFile = None) -> None:
    """List the keys: name, scopes, tenant and day, separated by tabs.

    Example: rul keys list --file keys.toml
    """
    for name, entry in read_keys(_key_file(file)).items():
        created = "-" if entry.created is None else entry.created.isoformat()
        print(name, ",".join(entry.scopes), entry.tenant or "-", created, sep="\t")  # noqa: T201 the output


def keys_revoke(
    name: Annotated[str, typer.Argument(help=NAME_HELP)],
    file: KeyFile = None,
) -> None:
    """Remove a key: services refuse it within a second and end its streams.

    Example: rul keys revoke line-1
    """
    revoke_key(_key_file(file), name)


def _key_file(given: Path | None) -> Path:
    from service.settings import Settings  # noqa: PLC0415 as above

    path = given or Path(Settings.read().keys_file)
    if path == Path():
        raise InvalidKeys("expected a key file: set RUL_KEYS_FILE, or pass --file")
    return path
