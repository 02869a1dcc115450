"""UpdateFeatures (57), versions 0 to 2: finalized feature levels (KIP-584).

Sent to the active controller; any other broker responds with NOT_CONTROLLER.
Version 2 has no rows: all levels are finalized, or none with the error of the response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.broker.requests.api_routes import ApiRoute
from ottla.broker.requests.error_responses import error_code, error_message
from ottla.broker.requests.request_channel import RequestContext
from ottla.broker.requests.request_context import OnCluster
from ottla.controller.admin.features import FeatureUpdate
from ottla.protocol.errors import KafkaError
from ottla.protocol.messages.update_features import (
    FeatureUpdateKey,
    UpdatableFeatureResult,
    UpdateFeaturesRequest,
    UpdateFeaturesResponse,
)
from ottla.protocol.registry import ApiKey

if TYPE_CHECKING:
    from ottla.controller.controller import Controller

# FeatureUpdate.UpgradeType of Kafka.
_UPGRADE = 1
_SAFE_DOWNGRADE = 2

_WITHOUT_ROWS_SINCE = 2


class UpdateFeaturesHandler:
    """Hands the request to the controller in this process."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def handle(
        self, context: RequestContext, request: UpdateFeaturesRequest
    ) -> UpdateFeaturesResponse:
        version = context.header.api_version
        updates = [
            FeatureUpdate(each.feature, each.max_version_level, _upgrade_type(each, version))
            for each in request.feature_updates
        ]
        try:
            rows = await self._controller.update_features(
                updates,
                validate_only=request.validate_only,
                is_all_or_nothing=version >= _WITHOUT_ROWS_SINCE,
            )
        except KafkaError as error:
            return UpdateFeaturesResponse(
                error_code=error_code(error), error_message=error_message(error)
            )
        failed = next(((name, row) for name, row in rows.items() if row.code), None)
        if version >= _WITHOUT_ROWS_SINCE and failed is not None:
            name, row = failed
            return UpdateFeaturesResponse(
                error_code=row.code,
                error_message="The update failed for all features since the following feature had "
                f"an error: {name}: {row.message}",
            )
        return UpdateFeaturesResponse(
            error_message=None,
            results=[
                UpdatableFeatureResult(name, row.code, row.message) for name, row in rows.items()
            ],
        )


def _upgrade_type(update: FeatureUpdateKey, version: int) -> int:
    """Version 0 says only whether a downgrade is allowed, later ones of which type."""
    if version > 0:
        return update.upgrade_type
    return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE


ROUTES = (ApiRoute(ApiKey.UPDATE_FEATURES, UpdateFeaturesHandler.handle, check=OnCluster("ALTER")),)
