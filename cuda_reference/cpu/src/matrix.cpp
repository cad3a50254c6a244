// Matrix instructions: ldmatrix, stmatrix and mma of a warp, wgmma of a warpgroup (here each of its warps
// computes its own 16 rows). wgmma works beside the threads: its operands are read and its accumulators
// filled at the wait; until then the accumulators hold NaN.
#include <math.h>
#include "runtime.h"

namespace cpu {
namespace {
float to_float(uint32_t two_halves, int which) {
  const uint16_t bits = two_halves >> (16 * which);
  _Float16 value;
  memcpy(&value, &bits, 2);
  return (float)value;
}

float half_at(const void* address) {
  _Float16 value;
  memcpy(&value, address, 2);
  return (float)value;
}

// ---- ldmatrix, stmatrix
struct Rows {
  uint32_t* registers;
  char* row;
  int matrices;
  bool transposed, store;
};

void check_rows(const Lanes& lanes, const Rows* rows[]) {
  if (lanes.mask != ~0u) fault("warp mask", lanes.site, "the instruction needs all 32 lanes");
  for (int lane = 0; lane < 8 * rows[0]->matrices; lane++) {
    char* row = rows[lane]->row;
    if (!shared_owner(row))
      fault("bad instruction", lanes.site, "the row of lane %d is not in shared memory", lane);
    if ((uintptr_t)row % 16)
      fault("misaligned", lanes.site, "the row of lane %d does not start at a multiple of 16 bytes", lane);
    access(lanes.first_thread + lane, row, 16, rows[0]->store ? Access::write : Access::read, lanes.site);
  }
}

void move_rows(const Lanes& lanes) {
  const Rows* rows[32];
  const void* places[32];
  for (int lane = 0; lane < 32; lane++)
    rows[lane] = (Rows*)lanes.argument[lane], places[lane] = rows[lane]->row;
  check_rows(lanes, rows);
  count_rows(rows[0]->store ? Access::write : Access::read, places, 8 * rows[0]->matrices, lanes.site);
  for (int lane = 0; lane < 32; lane++)
    for (int matrix = 0; matrix < rows[0]->matrices; matrix++)
      for (int i = 0; i < 2; i++) {
        const int across = lane % 4 * 2 + i, along = lane / 4;
        const int row = rows[0]->transposed ? across : along, column = rows[0]->transposed ? along : across;
        char* element = rows[matrix * 8 + row]->row + 2 * column;
        char* in_register = (char*)&rows[lane]->registers[matrix] + 2 * i;
        if (rows[0]->store)
          memcpy(element, in_register, 2);
        else
          memcpy(in_register, element, 2);
      }
}

// ---- mma
struct Multiply {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
};

void multiply(const Lanes& lanes) {
  if (lanes.mask != ~0u) fault("warp mask", lanes.site, "mma needs all 32 lanes");
  float a[16][16], b[16][8];
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(Multiply*)lanes.argument[lane];
    const int g = lane / 4, t = lane % 4;
    for (int i = 0; i < 8; i++)
      a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = to_float(mine.a[i / 2], i % 2);
    for (int i = 0; i < 4; i++) b[2 * t + i % 2 + i / 2 * 8][g] = to_float(mine.b[i / 2], i % 2);
  }
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      float& d = ((Multiply*)lanes.argument[lane])->d[i];
      for (int k = 0; k < 16; k++) d += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
    }
}

// ---- wgmma
struct WarpgroupArgument {
  float* d;
  const uint32_t* a;
  int n;
  uint64_t a_tile, b_tile;
  bool transpose_b, accumulate;
};

// Where element (row, k) of a swizzled tile lies, from the start of dynamic shared memory; row counts m or n.
uint32_t tile_offset(uint64_t descriptor, int row, int k, bool mn_major) {
  uint32_t at = (descriptor & 0x3fff) << 4;
  const uint32_t panel = (descriptor >> 16 & 0x3fff) << 4, group = (descriptor >> 32 & 0x3fff) << 4;
  if (mn_major)
    at += row / 64 * panel + row % 64 * 2 + k / 8 * group + k % 8 * 128;
  else
    at += row / 8 * group + row % 8 * 128 + k * 2;
  return at ^ (at >> 7 & 7) << 4;
}

const char* tile_element(const Block& block, uint64_t descriptor, int row, int k, bool mn_major,
                         Place place) {
  const uint32_t offset = tile_offset(descriptor, row, k, mn_major);
  if (offset + 2 > launch.dynamic_bytes) {
    add_problem(
        "out of bounds", place, 0,
        text("wgmma reads byte %u of the %u bytes of dynamic shared memory", offset, launch.dynamic_bytes));
    stop_launch();
  }
  return block.dynamic + offset;
}

