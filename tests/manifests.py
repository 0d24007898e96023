"""deploy/kubernetes as rendered by kustomize, and the schemas of its documents."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tests.programs import ROOT, output_of, program

FOLDER: Final = ROOT / "deploy" / "kubernetes"
PAGE: Final = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")
CUSTOM_KINDS: Final = yaml.safe_load(Path(__file__).with_name("custom_kinds.yaml").read_text("utf-8"))
OVERLAYS: Final = ("cpu", "gpu", "hpa", "keda")

Document = dict[str, Any]


def render(folder: Path) -> dict[str, list[Document]]:
    """Render the overlays, `kserve`, and as `docs` the kustomization that docs/kubernetes.md shows."""
    own = folder / "overlay"
    own.mkdir()
    (folder / "deploy").symlink_to(ROOT / "deploy")
    (shown,) = re.findall(r"```yaml\n(apiVersion: kustomize.*?)```", PAGE, re.DOTALL)
    text = shown.replace("deploy/kubernetes", "../deploy/kubernetes")
    (own / "kustomization.yaml").write_text(text, encoding="utf-8")
    folders = {name: FOLDER / "overlays" / name for name in OVERLAYS}
    folders |= {"kserve": FOLDER / "kserve", "docs": own}
    kubectl = program("kubectl")
    return {
        name: list(yaml.safe_load_all(output_of(kubectl, "kustomize", path)))
        for name, path in folders.items()
    }


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    """Return the documents of a kind."""
    return [document for document in documents if document["kind"] == kind]


def named(documents: list[Document], kind: str, name: str) -> Document:
    """Return the document of a kind and a name."""
    (found,) = (one for one in of_kind(documents, kind) if one["metadata"]["name"] == name)
    return found


def validate(document: Document, version: str) -> None:
    """Refuse a document with an unknown field or a value of another type."""
    custom = CUSTOM_KINDS.get(document["kind"])
    if custom is None:
        kubernetes_validate.validate(document, version, strict=True)
        return
    path = f"kubernetes-json-schema/v{version}.0-local-strict/_definitions.json"
    definitions = Resource.from_contents(schema_contents(path, version))
    schema = custom | {"$id": "https://kubernetes.io/api/custom.json"}
    jsonschema.Draft202012Validator(schema, registry=definitions @ Registry()).validate(document)
