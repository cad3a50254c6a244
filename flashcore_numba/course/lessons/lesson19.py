"""Lesson 19: dQ of a tile is multiplied under the exponentials of the next one."""

from typing import Any

from flashcore_numba.course.counters import of_line, total
from flashcore_numba.course.figures.turns import finished
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

STAGE, LONG, MISSION = "backward/wgmma", "4x32x4096x64", "1x8x512x64"
TWO_TILES = "1x1x256x64"  # two blocks, two tiles of 128 queries each


def with_nothing_under_way(launches: list[Any]) -> float:
    """Arrivals at mbarriers by threads whose warp has no product under way."""
    return total("arrive")(launches) - total("release_under_way")(launches)


EXERCISE = Exercise(
    stage=STAGE,
    file="backward_wgmma.cu",
    first="ptx::fence_proxy_async();  // wgmma reads what this lane has stored,",
    last="issue_dq(ds_tile);",
    task="""\
The second half of a tile, by one of the two warpgroups that multiply; its 128 threads execute these lines.
On the line before, each lane has stored its part of dS in ds_tile, by ordinary instructions. Leave
  - dV += P^T dO and dK += dS^T Q finished: dv_rmem, dk_rmem
  - S of the next tile, K Q^T with the Q of slot next.number, and dQ of this tile under way, S first. The
    lines after these wait for S, exponentiate, and only then wait for dQ
  - on ds_full + step % 2: one arrival of each warp, as soon as wgmma may read the warp's dS
  - on empty + slot: one arrival of each warp when its products have read this tile's Q and dO, and not later
Issue each product as soon as what it reads is there. Wait for no more products than you must: while a warp
releases its slot, S is under way. Copy these lines as they are. Before the first product:
  if (DV_EARLY) finish_dv();
  if (PING_PONG) ptx::bar_sync(3 + consumer, 256);
dV, which some variants have issued already:
  if (!DV_EARLY) issue_pv(dv_rmem, p_rmem, do_tile, step > 0);
After S has been issued, the lane moves to the sums of this tile:
  if (step > 0) advance(tile);""",
    given={
        "step": "int: the number of the tile in this block's walk",
        "slot": "int: where Q and dO of this tile are in the ring",
        "next": "Slot: next.number is where those of the next tile are, next.parity that of the phase in "
        "which "
        "they arrive",
        "q_tile, do_tile, k_own": "element*, shared: this tile's Q and dO, and the warpgroup's 64 keys",
        "q_smem, Q_TILE": "element*, shared: all slots of Q, and the elements of one",
        "q_full, empty": "uint64_t*, shared: mbarriers, one for each slot: Q has come; all 8 warps have read "
        "Q and dO",
        "ds_full": "uint64_t*, shared: two mbarriers, for the two buffers of dS in turn: all 8 warps have "
        "stored theirs. The phase of tile `step` has parity step / 2 % 2",
        "issue_pv": "issue_pv(dv_rmem, p_rmem, do_tile, step > 0): starts dV += P^T dO, or dV = P^T dO in "
        "the "
        "first tile. dK: the same with dk_rmem, ds_rmem and q_tile",
        "issue_qk": "issue_qk(s_rmem, k_own, a slot of Q): starts S = K Q^T",
        "ds_tile": "element*, shared: the buffer of this tile's dS, of both warpgroups",
        "issue_dq": "issue_dq(ds_tile): starts dQ = dS K over the keys of both warpgroups",
        "ptx": "ptx::fence_proxy_async(): wgmma sees what this lane has stored. "
        "ptx::mbarrier_arrive(address), "
        "ptx::mbarrier_wait(address, parity). ptx::wgmma_wait<N>(): until at most N groups of products are "
        "unfinished, the oldest first; after it ptx::wgmma_pin(x) for each array that is whole now, and for "
        "each that the products have read: p_rmem, ds_rmem",
        "lane": "the lane's number",
        "PING_PONG, DV_EARLY, finish_dv, consumer, advance, tile": "as the copied lines need them",
    },
    wanted=(
        Wanted("dv_rmem[0]", "one element of dV, with this tile in it"),
        Wanted("dv_rmem[D / 2 - 1]", "another element of dV"),
        Wanted("dk_rmem[0]", "one element of dK / scale, with this tile in it"),
        Wanted("dk_rmem[D / 2 - 1]", "another element of dK / scale"),
    ),
    hints=(
        "Four products start here: dV, dK, the next S, dQ. dV and dK read registers, Q and dO of this tile. "
        "S reads the next Q, which may not have come yet. dQ reads the dS of both warpgroups.",
        "What wgmma reads from shared memory and an ordinary instruction has stored needs a fence, by the "
        "thread that stored it. One lane arrives for a warp: the other 31 must have passed their fence "
        "before.",
        "Products finish in the order in which they were issued. dV and dK must be finished before Q and dO "
        "are given back, and S, issued after them, must not: how many groups may be left?",
        "fence_proxy_async, __syncwarp, lane 0 arrives at ds_full + step % 2; issue dV, issue dK; wait for "
        "q_full + next.number; issue S; the copied lines; wgmma_wait<1>; pin dk_rmem, dv_rmem, p_rmem, "
        "ds_rmem; lane 0 arrives at empty + slot; wait for ds_full + step % 2 with parity step / 2 % 2; "
        "issue_dq(ds_tile).",
    ),
    gates=(
        Gate(
            what="arrivals at mbarriers with no product of the warp under way",
            value=with_nothing_under_way,
            before=0,
            right=40,
            bar=40,
            advice="When a warp gives its slots back, S of the next tile should be under way: issue S "
            "before, "
            "and wait for dV and dK alone. (40 are the loader's, and those that say that dS is there.)",
            shape=TWO_TILES,
        ),
        Gate(
            what="waits for products, counted once per warp",
            value=of_line("wgmma_wait", "wait"),
            before=0,
            right=160,
            bar=160,
            advice="One wait is enough here, for dV and dK. S and dQ are waited for after the region: dQ a "
            "whole tile's exponentials later.",
            shape=TWO_TILES,
        ),
    ),
    advice={
        "missing wait": "Something is still under way, or has not come. The next Q: was it waited for before "
        "S "
        "was issued? Q and dO of this tile: have dV and dK been waited for before their slots are given "
        "back? "
        "dS of the other warpgroup: have all warps arrived before dQ is issued?",
        "missing fence": "Ordinary instructions have stored dS, and wgmma reads it: each lane that stored "
        "needs ptx::fence_proxy_async() before its warp says that dS is there.",
        "race": "A slot or a buffer is written again while a product still reads it, or read before all "
        "lanes "
        "have written. Lane 0 arrives for its warp: what must the other lanes have done before?",
        "deadlock": "A wait never ends. Count, for one tile: one arrival of each warp at ds_full and one at "
        "empty, of lane 0 alone, and waits with the parity of this tile.",
        "arrivals": "One lane of each warp arrives, once per tile.",
    },
)

