// Finds sections by their words, in the texts of sections.js: without a server, which a page on a disk has not.
const MOST = 50, AROUND = 120;

// The words of a query: letters, digits and what joins them in code.
const wordsOf = (query) => query.toLowerCase().match(/[\p{L}\p{N}_]+/gu) ?? [];

// How well a section fits: how many of the words it has, then how prominently.
function fit(section, words) {
  const place = `${section.page} ${section.title}`.toLowerCase(), text = section.text.toLowerCase();
  let found = 0, weight = 0;
  for (const word of words) {
    const named = place.includes(word), times = text.split(word).length - 1;
    if (named || times) found += 1;
    weight += 10 * named + Math.log2(1 + times);
  }
  return { section, found, weight };
}

// Where an excerpt begins: where most of the words are near each other.
function start(text, words) {
  let best = 0, most = 0;
  for (const word of words) {
    for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) {
      const near = text.slice(at, at + 2 * AROUND);
      const count = words.filter((other) => near.includes(other)).length;
      if (count > most) [best, most] = [at, count];
    }
  }
  return Math.max(0, best - AROUND);
}

// Text as nodes, with the words in <mark>.
function marked(text, words) {
  const escaped = words.map((word) => word.replace(/[^\p{L}\p{N}_]/gu, "\\$&"));
  return text.split(new RegExp(`(${escaped.join("|")})`, "iu")).map((piece, n) => {
    if (n % 2 === 0) return piece;
    const mark = document.createElement("mark");
    mark.textContent = piece;
    return mark;
  });
}

function excerpt(section, words) {
  const begin = start(section.text.toLowerCase(), words), end = begin + 3 * AROUND;
  const from = begin && section.text.indexOf(" ", begin) + 1, to = section.text.lastIndexOf(" ", end);
  const text = section.text.slice(from, section.text.length > end ? to : undefined);
  return `${from ? "… " : ""}${text}${section.text.length > end ? " …" : ""}`;
}

function shown(section, words) {
  const item = document.createElement("li"), link = document.createElement("a");
  link.href = section.url;
  link.append(...marked(section.title, words));
  const page = document.createElement("span"), text = document.createElement("p");
  page.className = "search-page";
  page.append(...marked(section.page, words));
  text.append(...marked(excerpt(section, words), words));
  item.append(link, " ", page, text);
  return item;
}

const query = new URLSearchParams(location.search).get("q") ?? "";
const words = [...new Set(wordsOf(query))];
document.querySelector("#search-words").value = query;
if (words.length) {
  const fits = SECTIONS.map((section) => fit(section, words)).filter(({ found }) => found);
  fits.sort((a, b) => b.found - a.found || b.weight - a.weight);
  const whole = fits.filter(({ found }) => found === words.length), list = whole.length ? whole : fits;
  document.querySelector("#search-results").append(
    ...list.slice(0, MOST).map(({ section }) => shown(section, words)));
  const some = list.length > MOST ? `The best ${MOST} of ${list.length} sections` : `${list.length} sections`;
  const what = list.length === 1 ? "1 section" : some;
  document.querySelector("#search-found").textContent =
    !list.length ? `Nothing has “${query}”.`
    : whole.length ? `${what} with “${query}”`
    : `No section has all of “${query}”. ${what} with some of the words`;
}
