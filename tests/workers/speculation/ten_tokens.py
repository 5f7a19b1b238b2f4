"""Models over ten tokens: the law of every answer is known by enumeration, and engines draft in each way there is."""

import importlib
from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from pomona.config import Method
from pomona.runtime.wire import replace
from pomona.workers.messages import Request, Sampling, Speculation
from pomona.workers.sampling import reference
from pomona.workers.sampling.reference import Vector
from pomona.workers.speculation.draft_model import DraftModel
from pomona.workers.speculation.layers import Layers
from pomona.workers.speculation.mtp import Mtp
from pomona.workers.speculation.mtp_head import MtpHead
from pomona.workers.speculation.ngram import NgramProposer
from pomona.workers.speculation.proposal import Proposer
from tests.support.tiny_model import random_weights
from tests.workers.engines import ask, run
from tests.workers.test_engine_drafts import engine_of

VOCABULARY = 10
PROMPT = (5, 4, 3, 3, 3, 3)
"""What follows it would be copied to follow it again."""
LENGTH = 4
"""Tokens of an answer: three may be drafted, and the window of the sliding layers moves on."""

Tokens = tuple[int, ...]

SMALL = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
    "vocab_size": VOCABULARY,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {**SMALL, "model_type": "llama"},
    "gemma 3": {
        **SMALL,
        "model_type": "gemma3_text",
        "rope_local_base_freq": 10000.0,
        "query_pre_attn_scalar": 8,
        "sliding_window": 5,
        "sliding_window_pattern": 2,
    },
    "hybrid": {
        **SMALL,
        "model_type": "qwen3_next",
        "linear_num_value_heads": 2,
        "linear_num_key_heads": 1,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "num_experts": 0,
        "num_experts_per_tok": 0,
        "decoder_sparse_step": 1,
        "shared_expert_intermediate_size": 16,
        "mlp_only_layers": [],
        "moe_intermediate_size": 16,
        "partial_rotary_factor": 0.5,
        "full_attention_interval": 2,
    },
}

CELLS: tuple[tuple[str, Method], ...] = (
    ("llama", "ngram"),
    ("llama", "draft"),
    ("llama", "layers"),
    ("gemma 3", "ngram"),
    ("gemma 3", "draft"),
    ("gemma 3", "layers"),
    ("hybrid", "ngram"),
    ("hybrid", "draft"),
    ("hybrid", "mtp"),
)
"""A hybrid's first layer is recurrent and cannot run ahead of the others; only the hybrid has a head of its own."""

EAGER = Sampling(seed=0, repeatable=False, temperature=1.5, top_k=2, logit_bias={3: 33.0, 4: 30.0})
"""Model and drafter like the same token, so that nearly all drafts are kept."""
WAYWARD = Sampling(seed=0, repeatable=False, top_k=2)
"""Each likes tokens of its own, so that most drafts are refused."""
PAIR = (EAGER, WAYWARD)
MIXED = (
    EAGER,
    WAYWARD,
    Sampling(seed=0, repeatable=False, temperature=1.3, top_p=0.9, min_p=0.05),
    Sampling(
        seed=0,
        repeatable=False,
        temperature=0.7,
        top_p=0.8,
        repetition_penalty=1.3,
        presence_penalty=0.4,
        frequency_penalty=0.5,
    ),
    Sampling(seed=0, repeatable=False, xtc_probability=0.4, xtc_threshold=0.15, logit_bias={0: 2.0, 5: -1.5}),
)


SEEDS = {"llama": 9, "gemma 3": 0, "hybrid": 8}
"""Weights that the draft model, of the seed below, agrees and disagrees with enough for the two laws of `PAIR`."""
DRAFT_SEED = 19


