"""Names of znodes that ZooKeeper's PathUtils accepts and refuses."""

from __future__ import annotations

import pytest

from ottla.controller.zookeeper_server.codes import Code, RequestError
from ottla.controller.zookeeper_server.paths import check_path


@pytest.mark.parametrize("path", ["/", "/a", "/a/b", "/.a", "/a.b", "/...", "/ä/日本", "/a b"])
def test_valid(path: str) -> None:
    check_path(path)


@pytest.mark.parametrize(
    "path", ["", "a", "/a/", "//", "/a//b", "/.", "/a/..", "/a/./b", "/a\x00", "/\x1f", "/\uf000"]
)
def test_invalid(path: str) -> None:
    with pytest.raises(RequestError) as refused:
        check_path(path)
    assert refused.value.code is Code.BAD_ARGUMENTS
