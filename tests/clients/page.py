#!/usr/bin/env python3
"""The chat page of a server in a real browser: page.py http://127.0.0.1:8080 [folder for screenshots]

Wants: pip install playwright, and a Chromium, which CHROMIUM names if it is not on the path.
"""
import os
import shutil
import sys

from playwright.sync_api import sync_playwright

URL, FOLDER = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


def walk(browser, name, **how):
    context = browser.new_context(**how)
    page = context.new_page()
    troubles, elsewhere = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith((URL, "data:")) else None)

    def idle():
        page.wait_for_function("document.querySelector('#send').textContent === 'Send'", timeout=120000)

    def shot(what):
        if FOLDER:
            page.screenshot(path=f"{FOLDER}/{name}-{what}.png")

    page.goto(URL)
    # The keyboard alone: the field has the focus, Enter sends.
    page.keyboard.type("Tell me a story about a fox and a lantern")
    page.keyboard.press("Enter")
    page.wait_for_function("document.querySelector('#send').textContent === 'Stop'")
    page.wait_for_function("document.querySelector('#talk').innerText.length > 120", timeout=120000)
    shot("streaming")
    # Escape stops, and what has been said stays.
    page.keyboard.press("Escape")
    idle()
    stopped = page.inner_text("#talk")
    assert "lantern" in stopped, stopped
    page.wait_for_timeout(500)
    assert page.inner_text("#talk") == stopped, "it went on after it was stopped"
    # Again, to the end.
    page.get_by_role("button", name="Again").last.click()
    page.wait_for_function("document.querySelector('#send').textContent === 'Stop'")
    idle()
    assert "tokens/s" in page.inner_text("#talk"), page.inner_text("#talk")
    shot("answered")
    page.keyboard.press("Alt+s")
    assert page.locator("#settings").is_visible()
    page.fill("#temperature", "0")
    shot("settings")
    page.keyboard.press("Escape")
    assert not page.locator("#settings").is_visible()
    width = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], f"{name}: wider than the window: {width}"
    page.keyboard.press("Alt+n")
    assert "lantern" not in page.inner_text("#talk")
    assert not troubles and not elsewhere, (troubles, elsewhere)
    context.close()
    print(f"page, {name}: streams, stops, says it again, keeps its settings, loads nothing from elsewhere")


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM)
    walk(browser, "desk", viewport={"width": 1100, "height": 800})
    walk(browser, "dark", viewport={"width": 1100, "height": 800}, color_scheme="dark")
    walk(browser, "phone", viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True, device_scale_factor=2)
    browser.close()