@cache
def model_of(family: str, seed: int | None = None, scale: float = 2.0) -> Any:
    """float32; `scale` is the standard deviation of its logits."""
    settings = FAMILIES[family]
    module = importlib.import_module(f"mlx_lm.models.{settings['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(settings))
    model.load_weights(
        [
            (name, mx.array(value))
            for name, value in random_weights(settings, SEEDS[family] if seed is None else seed, scale).items()
        ]
    )
    mx.eval(model.parameters())
    return model


class Drafting(NamedTuple):
    """A model, what an engine of it runs, and who drafts for it; each engine needs a fresh one."""

    model: Any
    listened: Any
    proposer: Proposer


def drafting(family: str, method: Method) -> Drafting:
    model = model_of(family)
    match method:
        case "ngram":
            return Drafting(model, model, NgramProposer())
        case "draft":
            return Drafting(model, model, DraftModel(model_of("llama", DRAFT_SEED, 1.0), VOCABULARY))
        case "layers":
            return Drafting(model, model, Layers(model, 1))
        case "mtp":
            mtp = Mtp(model, _random_head(model), "ten tokens")
            return Drafting(model, mtp.model, mtp)


def _random_head(model: Any) -> MtpHead:
    head, random = MtpHead(model), np.random.default_rng(2)
    named: Any = tree_flatten(head.parameters())  # type: ignore[no-untyped-call]
    head.load_weights(
        [(name, mx.array(random.normal(0, value.shape[-1] ** -0.5, value.shape), mx.float32)) for name, value in named]
    )
    head.eval()
    return head


def law_of_answers(model: Any, sampling: Sampling) -> dict[Tokens, float]:
    """The probability of each answer, from whole forwards of the model and the reference of the law of sampling."""
    found: dict[Tokens, float] = {(): 1.0}
    for _ in range(LENGTH):
        answers = list(found)
        logits = np.array(model(mx.array([[*PROMPT, *answer] for answer in answers]))[:, -1], dtype=np.float64)
        laws = [_law(own, sampling, answer) for own, answer in zip(logits, answers, strict=True)]
        found = {
            (*answer, token): found[answer] * float(share)
            for answer, law in zip(answers, laws, strict=True)
            for token, share in enumerate(law)
            if share > 0
        }
    return found


def _law(logits: Vector, sampling: Sampling, answer: Tokens) -> Vector:
    values = reference.adjusted(logits, sampling, PROMPT, answer)
    chance = sampling.xtc_probability
    plain = reference.distribution(values, sampling)
    return np.asarray((1 - chance) * plain + chance * reference.distribution(values, sampling, xtc=True))


def requests_of(seeds: Sequence[int], laws: Sequence[Sampling], speculation: Speculation) -> list[Request]:
    """One for each seed, by the laws in turn."""
    return [
        replace(
            ask(
                f"s{seed}",
                PROMPT,
                sampling=replace(laws[seed % len(laws)], seed=seed),
                max_tokens=LENGTH,
                ignore_eos=True,
            ),
            speculation=speculation,
        )
        for seed in seeds
    ]


class Sampled(NamedTuple):
    counts: list[Counter[Tokens]]
    """Of the answers, for each law."""
    tested: int
    """Drafts that were verified behind accepted ones."""
    accepted: int


def sampled(cell: Drafting, speculation: Speculation, width: int, laws: Sequence[Sampling], answers: int) -> Sampled:
    """Answers of one engine, `width` at once, under seeds from 0 on."""
    engine = engine_of(cell.listened, [cell.proposer], max_running=width)
    counts: list[Counter[Tokens]] = [Counter() for _ in laws]
    for first in range(0, answers, width):
        seeds = range(first, min(answers, first + width))
        outcomes = run(engine, requests_of(seeds, laws, speculation))
        for seed in seeds:
            counts[seed % len(laws)][tuple(outcomes[f"s{seed}"].tokens)] += 1
    figures = engine.stats().speculation.values()
    return Sampled(counts, sum(sum(each.tested) for each in figures), sum(sum(each.accepted) for each in figures))
