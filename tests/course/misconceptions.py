"""For the instructor's page: what people get wrong in each lesson, and the wrong answer that embodies it."""

__all__ = ["MISCONCEPTIONS"]

# lesson -> two or three: (a wrong answer's name, what those believe who write it, what is so)
MISCONCEPTIONS = {
    0: (
        ("no_maximum", "Subtracting the maximum is cosmetic.", "Without it exp overflows."),
        (
            "scale_on_the_output",
            "A factor may be moved behind softmax.",
            "exp turns it into a power: other weights, not larger ones.",
        ),
        ("mean_over_keys", "Attention takes a mean over the keys.", "Weights are divided by their own sum."),
    ),
    1: (
        ("maximum_from_zero", "A running maximum starts at 0.", "The maximum of nothing is -inf."),
        (
            "one_loop",
            "Maximum and weights fit into one loop.",
            "A weight made before the last score has the wrong maximum; lesson 05 mends that.",
        ),
        ("sum_in_float64", "0.0 is a number like any other.", "To Numba a float64, as is every sum with it."),
    ),
    2: (
        (
            "load_not_transposed",
            "The order of an array is its writer's affair.",
            "Its reader must know it too.",
        ),
        ("accumulator_not_cleared", "A new array holds zeros.", "A local array holds what was there before."),
        ("score_made_again", "Computing anew saves memory traffic.", "It fetches K a second time."),
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
            "Lanes of a warp keep step by themselves.",
            "What another lane wrote may be read after a syncwarp.",
        ),
    ),
    4: (
        ("no_second_barrier", "A barrier stands between write and read.", "And one before the next write."),
        (
            "return_past_the_last_row",
            "A warp without a row may leave.",
            "The others wait for it at the next barrier.",
        ),
        ("a_third_barrier", "A barrier more does no harm.", "Right, and all 16 warps stop once more a tile."),
    ),
    5: (
        (
            "l_not_rescaled",
            "A new maximum concerns the weights to come.",
            "And the sum of those before it.",
        ),
        (
            "minus_inf_minus_inf",
            "-inf is a maximum like any other.",
            "Until a key is seen, -inf - -inf is NaN.",
        ),
        (
            "sum_reduced_in_every_tile",
            "A sum over lanes has to be finished at once.",
            "Shares add up; the last tile is soon enough.",
        ),
    ),
    6: (
        ("one_score_at_a_time", "Right values are enough.", "The same operands are loaded again and again."),
        (
            "neighbouring_keys",
            "A thread takes keys side by side.",
            "Threads side by side take keys side by side, and the mask counts on it.",
        ),
        ("q_loaded_for_every_key", "What was loaded before is free.", "Each load is a request of its own."),
    ),
    7: (
        ("pointer_as_value", "A pointer is the array.", "It is an address; what lies there needs an index."),
        ("padding_forgotten", "Rows lie 64 halves apart.", "They lie as far apart as the padding says."),
        (
            "one_number_at_a_time",
            "Bytes are bytes.",
            "A wide load is one instruction, eight narrow ones are eight.",
        ),
    ),
    8: (
        ("v_by_columns", "An operand lies in memory in one way.", "K is read as its transpose, V is not."),
        ("starts_at_zero", "An accumulator starts at zero.", "O goes on from the tile before: load it."),
        ("only_lane_0", "One lane can do it for the warp.", "A fragment lies in 32 lanes: all of them call."),
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
        ("no_barrier", "Warps on different tiles need no barrier.", "They hand the tiles on to each other."),
        (
            "softmax_of_the_same_tile",
            "A step works on one tile.",
            "Each role has its own: S of this step is there in the next.",
        ),
        (
            "a_barrier_a_role",
            "Each hand-over needs a barrier.",
            "One a step serves all; more, and roles take turns.",
        ),
    ),
    12: (
        (
            "rows_and_keys_swapped",
            "Registers of an operand go on by columns.",
            "The second one goes on by rows.",
        ),
        ("halves_swapped", "Within a register order is free.", "The lower half meets the lower row of V."),
        ("barrier", "Somebody has to wait before P is used.", "Each lane reads what it wrote itself."),
    ),
    13: (
        ("last_reference", "Parts can be added as they are.", "Each has a reference of its own."),
        ("sum_not_weighted", "Only O has a reference.", "l is a sum of the same weights."),
        ("minus_infinity", "-inf changes no maximum.", "True, and -inf - -inf is NaN all the same."),
    ),
    14: (
        (
            "parity_of_the_tile",
            "A wait names what it waits for.",
            "It names one of two phases, and the other one lets it pass.",
        ),
        (
            "no_wait_for_o",
            "A product that was started has read its operands.",
            "It reads on; its slot is free when it has been waited for.",
        ),
        ("no_mask", "Zeros behind the last key add nothing.", "A score of 0 is a weight like others."),
    ),
    15: (
        (
            "turn_through_softmax",
            "A turn lasts until its results are there.",
            "It is for issuing; the next one's products queue behind.",
        ),
        (
            "k_released_before_the_reference",
            "K has been read when Q K^T is done.",
            "Not by the warp that has to do its scores again.",
        ),
        (
            "no_turn",
            "The hardware shares fairly, so all is well.",
            "Who shares is done together, and idle together.",
        ),
    ),
    16: (
        (
            "no_cluster_wait",
            "What runs together starts together.",
            "A block may be written to when it has made its mbarriers, and says so.",
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
}
