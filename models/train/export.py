"""Writes and reads the checkpoint format of eddy: config.json and model.safetensors.

Weights are bf16, but `decay_rate_log` and `decay_bias` stay fp32: they are exponentiated.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from model import LanguageModel, ModelShape

FULL_PRECISION = ("decay_rate_log", "decay_bias")


def exported(model: LanguageModel) -> dict[str, torch.Tensor]:
    """Returns the tensors as they are stored."""
    return {
        name: (
            tensor.detach()
            .to("cpu", torch.float32 if name.endswith(FULL_PRECISION) else torch.bfloat16)
            .contiguous()
        )
        for name, tensor in model.state_dict().items()
    }


def save_model(model: LanguageModel, folder: Path) -> None:
    """Writes config.json and model.safetensors; the weights replace an older file at once."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(model.shape.config(), indent=1) + "\n")
    partial = folder / "model.partial"
    save_file(exported(model), partial, metadata={"format": "pt"})
    partial.replace(folder / "model.safetensors")


def load_shape(config: Path) -> ModelShape:
    """Reads the sizes back from a config.json that save_model wrote."""
    text = json.loads(config.read_text())
    (layer,) = text["layers"]
    mixer = layer["mixer"]
    shape = ModelShape(
        vocab_size=text["vocab_size"],
        width=text["hidden_size"],
        layers=layer["repeat"],
        heads=mixer["heads"],
        key_dim=mixer["key_dim"],
        value_dim=mixer["value_dim"],
        mlp_size=layer["mlp"]["size"],
        norm_eps=text["norm_eps"],
        step_eps=mixer["step_eps"],
    )
    if shape.config() != text:
        raise SystemExit(f"{config}: not a configuration that this recipe writes")
    return shape


def load_model(folder: Path) -> LanguageModel:
    """Returns the stored model in fp32 on the CPU. Missing or surplus tensors are errors."""
    model = LanguageModel(load_shape(folder / "config.json"))
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()
