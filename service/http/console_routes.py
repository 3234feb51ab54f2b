"""The console at `/` and its files. They are public; the page asks for a key where the service has keys."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import Response

from service.console.assets import PAGE, Asset, read_assets
from service.errors import Refusal

PREFIX = "/console/"


def console_routes() -> APIRouter:
    router, assets = APIRouter(include_in_schema=False), read_assets()

    @router.get("/")
    async def page() -> Response:
        return _response(assets[PAGE])

    @router.get(PREFIX + "{name}")
    async def file(name: str) -> Response:
        if name not in assets:
            raise Refusal("not_found", f"there is no {PREFIX}{name}")
        return _response(assets[name])

    return router


def _response(asset: Asset) -> Response:
    return Response(asset.content, media_type=asset.media_type, headers=asset.headers)
