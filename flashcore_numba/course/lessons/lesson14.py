"""Lesson 14: TMA moves tiles, wgmma multiplies them, and mbarriers say when."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

FOUR_TILES = "1x1x512x64"

EXERCISE = Exercise(
    stage=14,
    file="stage14_tma_wgmma.cu",
    first="const int slot = tile % STAGES, parity = tile / STAGES % 2, first_key = tile * BLOCK_N;",
    last="if (threadIdx.x == 0 && tile + STAGES < tiles.end) load_keys(tile + STAGES);",
    task="""\
One iteration: one K/V tile. All 128 threads of the block execute these lines for each tile, from
tiles.begin to tiles.end - 1. Before the first iteration, one thread has asked for Q and for the first STAGES
tiles, and Q has arrived. Leave
  - m, l and o_rmem: this thread's part of the state of the 64 rows, with this tile's keys in it
  - every product of this tile finished, because the next iteration reuses the registers and perhaps the slot
  - tile + STAGES asked for, if there is one: into the slot that this iteration frees
The mask comes between the scores and the new running max. Copy it as it is, after
`const int first_key = tile * BLOCK_N;`:
  if (first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f) {
      const int row = warp_row + lane / 4;
      mask_tile(s_rmem, {mask.interval(row).from(first_key), mask.interval(row + 8).from(first_key)},
                scale.sign, lane);
  }""",
    given={
        "tile, tiles.end": "int: the number of the tile; the one after the last",
        "STAGES, BLOCK_N, TILE": "2 slots in the ring, 128 keys per tile, and the number of halves in a "
        "tile, BLOCK_N * D",
        "q_smem": "element*, shared: the 64 rows of Q",
        "k_smem, v_smem": "element*, shared: STAGES slots of TILE halves one after the other; tile t is "
        "in slot t % STAGES",
        "k_full, v_full": "uint64_t*, shared: an mbarrier per slot; a phase is complete when the slot's tile "
        "of K, or of V, has arrived",
        "ptx": "ptx::mbarrier_wait(m, parity): waits until the phase of that parity, 0 or 1, is complete. "
        "ptx::wgmma_wait<0>(): until all products of this warpgroup are finished; after it "
        "ptx::wgmma_pin(x), for the compiler, where x is the array of registers that they wrote",
        "issue_qk": "issue_qk(s_rmem, q_smem, k_tile): starts S = Q K^T; k_tile points to the first half of "
        "the tile of K",
        "issue_pv": "issue_pv(o_rmem, p_rmem, v_tile): starts O += P V",
        "raise_max": "scale_left = raise_max(s_rmem, m, rescale, scale.log2): m rises to the "
        "rows' maxima; a float, the scale that the scores still need",
        "rescale_o_and_l": "rescale_o_and_l(o_rmem, l, rescale): rescales O and l to the new m",
        "exponentiate": "exponentiate(p_rmem, s_rmem, m, l, scale_left): computes P and adds its row sums "
        "to l",
        "s_rmem, p_rmem, o_rmem": "registers: this thread's part of S and O, floats, and of P, halves",
        "m, l, rescale": "float[2]: of this thread's two rows",
        "load_keys": "load_keys(n): ONE thread asks for tile n, K and V, into slot n % STAGES",
        "mask, warp_row, scale.sign, lane": "as mask_tile needs them",
    },
    wanted=(
        Wanted("m[0]", "the running max of the thread's first row"),
        Wanted("l[0]", "the thread's part of the sum of P over its first row"),
        Wanted("l[1]", "the thread's part of the sum of its second row's weights"),
        Wanted("((const element*)p_rmem[0])[0]", "one element of P"),
        Wanted("o_rmem[0]", "one element of O, of the first row"),
        Wanted("o_rmem[D / 2 - 1]", "one element of O, of the second row"),
    ),
    hints=(
        "An iteration: K is there? multiply; S is whole? mask, softmax; V is there? multiply; O is whole? "
        "then, when no warp needs the slot any more, ask for the tile that goes there next.",
        "Tile t is the (t / STAGES)-th that its slot receives, counted from 0. Each of them is a phase of "
        "the slot's two mbarriers, and phases have parities 0, 1, 0, ...",
        "issue_qk and issue_pv only start the products. Before s_rmem is read, o_rmem is changed or a slot "
        "is filled again, there must be a wait. And the wait speaks of one warpgroup's products: the block "
        "is one warpgroup, but its four warps come out of the wait one by one.",
        "const int slot = tile % STAGES, parity = tile / STAGES % 2; mbarrier_wait(k_full + slot, parity); "
        "issue_qk(..., k_smem + slot * TILE); wgmma_wait<0>; pin s_rmem; mask; const float scale_left = "
        "raise_max(...); rescale_o_and_l; exponentiate; mbarrier_wait(v_full + slot, parity); "
        "issue_pv; wgmma_wait<0>; pin o_rmem; __syncthreads(); if (threadIdx.x == 0 && tile + STAGES < "
        "tiles.end) load_keys(tile + STAGES);",
    ),
    gates=(
        Gate(
            what="copies by TMA into shared memory, counted one by one",
            value=total("tma_load"),
            before=0,
            right=72,
            bar=72,
            advice="One thread asks for each tile once: look at who calls load_keys, and for which tiles.",
            shape=FOUR_TILES,
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=448,
            right=160,
            bar=160,
            advice="K, V, S and O are waited for by mbarriers and by wgmma_wait. One thing is left for the "
            "block's barrier: that all four warps are done with the slot.",
            shape=FOUR_TILES,
        ),
        Gate(
            what="wavefronts of shared memory made by loads and stores of warps",
            value=total("shared_wavefronts"),
            before=55_808,
            right=512,
            bar=520,
            advice="No warp loads an operand here: look for an array that got in between.",
            shape=FOUR_TILES,
        ),
    ),
    advice={
        "misaligned": "A slot is TILE halves long: it begins at k_smem + slot * TILE, V likewise.",
        "missing wait": "Something is still under way: a tile (has the phase with this tile ended, or an "
        "older one of the same slot?), or a product (have all four warps waited since it was started, "
        "before its registers are used or its slot is filled again?).",
        "arrivals": "A phase of a slot's mbarrier counts one arrival, that of the thread that asks "
        "for the tile, and it ends when the tile has come. Who calls load_keys here, how often, and is the "
        "slot's last phase over?",
        "race": "A slot is filled again while a warp still reads it. Which product reads it last, and how "
        "do you know that all four warps have waited for that product?",
        "deadlock": "Somebody waits for a phase that never ends. Which tile should end it, and is that tile "
        "asked for? Of which parity is it?",
    },
)

QUESTIONS = (
    Question(
        key="expected",
        text="One thread announces to an mbarrier how many bytes a tile will bring: to one for Q, 64 rows of "
        "64 components, and to one for each tile of K and of V, 128 keys of 64 components, all float16. A "
        "head has 512 keys. What do the announcements of a block add up to?",
        unit="bytes",
        truth=lambda evidence: (
            evidence.count(14, "tma_load_bytes", FOUR_TILES) / evidence.grid(14, FOUR_TILES)
        ),
        source="counted",
        why="64 x 64 x 2 for Q, and 128 x 64 x 2 for each of 4 tiles of K and 4 of V. One byte less and a "
        "phase would end before its tile is there, one more and it would never end.",
    ),
    Question(
        key="requests",
        text="One head of 512 rows and 512 keys: to bring Q, K and V into shared memory, the warps of stage "
        "13 make <!--count 13 global_load_requests @1x1x512x64--><!----> requests, each with 32 addresses "
        "that its lanes have computed. Stage 14 has blocks of 64 rows and tiles of 128 keys, and one thread "
        "of a block asks for a whole tile of 64 columns with one instruction. How many such instructions?",
        unit="requests",
        truth=lambda evidence: evidence.count(14, "tma_load", FOUR_TILES),
        source="counted",
        why="8 blocks. Each asks for Q once, and for 4 tiles of K and 4 of V: 8 x 9.",
    ),
    Question(
        key="wavefronts",
        text="Loads and stores of warps in shared memory take stage 13 "
        "<!--count 13 shared_wavefronts @1x1x512x64--><!----> wavefronts there. In stage 14 TMA writes Q, K "
        "and V, wgmma reads them, P stays in registers, and O passes once through shared memory on its way "
        "out, as float16, without conflicts. How many wavefronts do warps still cause?",
        unit="wavefronts",
        truth=lambda evidence: evidence.count(14, "shared_wavefronts", FOUR_TILES),
        source="counted",
        why="O is 512 rows of 128 bytes, and a wavefront moves 128 bytes: a store of each row. TMA reads "
        "them back.",
    ),
    Question(
        key="microseconds",
        text="Stage 13 takes <!--us 13 split_kv--><!----> µs at 1x8x512x64 on the H200. How many does stage "
        "14 take? (A block has 64 rows, and there are 132 SMs.)",
        unit="µs",
        truth=lambda evidence: evidence.us("14 tma_wgmma"),
        source="measured",
        why="8 heads of 512 rows are 64 blocks of 64 rows: more than half of the SMs have none. The others "
        "work faster than in stage 13, but not twice as fast.",
    ),
)

GIVEN = (
    Given(
        name="zeros_need_no_mask",
        story='"TMA fills the rows past the last key with zeros. A row of zeros adds nothing to a product, '
        'so without a causal mask there is nothing to mask: I ask for the mask only when `causal` is set."',
        edits=(
            Edit(
                "if (first_key + BLOCK_N > mask.interval(warp_row).end || scale.sign != 1.0f) {",
                "if ((causal && first_key + BLOCK_N > mask.interval(warp_row).end) || scale.sign != 1.0f) {",
                "stage14_tma_wgmma.cu",
            ),
        ),
        hints=(
            "What is the score of a key that consists of zeros? And its weight?",
            "The weight is 2 to the power of minus m: nothing in the numerator, since the row of V is zero "
            "too, but something in l. How much it weighs depends on the other scores and on how many such "
            "rows there are.",
            "No causal mask, and 70 keys: 58 rows of zeros follow them in the tile of 128.",
        ),
    ),
)

LESSON = Lesson(
    number=14,
    file="14_tma_wgmma",
    title="One thread moves a tile, four warps multiply it",
    idea="Copies and products run beside the threads: what is left to write is who waits for what.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 14 at 1x8x512x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: the tensor pipe was busy for <!--calc profiled(14, 'tensor_busy_pct') | "
            ".0f--><!----> % of the cycles (Nsight Compute). Where there is a block, its products take 512 "
            "of the <!--calc (us('14 tma_wgmma', '1x8x1024x64') - us('14 tma_wgmma')) / 4 * 1980 | "
            ",.0f--><!----> clocks of an iteration.",
            "exponentials": "No: the unit that makes them was busy for <!--calc profiled(14, 'xu_pct') | "
            ".0f--><!----> % of the cycles (Nsight Compute).",
            "shared": "No: warps caused <!--calc profiled(14, 'shared_store_wavefronts') | ,.0f--><!----> "
            "wavefronts in all, <!--calc profiled(14, 'shared_store_wavefronts') / 64 | .0f--><!----> per "
            "block. In stage 13 they were <!--calc (profiled(13, 'shared_load_wavefronts') + profiled(13, "
            "'shared_store_wavefronts')) | ,.0f--><!---->. And wgmma, while it runs, reads 96 bytes per "
            "clock for Q K^T and 64 for P V, of 128 that shared memory gives.",
            "memory": "No: the L2 cache, which serves K and V to every block, was busy for "
            "<!--calc profiled(14, 'l2_pct') | .0f--><!----> % (Nsight Compute).",
            "latency": "Yes. <!--calc grid(14) | .0f--><!----> blocks leave <!--calc 132 - grid(14) | "
            ".0f--><!----> of 132 SMs empty. On the others each scheduler has one warp, and that warp "
            "waits: for K, for S, for its own exponentials, for V, for O, for the barrier. The issue slots "
            "are used in <!--calc profiled(14, 'issue_pct') | .0f--><!----> % of the cycles (Nsight "
            "Compute).",
        },
    ),
    figures={
        "ledger": "Every mbarrier of the ring, event by event: phase, arrivals and bytes outstanding.",
        "memory": "The memory map of a block: Q, the ring, the mbarriers.",
        "barriers": "Barriers by source line, stage 13 and stage 14.",
        "wavefronts": "Wavefronts of shared memory by source line: O on its way out.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("13 split_kv",),
    given=GIVEN,
)
