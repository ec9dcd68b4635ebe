"""A LoRA adapter merged by name: hand-computed sums, every matrix used, whatever the folder looks like."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save, save_file

from ramet.errors import StoreError
from ramet.models.adapter import CONFIG, WEIGHTS, Adapter, read_adapter, read_archive, write_merged

NAME = "base_model.model.model.layers.0.q_proj"
A, B = torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[1.0], [-2.0]])


def files(tensors: dict[str, torch.Tensor] | None = None, **config: object) -> dict[str, bytes]:
    given = {f"{NAME}.lora_A.weight": A, f"{NAME}.lora_B.weight": B} if tensors is None else tensors
    return {CONFIG: json.dumps({"r": 1, "lora_alpha": 32, **config}).encode(), WEIGHTS: save(given)}


def packed(contents: dict[str, bytes], *, under: str = "") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(under + name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def base(folder: Path, *, dtype: torch.dtype = torch.float32, **more: torch.Tensor) -> Path:
    folder.mkdir()
    weights = {"model.layers.0.q_proj.weight": torch.ones(2, 3).to(dtype), "model.norm.weight": torch.ones(3), **more}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    return folder


def test_what_is_added_is_alpha_over_r_times_b_times_a(tmp_path: Path) -> None:
    adapter = read_adapter(read_archive(packed(files(r=16), under="some/where/")))
    into = tmp_path / "out"
    into.mkdir()
    write_merged(base(tmp_path / "base"), adapter, into)
    found = load_file(into / "model.safetensors")
    assert found["model.layers.0.q_proj.weight"].tolist() == [[3.0, 5.0, 7.0], [-3.0, -7.0, -11.0]]
    assert found["model.norm.weight"].tolist() == [1.0, 1.0, 1.0]
    assert sorted(file.name for file in into.iterdir()) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_a_rank_stabilised_adapter_is_scaled_by_the_root_of_its_rank() -> None:
    assert read_adapter(files(r=16, use_rslora=True)).scale == 8.0


def test_weights_of_half_precision_are_added_in_single_and_rounded_once(tmp_path: Path) -> None:
    into = tmp_path / "out"
    into.mkdir()
    adapter = Adapter(scale=1.0, pairs={"model.layers.0.q_proj.weight": (A / 999, B)})
    write_merged(base(tmp_path / "base", dtype=torch.bfloat16), adapter, into)
    found = load_file(into / "model.safetensors")["model.layers.0.q_proj.weight"]
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, (torch.ones(2, 3) + (B @ (A / 999))).bfloat16())


def test_shards_are_written_as_they_were(tmp_path: Path) -> None:
    folder, into = base(tmp_path / "base"), tmp_path / "out"
    into.mkdir()
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    save_file({"lm_head.weight": torch.ones(1)}, folder / "model-00002-of-00002.safetensors", {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text("{}")
    write_merged(folder, read_adapter(files()), into)
    assert {file.name for file in into.glob("model*")} == {file.name for file in folder.glob("model*")}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (files({f"{NAME}.lora_A.weight": A}), "no LoRA pair"),
        (files({f"{NAME}.bias": A}), "no LoRA pair"),
        ({CONFIG: b"{}", WEIGHTS: save({})}, "cannot be read: 'r'"),
        ({CONFIG: b"[", WEIGHTS: save({})}, "cannot be read"),
        ({CONFIG: files()[CONFIG], WEIGHTS: b"no"}, "cannot be read"),
    ],
)
def test_a_broken_adapter_is_one_line(contents: dict[str, bytes], message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read_adapter(contents)


def test_a_matrix_without_a_place_is_named_and_never_dropped(tmp_path: Path) -> None:
    other = {f"base_model.model.elsewhere.lora_{one}.weight": part for one, part in (("A", A), ("B", B))}
    with pytest.raises(StoreError, match=r"changes elsewhere\.weight, which .* does not have"):
        write_merged(base(tmp_path / "base"), read_adapter(files(other)), tmp_path)
    wrong = {f"{NAME}.lora_{one}.weight": part for one, part in (("A", A[:, :2]), ("B", B))}
    with pytest.raises(StoreError, match=r"q_proj\.weight is \(2, 2\), that of the model \(2, 3\)"):
        write_merged(tmp_path / "base", read_adapter(files(wrong)), tmp_path)


@pytest.mark.parametrize(
    ("archive", "message"), [(b"html", "not a .tar.gz"), (packed({}), f"without {CONFIG}")], ids=["page", "empty"]
)
def test_an_archive_that_is_none_is_one_line(archive: bytes, message: str) -> None:
    with pytest.raises(StoreError, match=message):
        read_archive(archive)