QUESTIONS = (
    Question(
        key="staircase",
        text="32 blocks own the keys of a head, and all walk over the same 32 tiles of queries from the "
        "first "
        "to the last, one tile per unit of time. Each may add to a tile only after the block before it has. "
        "After how many units is the last block done?",
        unit="units",
        truth=lambda evidence: float(finished(32, 32, shifted=False)),
        source="computed",
        why="The last block starts its first tile after 31 others have been there: 31 + 32. If block j began "
        "with tile j, it would be 32.",
    ),
    Question(
        key="clocks",
        text="By the table above, how many clocks does the shared memory of an SM need for a tile of 128 x "
        "128 "
        "at D = 64, at 128 bytes per clock, if dQ is added from registers?",
        unit="clocks",
        truth=lambda evidence: (4 * 256 * 96 + 4 * 256 * 64 + 2 * 256 * 128 + 128 * 1024) / 128,
        source="computed",
        why="352 KB. The tensor cores need 2,560 clocks for the same tile. With 64 KB more for dQ it would "
        "be "
        "3,328.",
    ),
    Question(
        key="long",
        text="Lesson 18's stage takes <!--us backward/mma_sync @4x32x4096x64--><!----> µs at 4x32x4096x64, "
        "the "
        "tensor cores alone would need <!--calc limit('tensor', '4x32x4096x64', operation='backward') | ,.0f"
        "--><!---->, and FA4 takes <!--calc us('FA4', '4x32x4096x64', operation='backward') | "
        ",.0f--><!---->. How many does this stage take?",
        unit="µs",
        truth=lambda evidence: evidence.us("backward/wgmma", LONG),
        source="measured",
        why="Two warpgroups per SM, each a chain of products, exponentials and stores: they hide some of "
        "each "
        "other, and not all.",
    ),
    Question(
        key="mission",
        text="At 1x8x512x64 this stage takes <!--us backward/wgmma--><!----> µs: 32 blocks for 132 SMs, in "
        "the "
        "second of three launches. A kernel with 128 blocks and one launch computes S and dP twice, and adds "
        "nothing to global memory. How many µs?",
        unit="µs",
        truth=lambda evidence: evidence.us("backward/one_launch"),
        source="measured",
        why="40 % more products, on SMs that had nothing to do, and two launches less.",
    ),
)

