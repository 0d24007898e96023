"""TLS certificates: checks them before the start, and configures Envoy to reload them."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any, Final

from service.choices import FrontEnd
from service.errors import FrontEndFailed
from service.settings import Settings

TYPES: Final = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3"


def check_certificates(settings: Settings, front_end: FrontEnd) -> None:
    """Check the configured certificates.

    Raises:
        FrontEndFailed: they cannot be used; the message names the setting.
    """
    cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
    if not (cert or key or client_ca):
        return
    if not (cert and key):
        raise FrontEndFailed("TLS needs both RUL_TLS_CERT and RUL_TLS_KEY")
    if front_end is not FrontEnd.ENVOY:
        raise FrontEndFailed("TLS needs the Envoy front end (RUL_FRONT_END=envoy); uvicorn has none here")
    for name, path in (("CERT", cert), ("KEY", key), ("CLIENT_CA", client_ca)):
        _check_readable(f"RUL_TLS_{name}", path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, password="")
    except (ssl.SSLError, ValueError) as error:
        mismatch = "KEY_VALUES_MISMATCH" in str(error)
        reason = (
            "the key belongs to another certificate"
            if mismatch
            else f"expected PEM without password: {error}"
        )
        raise FrontEndFailed(f"RUL_TLS_CERT {cert} and RUL_TLS_KEY {key}: {reason}") from error
    try:
        if client_ca:
            context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise FrontEndFailed(
            f"RUL_TLS_CLIENT_CA {client_ca}: expected certificates in PEM: {error}"
        ) from error


def _check_readable(name: str, path: str) -> None:
    try:
        if path:
            Path(path).read_bytes()
    except OSError as error:
        raise FrontEndFailed(f"{name} {path}: {error.strerror}") from error


def use_tls(config: dict[str, Any], settings: Settings, *, folder: Path) -> dict[str, Any]:
    """Return Envoy's configuration with TLS on its listener, if certificates are configured.

    Secrets come from files in `folder` that name the certificates: only then does Envoy reload a certificate,
    when a file is renamed into its folder.
    """
    if not settings.tls_cert:
        return config
    cert, key, client_ca = (
        str(Path(path).absolute()) for path in (settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    )
    certificate = {"certificate_chain": {"filename": cert}, "private_key": {"filename": key}}
    secrets = {"certificate": {"tls_certificate": certificate | _watched(cert)}}
    common: dict[str, Any] = {
        "alpn_protocols": ["h2", "http/1.1"],
        "tls_certificate_sds_secret_configs": [_source(folder, "certificate")],
    }
    if settings.tls_client_ca:
        secrets["clients"] = {
            "validation_context": {"trusted_ca": {"filename": client_ca}} | _watched(client_ca)
        }
        common["validation_context_sds_secret_config"] = _source(folder, "clients")
    for name, secret in secrets.items():
        resource = {"@type": f"{TYPES}.Secret", "name": name} | secret
        file = folder / f"{name}.json"
        if not file.exists():  # other workers may be reading it
            file.write_text(json.dumps({"resources": [resource]}), encoding="utf-8")
    context = {
        "@type": f"{TYPES}.DownstreamTlsContext",
        "common_tls_context": common,
        "require_client_certificate": bool(settings.tls_client_ca),
    }
    config["node"] = {"id": "rulserve", "cluster": "rulserve"}  # secrets from files need a name
    for listener in config["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            chain["transport_socket"] = {"name": "envoy.transport_sockets.tls", "typed_config": context}
    return config


def _watched(path: str) -> dict[str, Any]:
    return {"watched_directory": {"path": str(Path(path).parent)}}


def _source(folder: Path, name: str) -> dict[str, Any]:
    path = {"path": str(folder / f"{name}.json")}
    return {"name": name, "sds_config": {"path_config_source": path, "resource_api_version": "V3"}}
