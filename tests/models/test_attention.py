"""One module object with three kinds of attention."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from ramet.models import attention
from tests.engine.local.models import KINDS, make


class Causal:
    """Plain causal attention, written as a plan."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        heads_first = (tensor.transpose(0, 1).unsqueeze(0) for tensor in (queries, keys, values))
        seen = functional.scaled_dot_product_attention(*heads_first, is_causal=True, scale=scale, enable_gqa=True)
        return seen[0].transpose(0, 1)


class Blind(Causal):
    """Every token sees only itself."""

    def attend(self, layer: int, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        return values.repeat_interleave(queries.shape[1] // values.shape[1], dim=1)


@pytest.mark.parametrize("kind", list(KINDS))
def test_without_a_plan_an_attached_model_is_unchanged(kind: str) -> None:
    model = make(kind)
    ids = torch.randint(0, 200, (3, 9), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(ids)
    mask[0, :4] = 0  # padded on the left
    before = model(ids).logits, model(ids, attention_mask=mask).logits[:, 4:]
    attention.attach(model)
    attention.attach(model)  # a second call changes nothing
    after = model(ids).logits, model(ids, attention_mask=mask).logits[:, 4:]
    assert torch.equal(before[0], after[0])
    assert torch.equal(before[1], after[1])


def test_a_plan_is_active_only_in_its_own_thread_and_block() -> None:
    model = make()
    attention.attach(model)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    plain = model(ids).logits
    seen: dict[str, Tensor] = {}

    def in_another_thread() -> None:
        seen["thread"] = model(ids).logits

    with attention.using(Causal()):
        assert torch.allclose(model(ids).logits, plain, atol=1e-5)
        with attention.using(Blind()):
            blind = model(ids).logits
            thread = threading.Thread(target=in_another_thread)
            thread.start()
            thread.join()
        assert torch.allclose(model(ids).logits, plain, atol=1e-5)
    assert not torch.allclose(blind, plain, atol=1e-2)
    assert torch.equal(seen["thread"], plain)
    assert torch.equal(model(ids).logits, plain)


def test_an_attached_model_is_saved_like_any_other(tmp_path: object) -> None:
    model = make()
    ids = torch.tensor([[1, 2, 3]])
    attention.attach(model)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert again.config._attn_implementation != attention.NAME
    assert torch.allclose(again(ids).logits, model(ids).logits, atol=1e-5)


class Operations(TorchDispatchMode):
    """The names of the operations that are run inside."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.__name__.partition(".")[0])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", list(KINDS))
def test_the_mask_of_a_plan_keeps_transformers_from_searching_the_positions(kind: str) -> None:
    model = make(kind)
    attention.attach(model)
    inputs = {"input_ids": torch.tensor([[1, 2, 3, 1, 2]]), "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    with attention.using(Causal()), torch.no_grad():
        with Operations() as searching:
            plain = model(**inputs, use_cache=False).logits
        with Operations() as unread:
            masked = model(**inputs, attention_mask=attention.UNREAD, use_cache=False).logits
    assert torch.equal(plain, masked)
    assert "cumsum" in searching.names  # how it finds where packed sequences begin
    assert "cumsum" not in unread.names
