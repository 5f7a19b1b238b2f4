"""What the scheduler and a worker say to each other, and the token events that travel on to the client."""

from typing import Literal, NewType

import msgspec

from pomona.config import Method, MethodChoice
from pomona.reasoning_formats import ReasoningFormat
from pomona.runtime.tally import Tally, empty
from pomona.runtime.wire import Message, Part
from pomona.workers.kv_cost import KVCost

RequestId = NewType("RequestId", str)
"""Made by the gateway, never used twice; a client's own id is only a label."""

Channel = Literal["content", "reasoning", "tool_call"]
FinishReason = Literal["stop", "length", "cancelled", "error"]


class Sampling(Part, kw_only=True):
    """How tokens are drawn; every field is explicit, so that the request can be replayed."""

    seed: int
    """0 to 2**64 - 1; the gateway draws one where the client gave none."""
    repeatable: bool = True
    """Drafts are point masses, so that the tokens of a seed do not depend on what was drafted."""
    temperature: float = 1.0
    """0 is argmax."""
    top_p: float = 1.0
    top_k: int = 0
    """0 is off."""
    min_p: float = 0.0
    xtc_probability: float = 0.0
    """Chance that all tokens above `xtc_threshold` but the least probable of them are left out; 0 is off."""
    xtc_threshold: float = 0.0
    """0 to 0.5."""
    repetition_penalty: float = 1.0
    """Over prompt and output tokens."""
    presence_penalty: float = 0.0
    """Over output tokens, as OpenAI defines it; so is the next."""
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = msgspec.field(default_factory=dict)


class Limits(Part, kw_only=True):
    """When an answer ends."""

    max_tokens: int
    """Output tokens, committed ones included; 0 prefills and ends."""
    min_tokens: int = 0
    """No end-of-sequence token and no stop string before this many."""
    stop: tuple[str, ...] = ()
    """Strings that end the answer; the text before the earliest is what is delivered."""
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Speculation(Part, kw_only=True):
    """Which guesses at the next tokens are verified, several in one forward; they change no law, only the speed."""

    method: MethodChoice = "auto"
    depth: int | None = None
    """Tokens guessed at once, at most; None leaves it to what is measured."""


class Constraint(Part):
    """The language that an answer's text must be of, byte for byte; it was checked when the request came."""

    kind: Literal["json_schema", "json_object", "regex", "choice", "lark"]
    text: str = ""
    """JSON of a schema, a regular expression, JSON of a list of strings, or a grammar; empty for any JSON object."""


class Reasoning(Part, kw_only=True):
    """How the model writes down what it thinks before it answers; `pomona.reasoning_formats` has the marks."""

    format: ReasoningFormat
    suffix: str = ""
    """Of `think`: what stands behind the word in its tags, `:opensource` for `<think:opensource>`."""
    begun: str = ""
    """Marks that the prompt ends in: the answer goes on behind them."""
    budget: int | None = None
    """Tokens of thought, after which it is closed and the answer begins; 0 is no thought, None is no bound."""


class Tools(Part, kw_only=True):
    """How the model calls tools inside its answer: between two marks, each call is a text of the tool_call channel."""

    open: str = ""
    """The mark before a call."""
    named: dict[str, "Constraint | None"] = msgspec.field(default_factory=dict)
    """Instead of `open`, in the harmony format, whose marks name the tool: each tool, and the language of its arguments
    where that is fixed."""
    close: str = ""
    """The mark behind it; empty where a call reaches to the end of the answer."""
    required: bool = False
    """The answer is one or more calls and nothing else."""
    parallel: bool = True
    """More than one call may be made."""
    constraint: Constraint | None = None
    """The language of each call's text."""


class TokenLogprob(Part):
    """A token as raw bytes (no vocabulary marker characters) with its natural log-probability."""

    token: int
    bytes: bytes
    logprob: float


class PositionLogprobs(Part):
    """Log-probabilities of one content token, of the model's distribution before temperature and filters."""

    chosen: TokenLogprob
    top: tuple[TokenLogprob, ...] = ()
    """Most probable first."""


class Request(Part, kw_only=True):
    """A running request is a pure function of these values; nothing else may influence its tokens."""

    id: RequestId
    model: str
    prompt: tuple[int, ...]
    sampling: Sampling
    limits: Limits
    logprobs: int | None = None
    """None: none; n: the chosen token's and the n most probable ones' at each position."""
    committed: tuple[int, ...] = ()
    """Output tokens that were already delivered; the worker goes on behind them."""
    client: str = ""
    """A label of whose request it is, for fairness; never a key."""
    priority: int = 0
    """Lower runs first."""
    cache_salt: str = ""
    """Requests with different salts share no cached prefix."""
    speculation: Speculation = Speculation()
    constraint: Constraint | None = None
    """Of the answer's content, which thoughts and calls are not part of."""
    reasoning: Reasoning | None = None
    """None: all that the model writes is its answer."""
    tools: Tools | None = None


class Delta(Part):
    """Text of one channel. Concatenated, the deltas of a channel are its text; each is whole UTF-8."""

    channel: Channel
    text: str
    call: int = 0
    """Which call of the answer a text of the tool_call channel belongs to, counted from 0."""
    name: str = ""
    """The tool, in each delta of a call whose mark names it; else the call's text does."""


