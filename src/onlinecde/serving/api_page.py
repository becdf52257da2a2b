"""The OpenAPI document as one plain page: no script, nothing loaded from anywhere."""

from __future__ import annotations

from html import escape
from typing import Any


def api_page(document: dict[str, Any]) -> str:
    """HTML for a browser; `/openapi.json` is for machines.

    >>> "GET" in api_page({"paths": {"/healthz": {"get": {"description": "It runs."}}}})
    True
    """
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>API</title>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        "<link rel=stylesheet href=/assets/login.css><main class=docs><h1>API</h1>"
        "<p>For machines: <a href=/openapi.json>/openapi.json</a>. Send <code>Authorization: Bearer "
        "&lt;token&gt;</code> where the server has tokens.</p>"
    ]
    for path, methods in document.get("paths", {}).items():
        for method, content in methods.items():
            parts.append(_operation(path, method, content))
    parts.append(
        "<section><h2>WebSocket <code>/v1/live</code></h2><p>Events in, receipts, predictions and "
        "ticks of the clock out.</p></section></main></html>"
    )
    return "".join(parts)


def _operation(path: str, method: str, content: dict[str, Any]) -> str:
    rows = [
        f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}"
        f"<td>{escape(_kind(one.get('schema', {})))}"
        for one in content.get("parameters", ())
    ]
    bodies = content.get("requestBody", {}).get("content", {})
    rows += [f"<tr><td>body<td colspan=2><code>{escape(kind)}</code>" for kind in bodies]
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    answers = ", ".join(sorted(content.get("responses", {})))
    return (
        f"<section><h2>{escape(method.upper())} <code>{escape(path)}</code></h2>"
        f"<p>{escape(content.get('description', ''))}</p>{table}<p class=faint>answers {escape(answers)}</p></section>"
    )


def _kind(schema: dict[str, Any]) -> str:
    kinds = [one.get("type", "") for one in schema.get("anyOf", [schema])]
    limits = [f"{n} {schema[n]}" for n in ("minimum", "maximum", "maxLength") if n in schema]
    return ", ".join([" or ".join(kind for kind in kinds if kind), *limits])
