#!/usr/bin/env python3
"""The chat page in a real browser, with a server that answers by script: scripted_page.py

What depends on when pieces of an answer come is tested here: scrolling, stopping, a new chat during an answer. No model is needed.
Wants: pip install playwright, and a Chromium, which CHROMIUM names if it is not on the path.
"""
import json
import os
import pathlib
import shutil
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from playwright.sync_api import expect, sync_playwright

PAGE = pathlib.Path(__file__).parents[2] / "crates/forge-runtime/src/serve/http/page.html"
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")

# The messages of every request.
requests = []


class Server(BaseHTTPRequestHandler):
    """What the last message says decides how it is answered."""

    def log_message(self, *_):
        pass

    def respond(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/v1/models":
            self.respond(200, "application/json", b'{"data": [{"id": "scripted", "has_chat_template": true}]}')
        else:
            self.respond(200, "text/html", PAGE.read_bytes())

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        requests.append([(message["role"], message["content"]) for message in body["messages"]])
        word = requests[-1][-1][1]
        if word == "fail":
            return self.respond(500, "application/json", b'{"error": {"message": "broken on purpose"}}')
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        pieces, pause = {
            "long": ([f"line {number}\n" for number in range(150)], 0.01),
            "endless": (["old "] * 400, 0.02),
            "silent": ([], 0),
        }.get(word, (["short ", "answer"], 0))
        try:
            for piece in pieces:
                self.event({"choices": [{"delta": {"content": piece}}]})
                time.sleep(pause)
            if word == "silent":
                time.sleep(3)
            self.event({"choices": [{"delta": {}, "finish_reason": "length" if word == "cut" else "stop"}]})
        except (BrokenPipeError, ConnectionResetError):
            pass

    def event(self, value):
        self.wfile.write(b"data: " + json.dumps(value).encode() + b"\n\n")
        self.wfile.flush()


def walk(page, url):
    def type_text(text):
        page.fill("#words", text)
        page.press("#words", "Enter")

    def idle():
        expect(page.locator("#send")).to_have_text("Send", timeout=20000)

    def send_and_wait(text):
        type_text(text)
        idle()

    def below():
        """Pixels of the talk below what is in view."""
        return page.evaluate("(talk => talk.scrollHeight - talk.scrollTop - talk.clientHeight)(document.querySelector('#talk'))")

    def top():
        return page.evaluate("document.querySelector('#talk').scrollTop")

    def option(letter):
        """As a Mac has it, where Option and a letter type something else."""
        page.evaluate(
            "code => document.body.dispatchEvent(new KeyboardEvent('keydown', { key: 'Dead', code, altKey: true, bubbles: true }))",
            "Key" + letter,
        )

    page.goto(url)

    # Answers stay in view, also those after the first that is longer than the window.
    for count in range(2):
        send_and_wait("long")
        expect(page.locator("#talk .turn").last).to_contain_text("line 149")
        assert below() < 3, f"answer {count} ended {below()} pixels out of view"
    # After scrolling up, the view stays there. At the end, it follows again.
    type_text("long")
    expect(page.locator("#talk .turn").last).to_contain_text("line 40")
    page.mouse.move(400, 300)
    page.mouse.wheel(0, -1500)
    page.wait_for_timeout(200)
    place = top()
    idle()
    assert abs(top() - place) < 3 and below() > 1000, (top(), place, below())
    page.mouse.wheel(0, 100000)
    page.wait_for_timeout(200)
    send_and_wait("long")
    assert below() < 3, below()

    # A new chat, started during an answer, does not contain that answer.
    option("N")
    expect(page.locator("#empty")).to_be_visible()
    type_text("endless")
    expect(page.locator("#talk")).to_contain_text("old old")
    option("N")
    send_and_wait("first")
    send_and_wait("second")
    expect(page.locator("#talk")).not_to_contain_text("old")
    assert requests[-2] == [("user", "first")], requests[-2]
    assert requests[-1] == [("user", "first"), ("assistant", "short answer"), ("user", "second")], requests[-1]

    # A message without a reply is not sent again with the next one.
    for word in ["silent", "fail"]:
        option("N")
        type_text(word)
        if word == "silent":
            expect(page.locator("#send")).to_have_text("Stop")
            page.keyboard.press("Escape")
        else:
            expect(page.locator(".bad")).to_contain_text("broken on purpose")
        idle()
        # The message can be sent again unchanged.
        page.get_by_role("button", name="Again").click()
        if word == "silent":
            page.keyboard.press("Escape")
        idle()
        assert requests[-1] == [("user", word)], requests[-1]
        send_and_wait("then")
        assert requests[-1] == [("user", "then")], requests[-1]
        expect(page.locator(".unanswered")).to_have_count(2)
        send_and_wait("and")
        assert [role for role, _ in requests[-1]] == ["user", "assistant", "user"], requests[-1]

    # Settings have their usual labels.
    send_and_wait("cut")
    expect(page.locator("#talk")).to_contain_text("token limit reached")
    option("S")
    for label in ["Max tokens", "API key"]:
        expect(page.get_by_label(label, exact=True)).to_be_visible()


server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
server.daemon_threads = True
threading.Thread(target=server.serve_forever, daemon=True).start()
with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1100, "height": 800})
    troubles = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    walk(page, f"http://127.0.0.1:{server.server_port}/")
    assert not troubles, troubles
    browser.close()
print("page, by script: follows answers, begins anew, withdraws what was not answered, has its shortcuts on a Mac")
