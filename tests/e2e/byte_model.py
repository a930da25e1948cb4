"""A model for tests of whole programs: the small random weights of tests/golden/kaczmarz_a with a
tokenizer of 256 tokens, one for each byte. What it writes is noise, and rarely valid UTF-8."""

import json
import pathlib
import shutil

from server_process import ROOT


def byte_alphabet() -> dict[str, int]:
    """The characters that stand for bytes in byte-level tokenizers: printable bytes for themselves,
    the others for U+0100 and on, in order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {chr(byte): byte for byte in printable}
    alphabet.update({chr(0x100 + place): byte for place, byte in enumerate(others)})
    return alphabet


def make_byte_model(parent: pathlib.Path) -> str:
    """The model's folder, made new under `parent`."""
    folder = parent / "byte-model"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(ROOT / "tests" / "golden" / "kaczmarz_a" / name, folder / name)
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": False},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                    "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False, "vocab": byte_alphabet(),
                  "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return str(folder)
