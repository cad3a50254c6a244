"""Lesson 15: warpgroups take turns at the tensor cores, and softmax runs under the others' products."""

from typing import Any

from flashcore_numba.course.counters import of_line, total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Given, Lesson, Question, Wanted
from flashcore_numba.stages.edited import Edit

FOUR_TILES = "1x1x256x64"  # one block: four warpgroups, four tiles of 64 keys
WIDE = "1x1x256x128"  # two blocks: three warpgroups, tiles of 80 keys, softmax under the own P V
LONG, LONG_128 = "4x32x4096x64", "4x16x4096x128"


def out_of_turn(launches: list[Any]) -> float:
    """Products Q K^T that warps started, D = 64, less the turns that they waited for."""
    started = of_line("wgmma_ss", "wgmma")(launches) / 4  # four instructions of 16 components each
    return started - of_line("ptx::bar_sync", "barrier")(launches)


def handed_on_late(launches: list[Any]) -> float:
    """Turns that a warp handed on when it had no product under way."""
    arrivals = of_line("ptx::bar_arrive", "barrier")(launches)
    return arrivals - total("arrive_under_way")(launches) / 32


EXERCISE = Exercise(
    stage=15,
    file="stage15_ping_pong.cu",
    first="const element* k_tile = k_smem + k_ring.slot * KV_TILE;",
    last="v_ring.next();",
    task="""\
One tile of a consumer warpgroup, and one turn. All its 128 threads execute these lines for every tile but its
first; p_rmem holds P of the tile before, whose V has still to arrive. Leave
  - s_rmem: P of this tile, as floats; m and l with this tile's keys in them
  - o_rmem: with P V of the tile BEFORE in it, and finished. The lines after the region rescale it
  - the slot of this tile's K and the slot of the V before released, each as soon as the warp is done with
    it, and v_ring one slot further (k_ring has moved already)
Start both products in one turn, and hand the turn on before you wait for them. The softmax follows, before
the next turn. Copy it as it is; `lazy` keeps m where it can, and otherwise S is computed again:
  const bool lazy = LAZY_MAX && tile < whole_tiles && scale_left == scale.log2;
  const bool done = lazy && exponentiate<true, POLYNOMIALS>(s_rmem, m, l, scale.log2);
  if (!done) {
      if (lazy) {
          multiply_again(s_rmem, q_smem, k_tile, warp, lane);
          __syncwarp();  // all lanes have read K
      }
      softmax();
  }""",
    given={
        "k_ring, v_ring": "Ring: .slot is the place of this tile's K, of the V before, 0 to STAGES - 1; "
        ".next() moves on",
        "k_smem, v_smem": "element*, shared: STAGES slots of KV_TILE halves one after the other",
        "k_full, v_full, k_empty, v_empty": "uint64_t*, shared: two mbarriers per slot: a tile has come, "
        "all 16 warps have read it",
        "fetched": "fetched(k_full, k_ring): waits until the tile in that place has arrived",
        "release": "release(k_empty + slot): this warp does not need that slot any more; the loader may "
        "fill it when all warps have said so",
        "begin_turn, end_turn": "begin_turn(): waits until the warpgroup before has handed the turn on. "
        "end_turn(): hands it on",
        "issue_qk": "issue_qk(s_rmem, q_smem, k_tile): starts S = Q K^T; k_tile points to the first half of "
        "the tile of K",
        "issue_pv": "issue_pv(o_rmem, p_rmem, v_tile): starts O += P V",
        "ptx": "ptx::wgmma_wait<N>(): until at most N groups of this warpgroup's products are unfinished, "
        "the oldest first; after it ptx::wgmma_pin(x), for the compiler, for each array of registers that "
        "is whole now. O was rescaled: pin it before the products, too",
        "OVERLAP": "0 at D = 64: wait for both products before the softmax. 1 at D = 128: for S alone. "
        "A number for wgmma_wait<...>",
        "q_smem, s_rmem, p_rmem, o_rmem": "Q of this warpgroup; this thread's part of S, P and O",
        "m, l, scale_left, scale.log2, tile, whole_tiles, warp, lane": "as the softmax needs them",
        "LAZY_MAX, POLYNOMIALS, exponentiate, multiply_again, softmax": "the same",
    },
    wanted=(
        Wanted("m[0]", "the reference of the thread's first row"),
        Wanted("s_rmem[0]", "a weight of this tile, of the first row"),
        Wanted("s_rmem[BLOCK_N / 2 - 1]", "a weight of this tile, of the second row"),
        Wanted("l[0]", "the thread's part of the sum of its first row's weights"),
        Wanted("o_rmem[0]", "one element of O, of the first row, with the tile before in it"),
        Wanted("o_rmem[D / 2 - 1]", "one element of O, of the second row"),
        Wanted("v_ring.slot", "the place of the next tile of V"),
    ),
    hints=(
        "A turn is short: it begins when this tile's K is there, holds the start of both products, and is "
        "handed on before anybody waits for a result. Everything else happens outside.",
        "Two tiles are at work. Q K^T reads this tile's K, P V reads the V of the tile before: each has its "
        "own ring, its own slot and its own wait.",
        "Go through what is read, and ask of each who reads it last. K: Q K^T, and multiply_again where the "
        "reference has to move. V: P V. After the softmax, P takes the place of S, and it is packed into "
        "p_rmem after the region: so P V must have been waited for when the region ends.",
        "k_tile = k_smem + k_ring.slot * KV_TILE; fetched(k_full, k_ring); pin o_rmem; begin_turn(); "
        "issue_qk(s_rmem, q_smem, k_tile); fetched(v_full, v_ring); issue_pv(o_rmem, p_rmem, v_smem + "
        "v_ring.slot * KV_TILE); end_turn(); wgmma_wait<OVERLAP>; pin s_rmem; the softmax; release(k_empty + "
        "k_ring.slot); wgmma_wait<0>; pin o_rmem and s_rmem; release(v_empty + v_ring.slot); v_ring.next();",
    ),
    gates=(
        Gate(
            what="products that a warp started without waiting for its turn",
            value=out_of_turn,
            before=32,
            right=0,
            bar=0,
            advice="Values do not depend on turns, time does: call begin_turn() once, before the products.",
            shape=FOUR_TILES,
        ),
        Gate(
            what="turns that a warp handed on with no product of its own under way",
            value=handed_on_late,
            before=0,
            right=4,
            bar=4,
            advice="Hand the turn on when the products are started, before you wait for them: the next "
            "warpgroup's products follow at once. (Four are the first turn's: nobody has started anything.)",
            shape=FOUR_TILES,
        ),
        Gate(
            what="barriers at D = 128, counted once per warp",
            value=total("barriers"),
            before=80,
            right=232,
            bar=232,
            advice="A turn is one bar.sync and one bar.arrive. No other barrier is needed: tiles, products "
            "and slots have waits of their own.",
            shape=WIDE,
        ),
    ),
    advice={
        "missing wait": "Something is still under way. A tile: was it fetched before its product? A product: "
        "has somebody waited before its registers are used, or its slot is given away? (At D = 128 the first "
        "wait leaves P V running.) Or a slot was released while a line below still reads it.",
        "race": "A slot is filled again while somebody still reads it. Which line reads this K, or this V, "
        "last, and where is it released?",
        "deadlock": "A wait never ends: a turn is not handed on, a tile is not asked for because some warp "
        "has not released its slot, or this warpgroup takes a slot for another. Count, for one "
        "turn: one begin, one end, one release of K and of V, one step of each ring.",
        "arrivals": "A slot is released once per turn by each warp.",
        "barrier arrivals": "Every warpgroup begins and ends one turn per tile.",
    },
)

