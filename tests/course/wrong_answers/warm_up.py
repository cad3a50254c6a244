"""Wrong answers to the warm-up of lesson 07: a tile transposed, in CUDA C."""

from . import Wrong

LOAD = "if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];"
STORE = "out[out_row * rows + out_column] = tile[threadIdx.x][threadIdx.y];"
BARRIER = "    __syncthreads();  // the tile is whole before a warp loads a column of it\n"
DECLARED = "tile[TILE][TILE + 1];  // 33 floats apart: a column is in 32 banks"
OUT_ROW = "const int out_row = blockIdx.x * TILE + threadIdx.y;"
OUT_COLUMN = "const int out_column = blockIdx.y * TILE + threadIdx.x;"
INSIDE = "if (out_row < columns && out_column < rows)"
LOAD_AND_BARRIER = """\
if (row < rows && column < columns) {
        tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
        __syncthreads();
    }
"""

WRONG = (
    Wrong(
        "no_barrier", "A warp loads from the tile what other warps have not stored yet.",
        ((BARRIER, ""),),
        ("race", "barrier. With it"), LOAD, cause="barrier left out",
    ),
    Wrong(
        "barrier_under_the_condition", "The barrier is under the condition of the load.",
        ((LOAD + "\n" + BARRIER, LOAD_AND_BARRIER),),
        ("which statements the braces",), "if (row < rows && column < columns) {", cause="braces",
    ),
    Wrong(
        "warps_barrier", "__syncwarp for what other warps have stored.",
        (("__syncthreads();", "__syncwarp();"),),
        ("race", "the function, `__syncwarp`"),
        "__syncwarp();  // the tile is whole before a warp loads a column of it",
        cause="function",
    ),
    Wrong(
        "not_turned", "The tile is loaded as it was stored, so each tile keeps its rows.",
        (("= tile[threadIdx.x][threadIdx.y]", "= tile[threadIdx.y][threadIdx.x]"),),
        ("out",), STORE.replace("tile[threadIdx.x][threadIdx.y]", "tile[threadIdx.y][threadIdx.x]"),
        cause="index",
    ),
    Wrong(
        "no_padding", "Rows of the tile are 32 floats apart, so a column is in one bank.",
        ((DECLARED, "tile[TILE][TILE];"),),
        ("wavefronts of shared memory", "8,448", "line 9 .*8,192"), "__shared__ float tile[TILE][TILE];",
        cause="bank conflicts",
    ),
    Wrong(
        "blocks_not_exchanged", "Each tile is turned, and stored where it was.",
        ((OUT_ROW, OUT_ROW.replace("blockIdx.x", "blockIdx.y")),
         (OUT_COLUMN, OUT_COLUMN.replace("blockIdx.y", "blockIdx.x"))),
        ("out",), OUT_ROW.replace("blockIdx.x", "blockIdx.y"), cause="value",
    ),
    Wrong(
        "edge_of_x", "The load has no condition.",
        (("if (row < rows && column < columns) ", ""),),
        ("out of bounds",), LOAD.split(") ", 1)[1], cause="condition left out",
    ),
    Wrong(
        "edge_of_out", "The store compares with the extents of x, not with those of out.",
        ((INSIDE, "if (out_row < rows && out_column < columns)"),),
        ("out",), "if (out_row < rows && out_column < columns)", cause="condition",
    ),
    Wrong(
        "column_stored_directly", "Right, but a warp stores a column of out: 32 sectors per request.",
        (), ("sectors of the stores",), "out[column * rows + row] = tile[threadIdx.y][threadIdx.x];",
        text="""\
__shared__ float tile[TILE][TILE + 1];
const int row = blockIdx.y * TILE + threadIdx.y;
const int column = blockIdx.x * TILE + threadIdx.x;
if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
__syncthreads();
if (row < rows && column < columns)
    out[column * rows + row] = tile[threadIdx.y][threadIdx.x];
""", cause="global stores",
    ),
    Wrong(
        "column_loaded", "Right, but a warp loads a column of x: 32 sectors per request.",
        (), ("sectors of the loads", "8,192"), "const int row = blockIdx.y * TILE + threadIdx.x;",
        text="""\
__shared__ float tile[TILE][TILE + 1];
const int row = blockIdx.y * TILE + threadIdx.x;
const int column = blockIdx.x * TILE + threadIdx.y;
if (row < rows && column < columns)
    tile[threadIdx.x][threadIdx.y] = x[row * columns + column];
__syncthreads();
const int out_row = blockIdx.x * TILE + threadIdx.y;
const int out_column = blockIdx.y * TILE + threadIdx.x;
if (out_row < columns && out_column < rows)
    out[out_row * rows + out_column] = tile[threadIdx.x][threadIdx.y];
""", cause="global loads",
    ),
    Wrong(
        "row_length_of_x", "Rows of out are taken to be as long as rows of x.",
        (("out[out_row * rows", "out[out_row * columns"),),
        ("out",), STORE.replace("* rows", "* columns"), cause="index",
    ),
    Wrong(
        "python_index", "An element of the tile as NumPy writes it.",
        (("= tile[threadIdx.x][threadIdx.y]", "= tile[threadIdx.x, threadIdx.y]"),),
        ("is Python", r"tile\[row\]\[column\]"),
        STORE.replace("[threadIdx.x][threadIdx.y]", "[threadIdx.x, threadIdx.y]"),
        cause="refused",
    ),
    Wrong(
        "python_names", "threadIdx as Numba has it.",
        ((OUT_ROW, OUT_ROW.replace("threadIdx.y", "cuda.threadIdx.y")),),
        ("`cuda` is Python",), OUT_ROW.replace("threadIdx.y", "cuda.threadIdx.y"), cause="refused",
    ),
    Wrong(
        "no_type", "A new name without its type.",
        (("const int out_row =", "out_row ="),),
        ("out_row", "type"), "out_row = blockIdx.x * TILE + threadIdx.y;", cause="does not compile",
    ),
)  # fmt: skip
