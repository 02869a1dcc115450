"""The Helm chart without helm: what `make test-chart` renders is of this version."""

from __future__ import annotations

import json
import re

import yaml

import ottla
from ottla.broker.config.definitions import broker_settings
from ottla.broker.config.sources import variable_to_setting
from tests.installed.builds import ROOT

CHART = ROOT / "deploy" / "helm" / "ottla"


def test_the_image_is_of_this_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == chart["version"] == ottla.__version__


def test_every_value_with_a_rule_has_a_default() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["required"]) <= set(values)
    for name, rule in schema["properties"].items():
        if "properties" in rule:
            assert set(rule["properties"]) <= set(values[name]), name


def test_the_settings_of_the_image_do_not_replace_those_of_the_chart() -> None:
    image = re.findall(r"^(?:ENV|   ) ?(KAFKA_\w+)=", (ROOT / "Dockerfile").read_text(), re.M)
    assert {variable_to_setting(name) for name in image} == {"log.dirs"}
    # A variable goes before the file that the script starts the broker with.
    script = (CHART / "templates" / "configmap.yaml").read_text().partition("start.sh: |")[2]
    [unset] = re.findall(r"^ +unset (.+)$", script, re.M)
    assert set(image) <= set(unset.split())


def test_the_settings_are_those_of_a_broker() -> None:
    text = (CHART / "templates" / "configmap.yaml").read_text()
    names = set(re.findall(r'(?<!include )"([a-z]+(?:\.[a-z]+)+)"', text))
    names |= set(re.findall(r'--override "([a-z.]+)=', text))
    assert {"log.dirs", "broker.id", "advertised.listeners"} <= names
    assert names <= set(broker_settings())


def test_numbers_of_a_values_file_are_written_without_an_exponent() -> None:
    """They are floats for helm, and {{ 1073741824.0 }} is 1.073741824e+09."""
    template = (CHART / "templates" / "configmap.yaml").read_text()
    [line] = re.findall(r"^ +(\{\{ \$name \}\}=.+)$", template, re.M)
    assert 'kindIs "float64" $value }}{{ toJson $value }}' in line
