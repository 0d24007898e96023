"""BentoML's own server, with a supervisor that only this user can control.

The supervisor runs any program for clients of its sockets. BentoML opens these on TCP, where every user of
this machine could connect.
"""

from __future__ import annotations

import os
from typing import Any

from bentoml._internal.utils import circus
from bentoml_cli.cli import cli

from service.processes.folder import service_folder


def main() -> None:
    """Run the command `bentoml` with the arguments of this process."""
    library: Any = circus
    arbiter = library.Arbiter
    os.environ.setdefault("BENTOML_DO_NOT_TRACK", "true")  # its server reports starts and use to its maker
    with service_folder() as folder:
        # It makes folders there, and keeps nothing.
        os.environ.setdefault("BENTOML_HOME", str(folder / "home"))
        sockets = {"endpoint": f"ipc://{folder}/control", "pubsub_endpoint": f"ipc://{folder}/events"}

        def private(watchers: list[Any], **options: Any) -> Any:  # noqa: ANN401 circus's
            return arbiter(watchers, **(options | sockets))

        library.Arbiter = private
        cli()


if __name__ == "__main__":
    main()
