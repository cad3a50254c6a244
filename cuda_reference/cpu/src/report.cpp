// What is wrong, collected once for each kind and pair of places, and the text that Python reads it from.
#include <stdarg.h>
#include "runtime.h"

namespace cpu {
namespace {
struct Found {
  const char* kind;
  Place place, other;
  std::string text;
  uint64_t count;
};
std::vector<Found> found;
std::map<std::tuple<std::string, Place, Place>, size_t> known;
constexpr size_t MOST = 100;
constexpr char FIELD = '\x1f', RECORD = '\x1e';

std::string formatted(const char* format, va_list arguments) {
  char line[1024];
  vsnprintf(line, sizeof line, format, arguments);
  return line;
}
}  // namespace

Place intern(Site site) {
  static std::map<std::pair<const char*, int>, Site*> sites;
  static struct {
    Site site;
    Place place;
  } recent[64];
  auto& slot = recent[site.line % 64];
  if (slot.site.file == site.file && slot.site.line == site.line) return slot.place;
  Site*& known_site = sites[{site.file, site.line}];
  if (!known_site) known_site = new Site(site);
  slot = {site, (Place)known_site | 1ull << 63};
  return slot.place;
}

std::string describe(Place place) {
  if (!(place >> 63)) return text("pc:%lx", (long)(place - 1 - (uint64_t)launch.image_start));
  auto* site = (Site*)(place & ~(1ull << 63));
  return text("%s:%d", site->file, site->line);
}

std::string text(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::string line = formatted(format, arguments);
  va_end(arguments);
  return line;
}

void add_problem(const char* kind, Place place, Place other, const std::string& what) {
  auto [entry, fresh] = known.insert({{kind, place, other}, found.size()});
  if (!fresh) {
    if (entry->second < MOST) found[entry->second].count++;
    return;
  }
  if (found.size() >= MOST) return;
  std::string block = current ? text(" [block %u,%u,%u]", blockIdx.x, blockIdx.y, blockIdx.z) : "";
  found.push_back({kind, place, other, what + block, 1});
}

void problem(const char* kind, Site site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_problem(kind, intern(site), 0, formatted(format, arguments));
  va_end(arguments);
}

void fault(const char* kind, Site site, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  add_problem(kind, intern(site), 0, formatted(format, arguments));
  va_end(arguments);
  stop_launch();
}

void clear_reports() {
  found.clear();
  known.clear();
}

std::string write_report() {
  std::string out;
  auto field = [&](const std::string& value) { out += value, out += FIELD; };
  for (auto& each : found) {
    field("problem"), field(each.kind), field(describe(each.place)),
        field(each.other ? describe(each.other) : "");
    field(each.text), field(std::to_string(each.count));
    out += RECORD;
  }
  for (auto& [key, t] : launch.traffic) {
    auto& [place, operation, buffer] = key;
    field("row"), field(describe(place)), field(operation);
    const int from_and_to = -3 - buffer;
    const char* space = buffer == -1 ? "shared" : (buffer == -2 ? "" : "global");
    field(from_and_to >= 0 ? "cluster" : space);
    field(from_and_to >= 0
              ? text("block %d to block %d", from_and_to / MOST_BLOCKS, from_and_to % MOST_BLOCKS)
          : buffer == -1 ? "smem"
          : buffer < 0   ? ""
                         : launch.buffers[buffer].name);
    for (uint64_t n :
         {t.requests, t.lanes, t.requested_bytes, t.unique_bytes, t.sectors, t.wavefronts, t.ideal, t.worst})
      field(std::to_string(n));
    out += RECORD;
  }
  return out;
}
}  // namespace cpu