void touch_tile(const Actor& actor, Block& block, uint64_t descriptor, int first, int rows, bool mn_major,
                Place place) {
  for (int row = first; row < first + rows; row++)
    for (int k = 0; k < 16; k++) {
      const char* element = tile_element(block, descriptor, row, k, mn_major, place);
      touch_shared(actor, block, element - block.storage, 2, Access::read, place);
    }
}

void check_product(const Lanes& lanes, const WarpgroupArgument& first) {
  if (lanes.mask != ~0u) fault("warp mask", lanes.site, "wgmma needs all 32 lanes of four warps");
  if (first.n % 8 || first.n > 256)
    fault("bad instruction", lanes.site, "N is a multiple of 8 up to 256, not %d", first.n);
  for (uint64_t tile : {first.b_tile, first.a ? first.b_tile : first.a_tile})
    if (tile >> 62 != 1)
      fault("bad instruction", lanes.site,
            "the CPU executor knows tiles that are swizzled over 128 bytes only");
  for (int lane = 1; lane < 32; lane++) {
    auto& other = *(WarpgroupArgument*)lanes.argument[lane];
    if (other.a_tile != first.a_tile || other.b_tile != first.b_tile)
      fault("bad instruction", lanes.site, "lane %d gives another tile than lane 0", lane);
  }
}

void poison_accumulators(WarpProducts& products, Product& product, const Lanes& lanes, int count) {
  for (int lane = 0; lane < 32; lane++) {
    float* d = ((WarpgroupArgument*)lanes.argument[lane])->d;
    if (!products.sums.count(d)) products.sums[d] = std::vector<float>(d, d + count);
    memset((void*)d, 0xff, count * sizeof(float));
    product.d.push_back(d);
  }
}

void issue_product(const Lanes& lanes) {
  auto& first = *(WarpgroupArgument*)lanes.argument[0];
  check_product(lanes, first);
  Block& block = *current->block;
  const int warp = lanes.first_thread / 32;
  WarpProducts& products = block.products[warp];
  const Place place = intern(lanes.site);
  if (!products.fenced)
    problem("missing fence", lanes.site,
            "warp %d has no wgmma.fence between its last use of the registers and this wgmma", warp);
  Product product{first.n,
                  first.a != nullptr,
                  first.transpose_b,
                  first.accumulate,
                  first.a_tile,
                  first.b_tile,
                  {},
                  {},
                  {},
                  place};
  const uint16_t agent = launch.product_agent(block.rank, warp);
  product.clock = block.fibers[lanes.first_thread].clock;
  for (int lane = 1; lane < 32; lane++) product.clock.join(block.fibers[lanes.first_thread + lane].clock);
  static uint32_t issued;
  launch.fences = true;
  product.clock.seen[agent] = product.clock.fenced[agent] = ++issued;
  const Actor actor{agent, &product.clock, issued, true, nullptr};
  if (launch.checks) {
    if (!first.a) touch_tile(actor, block, first.a_tile, warp % 4 * 16, 16, false, place);
    touch_tile(actor, block, first.b_tile, 0, first.n, first.transpose_b, place);
  }
  for (int lane = 0; lane < 32; lane++) {
    if (first.a) memcpy(product.a_registers[lane], ((WarpgroupArgument*)lanes.argument[lane])->a, 16);
    block.fibers[lanes.first_thread + lane].tick();
  }
  poison_accumulators(products, product, lanes, first.n / 2);
  products.open.push_back(std::move(product));
}

void load_a(const Block& block, const Product& product, int warp, float (&a)[16][16]) {
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < 16; k++) {
      const int lane = m % 8 * 4 + k % 8 / 2, in_register = m / 8 + k / 8 * 2;
      a[m][k] = product.registers_a
                    ? to_float(product.a_registers[lane][in_register], k % 2)
                    : half_at(tile_element(block, product.a, warp % 4 * 16 + m, k, false, product.place));
    }
}

void compute_product(const Block& block, WarpProducts& products, const Product& product, int warp) {
  float a[16][16];
  load_a(block, product, warp, a);
  for (int n = 0; n < product.n; n++) {
    float b[16];
    for (int k = 0; k < 16; k++)
      b[k] = half_at(tile_element(block, product.b, n, k, product.transpose_b, product.place));
    for (int m = 0; m < 16; m++) {
      float& d = products.sums[product.d[m % 8 * 4 + n % 8 / 2]][n / 8 * 4 + m / 8 * 2 + n % 2];
      float sum = product.accumulate ? d : 0;
      for (int k = 0; k < 16; k++) sum += a[m][k] * b[k];
      d = sum;
    }
  }
}

