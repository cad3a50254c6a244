"""Lesson 07: half on the tensor core, and the same loop in two languages."""

from flashcore_numba.course.counters import total
from flashcore_numba.course.spec import Exercise, Explanation, Gate, Lesson, Question, Wanted

EXERCISE = Exercise(
    stage=7,
    file="stage07_wmma_qk.cu",
    first="const float4 four = *reinterpret_cast<const float4*>(p_row + key);",
    last="}",
    task="""\
The body of the loop over keys: add the weights of 4 keys, key to key + 3, times their rows of V to the 8
components of O that this lane owns:
    o[c] += P[row, key + i] * V[key + i, c]     for i = 0 to 3 and c = 0 to 7.
All 32 lanes execute every line together; each has its own o, p_row and v_smem.

Load the 4 weights with one 16-byte load, and the 8 components of a key with one 16-byte load.""",
    given={
        "o": "float[8], registers: this lane's 8 components of O, not yet divided by l",
        "p_row": "const float*, shared: the first weight of this lane's row of P; the next key's is 1 float "
        "on",
        "v_smem": "const element*, shared: component c = 0 of key 0, for this lane's 8 components; the next "
        "component is 1 half on, the next key LD halves",
        "key": "int: the first of the 4 keys, 0, 4, ... 28",
        "LD": "72: halves from one row of the V tile to the next",
        "tile::load8": "tile::load8(x, pointer): 8 halves from pointer on, as floats, into float x[8]; one "
        "16-byte load",
        "C++": "float v[8]; declares 8 floats; for (int i = 0; i < 4; i++) { ... } is a loop; a statement "
        "ends with ;",
        "float4": "four floats, .x .y .z .w; *reinterpret_cast<const float4*>(pointer) loads them, 16 bytes",
    },
    wanted=(
        Wanted("o[0]", "the first of the lane's 8 components of O, after these 4 keys"),
        Wanted("o[1]", "the second of the lane's 8 components of O, after these 4 keys"),
        Wanted("o[7]", "the last of the lane's 8 components of O, after these 4 keys"),
    ),
    hints=(
        "The Numba twin in the lesson is the whole answer in another language: one load of 4 weights, then "
        "for each of 4 keys one load of 8 components and 8 multiply-adds. Translate it line by line.",
        "The 4 weights: a float4, loaded from p_row + key as `load_scores` loads its 4 scores. Copy .x .y "
        ".z .w into float p[4], so that a loop can take them one by one.",
        "The components of key `key + i` begin at v_smem + (key + i) * LD. Declare float v[8]; inside the "
        "loop over i and let tile::load8 fill it.",
        "const float4 four = ... (p_row + key); const float p[4] = {four.x, four.y, four.z, four.w}; then "
        "for (int i = 0; i < 4; i++) { float v[8]; tile::load8(v, ...); and a loop over c in which "
        "o[c] += p[i] * v[c]; }",
    ),
    gates=(
        Gate(
            what="load requests to shared memory",
            value=total("shared_load_requests"),
            before=12_288,
            right=5_760,
            bar=6_000,
            advice="Four keys need five loads: one of 16 bytes for the four weights, and one of 16 bytes for "
            "each key's 8 components. Look for a load of a single number, or for one in the loop over c.",
            cause="shared loads",
        ),
        Gate(
            what="shared-memory wavefronts of all loads",
            value=total("shared_load_wavefronts"),
            before=24_576,
            right=20_992,
            bar=21_500,
            advice="A 16-byte load of V takes 4 wavefronts and one of P takes 2. More means that bytes are "
            "loaded that nobody needs, or twice.",
        ),
        Gate(
            what="barriers, counted once per warp",
            value=total("barriers"),
            before=192,
            right=384,
            bar=384,
            advice="P and V are whole when the region begins and nobody writes to them in it: nothing to "
            "wait for.",
        ),
    ),
    advice={
        "out of bounds": "An array float v[8] has elements 0 to 7. In shared memory, row key + i of the V "
        "tile begins (key + i) * LD halves after v_smem, and the weight of key + i is p_row[key + i]. Which "
        "of them left its array?",
        "uninitialised read": "After the 64 halves of a row of V come 8 of padding that nobody writes, and "
        "a local array such as float v[8] holds nothing until load8 has filled it.",
        "misaligned": "16 bytes are 4 floats or 8 halves. With key = 0, 4, 8, ... a load of P may start at "
        "p_row + key, and p_row + key + 1 is not a multiple. Of V it may start at a row, and rows are LD "
        "halves apart: v_smem + key + i is no beginning of one.",
    },
)

