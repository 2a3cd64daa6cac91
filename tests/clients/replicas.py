#!/usr/bin/env python3
"""Two servers behind a proxy, one of which is killed under load: replicas.py PROGRAM [haproxy|nginx]

Runs examples/replicas/run.sh. Half of the clients stream, half wait for the whole answer. When one server is killed,
only the streams that it had started are cut off: every other request receives the correct text from the other server.
Needs Python and the proxy.
"""
import http.client
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

PROGRAM, PROXY = os.path.abspath(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else "haproxy"
RUN = pathlib.Path(__file__).resolve().parents[2] / "examples/replicas/run.sh"
CLIENTS, SECONDS = 16, 6
PROMPTS = [f"Once there was a {animal} who" for animal in ("fox", "bear", "hen", "goose", "troll")]
results, lock, enough = [], threading.Lock(), threading.Event()


def request(path, body=None, timeout=60):
    connection = http.client.HTTPConnection("127.0.0.1", 8090, timeout=timeout)
    connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
    return connection.getresponse()


def complete(prompt, stream):
    """The text, and how it ended: whole, cut off after it had begun, or lost before."""
    text, begun = "", False
    try:
        response = request("/v1/completions", {"prompt": prompt, "max_tokens": 60, "temperature": 0, "stream": stream})
        if response.status != 200:
            return "", f"status {response.status}"
        if not stream:
            return json.loads(response.read())["choices"][0]["text"], "whole"
        # From here on the proxy has sent the status, and cannot retry with the other server.
        begun = True
        for line in response:
            if line.strip() == b"data: [DONE]":
                return text, "whole"
            if line.startswith(b"data: "):
                text += json.loads(line[6:])["choices"][0]["text"]
        return text, "cut off"
    except (OSError, http.client.HTTPException, ValueError) as trouble:
        return text, "cut off" if begun else f"lost: {trouble!r}"


def client(number):
    while not enough.is_set():
        prompt, stream = PROMPTS[number % len(PROMPTS)], number % 2 == 0
        begin = time.time()
        text, end = complete(prompt, stream)
        with lock:
            results.append((begin, time.time(), prompt, stream, text, end))
        number += 2


def answered_after(killed):
    with lock:
        return sum(begin > killed and end == "whole" for begin, _, _, _, _, end in results)


proxy = subprocess.Popen([RUN, PROGRAM, PROXY], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
try:
    deadline = time.time() + 60
    while True:
        try:
            if request("/ready", timeout=2).status == 200:
                break
        except OSError:
            pass
        assert time.time() < deadline and proxy.poll() is None, "the servers did not become ready"
        time.sleep(0.3)
    time.sleep(3)  # Both of them, as the proxy sees it.
    right = {prompt: complete(prompt, False)[0] for prompt in PROMPTS}
    assert all(right.values())
    threads = [threading.Thread(target=client, args=(number,)) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    time.sleep(SECONDS)
    victim = int(subprocess.run(["pgrep", "-f", "serve --port 8091"], check=True, capture_output=True, text=True).stdout.split()[0])
    killed = time.time()
    os.kill(victim, signal.SIGKILL)
    # As long again, and until each client can have had a response of the remaining server.
    deadline = time.time() + 60
    while time.time() < killed + SECONDS or (answered_after(killed) <= CLIENTS and time.time() < deadline):
        time.sleep(0.2)
    enough.set()
    for thread in threads:
        thread.join()
finally:
    os.killpg(proxy.pid, signal.SIGTERM)

ends = {}
for begin, end_time, prompt, stream, text, end in results:
    ends[end] = ends.get(end, 0) + 1
    if end == "whole":
        assert text == right[prompt], (prompt, text, right[prompt])
    else:
        assert end == "cut off" and stream, (end, stream, begin - killed)
        assert begin < killed < end_time, "only who was being results something when it happened"
        assert right[prompt].startswith(text), (prompt, text)
after = answered_after(killed)
print(f"{PROXY}: {len(results)} requests, {ends}, {after} of them begun and answered after one server was killed")
assert ends.get("cut off", 0) <= CLIENTS // 2 and after > CLIENTS
