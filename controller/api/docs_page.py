"""The page ``/docs``, which shows the API's description; all that it needs comes from here."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

from fastapi import APIRouter
from fastapi.responses import HTMLResponse, Response

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Patchlight: REST API</title>
<link rel="stylesheet" href="/docs/swagger-ui.css">
<link rel="icon" href="data:,">
</head>
<body>
<div id="swagger-ui"></div>
<script src="/docs/swagger-ui-bundle.js"></script>
<script src="/docs/start.js"></script>
</body>
</html>
"""
_START = """SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  presets: [SwaggerUIBundle.presets.apis],
});
"""
# Styles that the library writes into its elements, and pictures within its style sheet.
_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:"
_HEADERS = {"Content-Security-Policy": _POLICY, "X-Content-Type-Options": "nosniff"}
_ASSETS = {"swagger-ui-bundle.js": "text/javascript", "swagger-ui.css": "text/css"}


def docs_routes() -> APIRouter:
    """The routes of the page and its files."""
    routes = APIRouter(prefix="/docs", include_in_schema=False)

    @routes.get("")
    async def page() -> Response:
        return HTMLResponse(_PAGE, headers=_HEADERS)

    @routes.get("/start.js")
    async def start() -> Response:
        return Response(_START, media_type="text/javascript", headers=_HEADERS)

    for name, kind in _ASSETS.items():
        routes.add_api_route(f"/{name}", _giving(name, kind), methods=["GET"])
    return routes


def _giving(name: str, kind: str) -> Callable[[], Awaitable[Response]]:
    async def asset() -> Response:
        body = (files("fastapi_offline") / "static" / name).read_bytes()
        return Response(body, media_type=kind, headers=_HEADERS)

    return asset
