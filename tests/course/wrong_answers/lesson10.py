"""Wrong answers to lesson 10: groups miscounted, buffers mistaken."""

from . import Wrong

COMMIT_BEHIND = "        }\n        ptx::cp_async_commit();\n    };\n"
COMMIT_INSIDE = "            ptx::cp_async_commit();\n        }\n    };\n"
V_LOAD = (
    "            load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, "
    "params.S_k - first_key);\n"
)
Q_COMMIT = "S_q - first_row);\n    ptx::cp_async_commit();\n"
LOOP = "for (int t = 0; t < STAGES - 1; t++) load_keys_and_values(tiles.begin + t);"

WRONG = (
    Wrong(
        "commit_inside_the_if",
        "A tile that does not exist gets no group, and the last waits are short.",
        ((COMMIT_BEHIND, COMMIT_INSIDE),),
        (r"missing wait.*q_smem", r"one for Q, then one for each tile"),
        line="ptx::cp_async_commit();",
        cause="order",
    ),
    Wrong(
        "prologue_one_too_many",
        "STAGES tiles before the first turn, which asks for the last again.",
        (("t < STAGES - 1; t++", "t < STAGES; t++"),),
        (r"missing wait", r"which\s+buffer a tile goes to"),
        line="for (int t = 0; t < STAGES; t++) load_keys_and_values(tiles.begin + t);",
        cause="loop bound",
    ),
    Wrong(
        "prologue_of_two_stages",
        "One tile, as in stage 09, whatever STAGES is.",
        ((LOOP, "load_keys_and_values(0);"),),
        (r"missing wait.*q_smem", r"one for Q, then one for each tile"),
        line="ptx::cp_async_commit();",
        cause="several places",
    ),
    Wrong(
        "two_buffers",
        "The ring has two buffers, whatever STAGES is.",
        (("t % STAGES", "t % 2"),),
        (r"missing wait", r"which\s+buffer a tile goes to"),
        line="const int first_key = t * KEYS, buffer = t % 2 * KEYS * LD;",
        cause="value",
    ),
    Wrong(
        "no_group_for_q",
        "Q joins the group of tile 0.",
        ((Q_COMMIT, "S_q - first_row);\n"),),
        (r"missing wait.*q_smem", r"one for Q, then one for each tile"),
        line="tile::load_tile_async<ROWS, D, LD, THREADS>(q_smem, q, params.q.row, params.S_q - first_row);",
        cause="commit left out",
    ),
    Wrong(
        "a_group_each",
        "K and V get a group each: the waits count twice as fast.",
        ((V_LOAD, "            ptx::cp_async_commit();\n" + V_LOAD),),
        (r"groups of copies waited for at once", r"one group for\s+Q and one for each tile"),
        line="ptx::cp_async_commit();",
        cause="extra commit",
    ),
    Wrong(
        "rows_inside",
        "The number of keys, not of keys left: the last tile reads past the end.",
        ((V_LOAD, V_LOAD.replace("params.S_k - first_key", "params.S_k")),),
        (r"out of bounds.*past the end of v", r"from the tile's first one"),
        line="load_tile(v_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k);",
        cause="argument",
    ),
    Wrong(
        "v_over_k",
        "V is copied into K's buffers.",
        (("load_tile(v_smem + buffer", "load_tile(k_smem + buffer"),),
        (r"missing wait.*k_smem",),
        line="load_tile(k_smem + buffer, v + first_key * params.v.row, params.v.row, params.S_k - "
        "first_key);",
        cause="argument",
    ),
    Wrong(
        "padding_forgotten",
        "Buffers are taken to be KEYS * D halves apart.",
        (("KEYS * LD;", "KEYS * D;"),),
        (r"missing wait.*k_smem", r"which\s+buffer a tile goes to"),
        line="const int first_key = t * KEYS, buffer = t % STAGES * KEYS * D;",
        cause="value",
    ),
    Wrong(
        "no_test",
        "Tiles after the last are asked for, too.",
        (("if (t < tiles.end) {", "{"),),
        (r"missing wait.*returns while",),
        line="const int first_key = t * KEYS, buffer = t % STAGES * KEYS * LD;",
        cause="condition left out",
    ),
)
