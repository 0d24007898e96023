"""Write every dashboard's JSON: `python -m observability.dashboards`."""

from __future__ import annotations

from observability.dashboards.render import FOLDER, rendered

if __name__ == "__main__":
    texts = rendered()
    for path in FOLDER.glob("*.json"):
        path.unlink()
    for uid, text in texts.items():
        (FOLDER / f"{uid}.json").write_text(text, "utf-8")
