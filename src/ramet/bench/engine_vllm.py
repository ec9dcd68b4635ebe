"""vLLM in the engine benchmark: its offline engine, stepped, so that calls start as soon as they can."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ramet.bench.engine_peers import CallResult, Setting, in_waves
from ramet.bench.workload import Call, Progress, Workload
from ramet.errors import ConfigError

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BLOCK = 16  # tokens per block of its cache on GPUs; it may choose larger blocks
SPARE_BLOCKS = 64
MEMORY_SHARE = 0.3  # of the GPU that must be free; the size of the cache is set separately


class VllmPeer:
    """vLLM with prefix caching and default batch sizes. The tokens of a call are returned at its end."""

    def __init__(self, setting: Setting) -> None:
        if setting.device not in ("cpu", "cuda", "cuda:0"):
            raise ConfigError("vllm runs on the first visible GPU: choose another with CUDA_VISIBLE_DEVICES")
        os.environ["VLLM_NO_USAGE_STATS"] = "1"  # no telemetry
        import vllm

        before = _used_bytes(setting.device)
        self.llm = vllm.LLM(
            str(setting.folder),
            skip_tokenizer_init=True,
            dtype=setting.dtype,
            max_model_len=setting.longest + 1,
            enable_prefix_caching=True,
            gpu_memory_utilization=MEMORY_SHARE,
            kv_cache_memory_bytes=_cache_bytes(setting),
            generation_config="vllm",
        )
        self.engine: Any = self.llm.llm_engine
        self.passes = 0
        self.facts: dict[str, Any] = {"version": vllm.__version__, "steps": hasattr(self.engine, "step")}
        after = _used_bytes(setting.device)
        if before is not None and after is not None:  # it runs in another process
            self.facts["device_bytes"] = after - before

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing: log-probs are a setting of each call."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[CallResult]:
        self.passes += 1  # request ids must be unique
        return self._in_steps(workload, logprobs) if self.facts["steps"] else self._in_waves(workload, logprobs)

    def _in_steps(self, workload: Workload, logprobs: bool) -> list[CallResult]:
        progress = Progress(workload)
        done: dict[int, CallResult] = {}

        def submit(index: int) -> None:
            sampling = _sampling(workload.calls[index], logprobs=logprobs)
            self.engine.add_request(f"{self.passes}-{index}", {"prompt_token_ids": progress.prompt(index)}, sampling)

        for index in progress.start():
            submit(index)
        while not progress.done:
            for output in self.engine.step():
                index = int(output.request_id.split("-")[1])
                done[index] = _result(output)
                for ready in progress.end(index, done[index].token_ids):
                    submit(ready)
        return [done[index] for index in range(len(workload.calls))]

    def _in_waves(self, workload: Workload, logprobs: bool) -> list[CallResult]:
        """For versions without `step`."""

        def batch(prompts: list[list[int]], calls: list[Call]) -> list[CallResult]:
            inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
            sampling = [_sampling(call, logprobs=logprobs) for call in calls]
            return [_result(output) for output in self.llm.generate(inputs, sampling, use_tqdm=False)]

        return in_waves(workload, batch, limit=len(workload.calls))

    def close(self) -> None:
        del self.engine, self.llm


def _sampling(call: Call, *, logprobs: bool) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=1.0,
        max_tokens=call.new_tokens,
        ignore_eos=True,
        detokenize=False,
        logprobs=0 if logprobs else None,  # of the sampled token alone
        flat_logprobs=logprobs,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _result(output: Any) -> CallResult:
    completion = output.outputs[0]
    logprobs = None
    if completion.logprobs is not None:  # flat lists for all tokens; the entry of the sampled token comes first
        logprobs = [completion.logprobs.logprobs[start] for start in completion.logprobs.start_indices]
    return CallResult(
        prompt_tokens=len(output.prompt_token_ids), token_ids=list(completion.token_ids), logprobs=logprobs
    )


def _cache_bytes(setting: Setting) -> int:
    """The size of `cache_tokens` tokens: keys and values of every layer."""
    config = json.loads((setting.folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    values = 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * size
    blocks = -(-setting.cache_tokens // BLOCK) + SPARE_BLOCKS
    return blocks * BLOCK * values * BYTES[setting.dtype]


def _used_bytes(device: str) -> int | None:
    """The used memory of the first GPU, by all processes."""
    if device == "cpu":
        return None
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(done.stdout) * 2**20
