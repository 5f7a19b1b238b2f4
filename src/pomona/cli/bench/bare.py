"""`python -m pomona.cli.bench.bare SPEC`: one stream of mlx_lm.stream_generate with no server around it.

The floor that a server's single stream is measured against. It is run as a process of its own and prints one JSON
list of `Answer`s; SPEC is a `BareSpec` in JSON.
"""

import sys
import time
from dataclasses import dataclass

import msgspec

from pomona.cli.bench.answer import Answer
from pomona.cli.bench.asks import Ask, asks
from pomona.cli.bench.mixture import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class BareSpec:
    """The same fields as a `Load` of one stream, greedy, on the model in `folder`."""

    folder: str
    requests: int
    warm_ups: int
    max_tokens: Mixture
    prompt_words: Mixture
    seed: str


def generate(spec: BareSpec) -> list[Answer]:
    """Loads the model, answers the warm-up prompts unmeasured, then the measured ones in turn."""
    from mlx_lm import load, stream_generate

    model, tokenizer, *_ = load(spec.folder)

    def answer(one: Ask) -> Answer:
        messages = [{"role": "user", "content": one.prompt}]
        tokens = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        started = time.perf_counter()
        deltas: list[float] = []
        for piece in stream_generate(model, tokenizer, tokens, max_tokens=one.max_tokens):
            now = time.perf_counter()
            if piece.text:
                deltas.append(now)
        return Answer(
            started=started,
            deltas=tuple(deltas) or (now,),
            finished=now,
            prompt_tokens=piece.prompt_tokens,
            completion_tokens=piece.generation_tokens,
            finish=piece.finish_reason or "length",
        )

    for one in asks(f"{spec.seed} warm-up", spec.warm_ups, spec.prompt_words, spec.max_tokens):
        answer(one)
    return [answer(one) for one in asks(spec.seed, spec.requests, spec.prompt_words, spec.max_tokens)]


def main(arguments: list[str]) -> None:
    spec = msgspec.json.decode(arguments[0], type=BareSpec)
    sys.stdout.buffer.write(msgspec.json.encode(generate(spec)))


if __name__ == "__main__":
    main(sys.argv[1:])
