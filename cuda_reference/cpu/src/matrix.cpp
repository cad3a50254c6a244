// Matrix instructions: ldmatrix, stmatrix and mma of a warp, wgmma of a warpgroup (here each of its warps
// computes its own 16 rows). wgmma works beside the threads: its operands are read and its accumulators
// filled at the wait; until then the accumulators hold NaN.
#include <algorithm>
#include <array>
#include <float.h>
#include <math.h>
#include "runtime.h"

namespace cpu {
namespace {
float to_float(uint16_t bits, Element element) {
  if (element == Element::bfloat16) return bfloat16_float(bits);
  _Float16 value;
  memcpy(&value, &bits, 2);
  return (float)value;
}

float in_pair(uint32_t pair, int which, Element element) { return to_float(pair >> (16 * which), element); }

float e4m3_float(uint8_t byte) {
  const int exponent = byte >> 3 & 15, mantissa = byte & 7;
  if ((byte & 0x7f) == 0x7f) return NAN;
  const float size = exponent ? ldexpf(8 + mantissa, exponent - 10) : ldexpf(mantissa, -9);
  return byte & 0x80 ? -size : size;
}

// Of the bytes of a tile or of a register.
int bytes_of(Element element) { return element == Element::e4m3 ? 1 : 2; }

float element_at(const void* address, Element element) {
  if (element == Element::e4m3) {
    static const auto all = [] {
      std::array<float, 256> found;
      for (int byte = 0; byte < 256; byte++) found[byte] = e4m3_float(byte);
      return found;
    }();
    return all[*(const uint8_t*)address];
  }
  uint16_t bits;
  memcpy(&bits, address, 2);
  return to_float(bits, element);
}

// `value` is a float, or more exact than one: it is rounded once.
uint16_t rounded(double value, Element element) {
  if (element == Element::bfloat16) return bfloat16_bits(value);
  const _Float16 half = (_Float16)value;
  uint16_t bits;
  memcpy(&bits, &half, 2);
  return bits;
}

// An instruction's operand, an array of the lane that runs it.
void touch_register(const Lanes& lanes, int lane, const void* address, size_t bytes, Access access) {
  Fiber& fiber = current->block->fibers[lanes.first_thread + lane];
  if (!launch.checks || !inside(address, fiber.stack, STACK_BYTES)) return;
  for (size_t i = 0; i < bytes && access == Access::read; i += sizeof(uint32_t))
    check_set(fiber, (const char*)address + i, sizeof(uint32_t), intern(lanes.site));
  touch_registers(fiber, address, bytes, access, intern(lanes.site));
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
    for (int matrix = 0; matrix < rows[0]->matrices; matrix++) {
      touch_register(lanes, lane, &rows[lane]->registers[matrix], 4, rows[0]->store ? Access::read : Access::write);
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
}

// ---- mma
struct Multiply {
  float* d;
  const uint32_t* a;
  uint32_t b[2];
  Element element;
};

template <int K> void multiply(const Lanes& lanes) {  // m16n8k8, m16n8k16
  if (lanes.mask != ~0u) fault("warp mask", lanes.site, "mma needs all 32 lanes");
  float a[16][K], b[K][8];
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(Multiply*)lanes.argument[lane];
    const int g = lane / 4, t = lane % 4;
    touch_register(lanes, lane, mine.a, K, Access::read);
    touch_register(lanes, lane, mine.d, 16, Access::read);
    touch_register(lanes, lane, mine.d, 16, Access::write);
    for (int i = 0; i < K / 2; i++)
      a[g + i / 2 % 2 * 8][2 * t + i % 2 + i / 4 * 8] = in_pair(mine.a[i / 2], i % 2, mine.element);
    for (int i = 0; i < K / 4; i++)
      b[2 * t + i % 2 + i / 2 * 8][g] = in_pair(mine.b[i / 2], i % 2, mine.element);
  }
  for (int lane = 0; lane < 32; lane++)
    for (int i = 0; i < 4; i++) {
      float& d = ((Multiply*)lanes.argument[lane])->d[i];
      for (int k = 0; k < K; k++) d += a[lane / 4 + i / 2 * 8][k] * b[k][lane % 4 * 2 + i % 2];
    }
}

// ---- wgmma
struct WarpgroupArgument {
  float* d;
  const uint32_t* a;
  int n;
  uint64_t a_tile, b_tile;
  bool transpose_b, accumulate;
  Element element;
};

// Of wgmma: k is so many bytes, whatever the elements.
constexpr int K_BYTES = 32, MOST_K = K_BYTES;

// Bytes over which a tile is swizzled, as many as a K-major row has; 0 for what the executor does not know.
uint32_t swizzle_of(uint64_t descriptor) { return descriptor >> 62 == 1 ? 128 : descriptor >> 62 == 2 ? 64
                                                                                                      : 0; }

// Where byte k of a row of a swizzled tile lies, from the start of dynamic shared memory; row counts m or n.
// MN-major: element k.
uint32_t tile_offset(uint64_t descriptor, int row, int k, bool mn_major) {
  uint32_t at = (descriptor & 0x3fff) << 4;
  const uint32_t panel = (descriptor >> 16 & 0x3fff) << 4, group = (descriptor >> 32 & 0x3fff) << 4;
  const uint32_t row_bytes = swizzle_of(descriptor);
  if (mn_major)
    at += row / 64 * panel + row % 64 * 2 + k / 8 * group + k % 8 * 128;
  else
    at += row / 8 * group + row % 8 * row_bytes + k;
  return at ^ (at >> 7 & (row_bytes / 16 - 1)) << 4;
}

const char* tile_element(const Block& block, uint64_t descriptor, int row, int k, bool mn_major,
                         Element element, Place place) {
  const uint32_t offset = tile_offset(descriptor, row, mn_major ? k : k * bytes_of(element), mn_major);
  if (offset + bytes_of(element) > launch.dynamic_bytes) {
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
    for (int k = 0; k < K_BYTES / 2; k++) {  // two bytes at a time, whatever they hold
      const char* element = tile_element(block, descriptor, row, k, mn_major, Element::float16, place);
      touch_shared(actor, block, element - block.storage, 2, Access::read, place);
    }
}

void check_product(const Lanes& lanes, const WarpgroupArgument& first) {
  if (lanes.mask != ~0u) fault("warp mask", lanes.site, "wgmma needs all 32 lanes of four warps");
  if (first.n % 8 || first.n > 256)
    fault("bad instruction", lanes.site, "N is a multiple of 8 up to 256, not %d", first.n);
  for (uint64_t tile : {first.b_tile, first.a ? first.b_tile : first.a_tile})
    if (swizzle_of(tile) == 0 || (first.transpose_b && swizzle_of(tile) != 128))
      fault("bad instruction", lanes.site,
            "the CPU executor knows tiles that are swizzled over 128 bytes, and K-major ones over 64, only");
  for (int lane = 1; lane < 32; lane++) {
    auto& other = *(WarpgroupArgument*)lanes.argument[lane];
    if (other.a_tile != first.a_tile || other.b_tile != first.b_tile)
      fault("bad instruction", lanes.site, "lane %d gives another tile than lane 0", lane);
  }
}

// ---- registers of products in flight
bool overlap(const InFlight& one, const void* start, size_t bytes) {
  return start < one.end && one.start < (const char*)start + bytes;
}

void add_in_flight(WarpProducts& products, const Product& product, int lane) {
  auto& all = products.in_flight[lane];
  auto add = [&](const void* start, size_t bytes, bool accumulators) {
    const InFlight fresh{(const char*)start, (const char*)start + bytes, accumulators, false, product.number,
                         product.place};
    for (auto& each : all)
      if (each.start == fresh.start && each.accumulators == accumulators) {
        each = fresh;
        return;
      }
    all.push_back(fresh);
  };
  add(product.d[lane], product.n / 2 * sizeof(float), true);
  if (product.registers_a) add(product.a_place[lane], sizeof product.a_registers[lane], false);
}

// The registers of one product and lane, at issue.
std::string about_sums(bool accumulators) { return accumulators ? fact("about", 0, "accumulators") : ""; }

void check_operand(const Lanes& lanes, const WarpProducts& products, int lane, const void* start, size_t bytes,
                   bool accumulators, bool read) {
  Fiber& fiber = current->block->fibers[lanes.first_thread + lane];
  const char* name = accumulators ? "accumulators" : "left operand";
  for (auto& each : products.in_flight[lane]) {
    if (!overlap(each, start, bytes) || (!accumulators && !each.accumulators)) continue;
    // Products of one shape may follow each other on the same accumulators, which nobody has touched since.
    if (accumulators && each.accumulators && each.start == start && each.end == each.start + bytes) return;
    add_problem("missing wait", intern(lanes.site), each.place,
                text("the %s of this wgmma are registers that another one still %s, with no wgmma.wait_group "
                     "between, in %s",
                     name, each.accumulators ? "writes" : "reads", who(fiber.agent).c_str()) +
                    about_sums(accumulators));
    break;
  }
  if (!inside(start, fiber.stack, STACK_BYTES)) return;
  if (fiber.use) {
    const uint16_t* use = fiber.use->fences + ((const char*)start - fiber.stack) / 4;
    if (std::find(use, use + bytes / 4, products.fences) != use + bytes / 4)
      problem("missing fence", lanes.site,
              "no wgmma.fence between the last use of registers and this wgmma, of which they are the %s, by %s%s",
              name, who(fiber.agent).c_str(), about_sums(accumulators).c_str());
  }
  for (size_t i = 0; read && i < bytes; i += sizeof(uint32_t))
    check_set(fiber, (const char*)start + i, sizeof(uint32_t), intern(lanes.site));
}

void check_operands(const Lanes& lanes, const WarpProducts& products) {
  if (!products.fences)
    problem("missing fence", lanes.site, "warp %d has no wgmma.fence before its first wgmma",
            lanes.first_thread / 32);
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(WarpgroupArgument*)lanes.argument[lane];
    check_operand(lanes, products, lane, mine.d, mine.n / 2 * sizeof(float), true,
                  mine.accumulate && !products.sums.count(mine.d));
    if (mine.a) check_operand(lanes, products, lane, mine.a, 4 * sizeof(uint32_t), false, true);
  }
}

// A left operand that changed in a way that no access showed.
void check_unchanged(const Lanes& lanes, WarpProducts& products, const Product& product) {
  if (!product.registers_a) return;
  for (int lane = 0; lane < 32; lane++)
    for (auto& each : products.in_flight[lane]) {
      if (each.accumulators || each.told || each.product != product.number) continue;
      if (!memcmp(each.start, product.a_registers[lane], sizeof product.a_registers[lane])) continue;
      add_problem("missing wait", product.place, intern(lanes.site),
                  text("the left operand of this wgmma changed before wgmma.wait_group, in %s",
                       who(current->block->fibers[lanes.first_thread + lane].agent).c_str()));
      return;
    }
}

void poison_accumulators(WarpProducts& products, Product& product, const Lanes& lanes, int count) {
  for (int lane = 0; lane < 32; lane++) {
    auto& mine = *(WarpgroupArgument*)lanes.argument[lane];
    if (!products.sums.count(mine.d)) products.sums[mine.d] = std::vector<float>(mine.d, mine.d + count);
    memset((void*)mine.d, 0xff, count * sizeof(float));
    product.d.push_back(mine.d);
    product.a_place[lane] = mine.a;
    add_in_flight(products, product, lane);
  }
}

// A wgmma is one instruction of four warps: they issue the same ones, on the same tiles.
void check_warpgroup(Block& block, int warp, const Issued& mine) {
  Warpgroup& group = block.warpgroups[warp / 4];
  if (group.told) return;
  const uint32_t at = group.issued[warp % 4]++ - group.gone;
  if (at == group.ahead.size()) {
    group.ahead.push_back(mine);
    return;
  }
  const Issued& other = group.ahead[at];
  if (!(mine == other)) {
    group.told = true;
    const char* const what = mine.place != other.place                ? "another wgmma than"
                             : mine.a != other.a || mine.b != other.b ? "other tiles than"
                                                                      : "another shape than";
    add_problem("bad instruction", mine.place, other.place,
                text("warp %d gives this wgmma %s another warp of its warpgroup", warp, what));
  }
  if (*std::min_element(group.issued, group.issued + 4) == group.gone) return;
  group.ahead.pop_front();
  group.gone++;
}

void issue_product(const Lanes& lanes) {
  auto& first = *(WarpgroupArgument*)lanes.argument[0];
  check_product(lanes, first);
  Block& block = *current->block;
  const int warp = lanes.first_thread / 32;
  WarpProducts& products = block.products[warp];
  const Place place = intern(lanes.site);
  if (launch.checks) {
    check_operands(lanes, products);
    check_warpgroup(block, warp,
                    {place, first.n, first.a ? 0 : first.a_tile, first.b_tile, first.a != nullptr, first.transpose_b,
                     first.element});
  }
  Product product{first.n,
                  first.a != nullptr,
                  first.transpose_b,
                  first.accumulate,
                  first.element,
                  first.a_tile,
                  first.b_tile,
                  {},
                  {},
                  {},
                  {},
                  place,
                  0};
  const uint16_t agent = launch.product_agent(block.rank, warp);
  product.clock = block.fibers[lanes.first_thread].clock;
  for (int lane = 1; lane < 32; lane++) product.clock.join(block.fibers[lanes.first_thread + lane].clock);
  static uint32_t issued;
  launch.fences = true;
  product.clock.seen[agent] = product.clock.fenced[agent] = product.number = ++issued;
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

void load_a(const Block& block, const Product& product, int warp, float (&a)[16][MOST_K]) {
  const int bytes = bytes_of(product.element), each = 4 / bytes, steps = K_BYTES / bytes;
  for (int m = 0; m < 16; m++)
    for (int k = 0; k < steps; k++) {
      const int lane = m % 8 * 4 + k % (4 * each) / each, in_register = m / 8 + k / (4 * each) * 2;
      const char* from = product.registers_a
                             ? (const char*)&product.a_registers[lane][in_register] + k % each * bytes
                             : tile_element(block, product.a, warp % 4 * 16 + m, k, false, product.element,
                                            product.place);
      a[m][k] = element_at(from, product.element);
    }
}

// d + a b of e4m3: every addend is cut off at 2^-13 of the highest bit of the largest one (DeepSeek-AI 2024,
// DeepSeek-V3, section 3.5.2: Hopper keeps around 14 bits).
float sum_of_e4m3(float d, const float* a, const float* b, int steps) {
  constexpr int KEPT = 13;
  float products[MOST_K], largest = fabsf(d);
  bool bad = d != d;
  for (int k = 0; k < steps; k++) {
    products[k] = a[k] * b[k];
    bad |= products[k] != products[k];
    largest = std::max(largest, fabsf(products[k]));
  }
  if (bad || largest == 0) return bad ? NAN : 0.0f;
  const int exponent = ilogbf(largest) - KEPT;
  const float up = ldexpf(1, -exponent);
  int sum = (int)(d * up);
  for (int k = 0; k < steps; k++) sum += (int)(products[k] * up);
  return ldexpf((float)sum, exponent);
}

void compute_product(const Block& block, WarpProducts& products, const Product& product, int warp) {
  float a[16][MOST_K], b[MOST_K];
  const int steps = K_BYTES / bytes_of(product.element);
  load_a(block, product, warp, a);
  for (int n = 0; n < product.n; n++) {
    for (int k = 0; k < steps; k++)
      b[k] = element_at(
          tile_element(block, product.b, n, k, product.transpose_b, product.element, product.place),
          product.element);
    for (int m = 0; m < 16; m++) {
      float& d = products.sums[product.d[m % 8 * 4 + n % 8 / 2]][n / 8 * 4 + m / 8 * 2 + n % 2];
      float sum = product.accumulate ? d : 0;
      if (product.element == Element::e4m3)
        sum = sum_of_e4m3(sum, a[m], b, steps);
      else
        for (int k = 0; k < steps; k++) sum += a[m][k] * b[k];
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

void forget_landed(WarpProducts& products) {
  std::unordered_set<uint32_t> under_way;
  for (auto& group : products.groups)
    for (auto& product : group) under_way.insert(product.number);
  for (auto& product : products.open) under_way.insert(product.number);
  for (auto& lane : products.in_flight)
    lane.erase(std::remove_if(lane.begin(), lane.end(),
                              [&](auto& each) { return !under_way.count(each.product); }),
               lane.end());
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
      check_unchanged(lanes, products, product);
      compute_product(block, products, product, warp);
      for (int lane = 0; lane < 32; lane++) block.fibers[lanes.first_thread + lane].clock.join(product.clock);
    }
    products.groups.erase(products.groups.begin());
  }
  hand_over_accumulators(products);
  forget_landed(products);
}
}  // namespace

void check_in_flight(Fiber& fiber, const void* address, size_t bytes, Access access, Place place) {
  for (auto& each : fiber.block->products[fiber.warp()].in_flight[fiber.lane()]) {
    if (!overlap(each, address, bytes) || (!each.accumulators && access == Access::read)) continue;
    each.told = true;
    add_problem("missing wait", place, each.place,
                text("%s is %s before wgmma.wait_group, by %s",
                     each.accumulators ? "a wgmma accumulator" : "a register of the left operand of a wgmma",
                     access == Access::read ? "read" : "written", who(fiber.agent).c_str()) +
                    about_sums(each.accumulators));
  }
}

// Kept from one block to the next, and from launch to launch.
static void watch_stack(Fiber& fiber, bool again) {
  if (fiber.use && !again) return;
  static std::deque<StackUse> all;
  const size_t at = (size_t)fiber.block->seat * MOST_THREADS + fiber.thread, words = STACK_BYTES / 4;
  while (all.size() <= at) all.emplace_back();
  fiber.use = &all[at];
  if (!fiber.use->fences) fiber.use->fences = (uint16_t*)calloc(words, sizeof(uint16_t));
  memset(fiber.use->fences + fiber.use->lowest, 0, (words - fiber.use->lowest) * sizeof(uint16_t));
  fiber.use->lowest = words;
}

void ldmatrix(uint32_t* registers, int matrices, bool transposed, const void* row, Site site) {
  Rows mine{registers, (char*)row, matrices, transposed, false};
  warp_collective(transposed ? "ldmatrix.trans" : "ldmatrix", "", ~0u, &mine, move_rows, site);
}

void stmatrix(void* row, const uint32_t* registers, int matrices, bool transposed, Site site) {
  Rows mine{(uint32_t*)registers, (char*)row, matrices, transposed, true};
  warp_collective(transposed ? "stmatrix.trans" : "stmatrix", "", ~0u, &mine, move_rows, site);
}

void mma_m16n8k16(float* d, const uint32_t* a, uint32_t b0, uint32_t b1, Element element, Site site) {
  Multiply mine{d, a, {b0, b1}, element};
  warp_collective("mma.m16n8k16", "mma", ~0u, &mine, multiply<16>, site);
}

void mma_m16n8k8(float* d, const uint32_t* a, uint32_t b, Element element, Site site) {
  Multiply mine{d, a, {b, 0}, element};
  warp_collective("mma.m16n8k8", "mma", ~0u, &mine, multiply<8>, site);
}

// .ftz: what would be subnormal is 0.
float ex2(float x) {
  const float y = exp2f(x);
  return y < FLT_MIN ? 0.0f : y;
}

// As right as the GPU's: 11 bits, the last of them rounded.
float tanh(float x) {
  const float y = tanhf(x);
  if (!(fabsf(y) > 0)) return y;
  int exponent;
  frexpf(y, &exponent);
  return ldexpf(rintf(ldexpf(y, 11 - exponent)), exponent - 11);
}

float bfloat16_float(uint16_t bits) {
  const uint32_t upper = (uint32_t)bits << 16;
  float value;
  memcpy(&value, &upper, 4);
  return value;
}

uint16_t bfloat16_bits(double value) {
  if (value != value) return 0x7fff;  // the NaN that the GPU makes
  const float near = (float)value;
  uint32_t bits;
  memcpy(&bits, &near, 4);
  if (near != value) bits = (bits - (fabs(near) > fabs(value))) | 1;  // to odd: what is lost still breaks a tie
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

uint32_t pack_pair(float low, float high, Element element) {
  return rounded(low, element) | (uint32_t)rounded(high, element) << 16;
}

uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c, Element element) {
  uint32_t sums = 0;
  for (int i = 0; i < 2; i++) {
    // The product is exact in double; only the sum is rounded before it is rounded to the element.
    const double product = (double)in_pair(a, i, element) * in_pair(b, i, element);
    sums |= (uint32_t)rounded(product + in_pair(c, i, element), element) << (16 * i);
  }
  return sums;
}

uint32_t widen_e4m3(uint16_t two) {
  uint32_t halves = 0;
  for (int i = 0; i < 2; i++) {
    const int byte = two >> (8 * i) & 0xff;
    halves |= (uint32_t)(rounded(e4m3_float(byte & 0x7f), Element::float16) | (byte & 0x80) << 8) << (16 * i);
  }
  return halves;
}

// To the nearest of 2^-9 apart, of an eighth of the power of 2 below it, or 448.
uint16_t pack_e4m3(float low, float high) {
  uint16_t bytes = 0;
  for (const float x : {high, low}) {
    const float size = fminf(fabsf(x), 448);
    const int power = size < ldexpf(1, -6) ? -6 : ilogbf(size);
    const int eighths = (int)rintf(ldexpf(size, 3 - power));  // 8 to 16 of a normal number
    const int byte = x != x ? 0x7f : ((power + 6) << 3) + eighths;
    bytes = bytes << 8 | (signbit(x) ? 0x80 : 0) | byte;
  }
  return bytes;
}

void wgmma(float* d, int n, const uint32_t* a_registers, uint64_t a, uint64_t b, bool transpose_b,
           int accumulate, Element element, Site site) {
  WarpgroupArgument mine{d, a_registers, n, a, b, transpose_b, accumulate != 0, element};
  warp_collective("wgmma.mma_async", "wgmma", ~0u, &mine, issue_product, site);
}

void wgmma_fence(Site site) {
  warp_collective(
      "wgmma.fence", "", ~0u, nullptr,
      [](const Lanes& lanes) {
        auto& products = current->block->products[lanes.first_thread / 32];
        if (!launch.checks) return;
        const bool again = ++products.fences == 0;  // the number does not fit
        products.fences += again;
        for (int lane = 0; lane < 32; lane++) watch_stack(current->block->fibers[lanes.first_thread + lane], again);
      },
      site);
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

void check_products_awaited(Fiber& fiber) {
  const WarpProducts& products = fiber.block->products[fiber.warp()];
  const Product* left = nullptr;
  for (auto& group : products.groups)
    if (!group.empty()) left = &group[0];
  if (!products.open.empty()) left = &products.open[0];
  if (left)
    add_problem("missing wait", left->place, 0,
                text("%s returns while its wgmma is under way%s", who(fiber.agent).c_str(),
                     fact("about", 0, "exit").c_str()));
}

// At the end of a block, which warps of a warpgroup left products to the others.
void check_warpgroups(const Block& ended) {
  for (auto& [number, group] : ended.warpgroups) {
    if (group.told || group.ahead.empty()) continue;
    std::string missing;
    for (int i = 0; i < 4; i++)
      if (group.issued[i] == group.gone) missing += text("%s%d", missing.empty() ? "" : ", ", 4 * number + i);
    add_problem("warp mask", group.ahead.front().place, 0,
                text("wgmma needs all 32 lanes of four warps: this one was never issued by warp %s", missing.c_str()));
  }
}

void set_registers(int registers, bool up, Site site) {
  if (registers < 24 || registers > 256 || registers % 8)
    fault("bad instruction", site, "setmaxnreg takes a multiple of 8 from 24 to 256, not %d", registers);
  Block& block = *current->block;
  if (block.registers.empty()) block.registers.resize(launch.warps);
  int& mine = block.registers[current->warp()];
  if (mine && (up ? registers < mine : registers > mine))
    fault("bad instruction", site, "the warp has %d registers for each thread: %d is no %s", mine, registers,
          up ? "increase" : "decrease");
  mine = registers;
  constexpr int ALL = 65536;
  int taken = 0;
  for (int each : block.registers) taken += 32 * each;
  if (taken > ALL)
    fault("deadlock", site, "the block's warps ask for %d registers by now, the multiprocessor has %d", taken, ALL);
}
}  // namespace cpu
