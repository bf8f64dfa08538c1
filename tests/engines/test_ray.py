"""Engines: the same texts on a Ray cluster of two nodes, each once, though a worker or the command itself is killed."""

from __future__ import annotations

import json
import os
import random
import re
import secrets
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from impatience.cli import commands
from impatience.engines import ENGINES, Task, choose
from impatience.engines.ray import Actor, Numbered, Ray, each_once, worker_resources
from impatience.errors import ModelFilesError, OptionError, RunError, UnknownNameError
from impatience.evaluation import run
from impatience.files import LOCK
from impatience.sources import toy
from impatience.strategies import STRATEGIES
from impatience.writing import batch_job
from impatience.writing.writer import load
from support import ray_worker

pytestmark = [
    pytest.mark.xdist_group("ray"),  # one cluster for all
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context"),  # Ray sets what it itself deprecates
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two nodes of one core each, reached on loopback alone and by RAY_ADDRESS."""
    with pytest.MonkeyPatch.context() as patch:
        settings = {
            "USAGE_STATS_ENABLED": "0",
            "ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # which keeps Ray on loopback, on Linux as well
            "BACKEND_LOG_LEVEL": "fatal",
            "AUTH_MODE": "token",  # with one that nothing in the home folder has a part in
            "AUTH_TOKEN": secrets.token_hex(32),
        }
        for name, value in settings.items():
            patch.setenv(f"RAY_{name}", value)
        patch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
        from ray.cluster_utils import Cluster

        node = {"num_cpus": 1, "object_store_memory": 80 << 20, "node_ip_address": "127.0.0.1"}
        nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            nodes.add_node(**node)
            patch.setenv("RAY_ADDRESS", nodes.address)
            yield
        finally:
            nodes.shutdown()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["impatience", *map(str, arguments)])
    try:
        commands.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


# On a cluster


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_work_is_done_on_both_nodes(tmp_path: Path) -> None:
    load = partial(ray_worker.doubling_together, tmp_path, 2)
    found = dict(Ray(2).run(Task(lambda number: (0, 0), load), range(40)))
    assert {number: double for number, (double, _) in found.items()} == {number: 2 * number for number in range(40)}
    assert len({process for _, process in found.values()} - {os.getpid()}) == 2
    with pytest.raises(OptionError, match="workers=3: the cluster has 2 CPUs"):
        list(Ray(3).run(Task(abs, ray_worker.without_model), [1]))


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_batch_is_killed_goes_on_and_loses_a_worker(
    tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, source, out = random.Random(3), tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    rows = [
        {"id": str(n), "text": " ".join(chance.choices(toy.WORDS, k=1 + n % 9)), "words": 1 + n % 40}
        for n in range(200)
    ]
    bad = [{"id": f"bad {n}", "text": ""} for n in range(5)]
    source.write_text("".join(json.dumps(row) + "\n" for row in chance.sample([*rows, *bad], 205)))
    options = ["--model", str(toy_folder), "--engine", "ray", "--workers", "1", "--budget", "60", "--words", "3", "-q"]
    child = subprocess.Popen([sys.executable, "-m", "impatience.cli", "batch", str(source), str(out), *options])
    while child.poll() is None and not (out.exists() and out.stat().st_size):
        time.sleep(0.001)
    child.kill()
    assert child.wait() == -signal.SIGKILL, "it was killed in the middle"
    before = out.read_bytes()
    grave, load_and_write = tmp_path / "grave", batch_job.load_and_write
    monkeypatch.setattr(batch_job, "load_and_write", partial(ray_worker.mortal, grave, load_and_write))
    defaults, seen = batch_job.RowDefaults(target=3), []
    job = partial(
        batch_job.write, load(toy_folder, quiet=True), source, defaults=defaults, model=str(toy_folder), budget=60
    )
    status = job(out=out, engine=Ray(2), report_rows=lambda *new: seen.extend(new))
    assert grave.is_dir(), "a worker was killed"
    assert 0 < status.found < 200
    assert (status.written, status.rejected, sum(seen)) == (200, 5, 205)
    assert out.read_bytes().startswith(before[: before.rindex(b"\n") + 1])
    job(out=tmp_path / "local.jsonl")
    assert sorted(lines(out), key=str) == sorted(lines(tmp_path / "local.jsonl"), key=str)
    rejected = [tmp_path / f"{name}.rejects.jsonl" for name in ("out", "local")]
    assert len({file.read_bytes() for file in rejected}) == 1


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_an_evaluation_comes_to_the_same_report(
    tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    asked = ["evaluate", toy_folder, "--data", "toy", "--limit", 40, "--strategy", "best_of_n", "--batch-size", 4]
    for engine in ("local", "ray"):
        assert command(monkeypatch, *asked, "--out", tmp_path / engine, "--engine", engine) == 0, (
            capsys.readouterr().err
        )
    names = sorted(file.name for file in (tmp_path / "local").iterdir() if file.name != LOCK)
    assert names == ["config.json", "predictions.jsonl", "report.json", "rows.parquet"]
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "local" / name).read_bytes(), name


# Without one


@pytest.mark.parametrize(
    ("nodes", "workers", "expected"),
    [
        ([{"CPU": 8}, {"CPU": 8}], None, (2, {"num_cpus": 8})),
        ([{"CPU": 8}, {"CPU": 8}], 3, (3, {"num_cpus": 4})),
        ([{"CPU": 8}, {"CPU": 3}], 2, (2, {"num_cpus": 4})),
        ([{}, {"CPU": 2.0, "memory": 9e9}], None, (1, {"num_cpus": 2})),
        ([{"CPU": 1}, {"CPU": 8, "GPU": 4}], None, (4, {"num_gpus": 1})),
        ([{"CPU": 8, "GPU": 1}, {"CPU": 8, "GPU": 1}], 1, (1, {"num_gpus": 1})),
    ],
)
def test_workers_share_the_nodes(nodes: list[dict[str, float]], workers: int | None, expected: Any) -> None:
    assert worker_resources(nodes, workers) == expected


@pytest.mark.parametrize("nodes", [[], [{"CPU": 1}], [{"CPU": 9, "GPU": 1}]])
def test_more_workers_than_resources_are_refused(nodes: list[dict[str, float]]) -> None:
    with pytest.raises(OptionError, match=r"workers=2: the cluster has \d [CG]PUs"):
        worker_resources(nodes, 2)


def test_each_result_is_passed_on_once_and_a_lost_one_is_an_error() -> None:
    results = [Numbered(number, "") for number in (1, 0, 1)]
    assert [result.number for result in each_once(results, range(2))] == [1, 0]
    with pytest.raises(RunError, match="lost 1 pieces"):
        list(each_once(results, range(3)))


def test_wrong_engines_and_options_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(ENGINES) == ["local", "ray"]
    with pytest.raises(UnknownNameError, match=r"No engine is called 'rya'. Did you mean 'ray'"):
        choose("rya")
    with pytest.raises(OptionError, match="--engine local: 'workers' is not known"):
        choose("local", 2)
    with pytest.raises(OptionError, match="give at least 1"):
        choose("ray", 0)
    with pytest.raises(OptionError, match="A model in memory cannot be sent"):
        list(Ray().run(Task(abs, None), [1]))
    monkeypatch.setattr("impatience.registry.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r'pip install -e "\.\[ray\]"'):
        choose("ray")


def test_a_missing_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(address: str, **options: Any) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("ray.init", init)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:9")
    with pytest.raises(RunError, match=r"no Ray cluster at '127.0.0.1:9'"):
        list(Ray().run(Task(abs, ray_worker.doubling), [1]))


def test_an_error_in_a_worker_is_raised_here(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_here(load: Any, pieces: list[Numbered], *resources: Any) -> Iterator[Numbered]:
        return (Actor(load)({"item": piece})["item"] for piece in pieces)

    monkeypatch.setattr("impatience.engines.ray.run_on_actors", run_here)
    monkeypatch.setattr("impatience.engines.ray.cluster", lambda: nullcontext([{"CPU": 1}]))
    monkeypatch.setattr("impatience.engines.ray.ROUND", 2)
    found = Ray().run(Task(abs, ray_worker.doubling), range(5))
    assert [(number, double) for number, (double, _) in found] == [(0, 0), (1, 2), (2, 4), (3, 6), (4, 8)]
    with pytest.raises(ModelFilesError, match="no such model on this node"):
        list(Ray().run(Task(abs, ray_worker.without_model), [1]))


@pytest.mark.ray
@pytest.mark.slow
def test_a_cluster_on_this_machine_listens_on_loopback_alone(tmp_path: Path) -> None:
    child = Path(__file__).parents[1] / "support" / "ray_child.py"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"RAY_CHILD": str(tmp_path), "HOME": str(tmp_path)}
    found = subprocess.run([sys.executable, child], env=environment, stdout=subprocess.PIPE, check=True)
    heard = json.loads(found.stdout.splitlines()[-1])
    assert heard["usage"] == "0"
    assert len(heard["listening"]) > 3
    assert {ip_address(address) for address in heard["listening"]} <= {ip_address("127.0.0.1"), ip_address("::1")}


def test_another_model_of_the_same_name_is_refused(toy_folder: Path) -> None:
    prompt = {"template": "summarize", "prefix": "", "max_source_tokens": 64}
    with pytest.raises(ModelFilesError, match="has other weights"):
        run.load_batch_writer(str(toy_folder), "transformers", prompt, {}, "another", STRATEGIES["natural"](), 0)


GUIDE = (Path(__file__).parents[2] / "docs" / "scale.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", re.findall(r"^(?:OMP_NUM_THREADS=1 )?impatience (.*)$", GUIDE, re.MULTILINE))
def test_the_commands_of_the_guide_are_understood(line: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert command(monkeypatch, *shlex.split(line), "--help") == 0
    assert "Usage" in capsys.readouterr().out
