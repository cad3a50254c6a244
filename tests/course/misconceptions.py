"""For the instructor's page: what people get wrong in each lesson, and the wrong answer that embodies it."""

__all__ = ["MISCONCEPTIONS"]

# lesson -> two or three: (a wrong answer's name, what those believe who write it, what is so)
MISCONCEPTIONS = {
    0: (
        ("no_maximum", "Subtracting the maximum is cosmetic.", "Without it exp overflows."),
        (
            "scale_on_the_output",
            "A factor may be moved out of softmax.",
            "exp turns a factor into a power: the weights differ, and are not just larger.",
        ),
        ("mean_over_keys", "Attention takes a mean over the keys.", "Weights are divided by their own sum."),
    ),
    1: (
        ("maximum_from_zero", "A running maximum starts at 0.", "The maximum of nothing is -inf."),
        (
            "one_loop",
            "Maximum and weights fit into one loop.",
            "A weight made before the last score has the wrong maximum. Lesson 05 corrects it.",
        ),
        (
            "sum_in_float64",
            "0.0 is a number like any other.",
            "To Numba it is a float64, and so is every sum with it.",
        ),
    ),
    2: (
        (
            "load_not_transposed",
            "Only the writer of an array needs to know its order.",
            "The reader must know it, too.",
        ),
        ("accumulator_not_cleared", "A new array holds zeros.", "A local array holds what was there before."),
        ("score_made_again", "Computing a score again saves memory traffic.", "It fetches K a second time."),
    ),
    3: (
        ("shuffle_down", "A reduction leaves its result everywhere.", "A tree leaves it in one lane."),
        (
            "shuffle_under_condition",
            "A lane without a key may stay away.",
            "A shuffle needs every lane that its mask names.",
        ),
        (
            "lane_0_stores",
            "Lanes of a warp stay in step by themselves.",
            "A lane may read what another wrote only after a syncwarp.",
        ),
    ),
    4: (
        (
            "no_second_barrier",
            "One barrier, between write and read, is enough.",
            "The next write needs one before it.",
        ),
        (
            "return_past_the_last_row",
            "A warp without a row may leave.",
            "The others wait for it at the next barrier.",
        ),
        (
            "a_third_barrier",
            "One more barrier does no harm.",
            "The values are right, and all 16 warps stop once more per tile.",
        ),
    ),
    5: (
        (
            "l_not_rescaled",
            "A new maximum concerns only the weights to come.",
            "It concerns the sum of the earlier ones, too.",
        ),
        (
            "minus_inf_minus_inf",
            "-inf is a maximum like any other.",
            "Until a key is seen, -inf - -inf is NaN.",
        ),
        (
            "sum_reduced_in_every_tile",
            "A sum over lanes has to be finished at once.",
            "Each lane keeps its share, and the shares are added up after the last tile.",
        ),
    ),
    6: (
        ("one_score_at_a_time", "Right values are enough.", "The same operands are loaded again and again."),
        (
            "neighbouring_keys",
            "A thread takes keys side by side.",
            "Neighbouring threads take neighbouring keys, and the mask relies on it.",
        ),
        ("q_loaded_for_every_key", "What was loaded before is free.", "Each load is a request of its own."),
    ),
    "warm-up": (
        (
            "no_padding",
            "Shared memory has no order of access that is slow.",
            "A column of 32 floats in one bank takes 32 wavefronts.",
        ),
        (
            "barrier_under_the_condition",
            "A thread with nothing to load needs no barrier.",
            "It stores what others have loaded, and they wait for it.",
        ),
        (
            "edge_of_out",
            "One condition serves the load and the store.",
            "x and out have their extents the other way round.",
        ),
    ),
    7: (
        ("pointer_as_value", "A pointer is the array.", "It is an address. An element needs an index."),
        (
            "padding_forgotten",
            "Rows are 64 halves apart.",
            "They are as far apart as the padding makes them.",
        ),
        (
            "one_number_at_a_time",
            "Bytes are bytes.",
            "One wide load is one instruction; eight narrow loads are eight.",
        ),
    ),
    8: (
        (
            "v_by_columns",
            "Every operand has the same layout in memory.",
            "K is read as its transpose, V is not.",
        ),
        ("starts_at_zero", "An accumulator starts at zero.", "O continues from the earlier tiles: load it."),
        (
            "only_lane_0",
            "One lane can do it for the warp.",
            "A fragment is spread over 32 lanes: all of them call.",
        ),
    ),
    9: (
        (
            "no_barrier_after_the_wait",
            "A wait is for all copies.",
            "It is for this thread's own copies.",
        ),
        ("no_wait", "A barrier waits for copies, too.", "It waits for threads; copies go on without them."),
        ("waits_for_everything", "To wait for everything is safe.", "It is, and nothing overlaps."),
    ),
    10: (
        (
            "commit_inside_the_if",
            "A group is what it copies.",
            "Waits count groups, and empty ones count as well.",
        ),
        (
            "prologue_one_too_many",
            "A ring of n buffers has n tiles on their way.",
            "One is being read: n - 1.",
        ),
        ("a_group_each", "Each array is a group.", "Then the count of a wait means half as many tiles."),
    ),
    11: (
        ("no_barrier", "Warps on different tiles need no barrier.", "They pass the tiles on to each other."),
        (
            "softmax_of_the_same_tile",
            "A step works on one tile.",
            "Each role works on its own tile: S of this step is used in the next.",
        ),
        (
            "a_barrier_a_role",
            "Each hand-over needs a barrier of its own.",
            "One per step serves all. With more, the roles take turns.",
        ),
    ),
    12: (
        (
            "rows_and_keys_swapped",
            "The registers of an operand follow its columns.",
            "The second register follows the rows.",
        ),
        (
            "halves_swapped",
            "The order inside a register is free.",
            "The lower half meets the lower row of V.",
        ),
        ("barrier", "Somebody has to wait before P is used.", "Each lane reads what it wrote itself."),
    ),
    13: (
        ("last_reference", "Parts can be added as they are.", "Each has a reference of its own."),
        ("sum_not_weighted", "Only O has a reference.", "l is a sum of the same weights."),
        ("minus_infinity", "-inf changes no maximum.", "True, and -inf - -inf is still NaN."),
    ),
    14: (
        (
            "parity_of_the_tile",
            "A wait names what it waits for.",
            "It names one of two phases, and passes at once in the other.",
        ),
        (
            "no_wait_for_o",
            "A product that was started has read its operands.",
            "It is still reading. Its slot is free only after a wait for it.",
        ),
        ("no_mask", "Zeros past the last key add nothing.", "A score of 0 is a weight like others."),
    ),
    15: (
        (
            "turn_through_softmax",
            "A turn lasts until its results are there.",
            "It is for issuing. The next products queue up.",
        ),
        (
            "k_released_before_the_reference",
            "K has been read when Q K^T is done.",
            "A warp that must compute its scores again still reads it.",
        ),
        (
            "no_turn",
            "The hardware shares fairly, so all is well.",
            "Warpgroups that share finish together, and are idle together.",
        ),
    ),
    16: (
        (
            "no_cluster_wait",
            "What runs together starts together.",
            "A block may be written to once it has made its mbarriers, and has said so.",
        ),
        (
            "everybody_sends",
            "Storing the same value four times does no harm.",
            "Each store counts its bytes at the receiver.",
        ),
        (
            "sent_before_the_join",
            "Each part speaks for itself.",
            "The other block expects one state for both, for O is summed already.",
        ),
    ),
    17: (
        (
            "no_delta",
            "The gradient of a score needs its own weight and no other.",
            "All weights of a row share one sum, so what counts is the distance of dP from its mean, D.",
        ),
        (
            "not_normalised",
            "Softmax needs its row's maximum and sum again.",
            "The LSE has both: one exponential gives the weight, already divided.",
        ),
        (
            "key_loaded_again",
            "Loading a value again is cheaper than keeping it.",
            "It is half as many loads of K and V again, in a loop that waits for loads.",
        ),
    ),
    18: (
        (
            "delta_of_the_key",
            "D belongs to the lane's row.",
            "It belongs to a query, and queries are columns here.",
        ),
        (
            "stored_by_queries",
            "dQ needs rows of queries, so dS is stored by queries.",
            "It is stored as it is held. ldmatrix transposes it on the way in.",
        ),
        (
            "delta_left_out",
            "The gradient of a weight is dP.",
            "Weights of a row sum to 1: D is taken off all.",
        ),
    ),
    19: (
        (
            "no_syncwarp",
            "A lane that has passed its fence may speak for its warp.",
            "The others must have passed theirs before it arrives.",
        ),
        (
            "released_before_the_wait",
            "A product that was issued has read its operands.",
            "It reads until a wait says that it is done.",
        ),
        (
            "s_awaited",
            "A product is waited for where it is issued.",
            "It is waited for where its result is used: S after dQ has been issued, and dQ a tile later.",
        ),
    ),
    20: (
        (
            "plain_atomic",
            "An atomic orders what was stored before it.",
            "It counts. What it releases and acquires has to be asked for.",
        ),
        (
            "arrives_too_early",
            "A thread that arrives speaks for its block.",
            "The block's other threads may still be storing: a barrier comes first.",
        ),
        (
            "counter_left",
            "A counter is done with when the kernel ends.",
            "The next launch counts from what this one left, and so does a replay of a captured graph.",
        ),
    ),
    21: (
        (
            "whole_tiles",
            "What is past the last key has weight 0, so it may be read.",
            "It may be NaN, and 0 * NaN is NaN; and the table may have no entry there.",
        ),
        (
            "page_of_the_first_key",
            "A tile of keys is on one page.",
            "It is where its size divides the page's and it begins at a multiple of it, and nowhere else.",
        ),
        (
            "lookup_per_key",
            "A table that fits into the cache costs nothing.",
            "Each lookup is a load that the key's own load waits for. One per tile, handed out by shuffles, "
            "takes the wait out of the loop.",
        ),
    ),
    22: (
        (
            "scale_of_v_in_l",
            "The sum of P is what O is divided by.",
            "P carries the scale of V, so that tiles add up. The sum of the weights must not.",
        ),
        (
            "try_not_asked",
            "448 is 14 times the largest weight, so m may stay for good.",
            "A weight of a later tile may be any power of 2. What is beyond 448 is stored as 448, and l has "
            "all of it.",
        ),
        (
            "factor_may_be_0",
            "A product with 0 is 0.",
            "Not with minus infinity, which every masked score is.",
        ),
    ),
    23: (
        (
            "no_end_barrier",
            "A call is over when all that it computes is there.",
            "A peer may still be copying from this rank, and the next call writes there.",
        ),
        (
            "barrier_before_the_keys",
            "A barrier orders all that a GPU does.",
            "It orders the streams that come to it. What another stream has to do is unknown to it.",
        ),
        (
            "every_nth",
            "Pieces dealt out in turn are equal work.",
            "Each rank then has more than the rank before it. An early piece and a late one make up for each "
            "other.",
        ),
    ),
    24: (
        (
            "reports_not_read",
            "A kernel whose numbers are right is right.",
            "A race gives right numbers until a warp is late. The report does not wait for that.",
        ),
        (
            "nan_passes",
            "To refuse what is off by too much is to accept what is right.",
            "A NaN is neither: every comparison with it is false.",
        ),
        (
            "own_seed",
            "A fixed seed makes an evaluation repeatable, so it is the careful choice.",
            "What is always asked can be answered without computing. The seed has to be a secret, and "
            "recorded.",
        ),
    ),
    25: (
        (
            "m2_adds_up",
            "Sums of squares of parts add up.",
            "Each is about a mean of its own. What the means differ by is missing from the sum.",
        ),
        (
            "absent_shares_count",
            "What is set to 0 adds nothing.",
            "A message that is not there has mean 0, and 0 is a distance from the mean of all.",
        ),
        (
            "left_before_the_sum",
            "A lane without work may leave the turn.",
            "The other lanes of its warp wait for it at the next shuffle.",
        ),
    ),
}
