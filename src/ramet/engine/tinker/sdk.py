"""The vendor's client package (`tinker`) behind the verbs of `service.py`. Nothing else imports it.

The package keeps an event loop in a thread of its own. Calls that block go through a thread here; results are awaited
without cancelling them, because a request that is no longer awaited is still carried out by the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import textwrap
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from ramet.engine.tinker.calls import Calls
from ramet.engine.tinker.failures import Failures
from ramet.engine.tinker.service import Adam, Datum, LossName, Sampled, Sampler, ServerFacts, Trainer
from ramet.errors import ConfigError, EngineError

T = TypeVar("T")
KEY = "TINKER_API_KEY"  # environment variable: the API key, never stored
LOCAL_KEY = "tml-local"  # servers on this machine take any key that begins like this
HEALTH = "/api/v1/healthz"
CAPABILITIES = "/api/v1/get_server_capabilities"
HEALTH_S = 10.0
NAMES = {"Tinker API Mock": "SkyRL"}  # what servers call themselves, and what they are
REST_LOGGER = "tinker.lib.public_interfaces.rest_client"
WRONG_WIRE = "supports as proto"  # part of the client's error when it meets an older server


async def open_service(base_url: str, *, deadline_s: float = 30.0) -> SdkService:
    """Connect to a server. One line is raised if the package is missing, the address wrong or nothing answers."""
    address, key = check_address(base_url), api_key(base_url)
    await check_health(address)  # first: importing the package takes seconds
    os.environ["TINKER_TELEMETRY"] = "0"
    tinker = _import_tinker()
    service = SdkService(tinker, address, key)
    calls = Calls(service, deadline_s=deadline_s)
    await calls.run("create_session", service.connect)
    return service


def check_address(base_url: str) -> str:
    parts = urlsplit(base_url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"backend.base_url is an address like http://127.0.0.1:8123; got {base_url!r}")
    if parts.username or parts.password:
        raise ConfigError(f"the address contains a password: give the API key as environment variable {KEY}")
    return base_url.rstrip("/")


async def check_health(address: str) -> None:
    """Raise one line unless a server of this API answers, or is merely slow."""
    try:
        async with httpx.AsyncClient(timeout=HEALTH_S) as client:
            response = await client.get(address + HEALTH)
    except (httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError) as error:
        raise EngineError(f"nothing answers at {address}: {str(error) or type(error).__name__}") from None
    except httpx.HTTPError:
        return  # slow: the deadline of the call decides
    if response.status_code < 500 and not _is_healthy(response):
        raise EngineError(f"{address} is no server of the Tinker API: {HEALTH} does not answer status ok")


async def server_name(address: str) -> str:
    """What the server calls itself; its host if it has no name."""
    try:
        async with httpx.AsyncClient(timeout=HEALTH_S) as client:
            name = str((await client.get(address + "/")).json()["name"])
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return urlsplit(address).hostname or address
    return NAMES.get(name, name)


async def offered_models(address: str) -> dict[str, int | None] | None:
    """Base models and their windows, without the client package; None if the server does not list them as JSON."""
    headers = {"X-API-Key": api_key(address)}
    try:
        async with httpx.AsyncClient(timeout=HEALTH_S) as client:
            found = (await client.get(address + CAPABILITIES, headers=headers)).json()["supported_models"]
            return {model["model_name"]: model.get("max_context_length") for model in found if model["model_name"]}
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return None


def api_key(base_url: str) -> str:
    key = os.environ.get(KEY, "")
    if not key and urlsplit(base_url).hostname in ("127.0.0.1", "::1", "localhost"):
        return LOCAL_KEY
    if not key:
        raise ConfigError(f"{base_url} needs an API key: set the environment variable {KEY}")
    return key


def make_client(failures: Failures) -> httpx.AsyncClient:
    """The HTTP client of the package, with its own limits, and with every response looked at."""
    return httpx.AsyncClient(
        http2=True,
        follow_redirects=True,
        timeout=httpx.Timeout(60.0, connect=5.0),
        limits=httpx.Limits(max_connections=1000, max_keepalive_connections=20),
        event_hooks={"response": [failures.see]},
    )


def _import_tinker() -> Any:
    try:
        return import_module("tinker")
    except ImportError as error:
        raise ConfigError(f"the Tinker API needs {error.name}: pip install 'ramet[tinker]'") from None


class SdkService:
    """A `Service` over the client package."""

    def __init__(self, tinker: Any, address: str, key: str) -> None:
        self.tinker, self.types = tinker, tinker.types
        self.address = address
        self._key = key
        self._failures = Failures(address)
        self._client = tinker.ServiceClient(base_url=address, api_key=key, http_client=make_client(self._failures))
        self._samples: set[Future[Any]] = set()  # under way on the server, awaited or not

    async def connect(self) -> None:
        """Open the session, which blocks."""
        await self.blocking(lambda: self._client.holder)

    async def check(self) -> None:
        await check_health(self.address)
        self._failures.check()

    async def describe(self) -> ServerFacts:
        found = await self.blocking(lambda: self._client.get_server_capabilities())
        known = [model for model in found.supported_models if model.model_name]
        return ServerFacts(
            server=await server_name(self.address),
            sdk=f"tinker {self.tinker.__version__}",
            models=tuple(model.model_name for model in known),
            windows=tuple(model.max_context_length for model in known),
        )

    async def create(self, *, base_model: str, rank: int, seed: int) -> Trainer:
        make = partial(self._client.create_lora_training_client, base_model=base_model, rank=rank, seed=seed)
        return SdkTrainer(self, await self.blocking(lambda: make(train_unembed=False)))

    async def load_state(self, path: str, *, optimizer: bool) -> Trainer:
        name = "create_training_client_from_state" + ("_with_optimizer" if optimizer else "")
        return SdkTrainer(self, await self.blocking(lambda: getattr(self._client, name)(path)))

    async def sampler(self, path: str) -> Sampler:
        make = partial(self._client.create_sampling_client, model_path=path, retry_config=self.no_retries())
        return SdkSampler(self, await self.blocking(make))

    def no_retries(self) -> Any:
        """A sample that is asked for again is generated again."""
        return import_module("tinker.lib.retry_handler").RetryConfig(enable_retry_logic=False)

    async def drain(self) -> None:
        for future in list(self._samples):
            await _ended(future)

    def close(self) -> None:
        for future in list(self._samples):
            future.cancel()
        self._client.holder.close()

    async def blocking(self, work: Callable[[], T]) -> T:
        """Run a call that blocks in a thread that does not keep the process alive."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # reported by `result`
                future.set_exception(error)

        threading.Thread(target=run, daemon=True, name="ramet tinker").start()
        return await self.result(future)

    async def sampled(self, future: Future[T]) -> T:
        """The result of a sample, which is under way until the server has ended it."""
        self._samples.add(future)
        future.add_done_callback(self._samples.discard)
        return await self.result(future)

    async def result(self, future: Future[T]) -> T:
        """The result of a call of the package; its errors as one line."""
        await _ended(future)
        known = (self.tinker.TinkerError, ValueError, RuntimeError, AssertionError, OSError, httpx.HTTPError)
        try:
            return future.result()
        except known as error:
            raise EngineError(self._text(error)) from None

    def _text(self, error: BaseException) -> str:
        text = textwrap.shorten(str(error).replace(self._key, "***"), 300, placeholder=" ...")
        if WRONG_WIRE in text:
            return f"{self.address} speaks JSON, and this client does not: pip install 'tinker<0.25' ({text})"
        return f"{self.address}: {text or type(error).__name__}"

    async def post(self, path: str, body: dict[str, Any]) -> None:
        """A verb that the package has no method for. Servers without it are left alone."""
        with contextlib.suppress(httpx.HTTPError):
            async with httpx.AsyncClient(timeout=HEALTH_S) as client:
                await client.post(self.address + path, json=body, headers={"X-API-Key": self._key})

    async def get(self, url: str) -> bytes:
        try:
            async with httpx.AsyncClient(timeout=None, follow_redirects=True) as client:
                response = await client.get(url)
        except httpx.HTTPError as error:
            raise EngineError(f"cannot download from {self.address}: {str(error) or type(error).__name__}") from None
        if response.status_code != 200:
            raise EngineError(f"cannot download from {self.address}: it answered {response.status_code}")
        return response.content

    def rest(self) -> Any:
        return self._client.create_rest_client()