bool still_needed(const WarpProducts& products, float* d) {
  auto uses = [&](const Product& product) {
    for (float* each : product.d)
      if (each == d) return true;
    return false;
  };
  for (auto& group : products.groups)
    for (auto& product : group)
      if (uses(product)) return true;
  for (auto& product : products.open)
    if (uses(product)) return true;
  return false;
}

void hand_over_accumulators(WarpProducts& products) {
  for (auto sums = products.sums.begin(); sums != products.sums.end();) {
    if (still_needed(products, sums->first)) {
      ++sums;
      continue;
    }
    memcpy(sums->first, sums->second.data(), sums->second.size() * sizeof(float));
    sums = products.sums.erase(sums);
  }
}

void wait_for_products(const Lanes& lanes) {
  Block& block = *current->block;
  const int warp = lanes.first_thread / 32, pending = *(int*)lanes.argument[0];
  WarpProducts& products = block.products[warp];
  while ((int)products.groups.size() > pending) {
    for (auto& product : products.groups.front()) {
      compute_product(block, products, product, warp);
      for (int lane = 0; lane < 32; lane++) block.fibers[lanes.first_thread + lane].clock.join(product.clock);
    }
    products.groups.erase(products.groups.begin());
  }
  hand_over_accumulators(products);
  if (products.groups.empty() && products.open.empty()) products.fenced = false;
}
}  // namespace

bool is_accumulator_in_use(const Fiber& fiber, const void* address) {
  auto& sums = fiber.block->products[fiber.warp()].sums;
  if (sums.empty()) return false;
  auto after = sums.upper_bound((float*)address);
  if (after == sums.begin()) return false;
  --after;
  return address < after->first + after->second.size();
}

void ldmatrix(uint32_t* registers, int matrices, bool transposed, const void* row, Site site) {
  Rows mine{registers, (char*)row, matrices, transposed, false};
  warp_collective(transposed ? "ldmatrix.trans" : "ldmatrix", "", ~0u, &mine, move_rows, site);
}

void stmatrix(void* row, const uint32_t* registers, int matrices, bool transposed, Site site) {
  Rows mine{(uint32_t*)registers, (char*)row, matrices, transposed, true};
  warp_collective(transposed ? "stmatrix.trans" : "stmatrix", "", ~0u, &mine, move_rows, site);
}

void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, Site site) {
  Multiply mine{d, a, {b0, b1}};
  warp_collective("mma.m16n8k16", "mma", ~0u, &mine, multiply, site);
}

float ex2(float x) { return exp2f(x); }

uint32_t pack_half2(float low, float high) {
  const _Float16 halves[2] = {(_Float16)low, (_Float16)high};
  uint32_t both;
  memcpy(&both, halves, 4);
  return both;
}

uint32_t fma_half2(uint32_t a, uint32_t b, uint32_t c) {
  _Float16 x[2], y[2], z[2];
  memcpy(x, &a, 4), memcpy(y, &b, 4), memcpy(z, &c, 4);
  // The product is exact in float; only the double sum is rounded, once, to the half.
  for (int i = 0; i < 2; i++) z[i] = (_Float16)((double)((float)x[i] * (float)y[i]) + (double)z[i]);
  memcpy(&c, z, 4);
  return c;
}

void wgmma(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool transpose_b,
           int accumulate, Site site) {
  WarpgroupArgument mine{d, a_registers, n, a, b, transpose_b, accumulate != 0};
  warp_collective("wgmma.mma_async", "wgmma", ~0u, &mine, issue_product, site);
}

void wgmma_fence(Site site) {
  warp_collective(
      "wgmma.fence", "", ~0u, nullptr,
      [](const Lanes& lanes) { current->block->products[lanes.first_thread / 32].fenced = true; }, site);
}

void wgmma_commit(Site site) {
  warp_collective(
      "wgmma.commit_group", "", ~0u, nullptr,
      [](const Lanes& lanes) {
        auto& products = current->block->products[lanes.first_thread / 32];
        products.groups.push_back(std::move(products.open));
        products.open.clear();
      },
      site);
}

void wgmma_wait(int pending, Site site) {
  warp_collective("wgmma.wait_group", "wait", ~0u, &pending, wait_for_products, site);
}

void set_registers(int registers, bool, Site site) {
  if (registers < 24 || registers > 256 || registers % 8)
    fault("bad instruction", site, "setmaxnreg takes a multiple of 8 from 24 to 256, not %d", registers);
}
}  // namespace cpu
