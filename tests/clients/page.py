#!/usr/bin/env python3
"""The chat page of a server in a real browser: page.py http://127.0.0.1:8080 [folder for screenshots]

Wants: pip install playwright, and a Chromium, which CHROMIUM names if it is not on the path.
"""
import os
import shutil
import sys

from playwright.sync_api import expect, sync_playwright

URL, FOLDER = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")


# Records the length of the conversation and the button's label at every change of the page. A fast model may finish between two
# polls from outside, so this also presses Escape, in the middle of the first answer.
WATCH = """
window.seen = [];
document.addEventListener("DOMContentLoaded", () => new MutationObserver(() => {
  const text = document.querySelector("#talk").innerText, button = document.querySelector("#send").textContent;
  window.seen.push([button, text.length]);
  if (!window.stopped && button === "Stop" && text.length > 80) {
    window.stopped = true;
    document.querySelector("#words").dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  }
}).observe(document.body, { subtree: true, childList: true, characterData: true }));
"""


def walk(browser, name, **how):
    context = browser.new_context(**how)
    page = context.new_page()
    page.add_init_script(WATCH)
    inside = context.new_cdp_session(page)
    troubles, elsewhere = [], []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: elsewhere.append(request.url) if not request.url.startswith((URL, "data:")) else None)

    # The page forbids text that is evaluated, which does not bind the browser's own tools.
    def value(expression):
        return inside.send("Runtime.evaluate", {"expression": expression, "returnByValue": True})["result"]["value"]

    def idle():
        expect(page.locator("#send")).to_have_text("Send", timeout=120000)

    def shot(what):
        if FOLDER:
            page.screenshot(path=f"{FOLDER}/{name}-{what}.png")

    page.goto(URL)
    # Keyboard only: the field has the focus, Enter sends, Escape stops, and the partial answer stays.
    page.keyboard.type("Tell me a story about a fox and a lantern")
    page.keyboard.press("Enter")
    for _ in range(8):
        expect(page.get_by_role("button", name="Again")).to_be_visible(timeout=120000)
        stopped = page.inner_text("#talk")
        steps = len({length for button, length in value("window.seen") if button == "Stop"})
        if "stopped" in stopped and steps > 5:
            break
        # Most of the answer had arrived before the first poll.
        value("window.stopped = false, window.seen = []")
        page.get_by_role("button", name="Again").last.click()
    assert "stopped" in stopped and steps > 5, (stopped, steps)
    page.wait_for_timeout(500)
    assert page.inner_text("#talk") == stopped, "it went on after it was stopped"
    shot("stopped")
    # Again, to the end.
    page.get_by_role("button", name="Again").last.click()
    expect(page.locator("#talk")).to_contain_text("tokens/s", timeout=120000)
    idle()
    shot("answered")
    page.keyboard.press("Alt+s")
    expect(page.locator("#settings")).to_be_visible()
    page.fill("#temperature", "0")
    shot("settings")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    page.reload()
    assert page.input_value("#temperature") == "0", "settings are kept"
    page.fill("#words", "Tell me a story about a hen")
    page.keyboard.press("Enter")
    expect(page.locator("#talk")).to_contain_text("hen")
    idle()
    width = value("[document.documentElement.scrollWidth, window.innerWidth]")
    assert width[0] <= width[1], f"{name}: wider than the window: {width}"
    page.keyboard.press("Alt+n")
    expect(page.locator("#talk")).not_to_contain_text("hen")
    assert not troubles and not elsewhere, (troubles, elsewhere)
    context.close()
    print(f"page, {name}: streams, stops, says it again, keeps its settings, loads nothing from elsewhere")


with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM)
    walk(browser, "desk", viewport={"width": 1100, "height": 800})
    walk(browser, "dark", viewport={"width": 1100, "height": 800}, color_scheme="dark")
    walk(browser, "phone", viewport={"width": 390, "height": 780}, has_touch=True, is_mobile=True, device_scale_factor=2)
    browser.close()