class SdkTrainer:
    """A `Trainer` over a training client of the package."""

    def __init__(self, service: SdkService, client: Any) -> None:
        self._service, self._client, self._types = service, client, service.types

    async def forward(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        sent = [self._scored(datum) for datum in data]
        return _logprobs(await self._service.result(self._client.forward(sent, "cross_entropy").future()))

    async def forward_backward(
        self, data: Sequence[Datum], *, loss: LossName, bounds: tuple[float, float] | None = None
    ) -> list[tuple[float, ...]]:
        sent = [self._datum(datum) for datum in data]
        config = None if bounds is None else {"clip_low_threshold": bounds[0], "clip_high_threshold": bounds[1]}
        return _logprobs(await self._service.result(self._client.forward_backward(sent, loss, config).future()))

    async def optim_step(self, adam: Adam) -> float | None:
        params = self._types.AdamParams(
            learning_rate=adam.learning_rate,
            beta1=adam.betas[0],
            beta2=adam.betas[1],
            eps=adam.eps,
            weight_decay=adam.weight_decay,
            grad_clip_norm=adam.max_grad_norm,
        )
        found = await self._service.result(self._client.optim_step(params).future())
        metrics: dict[str, float] = found.metrics or {}
        return next((float(value) for name, value in metrics.items() if "grad_norm" in name), None)

    async def save_state(self, name: str) -> str:
        return str((await self._service.result(self._client.save_state(name).future())).path)

    async def save_weights_for_sampler(self) -> Sampler:
        make = partial(self._client.save_weights_and_get_sampling_client, retry_config=self._service.no_retries())
        return SdkSampler(self._service, await self._service.blocking(make))

    async def download(self, name: str) -> bytes:
        path = (await self._service.result(self._client.save_weights_for_sampler(name).future())).path
        return await self._service.get(await self._service.blocking(lambda: self._archive_url(name, path)))

    def _archive_url(self, name: str, path: str) -> str:
        """Servers differ in what they call the checkpoint here: its path, or its name alone."""
        logging.getLogger(REST_LOGGER).setLevel(logging.ERROR)  # one warning for every archive
        rest = self._service.rest()
        try:
            return str(rest.get_checkpoint_archive_url_from_tinker_path(path).result().url)
        except (self._service.tinker.NotFoundError, ValueError):  # no such path there, or one the package cannot read
            return str(rest.get_checkpoint_archive_url(self._client.model_id, name).result().url)

    async def unload(self) -> None:
        await self._service.post("/api/v1/unload_model", {"model_id": self._client.model_id, "type": "unload_model"})

    def _datum(self, datum: Datum) -> Any:
        floats = {"logprobs": datum.logprobs, "advantages": datum.advantages, "weights": datum.weights}
        return self._made(datum, {name: values for name, values in floats.items() if values})

    def _scored(self, datum: Datum) -> Any:
        return self._made(datum, {"weights": datum.weights or (1.0,) * len(datum.targets)})

    def _made(self, datum: Datum, floats: dict[str, tuple[float, ...]]) -> Any:
        tensor = self._types.TensorData
        inputs = {name: tensor(data=list(one), dtype="float32", shape=[len(one)]) for name, one in floats.items()}
        targets = tensor(data=list(datum.targets), dtype="int64", shape=[len(datum.targets)])
        return self._types.Datum(
            model_input=self._types.ModelInput.from_ints(list(datum.token_ids)),
            loss_fn_inputs={"target_tokens": targets, **inputs},
        )


class SdkSampler:
    """A `Sampler` over a sampling client of the package."""

    def __init__(self, service: SdkService, client: Any) -> None:
        self._service, self._client = service, client

    async def sample(
        self,
        token_ids: Sequence[int],
        *,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_ids: Sequence[int],
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> Sampled:
        types = self._service.types
        params = types.SamplingParams(
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            stop=list(stop_ids) or None,
            top_p=top_p,
            top_k=top_k or -1,
        )
        prompt = types.ModelInput.from_ints(list(token_ids))
        found = (await self._service.sampled(self._client.sample(prompt, 1, params))).sequences[0]
        return Sampled(
            token_ids=tuple(found.tokens),
            logprobs=tuple(found.logprobs or ()),
            stopped=found.stop_reason == "stop",
        )


def _is_healthy(response: httpx.Response) -> bool:
    try:
        return response.json()["status"] in ("ok", "healthy", "ready")
    except (ValueError, KeyError, TypeError):
        return False


def _logprobs(found: Any) -> list[tuple[float, ...]]:
    return [tuple(output["logprobs"].data) for output in found.loss_fn_outputs]


async def _ended(future: Future[Any]) -> None:
    """Wait for a result of another thread. Cancelling ends the waiting and leaves the result alone."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ended.set)

    future.add_done_callback(wake)
    await ended.wait()
