"""The one frozen configuration tree: parsed once, validated once, passed down, never changed.

`deploy/pomona.toml` documents every key. Precedence: command line, environment, file, defaults.
"""

from pomona.runtime.wire import Section


class GatewayConfig(Section, kw_only=True):
    host: str = "127.0.0.1"
    port: int = 8420
    api_keys: tuple[str, ...] = ()
    """Resolved keys; filled from `api_key_file` and POMONA_API_KEYS, never from the command line."""
    api_key_file: str | None = None
    max_body_bytes: int = 32 * 1024 * 1024
    keepalive_s: float = 15.0
    """Silence on a stream after which a keepalive is sent."""
    count: int = 1
    """Gateway processes that share the listening socket."""


class SchedulerConfig(Section, kw_only=True):
    max_waiting: int = 256
    """Requests that may wait over all models; more are refused with 429 and Retry-After."""
    max_waiting_s: float = 600.0
    """Seconds a request may wait for its first step before it is refused."""
    progress_timeout_s: float = 120.0
    """Seconds a worker with work may stay silent before it is killed and its requests resumed."""
    max_resumes: int = 3
    """Worker deaths that one request survives; then it ends with an error, since it may be the cause."""


class WorkerConfig(Section, kw_only=True):
    max_running: int = 16
    """Rows that a worker decodes at once."""
    prefill_chunk: int = 256
    """Prompt tokens in one prefill forward."""
    stall_s: float = 0.5
    """Seconds of prefill between two decode steps of running streams."""
    kv_bits: int | None = None


class CacheConfig(Section, kw_only=True):
    enabled: bool = True
    folder: str | None = None
    """Default: `cache/` under POMONA_HOME's data folder."""
    max_bytes: int = 20 * 1024**3
    min_free_bytes: int = 5 * 1024**3
    """Free disk that the tier never eats into."""
    block_bytes: int = 8 * 1024**2
    """Size that a block file aims at."""


class ModelConfig(Section, kw_only=True):
    id: str
    path: str
    max_context: int | None = None
    """Tokens of prompt and answer together; default: what the model's own configuration says."""
    replicas: int = 1
    max_running: int | None = None


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
    ready_timeout_s: float = 600.0
    stop_grace_s: float = 10.0

    @property
    def scheduler_endpoint(self) -> str:
        return f"ipc://{self.runtime_folder}/scheduler"

    @property
    def cache_endpoint(self) -> str:
        return f"ipc://{self.runtime_folder}/cache"

    def model(self, model_id: str) -> ModelConfig:
        """Raises KeyError if no such model is served."""
        for model in self.models:
            if model.id == model_id:
                return model
        raise KeyError(model_id)
