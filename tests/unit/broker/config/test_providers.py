"""Values kept outside of the settings (KIP-297)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.providers import ConfigProviders, is_reference

CLASSES = "org.apache.kafka.common.config.provider."
PROVIDERS = {
    "config.providers": "file,directory,env",
    "config.providers.file.class": f"{CLASSES}FileConfigProvider",
    "config.providers.directory.class": f"{CLASSES}DirectoryConfigProvider",
    "config.providers.env.class": f"{CLASSES}EnvVarConfigProvider",
}


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    path = tmp_path / "secrets"
    path.mkdir()
    (path / "broker.properties").write_text("key=s3cret\nodd=${env:OTHER}\n")
    (path / "password").write_text("fr0m a file\n")
    return path


def providers(**more: str) -> ConfigProviders:
    named = {name.replace("_", "."): text for name, text in more.items()}
    return ConfigProviders(PROVIDERS | named, {"PASSWORD": "fr0m outside"})


def test_the_three_providers_of_kafka(secrets: Path) -> None:
    found = providers()
    for text, value in [
        (f"${{file:{secrets}/broker.properties:key}}", "s3cret"),
        (f"${{directory:{secrets}:password}}", "fr0m a file\n"),
        ("${env:PASSWORD}", "fr0m outside"),
        (f"a ${{env:PASSWORD}} b ${{file:{secrets}/broker.properties:key}}", None),
        ("plain $1 text", "plain $1 text"),
    ]:
        expected = "a fr0m outside b s3cret" if value is None else value
        assert found.resolve("x", text) == expected


def test_what_was_found_is_not_searched_again(secrets: Path) -> None:
    assert providers().resolve("x", f"${{file:{secrets}/broker.properties:odd}}") == "${env:OTHER}"
    config = BrokerConfig(
        PROVIDERS | {"ssl.key.password": f"${{file:{secrets}/broker.properties:odd}}"}
    )
    assert config.given["ssl.key.password"] == "${env:OTHER}"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("${vault:/a:b}", "x: .* names the provider vault, but config.providers has file"),
        ("${file:/nowhere/at/all:b}", "x: .* has no value: .* cannot be read"),
        ("${file:SECRETS/broker.properties:missing}", "has no key missing"),
        ("${file::key}", "names no path"),
        ("${directory:SECRETS:../password}", "is no name of a file"),
        ("${directory:SECRETS:missing}", "cannot be read: No such file"),
        ("${env:MISSING}", "there is no environment variable MISSING"),
        ("${env:a:PASSWORD}", "have no path"),
    ],
)
def test_a_reference_without_a_value_is_an_error(secrets: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        providers().resolve("x", text.replace("SECRETS", str(secrets)))


def test_paths_and_variables_can_be_limited(secrets: Path, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("key=x")
    (secrets / "link").symlink_to(tmp_path / "other")
    limited = providers(
        config_providers_file_param_allowed_paths=str(secrets),
        config_providers_env_param_allowlist_pattern="SAFE_.*",
    )
    assert limited.resolve("x", f"${{file:{secrets}/broker.properties:key}}") == "s3cret"
    for path in (tmp_path / "other", secrets / "link", secrets / ".." / "other"):
        with pytest.raises(ConfigError, match=r"is not within allowed\.paths"):
            limited.resolve("x", f"${{file:{path}:key}}")
    with pytest.raises(ConfigError, match="or it is not allowed"):
        limited.resolve("x", "${env:PASSWORD}")


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"config.providers": "file,vault"}, r"config\.providers\.vault\.class: .*\(none\)"),
        ({"config.providers.file.class": "com.acme.Vault"}, "there is no provider com.acme.Vault"),
        ({"config.providers.env.param.allowlist.pattern": "("}, "allowlist.pattern: the pattern"),
    ],
)
def test_providers_that_do_not_exist(more: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ConfigProviders(PROVIDERS | more)


def test_no_setting_keeps_a_reference_as_its_value(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"ssl\.key\.password: .* names the provider file"):
        BrokerConfig({"ssl.key.password": "${file:/secrets:key}"})
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=${env:PARTITIONS}\n")
    with pytest.raises(ConfigError, match=r"server\.properties:1: num\.partitions"):
        BrokerConfig.load(str(file))


def test_no_error_of_a_settings_file_has_the_value(secrets: Path, tmp_path: Path) -> None:
    lines = [f"{name}={text}" for name, text in PROVIDERS.items()]
    lines.append(f"num.partitions=${{file:{secrets}/broker.properties:key}}")
    file = tmp_path / "server.properties"
    file.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="refers to is no value of this setting") as raised:
        BrokerConfig.load(str(file))
    assert "s3cret" not in str(raised.value)


def test_values_of_a_settings_file(secrets: Path, tmp_path: Path) -> None:
    (secrets / "number").write_text("7")
    lines = [f"{name}={text}" for name, text in PROVIDERS.items()]
    lines.append(f"num.partitions=${{directory:{secrets}:number}}")
    file = tmp_path / "server.properties"
    file.write_text("\n".join(lines))
    assert BrokerConfig.load(str(file)).num_partitions == 7


def test_dynamic_secrets_come_from_a_provider_only(secrets: Path) -> None:
    config = BrokerConfig(PROVIDERS)
    name = "listener.name.plaintext.ssl.key.password"
    assert config.update_dynamic({}, {name: "in the znode tree"}) == []
    assert any("is a secret, which is stored encrypted" in each for each in config.warnings)
    reference = f"${{file:{secrets}/broker.properties:key}}"
    assert config.update_dynamic({}, {name: reference}) == [name]
    assert config.effective_text(name) == "s3cret"
    assert config.update_dynamic({}, {name: "${file:/nowhere:key}"}) == [name]
    assert config.effective_text(name) is None


def test_what_is_one_reference() -> None:
    assert is_reference("${file:/a:b}")
    assert is_reference("${env:A}")
    assert not is_reference("secret")
    assert not is_reference("x${file:/a:b}")


def test_a_pipe_or_a_device_is_not_opened(tmp_path: Path) -> None:
    """Opening a pipe waits for its other end, here on the loop of a broker."""
    os.mkfifo(tmp_path / "pipe")
    for text in (f"${{file:{tmp_path}/pipe:key}}", f"${{directory:{tmp_path}:pipe}}"):
        with pytest.raises(ConfigError, match="pipe is no file"):
            providers().resolve("x", text)
    with pytest.raises(ConfigError, match="/dev/zero is no file"):
        providers().resolve("x", "${file:/dev/zero:key}")
    with pytest.raises(ConfigError, match="cannot be read"):
        providers().resolve("x", f"${{file:{tmp_path}:key}}")
