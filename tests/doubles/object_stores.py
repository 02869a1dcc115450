"""The object store that the variable OTTLA_TEST_STORE names, behind the proxy that spoils requests.

Without the variable it is the S3 server of moto. `make compat-stores` has them all.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager

from tests.doubles.azurite import azurite
from tests.doubles.gcs_server import gcs_on_moto
from tests.doubles.s3_server import MOTO, STORE_VARIABLE, S3Server, s3_server

STORES = {
    MOTO: s3_server,
    "seaweedfs": s3_server,
    "azurite": azurite,
    "gcs-on-moto": gcs_on_moto,
}


def object_store() -> AbstractContextManager[S3Server]:
    """With an empty bucket or container."""
    return STORES[os.environ.get(STORE_VARIABLE, MOTO)]()
