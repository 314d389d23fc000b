"""How busy the node's GPUs are, and how much of their memory each job's processes hold.

Through NVML where the pynvml module is installed, else through nvidia-smi, which is slow to start and therefore asked
seldom. A node without either is noted once.
"""

from __future__ import annotations

import importlib
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from advisor.telemetry.notes import Notes

_SMI_EVERY_S = 60.0  # each call costs a tenth of a second of CPU
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU now."""

    busy: float  # share of the time in which a kernel ran, 0 to 1
    memory: float  # bytes in use
    by_process: dict[int, float]  # pid → bytes


class Gpus:
    """The GPUs of this node."""

    def __init__(
        self,
        notes: Notes,
        program: str = "nvidia-smi",
        clock: Callable[[], float] = time.monotonic,
        module: str = "pynvml",
    ) -> None:
        self._notes = notes
        self._program = program
        self._clock = clock
        self._asked_at = -_SMI_EVERY_S
        self._nvml = self._open(module)

    def now(self) -> list[Gpu]:
        """Every GPU; empty where there is none, or when it is not yet time to ask again."""
        if self._nvml is not None:
            try:
                return self._through_nvml(self._nvml)
            except Exception as error:  # NVML's own errors are classes of a module that need not be installed
                self._notes.add("gpu", "nvml failed", f"{type(error).__name__}: {error}")
                return []
        if self._program and self._clock() - self._asked_at >= _SMI_EVERY_S:
            self._asked_at = self._clock()
            return self._through_program()
        return []

    def _open(self, module: str) -> Any:
        try:
            nvml = importlib.import_module(module)
        except ImportError:
            nvml = None
        if nvml is not None:
            try:
                nvml.nvmlInit()
                return nvml
            except Exception as error:  # as above: no driver, or one of another version
                self._notes.add("gpu", "none", f"NVML does not answer: {error}")
                self._program = ""
        elif shutil.which(self._program) is None:
            self._notes.add("gpu", "none", f"neither {module} nor {self._program} is installed")
            self._program = ""
        return None

    def _through_nvml(self, nvml: Any) -> list[Gpu]:
        gpus = []
        for index in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            held = {int(p.pid): float(p.usedGpuMemory or 0) for p in nvml.nvmlDeviceGetComputeRunningProcesses(handle)}
            busy = nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
            gpus.append(Gpu(busy, float(nvml.nvmlDeviceGetMemoryInfo(handle).used), held))
        return gpus

    def _through_program(self) -> list[Gpu]:
        try:
            devices = self._ask("--query-gpu=uuid,utilization.gpu,memory.used")
            holders = self._ask("--query-compute-apps=gpu_uuid,pid,used_memory")
        except (OSError, subprocess.SubprocessError) as error:
            self._notes.add("gpu", "nvidia-smi failed", str(error))
            return []
        gpus: dict[str, Gpu] = {}
        for uuid, busy, memory in devices:
            if busy.isdigit() and memory.isdigit():  # "[N/A]" on a GPU that is split with MIG
                gpus[uuid] = Gpu(int(busy) / 100, float(int(memory) * _MIB), {})
        for uuid, pid, memory in holders:
            if uuid in gpus and pid.isdigit() and memory.isdigit():
                gpus[uuid].by_process[int(pid)] = float(int(memory) * _MIB)
        return list(gpus.values())

    def _ask(self, query: str) -> list[tuple[str, str, str]]:
        done = subprocess.run(
            [self._program, query, "--format=csv,noheader,nounits"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
            check=True,
        )
        rows = [
            [cell.strip() for cell in line.split(",")] for line in done.stdout.decode("utf-8", "replace").splitlines()
        ]
        return [(row[0], row[1], row[2]) for row in rows if len(row) == 3]


def of_job(gpus: list[Gpu], pids: set[int]) -> dict[str, float]:
    """What a job has of the GPUs on which its processes are; empty if they are on none."""
    shares = [(gpu, [m for pid, m in gpu.by_process.items() if pid in pids]) for gpu in gpus]
    used = [(gpu, held) for gpu, held in shares if held]
    if not used:
        return {}
    # Where jobs share a GPU this is the GPU's business, not this job's part in it: NVML does not tell those apart.
    return {"gpu.busy": sum(gpu.busy for gpu, _ in used), "gpu.memory": sum(sum(held) for _, held in used)}