QUESTIONS = (
    Question(
        key="turns",
        text="One head of 256 rows and 256 keys: one block, four warpgroups, tiles of 64 keys. A warpgroup "
        "waits for its turn once per tile, and a wait is counted once per warp. How many waits?",
        unit="waits",
        truth=lambda evidence: evidence.barriers(15, "ptx::bar_sync", FOUR_TILES),
        source="counted",
        why="16 warps, 4 tiles.",
    ),
    Question(
        key="long",
        text="At 4x32x4096x64 stage 14 takes <!--us 14 tma_wgmma @4x32x4096x64--><!----> µs, and the tensor "
        "cores alone would need <!--calc limit('tensor', '4x32x4096x64') | .0f--><!---->. How many does "
        "stage 15 take?",
        unit="µs",
        truth=lambda evidence: evidence.us("15 ping_pong", LONG),
        source="measured",
        why="Four chains of stage 14's length would keep the tensor cores busy for two thirds of the time. "
        "They disturb each other, and the power limit lowers the clock.",
    ),
    Question(
        key="wide",
        text="4x16x4096x128 has the same FLOP: half as many heads, twice as wide. And half as many "
        "exponentials. How many µs?",
        unit="µs",
        truth=lambda evidence: evidence.us("15 ping_pong", LONG_128),
        source="measured",
        why="The products take as long as before, what is between them half as long.",
    ),
    Question(
        key="microseconds",
        text="And at 1x8x512x64, where stage 14 takes <!--us 14 tma_wgmma--><!----> µs? A block of stage 15 "
        "has 256 rows, and there are 132 SMs.",
        unit="µs",
        truth=lambda evidence: evidence.us("15 ping_pong"),
        source="measured",
        why="16 blocks: 116 SMs have nothing to do, and on the others one block works through 8 tiles.",
    ),
)

