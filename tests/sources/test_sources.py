"""Resolving model names: folders, hub names, and names that are neither; no network."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub.errors import HfHubHTTPError

from impatience.control.model import LengthControlled
from impatience.errors import ModelFilesError
from impatience.sources import resolve
from impatience.sources.hub_folder import in_hub_folder

Hub = Callable[[Exception | None], list[str]]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """Return a function that sets up a fake hub with an empty cache, and returns the names requested from it."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))

    def set_up(error: Exception | None) -> list[str]:
        requested: list[str] = []

        def model_info(api: object, name: str, **options: object) -> None:
            requested.append(name)
            if error:
                raise error

        monkeypatch.setattr("huggingface_hub.HfApi.model_info", model_info)
        return requested

    return set_up


@pytest.mark.parametrize("name", ["gpt2", "org/name", "HuggingFaceTB/SmolLM2-135M", "a.b-c_d/e.f"])
def test_hub_name_stays_unchanged(name: str, hub: Hub) -> None:
    for error in (None, HfHubHTTPError("gated", response=SimpleNamespace(headers={}, request=None))):  # type: ignore[arg-type]
        requested = hub(error)
        assert resolve(name) == name
        assert requested == [name]


def test_name_is_refused_at_once_if_the_hub_cannot_be_reached(hub: Hub, tmp_path: Path) -> None:
    requested = hub(ConnectionError("Name or service not known\nand more"))
    with pytest.raises(ModelFilesError) as caught:
        resolve("smolm2-135m-instruct")
    assert str(caught.value).startswith(
        "There is no folder 'smolm2-135m-instruct', and the model hub cannot be reached (Name or service not known). "
        "Did you mean 'smollm2-135m-instruct'? Accepted: an existing folder in Hugging Face format, one of impatience-"
    )
    assert requested == ["smolm2-135m-instruct"]
    for part, content in (("refs/main", "abc"), ("snapshots/abc/config.json", "{}")):
        file = tmp_path / "models--org--name" / part
        file.parent.mkdir(parents=True)
        file.write_text(content)
    assert resolve("org/name") == "org/name", "it is in the cache"
    assert len(requested) == 1


def test_folder_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("org/name", "./org/name", "org/name/", Path("org/name")):
        assert resolve(name) == str(Path("org/name"))
    assert resolve(tmp_path / "org") == str(tmp_path / "org")
    assert resolve("~/org") == str(tmp_path / "org")


@pytest.mark.parametrize(
    "name",
    [
        *("./gone", "../gone", "/gone/model", "~/gone", "~nobody-of-that-name/x", "gone/", "a/b/c"),
        *("", "two words", "/" + "long" * 100, Path("gone")),
    ],
)
def test_missing_folder_is_refused(name: str | Path) -> None:
    with pytest.raises(ModelFilesError, match="Accepted: an existing folder") as caught:
        resolve(name)
    assert repr(str(name)) in str(caught.value)


def test_path_below_a_folder_is_not_looked_up_on_the_hub(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = hub(None)
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    for load in (resolve, LengthControlled.from_pretrained):
        with pytest.raises(ModelFilesError, match=r"No model folder at 'runs/mime'\. Did you mean 'runs/mine'"):
            load("runs/mime")
    with pytest.raises(ModelFilesError, match=r"No model folder at .*runs'"):
        LengthControlled.from_pretrained(tmp_path / "mine" / "runs")
    assert requested == []
    assert resolve("other/mime") == "other/mime"


def test_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.bin").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ModelFilesError, match=r"'model\.bin'"):
        resolve("model.bin")
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "model.gguf").touch()
    with pytest.raises(ModelFilesError, match=r"model\.gguf cannot be converted: .* Is the file whole"):
        resolve("model.gguf")


def test_a_folder_can_stand_for_the_hub(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requested = hub(None)
    model = tmp_path / "mirror" / "org" / "model"
    model.mkdir(parents=True)
    monkeypatch.setenv("IMPATIENCE_HUB", str(tmp_path / "mirror"))
    assert resolve("org/model") == str(model)
    assert requested == []
    assert resolve("org/other") == "org/other", "what is not in the folder is the hub's"
    assert in_hub_folder("../mirror/org") is in_hub_folder("") is in_hub_folder(str(model)) is None
