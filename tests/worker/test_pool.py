# SPDX-License-Identifier: Apache-2.0
"""The pool: results, reuse, and one clear error for every way in which a worker can end."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from libtorch_neuronx_lite import worker
from libtorch_neuronx_lite.worker import JobError, WorkerError, WorkerPool
from libtorch_neuronx_lite.worker.__main__ import main as worker_main
from libtorch_neuronx_lite.worker.protocol import read_frame

JOBS = {
    name: f"worker_test_jobs:{name}"
    for name in ("echo", "refuse", "divide", "abort", "leave", "spawn_and_hang", "grow", "complex_cast", "missing")
}
COMPLEX_CAST = b"""
func.func @main(%arg0: !torch.vtensor<[2],f32>) -> !torch.vtensor<[2],complex<f32>> {
  %dtype = torch.constant.int 10
  %none = torch.constant.none
  %false = torch.constant.bool false
  %0 = torch.aten._to_copy %arg0, %dtype, %none, %none, %none, %false, %none : !torch.vtensor<[2],f32>, !torch.int,
    !torch.none, !torch.none, !torch.none, !torch.bool, !torch.none -> !torch.vtensor<[2],complex<f32>>
  return %0 : !torch.vtensor<[2],complex<f32>>
}
"""  # what x.cfloat() imports to


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(1, jobs=JOBS, extra_path=(str(Path(__file__).parent),))
    yield made
    made.close()


def test_bytes_and_json_come_back(pool: WorkerPool) -> None:
    blobs = {"a": bytes(range(256)) * 8192, "empty": b""}
    result = pool.run("echo", blobs, {"n": [1, 2.5, None, "x"]}, timeout=60, name="g")
    assert result.blobs == blobs
    assert result.info["params"] == {"n": [1, 2.5, None, "x"]}


def test_a_worker_has_neither_torch_nor_the_package_itself(pool: WorkerPool) -> None:
    info = pool.run("echo", {}, {}, timeout=60, name="g").info
    assert "torch" not in info["modules"]
    assert not any(name.startswith("torch.") for name in info["modules"])
    assert "libtorch_neuronx_lite._C" not in info["modules"]
    assert "libtorch_neuronx_lite.worker.protocol" in info["modules"]
    assert "" not in info["path"]


def test_the_compile_job_runs_without_torch() -> None:
    module = b"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    jobs = {**JOBS, "hostcc.compiler:compile": worker.pool.JOBS["hostcc.compiler:compile"]}
    pool = WorkerPool(1, jobs=jobs, extra_path=(str(Path(__file__).parent),))
    try:
        pool.run("hostcc.compiler:compile", {"module": module}, {"name": "g", "compiler": "1"}, timeout=60, name="g")
        info = pool.run("echo", {}, {}, timeout=60, name="g").info
    finally:
        pool.close()
    assert "torch_mlir.ir" in info["modules"]
    assert "torch" not in info["modules"]


def test_workers_are_reused_and_replaced(pool: WorkerPool) -> None:
    first = pool.run("echo", {}, {}, timeout=60, name="g").info["pid"]
    assert pool.run("echo", {}, {}, timeout=60, name="g").info["pid"] == first
    with pytest.raises(JobError):
        pool.run("refuse", {}, {}, timeout=60, name="g")
    assert pool.run("echo", {}, {}, timeout=60, name="g").info["pid"] == first
    with pytest.raises(WorkerError):
        pool.run("leave", {}, {}, timeout=60, name="g")
    assert pool.run("echo", {}, {}, timeout=60, name="g").info["pid"] != first


def test_a_structured_error_keeps_its_fields(pool: WorkerPool) -> None:
    with pytest.raises(JobError) as raised:
        pool.run("refuse", {}, {}, timeout=60, name="g")
    error = raised.value
    assert (error.kind, error.op, error.location) == ("unsupported-op", "stablehlo.custom_call", '"model.py":12:3')
    assert str(error) == 'stablehlo.custom_call: cannot do this (at "model.py":12:3)'
    assert "worker_test_jobs.py" in error.traceback


def test_any_other_error_keeps_its_type_as_kind(pool: WorkerPool) -> None:
    with pytest.raises(JobError, match="division by zero") as raised:
        pool.run("divide", {}, {"a": 1, "b": 0}, timeout=60, name="g")
    assert raised.value.kind == "ZeroDivisionError"


def test_a_job_that_does_not_exist_in_the_module(pool: WorkerPool) -> None:
    with pytest.raises(JobError) as raised:
        pool.run("missing", {}, {}, timeout=60, name="g")
    assert raised.value.kind == "AttributeError"


def test_only_listed_jobs_run(pool: WorkerPool) -> None:
    with pytest.raises(ValueError, match=r"'os:abort' is not a worker job; the jobs are .*echo"):
        pool.run("os:abort", {}, {}, timeout=60, name="g")


def test_an_abort_is_one_error_with_signal_stderr_and_repro(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerError, match="abort for 'my graph': the worker process ended with signal SIGABRT"
    ) as raised:
        pool.run("abort", {"module": b"text"}, {"k": 1}, timeout=60, name="my graph", repro_dir=tmp_path)
    error = raised.value
    assert (error.reason, error.exit_signal, error.exit_code) == ("died", signal.SIGABRT, None)
    assert "LLVM ERROR: something native" in error.stderr_tail
    assert error.repro is not None
    assert str(error.repro) in str(error)
    with error.repro.open("rb") as stream:
        header, blobs = read_frame(stream)
    assert (header["job"], header["name"], header["params"]) == ("abort", "my graph", {"k": 1})
    assert blobs == {"module": b"text"}


def test_an_abort_inside_mlir(pool: WorkerPool, tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="SIGABRT") as raised:
        pool.run("complex_cast", {"torch": COMPLEX_CAST}, {}, timeout=60, name="cfloat", repro_dir=tmp_path)
    assert raised.value.exit_signal == signal.SIGABRT
    assert pool.run("echo", {}, {}, timeout=60, name="g").info["pid"]


def test_an_exit_status_is_reported(pool: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="exit status 3") as raised:
        pool.run("leave", {}, {}, timeout=60, name="g")
    assert raised.value.exit_code == 3


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_hang_ends_at_the_timeout_with_all_its_processes(pool: WorkerPool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    pool.run("echo", {}, {}, timeout=60, name="warm")
    with pytest.raises(WorkerError, match="took longer than its limit") as raised:
        pool.run("spawn_and_hang", {}, {"file": str(pid_file)}, timeout=3, name="g")
    assert raised.value.reason == "timeout"
    grandchild = int(pid_file.read_text())
    deadline = time.monotonic() + 20
    while _is_running(grandchild) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(grandchild)


def test_growth_ends_at_the_memory_limit(pool: WorkerPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NEURON_LIBTORCH_WORKER_MEMORY_MB", "300")
    with pytest.raises(
        WorkerError, match="more than 300 MB of memory; raise NEURON_LIBTORCH_WORKER_MEMORY_MB"
    ) as raised:
        pool.run("grow", {}, {}, timeout=60, name="g")
    assert raised.value.reason == "memory"


def test_repro_files_do_not_overwrite_each_other(pool: WorkerPool, tmp_path: Path) -> None:
    paths = set()
    for _ in range(2):
        with pytest.raises(JobError) as raised:
            pool.run("refuse", {}, {}, timeout=60, name="../a/b", repro_dir=tmp_path / "new")
        paths.add(raised.value.repro)
    assert len(paths) == 2
    assert all(path is not None and path.parent == tmp_path / "new" for path in paths)


def test_threads_share_two_workers() -> None:
    pool = WorkerPool(2, jobs=JOBS, extra_path=(str(Path(__file__).parent),))
    answers: list[tuple[int, int]] = []

    def work(number: int) -> None:
        info = pool.run("echo", {}, {"n": number}, timeout=120, name=str(number)).info
        answers.append((info["params"]["n"], info["pid"]))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool.close()
    assert sorted(n for n, _ in answers) == list(range(12))
    assert len({pid for _, pid in answers}) <= 2


def test_waiting_for_a_worker_counts_as_time(pool: WorkerPool, tmp_path: Path) -> None:
    pool.run("echo", {}, {}, timeout=60, name="warm")

    def hang() -> None:
        with pytest.raises(WorkerError):
            pool.run("spawn_and_hang", {}, {"file": str(tmp_path / "pid")}, timeout=4, name="slow")

    thread = threading.Thread(target=hang)
    thread.start()
    while not (tmp_path / "pid").exists():
        time.sleep(0.02)
    with pytest.raises(WorkerError, match=r"no worker was free within 0\.5 s"):
        pool.run("echo", {}, {}, timeout=0.5, name="g")
    thread.join()


def test_a_closed_pool_refuses(pool: WorkerPool) -> None:
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.run("echo", {}, {}, timeout=60, name="g")


def test_a_fork_leaves_the_parents_workers_alone(pool: WorkerPool) -> None:
    parent_worker = pool.run("echo", {}, {}, timeout=60, name="g").info["pid"]
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pool.abandon()  # what the process-wide pool does by itself
            own = pool.run("echo", {}, {}, timeout=60, name="g").info["pid"]
            pool.close()
            os.write(write, str(own).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read) as stream:
        child_worker = int(stream.read())
    assert os.waitpid(child, 0)[1] == 0
    assert child_worker != parent_worker
    assert pool.run("echo", {}, {}, timeout=60, name="g").info["pid"] == parent_worker


def test_the_shared_pool_after_a_fork() -> None:
    module = b"func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> { return %a : tensor<2xf32> }"
    request = ("hostcc.compiler:compile", {"module": module}, {"name": "g", "compiler": "1"})
    expected = worker.run(*request, timeout=60, name="g").blobs
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if worker.run(*request, timeout=60, name="g").blobs == expected else 2
            worker.shared_pool().close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert worker.run(*request, timeout=60, name="g").blobs == expected


def test_a_python_that_cannot_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    pool = WorkerPool(1, jobs=JOBS)
    with pytest.raises(WorkerError, match="the compile worker did not start: /bin/false") as raised:
        pool.run("echo", {}, {}, timeout=60, name="g")
    assert raised.value.reason == "start"


def test_repro_files_replay_and_open(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(JobError) as raised:
        worker.run(
            "hostcc.compiler:compile", {"module": b"nonsense"}, {"name": "g", "compiler": "1"},
            timeout=60, name="g", repro_dir=tmp_path,
        )  # fmt: skip
    assert raised.value.repro is not None
    assert worker_main(["replay", str(raised.value.repro)]) == 1
    assert "not a StableHLO module" in capsys.readouterr().err
    assert worker_main(["extract", str(raised.value.repro), "--output", str(tmp_path / "out")]) == 0
    assert (tmp_path / "out" / "module").read_bytes() == b"nonsense"
    bad = tmp_path / "bad"
    bad.write_bytes(b"not a frame at all")
    assert worker_main(["replay", str(bad)]) == 2
