"""The JAAS file that KAFKA_OPTS names."""

from pathlib import Path

import pytest

from ottla.broker.config.errors import ConfigError
from ottla.broker.config.jaas_file import JaasFile


def made(path: Path, text: str, options: str = "") -> JaasFile:
    path.write_text(text)
    return JaasFile(f"-Xmx1g -Djava.security.auth.login.config={path} {options}")


def test_no_file_has_no_sections() -> None:
    assert JaasFile("-Xmx1g").section("KafkaServer") is None


def test_the_first_section_that_is_there(tmp_path: Path) -> None:
    file = made(tmp_path / "a", "A { x.Y required; }; B { };")
    found = file.section("Z", "B", "A")
    assert found is not None
    assert found == (f"{tmp_path / 'a'}, section B", ())
    assert file.section("Z") is None


def test_the_file_is_read_once_as_in_java(tmp_path: Path) -> None:
    file = made(tmp_path / "a", "A { };")
    assert file.section("A") is not None
    (tmp_path / "a").unlink()
    assert file.section("A") is not None


@pytest.mark.parametrize("prefix", ["", "=", "file:", '"'])
def test_ways_to_write_the_path(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "a").write_text("A { };")
    file = JaasFile(f"-Djava.security.auth.login.config={prefix}{tmp_path / 'a'}")
    assert file.section("A") is not None


def test_of_several_logins_of_a_class_the_first_decides(tmp_path: Path) -> None:
    text = 'A { x.Y required a="1"; x.Z required; x.Y optional a="2" b="3"; };'
    found = made(tmp_path / "a", text).section("A")
    assert found is not None
    assert found.login("x.Y") == ("x.Y", {"a": "1", "b": "3"})
    assert found.login("x.Q") is None


def test_system_properties(tmp_path: Path) -> None:
    text = 'A { x.Y required a="${w}${/}x" b="${user.home}"; };'
    found = made(tmp_path / "a", text, "-Dw=there -Duser.home=/h").section("A")
    assert found is not None
    assert found.logins[0].options == {"a": "there/x", "b": "/h"}


def test_a_file_of_an_editor_of_windows(tmp_path: Path) -> None:
    """Its first section would have another name."""
    found = made(tmp_path / "a", "\ufeffA {\r\n x.Y required;\r\n};\r\n").section("A")
    assert found is not None
    assert found.login("x.Y") is not None


def test_files_that_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        JaasFile(f"-Djava.security.auth.login.config={path}").section("A")
    with pytest.raises(ConfigError, match="there is no system property file:/x:y"):
        made(path, 'A { x.Y required a="${file:/x:y}"; };').section("A")
    with pytest.raises(ConfigError, match="line 1: a section begins"):
        made(path, "A").section("A")
    with pytest.raises(ConfigError, match="larger than"):
        made(path, "/" * (1 << 21)).section("A")
    path.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="not a text in UTF-8"):
        JaasFile(f"-Djava.security.auth.login.config={path}").section("A")
