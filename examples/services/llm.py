"""llm-inference: the interface of chat completions over a language model of word triples.

It learns from the licences and texts of the Python that runs it, in a second. That is no good
model, but a model: it streams, stops, and takes a temperature.
"""

from __future__ import annotations

import json
import math
import random
import sysconfig
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving import Refused, Request, serve

NAME = "triples-1"
MAX_WORDS = 1024
SOURCES = ("LICENSE.txt", "pydoc_data/topics.py", "this.py", "statistics.py", "argparse.py")


def corpus() -> list[str]:
    library = Path(sysconfig.get_path("stdlib"))
    texts = [
        (library / each).read_text(errors="replace")
        for each in SOURCES
        if (library / each).is_file()
    ]
    return " ".join(texts).replace("\\n", " ").split()[:200_000]


def learn(words: list[str]) -> dict[tuple[str, str], Counter[str]]:
    model: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for first, second, third in zip(words, words[1:], words[2:], strict=False):
        model[first, second][third] += 1
    return model


WORDS = corpus()
MODEL = learn(WORDS)


def words_after(prompt: str, most: int, temperature: float, seed: int | None) -> Iterator[str]:
    rng = random.Random(seed)
    asked = prompt.split()
    state = (asked[-2], asked[-1]) if len(asked) > 1 else ("", "")
    for _ in range(most):
        if state not in MODEL:
            state = rng.choice(list(MODEL))
        options = MODEL[state]
        weights = [math.exp(math.log(count) / max(temperature, 0.05)) for count in options.values()]
        word = rng.choices(list(options), weights)[0]
        yield word
        state = (state[1], word)


def asked_of(request: Request) -> tuple[str, int, float, int | None, bool]:
    given = request.json
    if not isinstance(given, dict):
        raise Refused(422, "the body is not an object")
    prompt = given.get("prompt")
    messages = given.get("messages")
    if isinstance(messages, list) and messages:
        prompt = messages[-1].get("content") if isinstance(messages[-1], dict) else None
    if not isinstance(prompt, str):
        raise Refused(422, "the body needs a prompt, or messages")
    most = given.get("max_tokens", 32)
    temperature = given.get("temperature", 1.0)
    if not isinstance(most, int) or not 1 <= most <= MAX_WORDS:
        raise Refused(422, f"max_tokens is a number from 1 to {MAX_WORDS}")
    if not isinstance(temperature, int | float) or not 0 <= temperature <= 2:
        raise Refused(422, "temperature is a number from 0 to 2")
    seed = given.get("seed")
    return prompt, most, float(temperature), seed, given.get("stream") is True


def completion(content: str, number: int) -> dict[str, Any]:
    return {
        "id": f"cmpl-{time.time_ns():x}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": NAME,
        "choices": [
            {
                "index": 0,
                "text": content,
                "message": {"role": "assistant", "content": content},
                "finish_reason": "length",
            }
        ],
        "usage": {"completion_tokens": number},
    }


def complete(request: Request) -> Any:
    prompt, most, temperature, seed, stream = asked_of(request)
    words = words_after(prompt, most, temperature, seed)
    if not stream:
        said = list(words)
        return completion(" ".join(said), len(said))

    def events() -> Iterator[bytes]:
        for word in words:
            delta = {"model": NAME, "choices": [{"index": 0, "delta": {"content": word + " "}}]}
            yield f"data: {json.dumps(delta)}\n\n".encode()
        yield b"data: [DONE]\n\n"

    return events()


if __name__ == "__main__":
    serve(
        {
            ("POST", "/v1/completions"): complete,
            ("POST", "/v1/chat/completions"): complete,
            ("GET", "/v1/models"): lambda _: {"data": [{"id": NAME, "words": len(WORDS)}]},
        }
    )
