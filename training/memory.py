"""Peak device memory of a rank since it was last asked: by torch's allocator, and by the driver.

The two differ. torch counts what this process asked it for; the driver counts what is taken from the device: CUDA's context,
what NCCL and CUDA graphs hold, and other processes' memory. While vLLM sleeps, torch still counts the engine's memory, which
the driver has back: its peak is then the one that decides whether a run fits.
"""

import sys
import threading

import torch

SAMPLING_SECONDS = 0.02
NOT_MEASURED = {"peak_allocated_bytes": None, "peak_reserved_bytes": None, "peak_device_bytes": None}


def not_measured() -> dict[str, int | None]:
    """The peaks of a rank without a GPU: null, since 0 would be a measurement."""
    return dict(NOT_MEASURED)


def probes(use_cpu: bool):
    """What a phase clock calls at each border: one callable that waits for the device, and one that returns the peaks
    since its last call, in bytes.

        peak_allocated_bytes   tensors, by torch (torch.cuda.max_memory_allocated)
        peak_reserved_bytes    what torch's caching allocator holds (torch.cuda.max_memory_reserved)
        peak_device_bytes      what is taken of the device, by NVML; null where nvidia-ml-py is not installed
    """
    if use_cpu or not torch.cuda.is_available():
        return lambda: None, not_measured
    return torch.cuda.synchronize, MemoryMeter()


class MemoryMeter:
    """Peaks of the current CUDA device. NVML knows no peak: a thread reads it every 20 ms, and at each call."""

    def __init__(self):
        torch.cuda.init()
        self._read_device_bytes = nvml_reader()
        self._lock = threading.Lock()
        self._peak_device_bytes = 0
        if self._read_device_bytes:
            threading.Thread(target=self._sample, name="memory meter", daemon=True).start()

    def __call__(self) -> dict[str, int | None]:
        peaks = {
            "peak_allocated_bytes": torch.cuda.max_memory_allocated(),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "peak_device_bytes": None,
        }
        torch.cuda.reset_peak_memory_stats()
        if self._read_device_bytes:
            now = self._read_device_bytes()
            with self._lock:
                peaks["peak_device_bytes"] = max(self._peak_device_bytes, now)
                self._peak_device_bytes = now
        return peaks

    def _sample(self) -> None:
        pause = threading.Event()
        while not pause.wait(SAMPLING_SECONDS):
            used = self._read_device_bytes()
            with self._lock:
                self._peak_device_bytes = max(self._peak_device_bytes, used)


def nvml_reader():
    """A function that returns the bytes taken of this rank's device, or None without nvidia-ml-py.

    The device is found by its UUID: NVML does not heed CUDA_VISIBLE_DEVICES. What the driver keeps for itself is left out
    (version 2 of nvmlDeviceGetMemoryInfo).
    """
    try:
        import pynvml

        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
    except ImportError:
        return None
    except pynvml.NVMLError as error:  # a container that hides the driver's account; the run itself does not need it
        print(f"warning: no device memory in the record: NVML says {error}", file=sys.stderr)
        return None
    return lambda: pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2).used
