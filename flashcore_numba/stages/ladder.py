"""The ladder: every stage in order."""

from flashcore_numba.stages.stage import Stage
from flashcore_numba.stages.stage01_scalar import STAGE as STAGE_01
from flashcore_numba.stages.stage02_coalesced import STAGE as STAGE_02
from flashcore_numba.stages.stage03_warp_reduction import STAGE as STAGE_03
from flashcore_numba.stages.stage04_shared_tiles import STAGE as STAGE_04
from flashcore_numba.stages.stage05_online_softmax import STAGE as STAGE_05
from flashcore_numba.stages.stage06_register_tiles import STAGE as STAGE_06
from flashcore_numba.stages.stage07_wmma_qk import STAGE as STAGE_07
from flashcore_numba.stages.stage08_wmma_full import STAGE as STAGE_08
from flashcore_numba.stages.stage09_async_copy import STAGE as STAGE_09
from flashcore_numba.stages.stage10_pipeline import STAGE as STAGE_10
from flashcore_numba.stages.stage11_warp_specialized import STAGE as STAGE_11
from flashcore_numba.stages.stage12_mma_sync import STAGE as STAGE_12
from flashcore_numba.stages.stage13_split_kv import STAGE as STAGE_13
from flashcore_numba.stages.stage14_tma_wgmma import STAGE as STAGE_14
from flashcore_numba.stages.stage15_ping_pong import STAGE as STAGE_15
from flashcore_numba.stages.stage16_cluster_split import STAGE as STAGE_16

LADDER: tuple[Stage, ...] = (
    *(STAGE_01, STAGE_02, STAGE_03, STAGE_04, STAGE_05, STAGE_06),
    *(STAGE_07, STAGE_08, STAGE_09, STAGE_10, STAGE_11, STAGE_12, STAGE_13),
    *(STAGE_14, STAGE_15, STAGE_16),
)
