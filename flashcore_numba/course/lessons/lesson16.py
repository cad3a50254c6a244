"""Lesson 16: a cluster shares the keys of a few rows, and where 3.4 microseconds go."""

from typing import Any

from flashcore_numba.course.counters import of_line, total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

MISSION_HEAD, ONE_CLUSTER, SPLIT = "1x1x512x64", "1x1x64x64", "two_blocks"


def sent_late(launches: list[Any]) -> float:
    """Stores into another block that a warp did when it had no product under way."""
    return total("store_async")(launches) - total("store_under_way")(launches)


EXERCISE = Exercise(
    stage=16,
    file="stage16_cluster_split.cu",
    first="RowState factor, other_factor = {};",
    last="ptx::wgmma_pin(o_rmem);",
    task="""\
The parts of the same rows exchange m and l, first in the block, then across the cluster, while the last P V
still runs. Every thread executes these lines once, after its part's last iteration. It has m and l of its two
rows; l is only what its own columns gave, and the four lanes of a quad share the rows. Leave
  - RowState factor and RowState other_factor, declared here: what this part's O has to be scaled by, and what
    the O of the block's other warpgroup has to
  - m and l: those of both parts of this block, with l the sum over the whole row
  - these m and l on their way to the other block of the cluster: m[0], m[1], l[0], l[1], one store of 16
    bytes for each quad, into that block's far_smem
  - o_rmem: finished. Nothing above needs it, so it should be waited for last
Parts that have seen no key need no special case.""",
    given={
        "m, l": "RowState, which is float[2]: of the thread's two rows; l is the lane's own part of the sum",
        "quad_sum": "quad_sum(x): the sum of x over the four lanes of the quad, for all four",
        "box, other_box": "int: the number of this warp in the block, 0 .. WARPS - 1, and of the warp with "
        "the same rows in the other warpgroup",
        "lane, warp": "int: 0 .. 31; the warp's number in its warpgroup, 0 .. 3. Quad lane / 4 has rows "
        "lane / 4 and lane / 4 + 8 of the warp",
        "near_smem": "float4*, shared: [WARPS, 8]: what the warp of that number receives from its own "
        "block, one place per quad",
        "far_smem": "float4*, shared: [WARPS, 8]: the same from the other block",
        "far_full": "uint64_t*, shared: [WARPS]: an mbarrier for far_smem of each warp; it has been "
        "announced 128 bytes",
        "rank": "int: this block's number in the cluster, 0 or 1; the other one's is rank ^ 1",
        "join": "join(m, l, other, mine, theirs): m and l, which are changed, become those of both parts; "
        "`other` is a float4 of m[0], m[1], l[0], l[1]; mine and theirs, RowState, are set to what O of each "
        "part has to be scaled by",
        "make_float4": "make_float4(x, y, z, w): four floats, stored by one assignment to an element of a "
        "float4*",
        "ptx": "ptx::bar_sync(id, threads): a barrier of so many threads; 1 + WARPGROUPS + warp is one for "
        "the two warps with the same rows. ptx::cluster_wait(): returns when both blocks of the cluster have "
        "started and made their mbarriers. ptx::store_async(place, x, mbarrier, block): 16 bytes, `const "
        "float x[4]`, into another block; place and mbarrier are pointers into one's own shared memory, and "
        "mean the same place there. ptx::wgmma_wait<0>() and, for the compiler, ptx::wgmma_pin(o_rmem)",
        "WARPGROUPS, CLUSTER": "2 and 2 here; the stage also runs with one warpgroup, or one block",
    },
    wanted=(
        Wanted("m[0]", "the row's maximum over both parts of the block"),
        Wanted("m[1]", "the maximum of the thread's second row"),
        Wanted("l[0]", "the row's sum over both parts of the block"),
        Wanted("l[1]", "the sum of the thread's second row"),
        Wanted("factor[0]", "what this part's O has to be scaled by, first row"),
        Wanted("factor[1]", "the same, second row"),
        Wanted("o_rmem[0]", "one element of this part's O"),
    ),
    hints=(
        "Five steps: finish l; give m and l to the other warpgroup and read its own; join; send to the "
        "other block; wait for O. What the other block says is read later, after the region, when it has "
        "had time to arrive.",
        "Of four lanes with the same m and l one stores. There must be a barrier of the two warps between "
        "the store to near_smem and the load from it: one's store is the other's load. You "
        "write to the other warp's box and read your own.",
        "To another block there is no barrier to wait at: the store itself brings its 16 bytes to the "
        "mbarrier there. But the block must have started, and its mbarrier must be made, before anything "
        "reaches it.",
        "l[r] = quad_sum(l[r]); if (lane % 4 == 0) near_smem[other_box * 8 + lane / 4] = make_float4(...); "
        "ptx::bar_sync(1 + WARPGROUPS + warp, 64); join(m, l, near_smem[box * 8 + lane / 4], factor, "
        "other_factor); ptx::cluster_wait(); const float state[4] = {m[0], m[1], l[0], l[1]}; if (lane % 4 "
        "== 0) ptx::store_async(far_smem + box * 8 + lane / 4, state, far_full + box, rank ^ 1); "
        "ptx::wgmma_wait<0>(); ptx::wgmma_pin(o_rmem);",
    ),
    gates=(
        Gate(
            what="stores of 16 bytes into another block",
            value=total("store_async"),
            before=0,
            right=9_216,
            bar=9_216,
            advice="m and l of two rows are 16 bytes, and four lanes have the same: who of them needs to "
            "send?",
            shape=MISSION_HEAD,
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=560,
            right=512,
            bar=520,
            advice="Two warps that tell each other something need one barrier, of 64 threads; blocks need "
            "none, for an mbarrier counts their bytes.",
            shape=MISSION_HEAD,
        ),
        Gate(
            what="arrivals at the barrier of the whole block, counted once per warp",
            value=of_line("__syncthreads", "barrier"),
            before=40,
            right=128,
            bar=128,
            advice="Only two warps have to meet: ptx::bar_sync(1 + WARPGROUPS + warp, 64) is their barrier.",
            shape=MISSION_HEAD,
            cause="wide barrier",
        ),
        Gate(
            what="stores into another block by warps with no product under way",
            value=sent_late,
            before=0,
            right=8_192,
            bar=8_192,
            advice="m and l can travel while the last P V runs. Nothing above needs O: wait for it last.",
            shape=MISSION_HEAD,
            cause="nothing under way",
        ),
        Gate(
            what="wavefronts of shared memory made by loads and stores of warps",
            value=total("shared_wavefronts"),
            before=580,
            right=6_144,
            bar=6_400,
            advice="Each warp stores 8 times 16 bytes for the other warpgroup and loads as much: look for "
            "what is stored, or loaded, more than once.",
            shape=MISSION_HEAD,
        ),
    ),
    variant=SPLIT,
    under_way=("o_rmem",),
    advice={
        "race": "In near_smem two warps of the block meet: which barrier is between the store of the one "
        "and the load of the other? Does each write to the other's box and read its own? In far_smem and "
        "far_full blocks meet: how does this one know that the other has started and made its mbarriers?",
        "missing wait": "Something is still under way. In o_rmem it is the last product, which the next "
        "lines use. In far_smem it is what the other block sends: each place there gets one store, from "
        "one lane of a quad of block rank ^ 1, and far_full[box] there counts its bytes.",
        "value": "What is compared where the region ends is right. What the other block is told is not "
        "compared: are m and l those of both parts, and is it the other block that is told?",
        "missing fence": "Has the other block made its mbarriers when this store reaches it? Blocks of a "
        "cluster do not start at the same moment: ptx::cluster_wait() returns when both have.",
        "uninitialised read": "Is what is read here told to this warp, by somebody who has already come to "
        "the barrier? And has the other block made its mbarriers when a store reaches it? "
        "ptx::cluster_wait() knows.",
        "deadlock": "Each mbarrier of far_full waits for 128 bytes: 8 quads of 16 bytes from the other "
        "block. And a barrier of 64 threads for two warps. Which of them gets less, or somebody else's?",
        "bad instruction": "The other block is rank ^ 1: of block 0 block 1, of block 1 block 0. It is sent "
        "8 quads of 16 bytes for each warp, not more.",
    },
)

