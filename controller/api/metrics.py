"""``/metrics``, as Prometheus asks for it."""

from fastapi import APIRouter, FastAPI, Request, Response

from patchlight.controller.metrics.exposition import ControllerMetrics

_OPENMETRICS = "application/openmetrics-text"
_PLAIN = "text/plain; version=0.0.4; charset=utf-8"


def metrics_routes(metrics: ControllerMetrics) -> APIRouter:
    """``/metrics``, in the format that is asked for."""
    routes = APIRouter()

    @routes.get("/metrics", include_in_schema=False)
    async def answer(request: Request) -> Response:
        openmetrics = _OPENMETRICS in request.headers.get("accept", "")
        content_type = f"{_OPENMETRICS}; version=1.0.0; charset=utf-8"
        return Response(
            metrics.as_text(openmetrics=openmetrics),
            headers={"content-type": content_type if openmetrics else _PLAIN},
        )

    return routes


def metrics_app(metrics: ControllerMetrics) -> FastAPI:
    """An application that has ``/metrics`` and nothing else."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)
    app.include_router(metrics_routes(metrics))
    return app