GIVEN = (
    Given(
        name="round_and_round",
        story='"The loader has one job: Q and dO of the tiles, one after the other, and from the first again '
        'when it is through. That is all a block ever needs. I dropped what changes the head."',
        edits=(
            Edit(
                "padded, step == 0);\n            if (++tile == tiles.end) tile = tiles.begin, h++;",
                "padded, step == 0);\n            if (++tile == tiles.end) tile = tiles.begin;",
                "backward_wgmma.cu",
            ),
        ),
        hints=(
            "When does a block come to the first tile a second time?",
            "A block owns keys of a K/V head. Several query heads may share it, and it walks over all.",
            "q with two heads, k and v with one: [1, 2, 64, 64] and [1, 1, 64, 64].",
        ),
    ),
)

LESSON = Lesson(
    number=19,
    file="19_backward_wgmma",
    title="dQ one tile late",
    idea="Two warpgroups meet for dQ alone, and the meeting is over before they come to it: dQ is multiplied "
    "under the next tile's exponentials.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits this stage at 4x32x4096x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: they could finish in <!--calc limit('tensor', '4x32x4096x64', operation='backward'"
            ") | ,.0f--><!----> µs, and the kernels take <!--us backward/wgmma @4x32x4096x64--><!---->.",
            "shared": "No. It sets the lower bound, 2,816 clocks per tile beside the tensor cores' 2,560. At "
            "full rate that is <!--calc limit('tensor', '4x32x4096x64', operation='backward') * "
            "1.1 "
            "| ,.0f--><!----> µs of <!--us backward/wgmma @4x32x4096x64--><!---->.",
            "exponentials": "No: <!--calc limit('exp', '4x32x4096x64', operation='backward') | .0f--><!----> "
            "µs would do. The forward pass needs as many for 40 % of the products.",
            "memory": "No: inputs and gradients once are <!--calc limit('memory', '4x32x4096x64', operation="
            "'backward') | .0f--><!----> µs, and the sums of dQ, added to by 32 blocks, are <!--calc 128 * "
            "32 "
            "* 4096 * 64 * 4 / recorded('4x32x4096x64', operation='backward')[0]['ceilings']['l2_gbs'] / 1e3 "
            "| "
            ".0f--><!----> µs of the L2 cache.",
            "latency": "Yes: no unit is full. A warpgroup's tile is a chain, S, exponentials, dP, dS, its "
            "store, and two warpgroups are all that the registers allow. dQ one tile late takes the meeting "
            "out of the chain, not the chain away.",
        },
    ),
    figures={
        "late": "Two warpgroups in time: dQ in its own tile, and one tile late.",
        "turns": "Who adds to which tile of dQ when: blocks that begin together, and blocks that are "
        "shifted.",
        "barriers": "Barriers by source line, those of lesson 18's stage first.",
    },
    before=("backward/mma_sync",),
    given=GIVEN,
    picture="late",
)