QUESTIONS = (
    Question(
        key="sent",
        text="1x8x512x128, clusters of two blocks, two warpgroups each. In the end every warp keeps 32 of "
        "the 128 columns of its 16 rows, as float32. What does one block send to the other, in bytes? (m and "
        "l of 64 rows twice, once from each warpgroup; and the columns that the other block keeps, which the "
        "two warpgroups have added up before.)",
        unit="bytes",
        truth=lambda evidence: evidence.count(16, "store_async_bytes", "1x1x64x128", SPLIT) / 2,
        source="counted",
        why="m and l: 2 x 64 rows x 8 bytes, 1,024. Of O, 64 rows x 64 columns x 4 bytes: 16,384.",
    ),
    Question(
        key="alone",
        text="Stage 14 takes <!--us 14 tma_wgmma--><!----> µs, with 64 blocks of one warpgroup, each alone "
        "with its 512 keys. Give every block a second warpgroup that takes half of the keys: still 64 "
        "blocks, no cluster. How many microseconds?",
        unit="µs",
        truth=lambda evidence: evidence.us("16 one_block"),
        source="measured",
        why="Half as many iterations, and a merge through the block's own shared memory. What is paid once "
        "stays.",
    ),
    Question(
        key="microseconds",
        text="Now two blocks of a cluster take half of the keys each: 128 blocks, one iteration each, and "
        "one more merge, across. How many microseconds?",
        unit="µs",
        truth=lambda evidence: evidence.us("16 cluster_split"),
        source="measured",
        why="One iteration less, 64 SMs more, and an exchange between blocks that costs a good part of an "
        "iteration.",
    ),
    Question(
        key="late",
        text="The launches that are timed follow each other, each after the one before. Stage 16 may also "
        "begin under the end of the kernel before it. How many microseconds does a launch take then? (An "
        "empty kernel takes <!--calc recorded()[0]['ceilings']['launch_us'] | .2f--><!---->.)",
        unit="µs",
        truth=lambda evidence: evidence.us("16 overlapped"),
        source="measured",
        why="About an empty launch less: starting, making mbarriers and fetching the tensor maps need "
        "nothing that the launch before writes.",
    ),
)

