"""A request's tokens depend on the request alone, whatever shares its batch."""

from typing import Any

from tests.support.server import Server
from tests.support.streams import Heard, listen_all
from tests.system.conftest import MODEL

LAWS: tuple[dict[str, Any], ...] = (
    {"temperature": 0},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 0.7, "min_p": 0.05, "repetition_penalty": 1.1},
    {"temperature": 0, "frequency_penalty": 0.8, "presence_penalty": 0.4},
    {"temperature": 1.0, "stop": ["."]},
    {"temperature": 0, "stop": "\n"},
    {"temperature": 0.5, "logit_bias": {"28": -100}},
)


def bodies() -> list[dict[str, Any]]:
    return [
        {
            "model": MODEL,
            "messages": [
                {"role": "user", "content": "Write about " + "the sea and " * (index % 5) + f"number {index}."}
            ],
            "seed": 1000 + index,
            "max_tokens": 8 + index,
            **LAWS[index % len(LAWS)],
        }
        for index in range(16)
    ]


async def test_sixteen_streams_at_once_equal_their_solo_runs(smollm2: Server) -> None:
    heard = [Heard() for _ in bodies()]
    await listen_all(smollm2.url, bodies(), heard)
    assert [each.error for each in heard] == [None] * len(heard)
    for body, each in zip(bodies(), heard, strict=True):
        alone = smollm2.ask(body)
        choice = alone["choices"][0]
        assert (each.text, each.finish) == (choice["message"]["content"], choice["finish_reason"]), body
        assert each.completion_tokens == alone["usage"]["completion_tokens"]
