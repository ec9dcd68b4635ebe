"""vLLM among the engines that are compared: its offline engine, in steps, so that calls start as soon as they may."""

# pyright: basic, reportMissingImports=false

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

from ramet.bench.engine_peers import Done, Setting, in_waves
from ramet.bench.workload import Call, Progress, Workload
from ramet.errors import ConfigError

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
BLOCK = 16  # tokens in a block of its cache on GPUs; it may choose larger ones
SPARE_BLOCKS = 64
SHARE = 0.3  # of the device's memory that must be free; the cache itself has its size in bytes


class VllmPeer:
    """With prefix caching and its default batch sizes; the tokens of a call come in one piece at its end."""

    def __init__(self, setting: Setting) -> None:
        if setting.device not in ("cpu", "cuda", "cuda:0"):
            raise ConfigError("vllm takes the first GPU it sees: choose another with CUDA_VISIBLE_DEVICES")
        os.environ["VLLM_NO_USAGE_STATS"] = "1"  # it would send what it runs on to its makers
        import vllm

        before = _used_bytes(setting.device)
        self.llm = vllm.LLM(
            str(setting.folder),
            skip_tokenizer_init=True,
            dtype=setting.dtype,
            max_model_len=setting.longest + 1,
            enable_prefix_caching=True,
            gpu_memory_utilization=SHARE,
            kv_cache_memory_bytes=_cache_bytes(setting),
            generation_config="vllm",
        )
        self.engine: Any = self.llm.llm_engine
        self.passes = 0
        self.facts: dict[str, Any] = {"version": vllm.__version__, "steps": hasattr(self.engine, "step")}
        after = _used_bytes(setting.device)
        if before is not None and after is not None:  # it computes in yet another process
            self.facts["device_bytes"] = after - before

    def prepare(self, *, logprobs: bool) -> None:
        """Nothing: it is asked for log-probs call by call."""

    def run(self, workload: Workload, *, logprobs: bool) -> list[Done]:
        self.passes += 1  # names of requests are not used twice
        return self._in_steps(workload, logprobs) if self.facts["steps"] else self._in_waves(workload, logprobs)

    def _in_steps(self, workload: Workload, logprobs: bool) -> list[Done]:
        progress = Progress(workload)
        done: dict[int, Done] = {}

        def ask(index: int) -> None:
            wanted = _wanted(workload.calls[index], logprobs=logprobs)
            self.engine.add_request(f"{self.passes}-{index}", {"prompt_token_ids": progress.prompt(index)}, wanted)

        for index in progress.start():
            ask(index)
        while not progress.done:
            for output in self.engine.step():
                index = int(output.request_id.split("-")[1])
                done[index] = _done(output)
                for ready in progress.end(index, done[index].token_ids):
                    ask(ready)
        return [done[index] for index in range(len(workload.calls))]

    def _in_waves(self, workload: Workload, logprobs: bool) -> list[Done]:
        """For versions whose engine cannot be stepped."""

        def batch(prompts: list[list[int]], calls: list[Call]) -> list[Done]:
            given: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
            wanted = [_wanted(call, logprobs=logprobs) for call in calls]
            return [_done(output) for output in self.llm.generate(given, wanted, use_tqdm=False)]

        return in_waves(workload, batch, limit=len(workload.calls))

    def close(self) -> None:
        del self.engine, self.llm


def _wanted(call: Call, *, logprobs: bool) -> Any:
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


def _done(output: Any) -> Done:
    said = output.outputs[0]
    chances = None
    if said.logprobs is not None:  # several lists for all tokens; the sampled token's entry comes first
        chances = [said.logprobs.logprobs[start] for start in said.logprobs.start_indices]
    return Done(prompt_tokens=len(output.prompt_token_ids), token_ids=list(said.token_ids), logprobs=chances)


def _cache_bytes(setting: Setting) -> int:
    """What `cache_tokens` take up: keys and values of every layer."""
    config = json.loads((setting.folder / "config.json").read_text())
    heads = config["num_attention_heads"]
    size = config.get("head_dim") or config["hidden_size"] // heads
    values = 2 * config["num_hidden_layers"] * (config.get("num_key_value_heads") or heads) * size
    blocks = -(-setting.cache_tokens // BLOCK) + SPARE_BLOCKS
    return blocks * BLOCK * values * BYTES[setting.dtype]


def _used_bytes(device: str) -> int | None:
    """What is taken of the first GPU's memory, by whomever."""
    if device == "cpu":
        return None
    words = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits", "-i", "0"]
    try:
        told = subprocess.run(words, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return int(told.stdout) * 2**20
