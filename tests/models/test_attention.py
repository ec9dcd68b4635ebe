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


@pytest.mark.parametrize("kind", list(KINDS))
def test_a_plan_is_used_by_the_call_that_names_it_and_by_no_other(kind: str) -> None:
    model = make(kind)
    attention.attach(model)
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    plain = model(ids).logits
    seen: dict[str, Tensor] = {}
    begun, ended = threading.Event(), threading.Event()

    class Waiting(Blind):
        """A call that goes on in another thread, until this one has called the model without a plan."""

        def attend(self, *inputs: Any) -> Tensor:
            begun.set()
            assert ended.wait(timeout=60)
            return super().attend(*inputs)

    def in_another_thread() -> None:
        seen["blind"] = model(ids, **attention.planned(Waiting())).logits

    thread = threading.Thread(target=in_another_thread)
    thread.start()
    assert begun.wait(timeout=60)
    assert torch.equal(model(ids).logits, plain)
    assert torch.allclose(model(ids, **attention.planned(Causal())).logits, plain, atol=1e-5)
    ended.set()
    thread.join()
    assert not torch.allclose(seen["blind"], plain, atol=1e-2)
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
    keywords = attention.planned(Causal())
    with torch.no_grad():
        with Operations() as searching:
            plain = model(**inputs, **(keywords | {"attention_mask": None})).logits
        with Operations() as unread:
            masked = model(**inputs, **keywords).logits
    assert torch.equal(plain, masked)
    assert "cumsum" in searching.names  # how it finds where packed sequences begin
    assert "cumsum" not in unread.names
