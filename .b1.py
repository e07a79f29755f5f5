"""dw and update of the Reaction100 shape, alone in graphs."""
import sys, os, tempfile, json, runpy
sys.path.insert(0, os.getcwd())
import numpy as np
src = open(os.environ["R"] + "/.dev/final/reaction.py").read().replace("\nmain()\n", "\n")
ns = {}; sys.argv = ["x", os.environ["R"] + "/.dev/data/tox50.h5", "16000"]
exec(compile(src, "reaction", "exec"), ns)
from tests.cuda.halves import workspace
from gcnbatch.backends.registry import open_backend
from gcnbatch.backends.cuda.fused.graph import Recorder
from gcnbatch.backends.cuda.fused.step import Optimizer
from gcnbatch.data.store import write_graphset
from pathlib import Path
import time
f = Path(tempfile.mkdtemp()) / "r.h5"; write_graphset(f, ns["reaction"](sys.argv[1], 4000))
dev = open_backend("batched").device
rng = np.random.default_rng(0); batches = [rng.permutation(4000)[:100] for _ in range(16)]
at, plan, task = workspace(dev, f, ("model.widths=[512,512,512]", "train.batch_size=100"), batches)
rates = np.ones((16, 4), np.float32) * 1e-3
at.begin_epoch(0, plan, rates, 0)
rule = Optimizer(False, .9, .999, 1e-8, 0.0, decays=False)
calls = [at.stage(), *at.backward(), *at.update(rule)]
for c in calls: dev.launch(c.entry, c.launch, *c.arguments)
dev.upload(np.array([1, 1800, 100, 0], np.int32), at.plan.progress)
rec = Recorder(dev)
def us(graph, steps, repeats=15):
    t = []
    for _ in range(repeats):
        a = dev.event(); graph.launch(); b = dev.event(); dev.synchronize(); t.append(b.since(a))
    return [round(x / steps, 2) for x in (min(t), float(np.median(t)), max(t))]
for c in calls:
    g = rec.record([c], 20); print(c.entry, c.launch.grid, us(g, 20), flush=True); g.close()
g = rec.record(calls[1:], 20); print("dw + update", us(g, 20)); g.close()
c = calls[2]; a = list(c.arguments); names = rec._device.kernels[c.entry].entry.names
a[names.index("n_stages")] = 0
from gcnbatch.backends.cuda import geometry_fused as gf
g = rec.record([c._replace(launch=gf.update(a[names.index("n_chunks")], 0), arguments=tuple(a))], 20); print("update without staging", us(g, 20)); g.close()