LESSON = Lesson(
    number=7,
    file="07_wmma_qk",
    title="Half on the tensor core",
    idea="The tensor core takes over one of the two products; what does the other half do?",
    exercise=EXERCISE,
    questions=(
        Question(
            key="products",
            text="A tensor-core product multiplies a 16 x 16 tile by a 16 x 16 tile and adds the result to a "
            "third. How many does Q K^T take for one head of 128 rows and 128 keys, D = 64?",
            unit="products",
            truth=lambda evidence: evidence.count(7, "mma"),
            source="counted",
            why="S has 8 x 8 parts of 16 x 16, and each is a sum of 64 / 16 = 4 products along D.",
        ),
        Question(
            key="wavefronts",
            text="Loads from shared memory cost stage 06 <!--count 6 shared_load_wavefronts--><!----> "
            "wavefronts at 1x1x128x64, half of them for Q K^T and half for P V. Stage 07 gives Q K^T to the "
            "tensor core, which takes a 16 x 16 tile of halves in 4 wavefronts. P V stays scalar: a lane "
            "owns 1 row and 8 components. How many wavefronts do stage 07's loads cost?",
            unit="wavefronts",
            truth=lambda evidence: evidence.count(7, "shared_load_wavefronts"),
            source="counted",
            why="Q K^T falls to a sixth. P V grows by half: for 1 row x 8 components a lane loads more for "
            "each multiply-add than for 2 x 4, and 4 rows of the warp load the same V one after the other.",
        ),
        Question(
            key="instructions",
            text="Of all instructions that the warps of stage 07 issue, what part is scalar P V: its loads, "
            "its multiply-adds, and whatever they need? Percent, at the mission shape.",
            unit="%",
            truth=lambda evidence: 100 * 16_384 * (2 * 256 + 40) / evidence.profiled(7, "instructions"),
            source="measured",
            why="In one tile a warp issues 256 multiply-adds, 256 conversions from half to float and 40 "
            "loads; there are 128 blocks x 8 warps x 16 tiles of that, against <!--calc profiled(7, "
            '"instructions") / 1e6 | .1f--><!----> million instructions that Nsight Compute counted in all.',
        ),
        Question(
            key="microseconds",
            text="Stage 06 takes <!--us 06 register_tiles--><!----> µs at 1x8x512x64 on the H200, and half "
            "of its multiply-adds are now nearly free. How long does stage 07 take?",
            unit="µs",
            truth=lambda evidence: evidence.us("07 wmma_qk"),
            source="measured",
            why="Only <!--ratio 06 register_tiles / 07 wmma_qk--><!----> times as fast: what Q K^T gave up, "
            "P V, its conversions and one more barrier per tile took.",
        ),
    ),
    explanation=Explanation(
        text="What sets the time of stage 07 at the mission shape, 1x8x512x64 on the H200?",
        right="scalar_pv",
        feedback={
            "scalar_pv": 'Yes: it is <!--calc 16384 * 552 / profiled(7, "instructions") | .0%--><!----> of '
            "all instructions, and without it the kernel took 12.0 µs instead of 27.0 (measured once, with "
            "wrong results). It is between two barriers, so nothing else runs beside it.",
            "tensor_core": 'No: it starts <!--calc profiled(7, "tensor_pct") | .1f--><!----> % of the '
            "instructions it could, and both products together would need <!--limit tensor--><!----> µs.",
            "memory": "Not its speed: all bytes take <!--limit memory--><!----> µs. Its latency counts: "
            '<!--calc stalled(7, "long_scoreboard") | .0%--><!----> of the waiting was for K and V. '
            "But the next stage waits for them as well, and needs little more than half of the time.",
            "exponentials": "No: the exponential unit needs <!--limit exp--><!----> µs for all pairs, and it "
            'was <!--calc profiled(7, "xu_pct") | .1f--><!----> % busy.',
            "bank_conflicts": "No: there are <!--count 7 bank_conflicts--><!---->. And lanes renumbered so "
            "that V costs half of its wavefronts changed nothing: 27.0 µs before and after (measured once).",
        },
    ),
    figures={
        "twin": "The same loop in Numba and in CUDA C, line beside line, and what both ask of shared memory.",
        "wavefronts": "Wavefronts of shared memory by source line.",
        "barriers": "Barriers by source line, beside those of stage 06.",
    },
    before=("06 register_tiles",),
)
