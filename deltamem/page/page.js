// The viewer: a list on the left, what is chosen on the right. Texts are data: they are only ever set as text.
"use strict";

/** An element with a class and contents; null and undefined contents are left out. */
const make = (tag, name, ...contents) => {
  const node = document.createElement(tag);
  if (name) node.className = name;
  node.append(...contents.filter((one) => one !== null && one !== undefined));
  return node;
};

/** A text that somebody else wrote: in a direction of its own, so that it cannot reorder what stands around it. */
const quoted = (tag, name, ...contents) => {
  const node = make(tag, `text ${name}`.trim(), ...contents);
  node.dir = "auto";
  return node;
};

// ----------------------------------------------------------------------------------------------------------------- texts

const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
const number = (value) => value.toLocaleString("en");
const counted = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

// Times are shown as they were written: they belong to the calendar of the conversation, not to that of the reader.
const day = (time) => `${Number(time.slice(8, 10))} ${MONTHS[Number(time.slice(5, 7)) - 1]} ${time.slice(0, 4)}`;
const clock = (time) => `${day(time)}, ${time.slice(11, 16)}`;
const instant = (time) => {
  const zoned = Date.parse(/(Z|[+-]\d\d:\d\d)$/.test(time) ? time : `${time.slice(0, 23)}Z`);
  return Number.isNaN(zoned) ? Date.parse(`${time.slice(0, 19)}Z`) : zoned;
};
const iso = (moment) => new Date(moment).toISOString().slice(0, 10);

/** A text with the searched words marked. */
const marked = (text, words) => {
  const lower = text.toLowerCase();
  if (!words.length || lower.length !== text.length) return [text];
  const spans = [];
  for (const word of words) {
    for (let at = lower.indexOf(word); at >= 0; at = lower.indexOf(word, at + word.length)) spans.push([at, at + word.length]);
  }
  const pieces = [];
  let end = 0;
  for (const [from, to] of spans.sort((one, two) => one[0] - two[0])) {
    if (to <= end) continue;
    const start = Math.max(from, end);
    pieces.push(text.slice(end, start), make("mark", "", text.slice(start, to)));
    end = to;
  }
  return [...pieces, text.slice(end)];
};

const LONGEST_DIFF = 400;
const LEAST_KEPT = 0.4;

