"""The page in one file: it loads nothing, makes no code of text, and has the license of what it contains."""

import re
import tomllib
from base64 import b64encode
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from tidegate_proxy.app.dashboard.routes import CONTENT_SECURITY_POLICY, document

UPLOT = files("tidegate_proxy.app.dashboard") / "uplot"
BANNER = "/*! https://github.com/leeoniya/uPlot (v{}) */"
PROXY = Path(__file__).parents[4] / "proxy"


def test_it_needs_no_network_and_turns_no_text_into_markup_or_code() -> None:
    page = document().decode()
    version = re.findall(r"^uPlot (\S+),", (UPLOT / "NOTICE").read_text())[0]
    assert page.count(BANNER.format(version)) == 1
    assert "://" not in page.replace(BANNER.format(version), "")
    assert re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", page) == []
    assert re.findall(r"<[^>]+\s(?:src|href|style|on\w+)=[^>]+>", page) == ['<a class="skip" href="#why">']


def test_its_policy_names_exactly_its_script_and_style() -> None:
    page = document().decode()
    for name, directive in (("script", "script-src"), ("style", "style-src")):
        (content,) = re.findall(f"<{name}>(.*?)</{name}>", page, re.DOTALL)
        digest = b64encode(sha256(content.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in CONTENT_SECURITY_POLICY
    assert "default-src 'none'" in CONTENT_SECURITY_POLICY
    assert "unsafe" not in CONTENT_SECURITY_POLICY


def test_the_license_of_the_chart_library_is_in_the_wheel() -> None:
    assert "MIT License" in (UPLOT / "LICENSE").read_text()
    project = tomllib.loads((PROXY / "pyproject.toml").read_text())["project"]
    assert any((PROXY / name).samefile(str(UPLOT / "LICENSE")) for name in project["license-files"])
    assert project["license"].endswith("AND MIT")
