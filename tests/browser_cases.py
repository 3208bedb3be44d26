"""How tests use a page in Chromium, with the fixtures ``driver`` and ``browser`` of ``tests/conftest.py``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from selenium import webdriver

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
READY = bool(CHROMIUM and DRIVER and find_spec("selenium"))
in_chromium = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not READY,
        reason="no Chromium (apt-get install chromium chromium-driver), or no selenium (extra dev)",
    ),
]
CONTROL, DELETE = "\ue009", "\ue017"
RELEASED = "\ue000"


class Opened:
    """A page in the browser."""

    def __init__(self, driver: webdriver.Chrome, folder: Path) -> None:
        self.driver = driver
        self.folder = folder

    def show(self, page: str, *, width: int = 1400, at: str = "") -> None:
        """Write a page to disk and open it there."""
        path = self.folder / "page.html"
        path.write_text(page, encoding="utf-8")
        self.visit(path.as_uri() + at, width=width)
        self.until(lambda: self.texts("#count") != [""])

    def visit(self, url: str, *, width: int = 1400) -> None:
        """Open an address."""
        metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.get("about:blank")
        self.driver.get(url)

    def until(self, condition: Callable[[], object]) -> None:
        from selenium.webdriver.support.ui import WebDriverWait

        WebDriverWait(self.driver, 60).until(lambda _: condition())

    def script(self, text: str, *arguments: object) -> Any:
        return self.driver.execute_script(text, *arguments)  # type: ignore[no-untyped-call]

    def texts(self, css: str) -> list[str]:
        return list(self.script("return [...document.querySelectorAll(arguments[0])].map((one) => one.textContent)", css))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def click(self, css: str) -> None:
        self.driver.find_element("css selector", css).click()

    def title(self) -> str:
        return "".join(self.texts("#detail h2"))

    def rows(self) -> list[str]:
        return self.texts(".row .clamp")

    def write(self, css: str, text: str) -> None:
        """Type a text into a field, in place of what is there."""
        self.driver.find_element("css selector", css).send_keys(CONTROL + "a" + RELEASED, DELETE, text)

    def search(self, text: str) -> None:
        self.write("#search", text)

    def errors(self) -> list[str]:
        """What the browser complained about since the last call."""
        log = self.driver.get_log("browser")  # type: ignore[no-untyped-call]
        return [line["message"] for line in log if line["level"] == "SEVERE"]


def started() -> Iterator[webdriver.Chrome]:
    """A browser without a window."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.add_argument("--headless=new")
    options.add_argument("--disable-dev-shm-usage")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER or ""))
    yield opened
    opened.quit()


def opened(driver: webdriver.Chrome, folder: Path) -> Iterator[Opened]:
    """A browser for one test, which must not leave errors unread."""
    page = Opened(driver, folder)
    yield page
    page.script("try { localStorage.clear(); sessionStorage.clear(); } catch {}")
    wrong = page.errors()
    driver.get("about:blank")
    assert not wrong