/** What became of a text, word by word: kept words as text, others in <del> and <ins>. */
const rewritten = (before, after) => {
  // Words with the white space behind them, which does not count.
  const [old, young] = [before, after].map((text) => text.match(/([\p{L}\p{M}\p{N}]+|\S)\s*|^\s+/gu) ?? []);
  const whole = [make("del", "", before), document.createElement("br"), make("ins", "", after)];
  if (Math.max(old.length, young.length) > LONGEST_DIFF) return whole;
  const same = (i, j) => old[i].trim() === young[j].trim();
  // The longest common subsequence, from the end on.
  const common = Array.from({ length: old.length + 1 }, () => new Uint16Array(young.length + 1));
  for (let i = old.length - 1; i >= 0; i--) {
    for (let j = young.length - 1; j >= 0; j--) {
      common[i][j] = same(i, j) ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  if (common[0][0] < LEAST_KEPT * Math.max(old.length, young.length)) return whole;
  const pieces = [];
  const put = (tag, word) => {
    if (pieces.at(-1)?.tag === tag) pieces.at(-1).text += word;
    else pieces.push({ tag, text: word });
  };
  let [i, j] = [0, 0];
  while (i < old.length || j < young.length) {
    if (i < old.length && j < young.length && same(i, j)) {
      put("", young[j++]);
      i++;
    } else if (j >= young.length || (i < old.length && common[i + 1][j] >= common[i][j + 1])) put("del", old[i++]);
    else put("ins", young[j++]);
  }
  // White space at the end of a changed piece stands outside of its mark, and some between an old and a new one.
  return pieces.flatMap(({ tag, text }, at) => {
    const bare = text.trimEnd();
    const gap = tag === "del" && pieces[at + 1]?.tag === "ins" ? " " : "";
    return tag ? [make(tag, "", bare), text.slice(bare.length) || gap] : text;
  });
};

// ------------------------------------------------------------------------------------------------------- parts of details

const SIGNS = { ADD: "+", UPDATE: "~", NONE: "=", REMOVE: "\u2212" };
const VERBS = { ADD: "added", UPDATE: "changed", NONE: "repeated", REMOVE: "removed" };
const link = (view, key, text) => {
  const node = quoted("a", "", text);
  node.href = `#${view}/${encodeURIComponent(key)}`;
  return node;
};
const moment = (time) => {
  const node = make("time", "", clock(time));
  node.dateTime = time;
  return node;
};
const sign = (event) => {
  const node = make("span", `sign ${event}`, SIGNS[event]);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", VERBS[event]);
  return node;
};
const section = (title, ...contents) => make("section", "", make("h3", "", title), ...contents);
const both = (newest) => ({ "Newest first": newest, "Oldest first": (one, two) => newest(two, one) });

// ------------------------------------------------------------------------------------------------------------- metadata

const shownValue = (key, value) => `${key}: ${[value].flat().join(", ")}`;
const noteOf = (item, key) => (Object.hasOwn(item.metadata, key) ? item.metadata[key] : null);
const ordered = (one, two) => typeof one === typeof two && ["number", "string"].includes(typeof one);
const holds = (value, sought) => {
  if (Array.isArray(value)) return value.some((one) => one.toLowerCase() === sought);
  return typeof value === "string" && value.toLowerCase().includes(sought);
};

/** What may be asked of a key of the metadata; the operators mean what they mean in the server's filters. */
const OPERATORS = {
  eq: { label: "is", test: (value, wanted) => JSON.stringify(value) === JSON.stringify(wanted) },
  ne: { label: "is not", test: (value, wanted) => JSON.stringify(value) !== JSON.stringify(wanted) },
  icontains: { label: "contains", test: (value, wanted) => holds(value, wanted.toLowerCase()) },
  gte: { label: "at least", test: (value, wanted) => ordered(value, wanted) && value >= wanted },
  lte: { label: "at most", test: (value, wanted) => ordered(value, wanted) && value <= wanted },
};

/** The value that somebody means who types a text: one that occurs under the key, else a number where numbers occur. */
const meant = (operator, text, values) => {
  if (operator === "icontains") return text;
  const known = values.find((value) => String([value].flat().join(", ")) === text);
  if (known !== undefined) return known;
  const numbers = values.some((value) => typeof value === "number");
  return numbers && text.trim() && Number.isFinite(Number(text)) ? Number(text) : text;
};

// ------------------------------------------------------------------------------------------------------------------ list

const ROW = 78;
const AROUND = 8;

/** A list of which only the rows in sight are in the document. */
class VirtualList {
  #rows = make("div", "rows");
  #items = [];
  #whole = false;
  #waiting = false;

  constructor(box, draw, choose) {
    this.box = box;
    this.draw = draw;
    this.active = -1;
    box.append(this.#rows);
    this.#rows.setAttribute("role", "presentation");
    box.addEventListener("scroll", () => this.#soon(), { passive: true });
    new ResizeObserver(() => this.#soon()).observe(box);
    this.#rows.addEventListener("click", (event) => {
      const row = event.target.closest(".row");
      if (row) choose(Number(row.dataset.index), true);
    });
    window.addEventListener("beforeprint", () => this.#print(true));
    window.addEventListener("afterprint", () => this.#print(false));
  }

  show(items, stay = false) {
    this.#items = items;
    this.#rows.style.height = `${items.length * ROW}px`;
    if (!stay) this.box.scrollTop = 0;
    this.activate(-1);
  }

  activate(index) {
    this.active = index;
    if (index >= 0) {
      const [top, height] = [index * ROW, this.box.clientHeight];
      const [above, below] = [this.box.scrollTop - top, top + ROW - this.box.scrollTop - height];
      if (Math.max(above, below) > 2 * ROW) this.box.scrollTop = top - (height - ROW) / 2;
      else if (above > 0) this.box.scrollTop = top;
      else if (below > 0) this.box.scrollTop = top + ROW - height;
    }
    this.#render();
  }

  #print(whole) {
    this.#whole = whole;
    this.#render();
  }

  #soon() {
    if (this.#waiting) return;
    this.#waiting = true;
    requestAnimationFrame(() => {
      this.#waiting = false;
      this.#render();
    });
  }

  #render() {
    const first = this.#whole ? 0 : Math.max(0, Math.floor(this.box.scrollTop / ROW) - AROUND);
    const last = this.#whole ? this.#items.length : Math.ceil((this.box.scrollTop + this.box.clientHeight) / ROW) + AROUND;
    const shown = this.#items.slice(first, last);
    this.#rows.replaceChildren(...shown.map((item, offset) => this.#row(item, first + offset)));
    const seen = this.active >= first && this.active < first + shown.length;
    if (seen) this.box.setAttribute("aria-activedescendant", `row-${this.active}`);
    else this.box.removeAttribute("aria-activedescendant");
  }

  #row(item, index) {
    const row = make("div", `row ${item.kind ?? ""}`.trim(), ...this.draw(item));
    row.id = `row-${index}`;
    row.dataset.index = index;
    row.style.top = `${index * ROW}px`;
    row.setAttribute("role", "option");
    row.setAttribute("aria-selected", String(index === this.active));
    row.setAttribute("aria-posinset", String(index + 1));
    row.setAttribute("aria-setsize", String(this.#items.length));
    return row;
  }
}

// ---------------------------------------------------------------------------------------------------------------- browse

const find = (id) => document.getElementById(id);
const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};
const PAUSE = 200; // Milliseconds without a keystroke before a server is asked
const MOST_OFFERED = 200;

/** The page: one view at a time, its list on the left, what is chosen on the right. */
class Browser {
  #views;
  #shortcuts;
  #view = null;
  #name = "";
  #items = [];
  #asked = {};
  #chosen = null;
  #list;
  #looks = 0;
  #pending = null;
  #narrow = window.matchMedia("(max-width: 819px)");

  /** `shortcuts` are further keys, each with what it does. */
  constructor(views, shortcuts = {}) {
    this.#views = views;
    this.#shortcuts = shortcuts;
    this.#list = new VirtualList(find("list"), (item) => this.#view.row(item, this.#asked.words, this.#asked.found?.get(this.#view.key(item))), (index) => this.#choose(index, true));
    for (const [name, view] of Object.entries(views)) {
      const tab = make("a", "", view.title);
      tab.href = `#${name}`;
      view.tab = tab;
      find("tabs").append(tab);
    }
    find("tabs").hidden = Object.keys(views).length < 2;
    find("form").addEventListener("submit", (event) => event.preventDefault());
    find("search").addEventListener("input", () => this.#search());
    find("order").addEventListener("change", () => this.#search());
    find("clear").addEventListener("click", () => this.#clear());
    find("more").addEventListener("click", () => this.#toggleFilters());
    find("help").addEventListener("click", () => find("keys").showModal());
    find("theme").addEventListener("click", () => this.#dark());
    document.addEventListener("keydown", (event) => this.#key(event));
    window.addEventListener("hashchange", () => this.#route());
  }

  async start() {
    await this.#load();
    this.#theme();
    await this.#route();
  }

  /** Load everything again, and stay where one is. */
  async refresh() {
    await this.#load();
    const key = this.#chosen && this.#view.key(this.#chosen);
    const [detail, pressed] = [find("detail").scrollTop, [...find("groups").children].indexOf(document.activeElement)];
    this.#drawGroups();
    find("groups").children[pressed]?.focus();
    this.#filter(true);
    const item = this.#view.places.get(key);
    if (item) await this.#show(item);
    else await this.#choose(this.#narrow.matches || !this.#items.length ? -1 : 0, false);
    find("detail").scrollTop = detail;
  }

  /** Show one item, wherever it is. */
  open(name, key) {
    const hash = `#${name}/${encodeURIComponent(key)}`;
    if (location.hash === hash) this.#route();
    else location.hash = hash;
  }

  get name() {
    return this.#name;
  }

  async #load() {
    for (const view of Object.values(this.#views)) {
      const items = await view.load();
      view.items = items.map((item, at) => ({ ...item, at, moment: instant(item.time), day: item.time.slice(0, 10) }));
      // Searched for in one go, so that a keystroke costs a few milliseconds whatever the number of items.
      for (const item of view.items) item.index = view.words(item).join("\n").toLowerCase();
      view.places = new Map(view.items.map((item) => [view.key(item), item]));
      view.sorted = Object.fromEntries(Object.entries(view.orders).map(([name, order]) => [name, [...view.items].sort(order)]));
      view.notes = new Map();
      for (const item of view.items) {
        for (const [key, value] of Object.entries(item.metadata ?? {})) {
          if (!view.notes.has(key)) view.notes.set(key, new Map());
          view.notes.get(key).set(JSON.stringify(value), value);
        }
      }
      view.asked ??= { order: Object.keys(view.orders)[0], ...this.#nothing(view) };
    }
  }

  /** What is asked where nothing is asked for. */
  #nothing(view) {
    return { query: "", from: "", to: "", pick: "", conditions: [], groups: new Set(view.ticked), found: null };
  }

  /** Show the items that belong to one choice of the filter, whatever became of them. */
  only(name, pick) {
    const view = this.#views[name];
    Object.assign(view.asked, this.#nothing(view), { pick: String(pick), groups: new Set(view.groups) });
    location.hash = `#${name}`;
  }

  async #route() {
    const [name, ...rest] = location.hash.slice(1).split("/");
    const wanted = this.#views[name] ? name : Object.keys(this.#views)[0];
    const key = decoded(rest.join("/"));
    if (wanted !== this.#name) this.#open(wanted);
    const item = this.#view.places.get(key);
    document.body.classList.toggle("reading", Boolean(item));
    if (item) await this.#show(item);
    else if (this.#narrow.matches) this.#list.activate(-1);
    else await this.#choose(this.#items.length ? 0 : -1, false);
  }

  #open(name) {
    this.#name = name;
    this.#view = this.#views[name];
    this.#asked = this.#view.asked;
    for (const view of Object.values(this.#views)) {
      if (view === this.#view) view.tab.setAttribute("aria-current", "page");
      else view.tab.removeAttribute("aria-current");
    }
    find("search").value = this.#asked.query;
    find("search").placeholder = this.#view.hint;
    find("search").setAttribute("aria-label", this.#view.hint);
    find("list").setAttribute("aria-label", this.#view.title);
    find("list").classList.toggle("rail", Boolean(this.#view.strip));
    find("order").replaceChildren(...Object.keys(this.#view.orders).map((order) => make("option", "", order)));
    find("order").value = this.#asked.order;
    this.#drawGroups();
    this.#drawFilters();
    this.#toggleFilters(this.#filtered());
    this.#filter();
  }

  #filtered() {
    return Boolean(this.#asked.from || this.#asked.to || this.#asked.pick || this.#asked.conditions.length);
  }

  #drawGroups() {
    const sizes = new Map();
    for (const item of this.#view.items) sizes.set(this.#view.group(item), (sizes.get(this.#view.group(item)) ?? 0) + 1);
    const present = this.#view.groups.filter((group) => sizes.has(group));
    const buttons = present.map((group) => {
      const button = make("button", "chip", group, " ", make("span", "soft", number(sizes.get(group))));
      button.type = "button";
      button.setAttribute("aria-pressed", String(this.#asked.groups.has(group)));
      button.addEventListener("click", () => {
        if (!this.#asked.groups.delete(group)) this.#asked.groups.add(group);
        button.setAttribute("aria-pressed", String(this.#asked.groups.has(group)));
        this.#search();
      });
      return button;
    });
    find("groups").replaceChildren(...(present.length > 1 ? buttons : []));
  }

  #drawFilters() {
    const days = this.#view.items.map((item) => item.day).sort();
    const date = (name, label) => {
      const input = make("input", "");
      Object.assign(input, { type: "date", value: this.#asked[name], min: days[0] ?? "", max: days.at(-1) ?? "" });
      input.addEventListener("input", () => {
        this.#asked[name] = input.value;
        this.#search();
      });
      return make("label", "", label, input);
    };
    const notes = this.#view.notes.size ? this.#conditions() : "";
    find("filters").replaceChildren(date("from", "from"), date("to", "to"), this.#view.pick ? this.#pick() : "", notes);
  }

  #pick() {
    const { label, any, options } = this.#view.pick;
    const select = make("select", "", make("option", "", any));
    select.firstChild.value = "";
    for (const [value, text] of options()) {
      const option = make("option", "", text);
      option.value = value;
      select.append(option);
    }
    select.value = this.#asked.pick;
    select.addEventListener("change", () => {
      this.#asked.pick = select.value;
      this.#search();
    });
    return make("label", "wide", label, select);
  }

  /** Conditions on the metadata, and always an empty one to add another with. */
  #conditions() {
    const { conditions } = this.#asked;
    const box = make("fieldset", "wide notes", make("legend", "", "metadata"));
    const { notes } = this.#view;
    const row = (condition) => {
      const [key, operator, input] = [make("select", ""), make("select", ""), make("input", "")];
      key.append(make("option", "", "any"), ...[...notes.keys()].sort().map((name) => make("option", "", name)));
      key.firstChild.value = "";
      // Not by its text: a key may be called like anything.
      [...key.options].slice(1).forEach((option) => (option.value = `=${option.text}`));
      for (const [name, { label }] of Object.entries(OPERATORS)) operator.append(Object.assign(make("option", "", label), { value: name }));
      key.value = condition.key === null ? "" : `=${condition.key}`;
      operator.value = condition.operator;
      input.value = condition.text;
      const known = make("datalist", "");
      known.id = `known-${box.childElementCount}`;
      input.setAttribute("list", known.id);
      [key, operator, input].forEach((one, at) => one.setAttribute("aria-label", `metadata ${["key", "comparison", "value"][at]}`));
      const offer = () => {
        const values = [...(notes.get(condition.key)?.values() ?? [])].slice(0, MOST_OFFERED);
        known.replaceChildren(...values.map((value) => Object.assign(make("option", ""), { value: [value].flat().join(", ") })));
        operator.disabled = input.disabled = condition.key === null;
      };
      key.addEventListener("change", () => {
        const fresh = !conditions.includes(condition);
        condition.key = key.value === "" ? null : key.value.slice(1);
        if (fresh) {
          conditions.push(condition);
          box.append(row({ key: null, operator: "eq", text: "" }));
        }
        offer();
        this.#search();
      });
      const change = () => {
        [condition.operator, condition.text] = [operator.value, input.value];
        this.#search();
      };
      operator.addEventListener("change", change);
      input.addEventListener("input", change);
      offer();
      return make("div", "condition", key, operator, input, known);
    };
    for (const condition of conditions) box.append(row(condition));
    box.append(row({ key: null, operator: "eq", text: "" }));
    return box;
  }

  /** The conditions that are filled in, as key, operator and value. */
  #asking() {
    return this.#asked.conditions
      .filter(({ key, text }) => key !== null && text !== "")
      .map(({ key, operator, text }) => [key, operator, meant(operator, text, [...(this.#view.notes.get(key)?.values() ?? [])])]);
  }

  #toggleFilters(open = find("filters").hidden) {
    find("filters").hidden = !open;
    find("more").setAttribute("aria-expanded", String(open));
  }

  #clear() {
    Object.assign(this.#asked, this.#nothing(this.#view));
    this.#open(this.#name);
    this.#choose(this.#narrow.matches ? -1 : 0, false);
    find("search").focus();
  }

  #search() {
    this.#asked.query = find("search").value;
    this.#asked.order = find("order").value;
    this.#pending = this.#look(++this.#looks);
  }

  /** Narrow the list, with what the source itself finds where it can search. */
  async #look(mine) {
    const [view, asked] = [this.#view, this.#asked];
    let found = null;
    if (view.search && asked.query.trim()) {
      await new Promise((resolve) => setTimeout(resolve, PAUSE));
      if (mine !== this.#looks) return this.#pending;
      found = await view.search(asked.query, this.#asking());
      if (mine !== this.#looks || view !== this.#view) return this.#pending;
    }
    asked.found = found;
    this.#filter();
    if (!this.#narrow.matches) await this.#choose(this.#items.length ? 0 : -1, false);
  }

  #filter(stay = false) {
    const view = this.#view;
    const { query, from, to, pick, groups, order, found } = this.#asked;
    const conditions = this.#asking();
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    this.#asked.words = words;
    const literal = (item) => words.every((word) => item.index.includes(word));
    const wanted = (item) =>
      groups.has(view.group(item)) &&
      (!from || item.day >= from) &&
      (!to || item.day <= to) &&
      (!pick || view.pick.of(item).includes(pick)) &&
      conditions.every(([key, operator, value]) => OPERATORS[operator].test(noteOf(item, key), value)) &&
      (found?.has(view.key(item)) || literal(item));
    this.#items = view.sorted[order].filter(wanted);
    if (found) {
      // What has the very words comes first; sorting keeps the order of equals.
      const rank = (item) => 2 * literal(item) + (found.get(view.key(item)) ?? -1);
      const ranks = new Map(this.#items.map((item) => [item, rank(item)]));
      this.#items.sort((one, two) => ranks.get(two) - ranks.get(one));
    }
    const [shown, all] = [this.#items.length, view.items.filter((item) => groups.has(view.group(item))).length];
    const count = shown === all ? counted(all, ...view.noun) : `${number(shown)} of ${counted(all, ...view.noun)}`;
    find("count").textContent = found ? `${count}, best match first` : count;
    find("order").hidden = Boolean(found);
    find("more").classList.toggle("used", this.#filtered());
    find("empty").hidden = shown > 0;
    find("list").hidden = shown === 0;
    find("empty").firstElementChild.textContent = view.items.length ? "Nothing matches." : view.none;
    find("clear").hidden = !view.items.length;
    this.#list.show(this.#items, stay);
    this.#drawStrip();
  }

  /** How much changed in the course of time; a click on a bar narrows the list to its days. */
  #drawStrip() {
    find("strip").hidden = !this.#view.strip || this.#view.items.length < 3;
    if (find("strip").hidden) return;
    const [BARS, HEIGHT] = [48, 40];
    const moments = this.#view.items.map((item) => item.moment);
    const first = moments.reduce((one, two) => Math.min(one, two));
    const span = Math.max(1, moments.reduce((one, two) => Math.max(one, two)) - first);
    const place = (item) => Math.min(BARS - 1, Math.floor(((item.moment - first) / span) * BARS));
    const bars = Array.from({ length: BARS }, () => ({ ADD: 0, UPDATE: 0, REMOVE: 0 }));
    for (const item of this.#items) for (const [event, count] of this.#view.strip(item)) bars[place(item)][event] += count;
    const most = Math.max(1, ...bars.map((bar) => bar.ADD + bar.UPDATE + bar.REMOVE));
    const svg = (tag, attributes) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
      for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
      return node;
    };
    const picture = svg("svg", { viewBox: `0 0 ${BARS * 10} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" });
    for (const [at, bar] of bars.entries()) {
      const [from, to] = [at, at + 1].map((edge) => iso(first + (span * edge) / BARS));
      const group = svg("g", {});
      const title = svg("title", {});
      title.textContent = `${day(from)} to ${day(to)}: ${bar.ADD} added, ${bar.UPDATE} changed, ${bar.REMOVE} removed`;
      group.append(title, svg("rect", { class: "bar", x: at * 10, y: 0, width: 10, height: HEIGHT }));
      let top = HEIGHT - 1;
      for (const event of ["ADD", "UPDATE", "REMOVE"]) {
        const height = (bar[event] / most) * (HEIGHT - 4);
        group.append(svg("rect", { class: event, x: at * 10 + 1.5, y: top - height, width: 7, height }));
        top -= height;
      }
      group.addEventListener("click", () => {
        Object.assign(this.#asked, { from, to });
        this.#drawFilters();
        this.#toggleFilters(true);
        this.#search();
      });
      picture.append(group);
    }
    const ends = make("div", "ends", make("span", "", day(iso(first))), make("span", "", day(iso(first + span))));
    find("strip").replaceChildren(picture, ends);
  }

  /** Make an item of the list the chosen one; `open` says whether a narrow page turns to it. */
  async #choose(index, open) {
    const item = this.#items[index];
    if (!item) {
      this.#chosen = null;
      this.#list.activate(-1);
      find("detail").replaceChildren();
      return;
    }
    const hash = `#${this.#name}/${encodeURIComponent(this.#view.key(item))}`;
    if (open && location.hash !== hash) location.hash = hash;
    else await this.#show(item);
  }

  async #show(item) {
    this.#chosen = item;
    this.#list.activate(this.#items.indexOf(item));
    const contents = await this.#view.detail(item);
    if (this.#chosen !== item) return;
    const back = make("button", "back plain", "\u2190 Back");
    back.type = "button";
    back.addEventListener("click", () => this.#back());
    find("detail").replaceChildren(back, ...contents.filter(Boolean));
    find("detail").scrollTop = 0;
    if (this.#narrow.matches) window.scrollTo(0, 0);
  }

  #back() {
    document.body.classList.remove("reading");
    if (this.#narrow.matches) history.replaceState(null, "", `#${this.#name}`);
    find("list").focus();
    this.#list.activate(this.#list.active);
  }

  #move(by) {
    if (!this.#items.length) return;
    const next = Math.max(0, Math.min(this.#items.length - 1, this.#list.active + by));
    if (this.#narrow.matches && !document.body.classList.contains("reading")) this.#list.activate(next);
    else {
      history.replaceState(null, "", `#${this.#name}/${encodeURIComponent(this.#view.key(this.#items[next]))}`);
      this.#choose(next, false);
    }
  }

  async #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const searching = event.target === find("search");
    if (!searching && event.target.closest("input, select, textarea")) return;
    const onControl = event.target.closest("button, a");
    const page = Math.max(1, Math.floor(find("list").clientHeight / ROW) - 1);
    const moves = { ArrowDown: 1, ArrowUp: -1 };
    const inList = event.target === find("list");
    if (!searching) Object.assign(moves, { j: 1, k: -1 });
    if (inList) Object.assign(moves, { PageDown: page, PageUp: -page, Home: -Infinity, End: Infinity });
    const tabs = searching ? [] : Object.keys(this.#views);
    const inDetail = find("detail").contains(event.target);
    const arrow = event.key.startsWith("Arrow");
    if (event.key in moves && !(arrow && inDetail)) this.#move(moves[event.key]);
    else if (event.key === "Enter" && !onControl) {
      event.preventDefault();
      await this.#pending;
      if (this.#list.active < 0) this.#list.active = 0;
      await this.#choose(this.#list.active, true);
      document.body.classList.add("reading");
      find("detail").focus();
    } else if (event.key === "Escape") this.#escape(searching);
    else if (event.key === "/" && !searching) find("search").select();
    else if (event.key === "?" && !searching) find("keys").showModal();
    else if (event.key === "d" && !searching) this.#dark();
    else if (event.key in this.#shortcuts && !searching) this.#shortcuts[event.key]();
    else if (tabs[Number(event.key) - 1]) location.hash = `#${tabs[Number(event.key) - 1]}`;
    else return;
    event.preventDefault();
  }

  #escape(searching) {
    if (searching && find("search").value) {
      find("search").value = "";
      this.#search();
    } else this.#back();
  }

  // Storage may be refused to files.
  #theme() {
    let kept = null;
    try {
      kept = localStorage.getItem("deltamem-theme");
    } catch {}
    this.#paint(kept ? kept === "dark" : window.matchMedia("(prefers-color-scheme: dark)").matches, Boolean(kept));
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", (event) => this.#paint(event.matches, false));
  }

  #dark() {
    const dark = find("theme").getAttribute("aria-pressed") !== "true";
    try {
      localStorage.setItem("deltamem-theme", dark ? "dark" : "light");
    } catch {}
    this.#paint(dark, true);
  }

  #paint(dark, forced) {
    find("theme").setAttribute("aria-pressed", String(dark));
    document.documentElement.style.colorScheme = forced ? (dark ? "dark" : "light") : "";
  }
}

let browse = null;

/** Show views under a name. */
const show = async (name, views, shortcuts) => {
  find("name").textContent = name;
  document.title = `${name} \u00b7 DeltaMem`;
  browse = new Browser(views, shortcuts);
  await browse.start();
};
