"""The fp16 form: training where the wide form would run in TF32, for models of the common kind."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from gcnbatch.backends.cuda.batches.batch import Int64
from gcnbatch.backends.cuda.fused.fp16 import geometry
from gcnbatch.backends.cuda.fused.fp16.features import Fp16Features, bytes_of_features
from gcnbatch.backends.cuda.fused.fp16.step import Fp16Workspace
from gcnbatch.backends.cuda.fused.fp16.tiles import TiledPlan, plan_tiles, tiles_of
from gcnbatch.backends.cuda.fused.shared.arena import Memory
from gcnbatch.backends.cuda.fused.shared.data import Capacity
from gcnbatch.backends.cuda.fused.shared.epoch import StagedEpoch
from gcnbatch.backends.cuda.fused.shared.form import Form, Setting
from gcnbatch.backends.cuda.fused.wide.form import WideTf32
from gcnbatch.backends.cuda.runtime.device import Device
from gcnbatch.data.batches import PreparedSet


class Fp16(Form):
    """A single-launch step over tiles of rows; another form trains epochs with a batch that does not fit the tiles."""

    name = "fp16"
    fits_all = False

    @classmethod
    def trains(cls, setting: Setting) -> bool:
        stack, (first, *_) = setting.stack, setting.stack.nodes
        return (
            WideTf32.trains(setting)
            and setting.channels == 1
            and setting.largest <= geometry.TILE_ROWS
            and all(layer.norm and not layer.is_dense and not layer.dropout for layer in stack.nodes)
            and len({layer.n_out for layer in stack.nodes}) == 1
            and first.n_out in geometry.WIDTHS
            and geometry.columns_of_u(first.n_in) <= geometry.MAX_COLUMNS
            and len(stack.graphs) == len(stack.readouts) == 1
            and not (stack.joined or stack.weighted)
            and len(stack.nodes) <= geometry.MAX_LAYERS
            and stack.n_outputs <= geometry.MAX_OUTPUTS
        )

    @classmethod
    def features(cls, device: Device, prepared: PreparedSet, node_ptr: Int64) -> Fp16Features:
        return Fp16Features(device, prepared, node_ptr)

    @classmethod
    def feature_bytes(cls, n_in: int, nodes: int) -> int:
        return bytes_of_features(n_in, nodes)

    @property
    def _features(self) -> Fp16Features:
        found = self._data.features(type(self))
        assert isinstance(found, Fp16Features)
        return found

    @cached_property
    def most_tiles(self) -> int:
        """Clusters of the step that surely run at once, each with a tile of a batch; 0: the form cannot run."""
        width = self._stack.nodes[0].n_out
        at_once = self._recorder.clusters(geometry.entry(width), geometry.launch(width, 1))
        return geometry.most_tiles(at_once, width)

    def plans(self, of_members: Sequence[Sequence[Int64]]) -> list[TiledPlan | None]:
        return [self._plan(own) if self.most_tiles else None for own in of_members]

    def _plan(self, batches: Sequence[Int64]) -> TiledPlan | None:
        rows = self._data.capacity(max(map(len, batches))).rows
        return plan_tiles(batches, self._data.sizes, tiles_of(rows, self.most_tiles))

    def about(self) -> dict[str, int]:
        """Return the tiles that batches are dealt to."""
        return {"tiles": self.most_tiles} if self.most_tiles else {}

    def _made(self, memory: Memory, capacity: Capacity, steps: int, graphs: int) -> Fp16Workspace:
        plan = StagedEpoch(memory, steps, graphs, tiles_of(capacity.rows, self.most_tiles))
        return Fp16Workspace(self._cohort, memory, capacity, plan, self._features, self.most_tiles)