GIVEN = (
    Given(
        name="room_enough",
        story='"The first tile sets the reference, and the scores of the others are about as large. A float '
        'reaches 2 to the 127th: there is room enough. I keep m for good, and nothing is ever done again."',
        edits=(
            Edit(
                "const bool done = lazy && exponentiate<true, POLYNOMIALS>(s_rmem, m, l, scale.log2);",
                "const bool done = lazy && exponentiate<false, POLYNOMIALS>(s_rmem, m, l, scale.log2);",
                "stage15_ping_pong.cu",
            ),
        ),
        hints=(
            "A weight is 2^(scale log2(e) s - m). What does it become when it is packed as the operand of "
            "P V, and up to where does that go?",
            "A half ends at 65504, so a score 16 above the reference, in units of log2, is too much. Which "
            "keys set the reference? Which tile comes first?",
            "Tiles go from the last to the first. 128 keys, and the first 64 of them 30 times as long.",
        ),
    ),
)

LESSON = Lesson(
    number=15,
    file="15_ping_pong",
    title="Softmax under the others' products",
    idea="Two units that take equally long must run at the same time: warpgroups take turns on purpose.",
    exercise=EXERCISE,
    questions=QUESTIONS,
    explanation=Explanation(
        text="What limits stage 15 at 4x32x4096x64 on the H200?",
        right="latency",
        feedback={
            "tensor": "No: they could finish in <!--calc limit('tensor', '4x32x4096x64') | .0f--><!----> µs, "
            "and the kernel takes <!--us 15 ping_pong @4x32x4096x64--><!---->. They are idle for nearly half "
            "of the time.",
            "exponentials": "No: that unit, too, could finish in <!--calc limit('exp', '4x32x4096x64') | "
            ".0f--><!----> µs. And when one exponential of sixteen is taken off it and made by a "
            "polynomial, the kernel gets 4 % slower (measured once, H200).",
            "memory": "No: <!--calc limit('memory', '4x32x4096x64') | .0f--><!----> µs would do. A block of "
            "256 rows reads K and V once for all of them.",
            "power": "In part: the GPU drew <!--calc entry('15 ping_pong', "
            "'4x32x4096x64')['clocks']['power_w']['p50'] | .0f--><!----> W of 700, and its clock was "
            "<!--calc entry('15 ping_pong', '4x32x4096x64')['clocks']['sm_mhz']['p50'] | ,.0f--><!----> "
            "instead of 1,980 MHz. That explains a few percent. Cool, at the full clock, it reached 574 "
            "TFLOP/s in place of 526 (measured once, H200), and the tensor cores can do "
            "<!--calc recorded('4x32x4096x64')[0]['ceilings']['tensor_tflops'] | .0f--><!---->.",
            "latency": "Yes. Tensor cores, exponentials and issue slots are each used for about half of the "
            "time or less (stamps, measured once: 47, 47 and 36 %). What takes the time is each warpgroup's "
            "chain: products, maximum or not, exponentials, packing, one after another. More chains would "
            "fill the gaps, and registers allow four.",
        },
    ),
    figures={
        "overlap": "Chains of products and softmax in time: alone, in step, in turn, and as measured.",
        "barriers": "Barriers by source line, stage 14 and stage 15.",
        "memory": "The memory map of a block: Q, O, the rings, the mbarriers.",
        "roofline": "The stages so far, between the memory roof and the arithmetic roof.",
    },
    before=("14 tma_wgmma", "15 in_sequence"),
    given=GIVEN,
)