GIVEN = (
    Given(
        name="mean_of_references",
        story='"Both sides of a merge need the same reference. The mean of the two is as symmetric as the '
        "maximum, and any common reference gives the same quotient. Only a part that has seen no key must be "
        'left out, and I do that."',
        edits=(
            Edit(
                "const float m_new = fmaxf(m[r], m_other[r]);",
                "const float m_new = l[r] == 0 ? m_other[r] : l_other[r] == 0 ? m[r] : 0.5f * "
                "(m[r] + m_other[r]);",
                "stage16_cluster_split.cu",
            ),
        ),
        hints=(
            "How large may a factor 2^(m - m_new) become when m_new is smaller than m?",
            "Infinite, from a difference of 128 on. How far apart must the references of two parts be, in "
            "units of log2, and how far the scores, which are q k / 8?",
            "Keys 0 to 127 are one part, 128 to 255 another. Let the keys of one be zeros, and those of the "
            "other query rows times 30.",
        ),
    ),
)

LESSON = Lesson(
    number=16,
    file="16_cluster_split",
    title="A budget of three microseconds",
    idea="Every piece of a short kernel has a price known beforehand; blocks of a cluster share keys, and "
    "merge without a second launch.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 16 at 1x8x512x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: both products need <!--limit tensor--><!----> µs. The tensor pipe was busy for "
            "<!--calc profiled(16, 'tensor_busy_pct') | .0f--><!----> % of the cycles (Nsight Compute).",
            "exponentials": "No: they need <!--limit exp--><!----> µs. Their unit was busy for "
            "<!--calc profiled(16, 'xu_pct') | .0f--><!----> % of the cycles (Nsight Compute).",
            "shared": "No: <!--calc profiled(16, 'shared_load_wavefronts') + profiled(16, "
            "'shared_store_wavefronts') | ,.0f--><!----> wavefronts of warps, <!--calc (profiled(16, "
            "'shared_load_wavefronts') + profiled(16, 'shared_store_wavefronts')) / grid(16) | "
            ".0f--><!----> per block, one per clock: <!--calc (profiled(16, 'shared_load_wavefronts') + "
            "profiled(16, 'shared_store_wavefronts')) / grid(16) / 1980 | .2f--><!----> µs.",
            "memory": "No: the inputs once, and the output, would take <!--limit memory--><!----> µs from "
            "DRAM, and they come from the L2 cache, which was busy for "
            "<!--calc profiled(16, 'l2_pct') | .0f--><!----> % (Nsight Compute).",
            "latency": "Yes. Every unit has about half a microsecond of work, and the launch takes <!--us "
            "16 overlapped--><!---->. The rest is a chain in which each link waits for the one before: "
            "launch, mbarriers, a tile from L2, S, P, O, the other warpgroup, the other block, the store. "
            "The issue slots are used in <!--calc profiled(16, 'issue_pct') | .0f--><!----> % of the cycles "
            "(Nsight Compute).",
        },
    ),
    figures={
        "budget": "The chain of one launch in order of time: predicted, then measured by stamps.",
        "cluster": "Which block sends what to which, from the stores that the kernel made.",
        "barriers": "Barriers by source line, stage 15 and stage 16.",
        "wavefronts": "Wavefronts of shared memory by source line.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("13 split_kv",),
    given=GIVEN,
)
