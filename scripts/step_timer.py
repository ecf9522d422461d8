"""Writes what steps of your own PyTorch training take, for `windlass advise --measured steps.csv`.

    from step_timer import StepTimer
    timer = StepTimer("steps.csv", batch=16)       # method="recompute" and so on, if it is not plain
    for data in loader:
        loss = train_step(data)
        timer.step()                               # after optimizer.step()
    timer.close()

Rows are added to the file: run it at two to five batches. The first steps are left out; of the others the
median counts. Peaks are those of torch.cuda.max_memory_allocated; without a card they stay empty.
"""
import os
import statistics
import time

import torch


class StepTimer:
    def __init__(self, path, batch, method="plain", warm_up=3):
        self.path, self.row, self.warm_up = path, (batch, method), warm_up
        self.times, self.last, self.cuda = [], None, torch.cuda.is_available()

    def step(self):
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        if self.last is not None:
            self.times.append(now - self.last)
        if len(self.times) == self.warm_up and self.cuda:
            torch.cuda.reset_peak_memory_stats()
        self.last = now

    def close(self):
        times = self.times[self.warm_up:]
        if not times:
            raise ValueError(f"StepTimer: {len(self.times)} steps, more than {self.warm_up} are needed")
        peak = torch.cuda.max_memory_allocated() if self.cuda else ""
        fresh = not os.path.exists(self.path) or os.path.getsize(self.path) == 0
        with open(self.path, "a") as file:
            if fresh:
                file.write("batch,method,peak_bytes,step_time_s\n")
            file.write(f"{self.row[0]},{self.row[1]},{peak},{statistics.median(times):.9f}\n")
