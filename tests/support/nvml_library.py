"""NVIDIA's libnvidia-ml, as far as it is called here: for machines without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

PIDS = "SPOTSUP_TEST_GPU_PIDS"
# Two GPUs as nvml.h has them: a T4 that reports everything, and one that reports neither ECC nor its power, and is new
# to Xid 79.
FAKE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned pid; unsigned long long memory; unsigned gi, ci; } Process;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } Event;
static int devices[2], events;
static int queued = 2;
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = &devices[index]; return 0; }
int nvmlDeviceGetName(void *device, char *name, unsigned length) {
    strncpy(name, device == devices ? "Tesla T4" : "a \"quoted\" GPU", length); return 0;
}
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned length) {
    strncpy(uuid, device == devices ? "GPU-1" : "GPU-2", length); return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *found) { found->gpu = 87; found->memory = 40; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, Memory *found) {
    found->total = 16106127360ULL; found->used = 5368709120ULL; found->free = 10737418240ULL; return 0;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *found) { *found = 61 + sensor; return 0; }
int nvmlDeviceGetPowerUsage(void *device, unsigned *found) { *found = 69500; return device == devices ? 0 : 3; }
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *found) {
    *found = kind ? 2 : 7; return device == devices ? 0 : 3;
}
#ifdef LISTS
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
    FILE *pids = fopen(getenv("SPOTSUP_TEST_GPU_PIDS"), "r");
    *count = 0;
    if (!pids) return 999;
    while (device == devices && fscanf(pids, "%u", &found[*count].pid) == 1) ++*count;
    fclose(pids);
    return 0;
}
#endif
int nvmlEventSetCreate(void **set) { *set = &events; return 0; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long types, void *set) { return types == 8 ? 0 : 2; }
int nvmlEventSetWait_v2(void *set, Event *event, unsigned timeout_ms) {
    if (!queued) return 10;
    event->device = &devices[1]; event->type = 8; event->data = queued-- == 2 ? 31 : 79;
    return 0;
}
"""


def library(folder: Path, init: int = 0, *, lists: bool = False) -> str:
    """Return the library's path, compiled. `lists`: it lists the processes of the file that PIDS names. Skips where
    nothing compiles."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler is here to make a library with")
    source, made = folder / "nvml.c", folder / f"nvml-{init}.so"
    source.write_text(FAKE)
    options = [f"-DINIT={init}", *(["-DLISTS"] if lists else [])]
    subprocess.run([compiler, "-shared", "-fPIC", *options, "-o", made, source], check=True, timeout=60)
    return str(made)
