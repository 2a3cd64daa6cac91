#!/usr/bin/env python3
"""Many clients of all kinds at once, for minutes: soak.py http://127.0.0.1:8080 [minutes] [clients] [pid]

Most clients read the whole answer and compare it with the answer to the same request on an idle server. The others
disconnect early, send invalid JSON, prompts that are too long or incomplete bodies, or read slowly. With the server's
process id, its memory is watched too. Exit code 0: no wrong answer, no request without an answer, and no growing memory.
Needs only Python.
"""
import asyncio
import json
import random
import sys
import time
from urllib.parse import urlparse

URL = urlparse(sys.argv[1])
MINUTES = float(sys.argv[2]) if len(sys.argv) > 2 else 3
CLIENTS = int(sys.argv[3]) if len(sys.argv) > 3 else 64
PROCESS = sys.argv[4] if len(sys.argv) > 4 else None
PROMPTS = [f"{begin} {animal} {end}" for begin in ("Once there was a", "In a house lived a", "One day the")
           for animal in ("fox", "bear", "hen", "goose") for end in ("and", "who wanted", "in the wood")]
counts = {}


def count(what):
    counts[what] = counts.get(what, 0) + 1


def request(body, length=None):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {URL.netloc}\r\nConnection: close\r\nContent-Type: application/json\r\n"
    return head.encode() + f"Content-Length: {length or len(body)}\r\n\r\n".encode() + body


async def connect():
    return await asyncio.open_connection(URL.hostname, URL.port, limit=1 << 24)


async def send(body):
    """A response's status and body, chunks joined."""
    reader, writer = await connect()
    try:
        writer.write(request(body))
        raw = await asyncio.wait_for(reader.read(), 120)
    finally:
        writer.close()
    head, _, rest = raw.partition(b"\r\n\r\n")
    if b"chunked" in head.lower():
        parts = []
        while rest:
            size, _, rest = rest.partition(b"\r\n")
            parts.append(rest[:int(size, 16)])
            rest = rest[int(size, 16) + 2:]
        rest = b"".join(parts)
    return int(head[9:12]), rest.decode()


def completion_body(prompt, tokens, stream):
    return {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": stream, "ignore_eos": True}


async def answer(prompt, tokens, stream):
    status, body = await send(completion_body(prompt, tokens, stream))
    if status != 200:
        return status, None
    if not stream:
        return status, json.loads(body)["choices"][0]["text"]
    events = [line[6:] for line in body.splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events[-1]
    return status, "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


async def read_all(expected):
    prompt, tokens = random.choice(list(expected))
    status, text = await answer(prompt, tokens, random.random() < 0.5)
    if status == 429:
        count("status 429")
        await asyncio.sleep(0.2)
    elif text == expected[prompt, tokens]:
        count("right")
    else:
        count("WRONG")
        print(f"{prompt!r}: {status} {text!r}, expected {expected[prompt, tokens]!r}", file=sys.stderr)


async def disconnect_early(_):
    reader, writer = await connect()
    writer.write(request(completion_body(random.choice(PROMPTS), 400, random.random() < 0.7)))
    await writer.drain()
    await asyncio.sleep(random.random() * 0.5)
    writer.close()
    count("disconnected early")


async def read_slowly(_):
    reader, writer = await connect()
    writer.write(request(completion_body(random.choice(PROMPTS), 300, True)))
    for _ in range(10):
        await asyncio.wait_for(reader.read(200), 60)
        await asyncio.sleep(0.3)
    writer.close()
    count("read slowly")


async def send_invalid(_):
    body, statuses = random.choice([
        (b"{", (400,)), (b"\xff\xfe", (400,)), (b"[]", (400,)), ({"prompt": 5}, (400,)), ({}, (400,)),
        ({"prompt": "x " * 100_000}, (400,)), ({"prompt": "x", "n": 10_000}, (400,)), ({"prompt": "x", "nonsense": 1}, (400,)),
        (b" " * (3 << 20), (413,)), ({"prompt": "x", "guided_regex": "("}, (400,)),
    ])
    try:
        status, _ = await send(body)
    except (ConnectionError, ValueError):
        # The server may close the connection before the client reads the rejection of its body.
        count("rejected abruptly")
        return
    count("rejected" if status in statuses else f"WRONG: status {status}")


async def send_partial(_):
    reader, writer = await connect()
    writer.write(request(b'{"prompt": "x', length=1000))
    await writer.drain()
    await asyncio.sleep(random.random())
    writer.close()
    count("incomplete body")


async def client(expected, until):
    while time.monotonic() < until:
        kind = random.choices([read_all, disconnect_early, read_slowly, send_invalid, send_partial], [12, 4, 1, 3, 1])[0]
        try:
            await kind(expected)
        except asyncio.TimeoutError:
            count("WRONG: timeout")
        except (ConnectionError, OSError) as error:
            count(f"connection: {type(error).__name__}")


def memory():
    with open(f"/proc/{PROCESS}/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmRSS"))


async def watch(until, seen):
    while time.monotonic() < until:
        await asyncio.sleep(5)
        if PROCESS:
            seen.append(memory())


async def main():
    expected = {}
    for prompt in PROMPTS:
        for tokens in (4, 24):
            expected[prompt, tokens] = (await answer(prompt, tokens, False))[1]
    until, seen = time.monotonic() + 60 * MINUTES, []
    await asyncio.gather(watch(until, seen), *(client(expected, until) for _ in range(CLIENTS)))
    status, text = await answer(PROMPTS[0], 24, False)
    bad = [what for what in counts if what.startswith("WRONG")]
    if text != expected[PROMPTS[0], 24]:
        bad.append("WRONG: the last answer")
    print(json.dumps(counts, indent=1))
    if seen:
        half = len(seen) // 2
        print(f"memory: {seen[0]:.0f} MB at first, {max(seen[:half] or seen):.0f} at most in the first half, "
              f"{max(seen[half:]):.0f} in the second")
        if max(seen[half:]) > 1.1 * max(seen[:half] or seen) + 8:
            bad.append("memory grows")
    print("; ".join(bad) or "all well")
    return 1 if bad else 0

sys.exit(asyncio.run(main()))
