"""Guesses ahead through the whole server: the same answers, told in usage and metrics, asked for on every route."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from pomona.gateway.speculation import UNLOADED
from tests.support.server import Server, serving
from tests.support.streams import Heard, listen_all
from tests.system.conftest import MODEL

LIST = "\n".join(
    f"{number}. {thing}"
    for number, thing in enumerate(
        ("heavy kettle, 18 coins", "broken umbrella, 28 coins", "frozen pepper, 3 coins", "velvet apron, 14 coins"), 1
    )
)
ASK = {"role": "user", "content": f"Repeat this list exactly:\n\n{LIST}"}
COPY = {"model": MODEL, "messages": [ASK, {"role": "assistant", "content": LIST}, ASK]}


def details(answer: dict[str, Any]) -> tuple[int, int]:
    """Accepted and rejected."""
    told = answer["usage"]["completion_tokens_details"]
    return told["accepted_prediction_tokens"], told["rejected_prediction_tokens"]


def text_of(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def body(law: dict[str, Any], method: str, **more: Any) -> dict[str, Any]:
    return {**COPY, "max_tokens": 28, **law, "speculation": {"method": method, **more}}


@pytest.mark.parametrize("law", [{"temperature": 0}, {"temperature": 0.8, "seed": 5}], ids=["greedy", "sampled"])
def test_guesses_change_no_answer_and_are_counted(smollm2: Server, law: dict[str, Any]) -> None:
    before = smollm2.gauge("pomona_worker_saved_forwards_total")
    plain, guessed = smollm2.ask(body(law, "off")), smollm2.ask(body(law, "ngram", depth=3))
    assert text_of(guessed) == text_of(plain)
    assert guessed["usage"]["completion_tokens"] == plain["usage"]["completion_tokens"]
    assert details(plain) == (0, 0)
    accepted, _ = details(guessed)
    assert accepted > 0
    assert smollm2.gauge("pomona_worker_saved_forwards_total") == before + accepted
    assert smollm2.gauge("pomona_worker_speculation_accepted_total") >= accepted
    assert smollm2.gauge("pomona_worker_verify_steps_total") > 0


async def test_rows_that_guess_and_rows_that_do_not_share_a_batch(smollm2: Server) -> None:
    laws = ({"temperature": 0}, {"temperature": 0.8, "seed": 5, "top_p": 0.9}, {"temperature": 0, "stop": "pepper"})
    bodies = [
        body(law, method, **depth)
        for law in laws
        for method, depth in (("off", {}), ("ngram", {"depth": 3}), ("auto", {}))
    ]
    heard = [Heard() for _ in bodies]
    await listen_all(smollm2.url, bodies, heard)
    assert [each.error for each in heard] == [None] * len(heard)
    for start in range(0, len(heard), 3):
        assert {(each.text, each.finish, each.completion_tokens) for each in heard[start : start + 3]} == {
            (heard[start].text, heard[start].finish, heard[start].completion_tokens)
        }


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Any:
    """A server whose model is configured not to guess."""
    toml = f'[[models]]\nid = "tiny"\npath = "{tiny_model}"\n[models.speculation]\nmethod = "off"\n'
    with serving(tmp_path_factory.mktemp("home"), [], toml=toml) as server:
        yield server


def test_a_method_that_the_model_lacks_is_refused_on_every_route(silent: Server) -> None:
    turns = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    for path, asked in (
        ("/v1/chat/completions", turns),
        ("/v1/messages", turns),
        ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
        ("/v1/responses", {"input": "Hi", "max_output_tokens": 4}),
    ):
        refused = httpx.post(
            f"{silent.url}{path}", json={"model": "tiny", **asked, "speculation": {"method": "mtp"}}, timeout=60
        )
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].endswith(UNLOADED)
        silent.ask({"model": "tiny", **asked, "speculation": {"method": "ngram"}}, path)


def test_the_configuration_decides_for_requests_that_say_nothing(silent: Server) -> None:
    looping = {"model": "tiny", "prompt": "a b c d " * 8, "max_tokens": 32, "temperature": 0, "ignore_eos": True}
    before = silent.gauge("pomona_worker_verify_steps_total")
    silent.ask(looping, "/v1/completions")
    assert silent.gauge("pomona_worker_verify_steps_total") == before