class Usage(Part):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV was restored instead of computed."""
    reasoning_tokens: int = 0
    """Completion tokens of the reasoning channel."""
    accepted_tokens: int = 0
    """Completion tokens that were guessed before they were drawn."""
    rejected_tokens: int = 0
    """Guesses that were verified in vain."""


class Finish(Part, kw_only=True):
    reason: FinishReason
    usage: Usage
    stop_text: str | None = None
    """The stop string that ended the answer."""
    message: str = ""
    """With `error`: what failed, for the client."""


class TokenEvent(Part, kw_only=True):
    """What one step committed for one request.

    `position` is the number of output tokens before `tokens`; a receiver that has seen more drops the event. Text is
    withheld while it may be part of a stop string or of an unfinished UTF-8 sequence, so a delta may be empty or carry
    more than its tokens; rebuilt from the same tokens it comes out the same. `finish` is on the last event only, which
    may carry no tokens.
    """

    id: RequestId
    position: int
    tokens: tuple[int, ...] = ()
    deltas: tuple[Delta, ...] = ()
    logprobs: tuple[PositionLogprobs, ...] = ()
    """Empty, or one for each content token of `tokens`; an end-of-sequence or stop token has none."""
    finish: Finish | None = None


# scheduler -> worker


class Assign(Message):
    """Run this request; it joins at a step boundary."""

    request: Request


class Cancel(Message):
    """Drop the request, whatever its state; legal for unknown and finished ones. Acknowledged by `Dropped`."""

    id: RequestId


class Drain(Message):
    """Drop every row: the scheduler that sent them is gone or asks for a clean slate."""


FREE_TURN = 0
"""Number of the turn that a worker has on a fresh link, without a word: a free one."""


class Turn(Message):
    """The device is this worker's now, for `seconds` of steps; answered by `TurnEnded` when they are used up.

    A step that began is finished. Without work left the turn ends early. With None it is a free turn, which lasts until
    `EndTurn`. A worker without a turn makes no step; all else that it is told it does at once.
    """

    number: int
    """Each turn has another."""
    seconds: float | None


class EndTurn(Message):
    """Give this turn back behind the step that is under way. Nothing is said of one that has ended, or is replaced."""

    number: int


# worker -> scheduler


class WorkerReady(Message):
    """First word on a new link to the scheduler: the model is loaded and warm, and no request is held."""

    model: str
    max_running: int
    context: int
    """Tokens of prompt and answer together."""
    kv_cost: KVCost = KVCost()
    kv_budget: int = 0
    """Bytes that the KV of its requests may take together; 0 is no bound."""
    methods: tuple[Method, ...] = ("ngram",)
    """Of speculation, that this worker has; none where its caches cannot take back what was refused."""


STEP_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Bounds in seconds of the times of steps."""
WIDTH_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Bounds of the rows of a decode step."""


class MethodFigures(Part, kw_only=True):
    """What one method of speculation did since the worker's start; entry i is of the guess at depth i + 1."""

    tested: tuple[int, ...] = ()
    """Guesses whose predecessors were all accepted."""
    accepted: tuple[int, ...] = ()
    unused: int = 0
    """Guesses behind a refused one."""
    propose_seconds: float = 0.0


class WorkerStats(Part, kw_only=True):
    """Counters since the worker's start, and gauges."""

    running: int = 0
    prefilling: int = 0
    waiting: int = 0
    prompt_tokens: int = 0
    """Computed, not restored."""
    cached_tokens: int = 0
    output_tokens: int = 0
    decode_steps: int = 0
    decode_rows: int = 0
    """Sum of batch widths over decode steps."""
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0
    kv_bytes: int = 0
    memory_bytes: int = 0
    stored_blocks: int = 0
    dropped_blocks: int = 0
    turns: int = 0
    """Turns that ended; none end while no other worker has work."""
    turn_seconds: float = 0.0
    """Of steps, and of waiting for what the last step of a turn launched."""
    decode_times: Tally = empty(STEP_BUCKETS)
    """Seconds of each decode step."""
    prefill_times: Tally = empty(STEP_BUCKETS)
    """Seconds of each prefill forward."""
    widths: Tally = empty(WIDTH_BUCKETS)
    """Rows of each decode step that had any."""
    ram_hits: int = 0
    """Prefixes restored from the worker's memory."""
    ram_tokens: int = 0
    """Tokens of them."""
    ram_entries: int = 0
    ram_bytes: int = 0
    disk_hits: int = 0
    """Prefixes restored from block files."""
    disk_tokens: int = 0
    tier_misses: int = 0
    """Looks for a prefix that found none in either tier."""
    restore_seconds: float = 0.0
    """Of the engine looking for prefixes and restoring them."""
    store_seconds: float = 0.0
    """Of the engine copying blocks for the writer, which is what storing costs running streams."""
    write_seconds: float = 0.0
    """Of the writer's thread, beside the engine."""
    speculation: dict[Method, MethodFigures] = msgspec.field(default_factory=dict)
    verify_steps: int = 0
    """Decode steps that verified guesses."""
    verify_seconds: float = 0.0
    saved_forwards: int = 0
    """Guesses that were accepted: tokens that needed no step of their own."""


class Stepped(Message):
    """The events of one step, in order, and the worker's state after it.

    `prefilled` tells of requests in prefill that they go forward: it is what the progress watchdog sees.
    """

    events: tuple[TokenEvent, ...]
    stats: WorkerStats
    prefilled: dict[RequestId, int] = msgspec.field(default_factory=dict)
    """Prompt tokens done, for each request in prefill."""


class Dropped(Message):
    """A cancelled request holds nothing any more; `usage` is None where it was unknown."""

    id: RequestId
    usage: Usage | None = None


class TurnEnded(Message):
    """The worker gave its turn back: what it launched is done, and it makes no step before it has another."""

    number: int
    seconds: float
    """Used, which may be more than was given."""


SchedulerToWorker = Assign | Cancel | Drain | Turn | EndTurn
WorkerToScheduler = WorkerReady | Stepped | Dropped | TurnEnded
