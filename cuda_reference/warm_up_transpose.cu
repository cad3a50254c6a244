// Warm-up: out = x^T by tiles of 32 x 32 floats. It is no stage of the ladder; it is the first kernel in
// CUDA C that a reader of the course writes.
//
// A block of 32 x 32 threads owns one tile. A warp is a row of threads: it loads 32 neighbours of a row of x
// and stores 32 neighbours of a row of out, so that a request touches 4 sectors where rows are aligned, and 5
// otherwise. The rows of out are columns of x, so the tile turns in shared memory: a warp stores a row of it
// and loads a column.
constexpr int TILE = 32;

extern "C" __global__ void __launch_bounds__(TILE* TILE)
transpose(const float* x, float* out, int rows, int columns) {  // x: [rows, columns], out: [columns, rows]
    __shared__ float tile[TILE][TILE + 1];  // 33 floats apart: a column is in 32 banks
    const int row = blockIdx.y * TILE + threadIdx.y;     // of x
    const int column = blockIdx.x * TILE + threadIdx.x;  // of x
    if (row < rows && column < columns) tile[threadIdx.y][threadIdx.x] = x[row * columns + column];
    __syncthreads();  // the tile is whole before a warp loads a column of it
    const int out_row = blockIdx.x * TILE + threadIdx.y;
    const int out_column = blockIdx.y * TILE + threadIdx.x;
    if (out_row < columns && out_column < rows)
        out[out_row * rows + out_column] = tile[threadIdx.x][threadIdx.y];
}
