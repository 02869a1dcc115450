"""Opening the store in a process of Spark: settings, references, what is kept."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pyspark_ottla.errors import ConnectorError
from pyspark_ottla.options.remote_options import RemoteOptions
from pyspark_ottla.remote import store
from pyspark_ottla.remote.store import open_store


@pytest.fixture(autouse=True)
def no_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_stores", {})


def options(**settings: str) -> RemoteOptions:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    return RemoteOptions("direct", settings=tuple(sorted(named.items())))


def test_one_store_is_kept_for_the_same_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WHERE", str(tmp_path))
    chosen = options(storage_backend_class="filesystem", storage_root="${env:WHERE}")
    assert open_store(chosen) is open_store(chosen)
    assert "WHERE" not in repr(chosen)


def test_settings_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "# a broker\nbroker.id=1\nrsm.config.storage.backend.class = filesystem\n"
        f"rsm.config.storage.root={tmp_path}\nrsm.config.chunk.size=4096\n"
    )
    opened = open_store(RemoteOptions("direct", config_file=str(file)))
    assert opened.keys.prefix == ""
    with pytest.raises(ConnectorError, match=r"ottla\.remote\.config\.file /nowhere"):
        open_store(RemoteOptions("direct", config_file="/nowhere"))


def test_errors_name_the_setting_and_no_secret() -> None:
    with pytest.raises(ConnectorError, match=r"storage\.root is not set") as caught:
        open_store(options(storage_backend_class="filesystem"))
    assert caught.value.condition == "INVALID_OPTION"


def test_without_the_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    chosen = options(
        storage_backend_class="s3",
        storage_s3_bucket_name="b",
        storage_s3_region="eu-north-1",
        storage_aws_access_key_id="id",
        storage_aws_secret_access_key="topsecret",
    )
    with pytest.raises(ConnectorError, match=r"ottla\[tiered\]") as caught:
        open_store(chosen)
    assert caught.value.condition == "MISSING_DEPENDENCY"
    assert "topsecret" not in str(caught.value) + repr(chosen)


def test_at_most_some_stores_are_open(tmp_path: Path) -> None:
    for number in range(store._STORES_MAX + 2):
        folder = tmp_path / str(number)
        folder.mkdir()
        open_store(options(storage_backend_class="filesystem", storage_root=str(folder)))
    assert len(store._stores) == store._STORES_MAX
