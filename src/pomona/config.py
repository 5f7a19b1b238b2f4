"""The one frozen configuration tree: parsed once, validated once, passed down, never changed.

`deploy/pomona.toml` documents every key. Precedence: command line, environment, file, defaults.
"""

from typing import Annotated, Literal

from msgspec import Meta

from pomona.runtime.wire import Section

Port = Annotated[int, Meta(ge=0, le=65535)]
"""0 lets the system choose a free one."""
Positive = Annotated[int, Meta(ge=1, le=2**53)]
Size = Annotated[int, Meta(ge=0, le=2**53)]
"""Bytes, or a number of things that may be none."""
Seconds = Annotated[float, Meta(ge=0, le=1e7)]
"""Up to some months; timers take no infinity."""
Weight = Annotated[float, Meta(ge=0.001, le=1000)]
"""Against others of its kind."""
Name = Annotated[str, Meta(min_length=1)]
DEEPEST = 16
"""Tokens that may be guessed ahead at once."""
Method = Literal["ngram", "grammar", "draft", "mtp", "layers"]
"""Who guesses: a copy from prompt and output, a grammar that leaves one way, a small model, the model's own prediction
head, its first layers.
"""
MethodChoice = Literal["auto", "off", Method]
"""`auto` takes what is measured to pay."""
Depth = Annotated[int, Meta(ge=1, le=DEEPEST)]


class GatewayConfig(Section, kw_only=True):
    host: str = "127.0.0.1"
    port: Port = 8420
    api_keys: tuple[str, ...] = ()
    """Resolved keys; filled from `api_key_file` and POMONA_API_KEYS, never from the command line."""
    api_key_file: str | None = None
    max_body_bytes: Positive = 32 * 1024 * 1024
    keepalive_s: Seconds = 15.0
    """Silence on a stream after which a keepalive is sent."""
    count: Positive = 1
    """Gateway processes that share the listening socket."""
    cache_salt_per_key: bool = False
    """Each API key has stored prefixes of its own, so that no client can tell by the time what another has sent."""


class SchedulerConfig(Section, kw_only=True):
    max_waiting: Size = 256
    """Requests that may wait over all models; more are refused with 429 and Retry-After."""
    max_waiting_s: Seconds = 600.0
    """Seconds a request may wait for its first step before it is refused."""
    progress_timeout_s: Seconds = 120.0
    """Seconds a worker with work may stay silent before it is killed and its requests resumed."""
    max_resumes: Size = 3
    """Worker deaths that one request survives; then it ends with an error, since it may be the cause."""
    max_per_client: Size = 0
    """Requests that one client may have running and waiting, 0 for no limit; more are refused with 429."""
    max_prompt_tokens: Size = 0
    """Tokens of one prompt; 0 leaves it to the model's context."""
    max_total_s: Seconds = 0.0
    """Seconds from admission after which a request ends with 504, however far it is; 0 for no limit."""
    slice_s: Seconds = 0.1
    """Seconds that workers have the device in turn while several of them have work; a step that began is finished."""


class WorkerConfig(Section, kw_only=True):
    max_running: Positive = 16
    """Rows that a worker decodes at once."""
    prefill_chunk: Positive = 256
    """Prompt tokens in one prefill forward."""
    stall_s: Seconds = 0.7
    """Seconds of one prefill forward, of which one at most comes between two tokens of a running stream."""
    kv_bytes: Size = 0
    """KV of running requests in one worker, without what pads their buffers; 0: half of the memory that is free once
    its model is loaded, shared evenly among all workers."""


class CacheConfig(Section, kw_only=True):
    enabled: bool = True
    """The SSD tier; the RAM tier has its own switch, `ram_bytes`."""
    ram_bytes: Size = 1024**3
    """KV of recent prompts and answers that each worker keeps in memory; 0 keeps none."""
    folder: str | None = None
    """Default: `cache/` under POMONA_HOME's data folder."""
    max_bytes: Size = 20 * 1024**3
    min_free_bytes: Size = 5 * 1024**3
    """Free disk that the tier never eats into."""
    block_bytes: Positive = 8 * 1024**2
    """Size that a block file aims at."""

    @property
    def keeps(self) -> bool:
        """True if there is any tier that a prompt stays in."""
        return self.enabled or self.ram_bytes > 0


class SpeculationConfig(Section, kw_only=True):
    """Of one model; what a request says of itself goes before it."""

    method: MethodChoice = "auto"
    depth: Depth | None = None
    """Tokens guessed at once, at most, or always where a method is named; None leaves it to what is measured."""
    draft_model: Name | None = None
    """Folder of a small model with the same tokeniser; a file may name the id of an imported one."""
    layers: Positive | None = None
    """First layers of the model itself that guess; None: they do not."""
    corrector: Name | None = None
    """File of a fitted corrector for guesses that build on guesses; None: the one of this model, if there is one."""


class ModelConfig(Section, kw_only=True):
    id: Name
    path: Name
    max_context: Positive | None = None
    """Tokens of prompt and answer together; default: what the model's own configuration says."""
    replicas: Positive = 1
    max_running: Positive | None = None
    weight: Weight = 1.0
    """Share of each of its workers in the device's time, while others have work too."""
    speculation: SpeculationConfig = SpeculationConfig()


class Config(Section, kw_only=True):
    gateway: GatewayConfig = GatewayConfig()
    scheduler: SchedulerConfig = SchedulerConfig()
    worker: WorkerConfig = WorkerConfig()
    cache: CacheConfig = CacheConfig()
    models: tuple[ModelConfig, ...] = ()
    runtime_folder: str = ""
    """Private 0700 folder that holds the sockets; filled by the launcher."""
    cache_folder: str = ""
    """Resolved folder of the SSD tier; filled by the launcher."""
    ready_timeout_s: Seconds = 600.0
    stop_grace_s: Seconds = 10.0

    @property
    def control_endpoint(self) -> str:
        """Where the supervisor's hub listens."""
        return f"ipc://{self.runtime_folder}/control"

    @property
    def scheduler_endpoint(self) -> str:
        return f"ipc://{self.runtime_folder}/scheduler"

    @property
    def cache_endpoint(self) -> str:
        return f"ipc://{self.runtime_folder}/cache"

    @property
    def worker_count(self) -> int:
        return sum(model.replicas for model in self.models)

    def model(self, model_id: str) -> ModelConfig:
        """Raises KeyError if no such model is served."""
        for model in self.models:
            if model.id == model_id:
                return model
        raise KeyError(model_id)
