"""Whatever is guessed, cancelled and killed behind a server's routes, the answers are those without guesses."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.server import Server, serving, wait_until
from tests.support.tiny_model import build_tiny_model
from tests.workers.speculation.heads import random_pair

ASKS = 60
"""Of each round."""
AT_ONCE = 12
CONTEXT = 2048
METHODS = {
    "plain": ("auto", "ngram", "draft", "layers"),
    "window": ("auto", "ngram", "draft", "layers"),
    "hybrid": ("auto", "ngram", "draft", "mtp"),
}
ACTORS = (*(f"worker:{model}" for model in METHODS), "scheduler")

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(1800)]

Body = dict[str, Any]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("models")
    build_tiny_model(folder / "small", seed=5, context=CONTEXT)
    build_tiny_model(folder / "plain", context=CONTEXT, scale=5.0)
    build_tiny_model(folder / "window", "gemma3_text", context=CONTEXT, scale=5.0)
    random_pair(folder / "hybrid")
    models = "".join(
        f'[[models]]\nid = "{name}"\npath = "{folder / name}"\n'
        f'[models.speculation]\ndraft_model = "{folder / "small"}"\n' + ("layers = 1\n" if "layers" in methods else "")
        for name, methods in METHODS.items()
    )
    with serving(tmp_path_factory.mktemp("home"), [], toml=models) as server:
        yield server
        assert "Traceback" not in server.log


class Answer(NamedTuple):
    texts: tuple[str, ...]
    finishes: tuple[str, ...]
    tokens: int


def any_prompt(source: random.Random) -> list[int]:
    """Tokens that repeat themselves now and then; a few prompts are long."""
    words = [[source.randrange(3, 320) for _ in range(source.randint(2, 9))] for _ in range(4)]
    longest = source.choice([5, 40, 40, 200, 1500])
    prompt: list[int] = []
    while len(prompt) < longest:
        prompt += source.choice(words) if source.random() < 0.7 else [source.randrange(3, 320)]
    return prompt[:longest]


def any_body(source: random.Random) -> Body:
    """Greedy, or sampled under a seed; either way it has one answer."""
    body: Body = {
        "model": source.choice(list(METHODS)),
        "prompt": any_prompt(source),
        "max_tokens": source.choice([1, 2, 7, 30, 60]),
        **source.choice([{"temperature": 0}] * 2 + [{"temperature": 0.8, "seed": source.randrange(2**40)}]),
        "ignore_eos": source.random() < 0.7,
    }
    options: dict[str, Any] = {
        "stop": source.choice(["e", ["an", " "], ["\n", "the"]]),
        "stop_token_ids": [*(source.randrange(320) for _ in range(20)), 2**31 - 1],
        "frequency_penalty": source.choice([0.4, -0.5, 2.0]),
        "presence_penalty": source.choice([0.6, -1.0]),
        "repetition_penalty": source.choice([1.3, 0.7]),
        "logit_bias": {str(source.randrange(320)): source.uniform(-20, 20) for _ in range(5)},
        "top_p": 0.8,
        "top_k": 20,
        "min_p": 0.05,
        "xtc_probability": 0.5,
        "logprobs": source.choice([0, 3]),
        "min_tokens": 1,
        "n": 2,
    }
    return body | {name: value for name, value in options.items() if source.random() < 0.2}


def any_speculation(source: random.Random, model: str) -> Body:
    wish: Body = {"method": source.choice(METHODS[model])}
    return wish | ({"depth": source.choice([1, 2, 3, 5, 16])} if source.random() < 0.7 else {})


async def events(client: httpx.AsyncClient, url: str, body: Body) -> AsyncGenerator[Body, None]:
    streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", f"{url}/v1/completions", json=streamed) as response:
        assert response.status_code == 200, (await response.aread(), body)
        async for line in response.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event: Body = json.loads(line.removeprefix("data: "))
                assert "error" not in event, (event, body)
                yield event


async def streamed(client: httpx.AsyncClient, url: str, body: Body) -> Answer:
    texts = [""] * body.get("n", 1)
    finishes = [""] * len(texts)
    tokens = 0
    async with aclosing(events(client, url, body)) as stream:
        async for event in stream:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["text"]
                finishes[choice["index"]] = choice["finish_reason"] or finishes[choice["index"]]
            if event.get("usage"):
                tokens = event["usage"]["completion_tokens"]
    return Answer(tuple(texts), tuple(finishes), tokens)


async def whole(client: httpx.AsyncClient, url: str, body: Body) -> Answer:
    response = await client.post(f"{url}/v1/completions", json=body)
    assert response.status_code == 200, (response.text, body)
    answer = response.json()
    choices = sorted(answer["choices"], key=lambda choice: choice["index"])
    return Answer(
        tuple(choice["text"] for choice in choices),
        tuple(choice["finish_reason"] for choice in choices),
        answer["usage"]["completion_tokens"],
    )


class Crowd:
    """Twelve clients at once; `given` are the answers that have come, by the place of what was asked."""

    def __init__(self, server: Server, bodies: Sequence[Body], source: random.Random, hang_ups: int = 0) -> None:
        self.given: dict[int, Answer] = {}
        self._url = server.url
        self._bodies = bodies
        self._ways = [source.choice([streamed, whole]) for _ in bodies]
        self._others = [(source.choice(bodies), source.randint(1, 5)) for _ in range(hang_ups)]
        self._room = asyncio.Semaphore(AT_ONCE)

    async def ask(self) -> list[Answer]:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(timeout=300, limits=limits) as client:
            asking = [self._ask(client, index) for index in range(len(self._bodies))]
            await asyncio.gather(*asking, *(self._hang_up(client, *other) for other in self._others))
        return [self.given[index] for index in range(len(self._bodies))]

    async def _ask(self, client: httpx.AsyncClient, index: int) -> None:
        async with self._room:
            self.given[index] = await self._ways[index](client, self._url, self._bodies[index])

    async def _hang_up(self, client: httpx.AsyncClient, body: Body, after: int) -> None:
        """Behind a few events."""
        async with self._room, aclosing(events(client, self._url, body)) as stream:
            async for _ in stream:
                after -= 1
                if after <= 0:
                    return


async def plain_and_guessing(server: Server, source: random.Random) -> tuple[list[Answer], list[Body]]:
    """What is answered without guesses, and the same asked for with some."""
    plain = [any_body(source) for _ in range(ASKS)]
    expected = await Crowd(server, [{**body, "speculation": {"method": "off"}} for body in plain], source).ask()
    return expected, [{**body, "speculation": any_speculation(source, body["model"])} for body in plain]


def differing(bodies: Sequence[Body], answers: Sequence[Answer], expected: Sequence[Answer]) -> list[object]:
    return [
        ({**body, "prompt": len(body["prompt"])}, answer, plain)
        for body, answer, plain in zip(bodies, answers, expected, strict=True)
        if answer != plain
    ]


@pytest.mark.parametrize("seed", range(5))
async def test_guesses_change_no_answer_whatever_else_goes_on(server: Server, seed: int) -> None:
    source = random.Random(seed)
    expected, bodies = await plain_and_guessing(server, source)
    answers = await Crowd(server, bodies, source, hang_ups=ASKS // 3).ask()
    assert differing(bodies, answers, expected) == []
    await asyncio.to_thread(wait_until, server.settled, 30, "nothing runs or waits")


@pytest.mark.parametrize("actor", ACTORS)
async def test_guesses_change_no_answer_where_an_actor_dies(server: Server, actor: str) -> None:
    source = random.Random(actor)
    expected, bodies = await plain_and_guessing(server, source)
    crowd = Crowd(server, bodies, source)
    asking = asyncio.create_task(crowd.ask())
    for answered in (ASKS // 4, ASKS // 2):
        while len(crowd.given) < answered and not asking.done():
            await asyncio.sleep(0.01)
        await asyncio.to_thread(kill_and_wait, server, actor)
    assert differing(bodies, await asking, expected) == []
    await asyncio.to_thread(wait_until, server.settled, 30, "nothing runs or waits")


def kill_and_wait(server: Server, actor: str) -> None:
    incarnation = server.kill(actor)
    wait_until(lambda: server.actor(actor).incarnation > incarnation, 60, f"{actor} is started again")
    wait_until(lambda: server.actor(actor).state == "ready", 120, f"{actor} is back")
