"use strict";

// ---------------------------------------------------------------------------------------------------------------- source

/**
 * What the page shows of one owner, out of an export. Histories and origins have the fields that `deltamem history --json`
 * and `blame --json` have. All but the owner is asynchronous, as it would be from a server.
 */
class ExportSource {
  #entries;
  #current;
  #turns;
  #steps = new Map();

  constructor(text) {
    const lines = text.trim().split("\n").map((line) => JSON.parse(line));
    const { owner, entries, dialogues } = lines[0];
    this.owner = owner;
    this.#entries = lines.slice(1, 1 + entries);
    this.#turns = new Map(lines.slice(1 + entries, 1 + entries + dialogues).map((one) => [one.position, one.turns]));
    this.#current = new Map(lines.slice(1 + entries + dialogues).map((memory) => [memory.id, memory]));
    for (const entry of this.#entries) {
      for (const change of entry.changes) {
        const steps = this.#steps.get(change.memory_id) ?? [];
        this.#steps.set(change.memory_id, steps);
        steps.push(this.#step(entry, change));
      }
    }
  }

  #step(entry, change) {
    const { position, kind, recorded_at, session_id, session_time, model, actor, restored, undone } = entry;
    const { event, memory_id: id, before, after, turns, erased } = change;
    const [before_metadata, after_metadata] = [before, after].map((side) => side && (side.metadata ?? {}));
    const sides = { before: before && before.text, after: after && after.text, before_metadata, after_metadata };
    const why = { position, kind, recorded_at, session_id, session_time, model, actor, restored, undone };
    return { event, id, ...sides, turns, erased, ...why, time: (after ?? before).time };
  }

  /** All memories that there are or were, each with its status and the positions of the entries that touched it. */
  async memories() {
    return [...this.#steps].map(([id, steps]) => {
      const positions = steps.map((step) => step.position);
      const current = this.#current.get(id);
      if (current) return { ...current, metadata: current.metadata ?? {}, status: "current", positions };
      const last = steps.at(-1);
      const effective = steps.findLast((step) => !step.undone);
      const retracted = effective?.event === "REMOVE" && effective.kind === "edit";
      const status = steps.some((step) => step.erased) ? "erased" : retracted ? "retracted" : "undone";
      const metadata = last.after_metadata ?? last.before_metadata;
      return { id, text: last.after ?? last.before, time: last.time, metadata, status, positions };
    });
  }

  /** All entries of the journal, each with its changes and what was said, as one text. */
  async entries() {
    return this.#entries.map((entry) => ({
      ...entry,
      time: entry.session_time ?? entry.recorded_at,
      changes: entry.changes.map((change) => this.#step(entry, change)),
      said: (this.#turns.get(entry.position) ?? []).map((turn) => turn.content).join("\n"),
    }));
  }

  async history(id) {
    return this.#steps.get(id) ?? [];
  }

  /** The steps by which a present memory got its text, each with the turns that it comes from. */
  async blame(id) {
    const made = (step) => !step.undone && ["session", "edit"].includes(step.kind) && ["ADD", "UPDATE"].includes(step.event);
    return (this.#steps.get(id) ?? []).filter(made).map((step) => {
      const stored = this.#turns.get(step.position);
      const turn = (number) => ({ number, role: stored?.[number - 1].role ?? null, content: stored?.[number - 1].content ?? null });
      return { ...step, text: step.after, metadata: step.after_metadata, turns: step.turns.map(turn) };
    });
  }

  /** The turns of the session at a position; null if they were not kept. */
  async dialogue(position) {
    return this.#turns.get(position) ?? null;
  }
}

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

  show(items, active) {
    this.#items = items;
    this.#rows.style.height = `${items.length * ROW}px`;
    this.box.scrollTop = 0;
    this.activate(active);
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

// ----------------------------------------------------------------------------------------------------- an owner's memory

const STATUS = { current: "Current", retracted: "Retracted", erased: "Erased", undone: "Rolled back" };
const SIGNS = { ADD: "+", UPDATE: "~", NONE: "=", REMOVE: "\u2212" };
const VERBS = { ADD: "added", UPDATE: "changed", NONE: "repeated", REMOVE: "removed" };
const ERASED = "The text was erased.";

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
const shownValue = (key, value) => `${key}: ${[value].flat().join(", ")}`;
const tags = (metadata) => Object.entries(metadata ?? {}).map(([key, value]) => quoted("span", "tag", shownValue(key, value)));
const noted = (metadata, before = metadata) => {
  const [now, then] = [metadata, before].map((one) => Object.entries(one ?? {}).map((pair) => shownValue(...pair)));
  const gone = then.filter((one) => !now.includes(one)).map((one) => make("del", "", quoted("span", "tag", one)));
  const present = now.map((one) => make(then.includes(one) ? "span" : "ins", "", quoted("span", "tag", one)));
  return gone.length + present.length ? make("p", "tags", ...gone, ...present) : null;
};
const sign = (event) => {
  const node = make("span", `sign ${event}`, SIGNS[event]);
  node.setAttribute("role", "img");
  node.setAttribute("aria-label", VERBS[event]);
  return node;
};
const section = (title, ...contents) => make("section", "", make("h3", "", title), ...contents);
// What was erased stays erased, whatever is rolled back.
const undoneTag = ({ undone, kind }) => (undone && kind !== "forget" ? make("span", "badge", "rolled back") : null);

/** What an entry is called. */
const entryTitle = (entry) =>
  ({
    session: () => entry.session_id,
    edit: () => `Edit by ${entry.actor}`,
    rollback: () => (entry.restored ? `Rolled back to @${entry.restored}` : "Rolled back to the beginning"),
    forget: () => "A memory was erased",
    import: () => "Imported",
  })[entry.kind]();

/** What a change did to a text, and to what is noted beside it. */
const changeText = (step) => {
  if (step.erased) return make("p", "soft", ERASED);
  const rewrites = step.event === "UPDATE";
  const text = rewrites ? rewritten(step.before, step.after) : [step.after ?? step.before];
  const metadata = step.after_metadata ?? step.before_metadata;
  const notes = noted(metadata, rewrites ? step.before_metadata : metadata);
  return make("div", step.event === "REMOVE" ? "gone" : "", quoted("p", "", ...text), notes);
};

const memoryViews = (source) => {
  const memoryRow = (memory, words) => [
    quoted("span", memory.status === "current" ? "clamp" : "clamp soft", ...marked(memory.text || ERASED, words)),
    make(
      "span",
      "under",
      make("span", "id", memory.id),
      make("span", "", day(memory.time)),
      memory.positions.length > 1 ? make("span", "", counted(memory.positions.length, "step")) : null,
      memory.status === "current" ? null : make("span", "badge", STATUS[memory.status]),
      ...tags(memory.metadata).slice(0, 2),
    ),
  ];

  const origin = (step, current) => {
    const where = step.kind === "session" ? link("sessions", step.position, entryTitle(step)) : entryTitle(step);
    const said = step.turns.map((turn) => {
      const text = turn.content ? [turn.content] : [make("em", "", turn.content === null ? "not stored" : "erased")];
      const who = make("figcaption", "", `${turn.role ?? "somebody"}, turn ${turn.number}`);
      return make("figure", "quote", who, quoted("blockquote", "", ...text));
    });
    const none = step.kind === "session" && !said.length ? make("p", "soft", "No single turn was found that says it.") : null;
    return make(
      "li",
      "",
      make("p", "line", sign(step.event), where, make("span", "soft", clock(step.session_time ?? step.recorded_at))),
      step.text === current ? null : quoted("p", "then", step.text),
      ...said,
      none,
    );
  };

  const historyStep = (step, told) => {
    const time = step.session_time ?? step.recorded_at;
    const title = link("sessions", step.position, entryTitle(step));
    const line = make("p", "line", sign(step.event), title, make("span", "soft", clock(time)), undoneTag(step));
    return make("li", step.undone ? "undone" : "", line, step.event === "NONE" || told ? null : changeText(step));
  };

  const memoryDetail = async (memory) => {
    const current = memory.status === "current";
    const steps = await source.history(memory.id);
    const origins = current ? await source.blame(memory.id) : [];
    const badge = current ? null : make("span", "badge", STATUS[memory.status]);
    const told = steps.length === 1 && current; // The heading says it
    const whole = make("ol", "steps", ...steps.map((step) => historyStep(step, told)));
    return [
      make("p", "eyebrow", make("span", "id", memory.id), moment(memory.time), badge),
      quoted("h2", memory.text ? "" : "soft", memory.text || ERASED),
      noted(memory.metadata),
      current ? section("Where it comes from", make("ol", "steps origins", ...origins.map((one) => origin(one, memory.text)))) : null,
      section("History", whole),
    ];
  };

  const tally = (entry) =>
    ["ADD", "UPDATE", "REMOVE", "NONE"].flatMap((event) => {
      const count = entry.changes.filter((change) => change.event === event).length;
      return count ? [make("span", `sign ${event}`, `${SIGNS[event]}${number(count)}`)] : [];
    });

  const entryRow = (entry, words) => {
    const told = entry.changes.find((change) => change.event !== "NONE") ?? entry.changes[0];
    const text = told ? (told.erased ? ERASED : (told.after ?? told.before)) : "Nothing to remember.";
    return [
      make("span", "line", quoted("strong", "", ...marked(entryTitle(entry), words)), undoneTag(entry), make("span", "tally", ...tally(entry))),
      quoted("span", "clamp one soft", ...marked(text, words)),
      make("span", "under", make("span", "id", `@${entry.position}`), make("span", "", clock(entry.time))),
    ];
  };

  const entryDetail = async (entry) => {
    const turns = entry.kind === "session" ? await source.dialogue(entry.position) : [];
    const changes = entry.changes.map((step) => {
      const line = make("p", "line", sign(step.event), link("memories", step.id, step.id), make("span", "soft", VERBS[step.event]));
      return make("li", "", line, changeText(step));
    });
    const cited = (at) => entry.changes.filter((change) => change.turns.includes(at + 1)).map((change) => change.id);
    const said = (turns ?? []).map((turn, at) => {
      const ids = [...new Set(cited(at))];
      const sources = ids.length ? make("span", "cites", ...ids.map((id) => link("memories", id, id))) : null;
      const text = turn.content ? [turn.content] : [make("em", "soft", "This turn was erased.")];
      return make("li", ids.length ? "cited" : "", make("p", "role", `${turn.role} ${at + 1}`, sources), quoted("p", "", ...text));
    });
    const refused = Object.entries(entry.violations).map(([name, count]) => `refused or corrected: ${name.replaceAll("_", " ")} (${count})`);
    const facts = [entry.model && `read by ${entry.model}`, `recorded ${clock(entry.recorded_at)}`].filter(Boolean);
    const ids = new Set(entry.changes.map((change) => change.id));
    const narrow = make("button", "", `Show its ${counted(ids.size, "memory", "memories")} in the list`);
    narrow.type = "button";
    narrow.addEventListener("click", () => browse.only(entry.position));
    return [
      make("p", "eyebrow", make("span", "id", `@${entry.position}`), moment(entry.time), undoneTag(entry)),
      quoted("h2", "", entryTitle(entry)),
      quoted("p", "soft facts", [...facts, ...refused].join(" \u00b7 ")),
      section("What changed", changes.length ? make("ol", "steps", ...changes) : make("p", "soft", "Nothing to remember."), ids.size ? narrow : null),
      entry.kind !== "session"
        ? null
        : section("Conversation", turns === null ? make("p", "soft", "The conversation was not kept.") : make("ol", "turns", ...said)),
    ];
  };

  const both = (newest) => ({ "Newest first": newest, "Oldest first": (one, two) => newest(two, one) });
  const memories = {
    title: "Memories",
    noun: ["memory", "memories"],
    hint: "Search memories",
    load: () => source.memories(),
    key: (memory) => memory.id,
    words: (memory) => [memory.id, memory.text, ...Object.entries(memory.metadata ?? {}).map((pair) => shownValue(...pair))],
    group: (memory) => STATUS[memory.status],
    groups: Object.values(STATUS),
    ticked: [STATUS.current],
    positions: (memory) => memory.positions,
    row: memoryRow,
    detail: memoryDetail,
    orders: both((one, two) => two.moment - one.moment || two.at - one.at),
  };
  const kinds = { session: "Sessions", edit: "Edits", rollback: "Rollbacks", forget: "Erasures", import: "Imports" };
  const sessions = {
    title: "Sessions",
    noun: ["entry", "entries"],
    hint: "Search sessions and what was said",
    load: () => source.entries(),
    key: (entry) => String(entry.position),
    words: (entry) => [entryTitle(entry), entry.said, ...entry.changes.map((change) => change.after ?? change.before)],
    group: (entry) => kinds[entry.kind],
    groups: Object.values(kinds),
    ticked: Object.values(kinds),
    strip: (entry) => ["ADD", "UPDATE", "REMOVE"].map((event) => [event, entry.changes.filter((change) => change.event === event).length]),
    row: entryRow,
    detail: entryDetail,
    // In the order of the journal, whose times need not ascend.
    orders: both((one, two) => two.position - one.position),
  };
  return { memories, sessions };
};

// ---------------------------------------------------------------------------------------------------------------- browse

const find = (id) => document.getElementById(id);

/** The page: one view at a time, its list on the left, what is chosen on the right. */
class Browser {
  #views;
  #view = null;
  #name = "";
  #items = [];
  #asked = {};
  #chosen = null;
  #list;
  #narrow = window.matchMedia("(max-width: 819px)");

  constructor(views) {
    this.#views = views;
    this.#list = new VirtualList(find("list"), (item) => this.#view.row(item, this.#asked.words), (index) => this.#choose(index, true));
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
    for (const view of Object.values(this.#views)) {
      const items = await view.load();
      view.items = items.map((item, at) => ({ ...item, at, moment: instant(item.time), day: item.time.slice(0, 10) }));
      // Searched for in one go, so that a keystroke costs a few milliseconds whatever the number of items.
      for (const item of view.items) item.index = view.words(item).join("\n").toLowerCase();
      view.places = new Map(view.items.map((item) => [view.key(item), item]));
      view.sorted = Object.fromEntries(Object.entries(view.orders).map(([name, order]) => [name, [...view.items].sort(order)]));
      view.asked = { query: "", from: "", to: "", position: "", groups: new Set(view.ticked), order: Object.keys(view.orders)[0] };
    }
    this.#theme();
    await this.#route();
  }

  /** Show the memories that one entry of the journal touched. */
  only(position) {
    const { asked } = this.#views.memories;
    Object.assign(asked, { query: "", from: "", to: "", position: String(position), groups: new Set(this.#views.memories.groups) });
    location.hash = "#memories";
  }

  async #route() {
    const [name, ...rest] = location.hash.slice(1).split("/");
    const wanted = this.#views[name] ? name : Object.keys(this.#views)[0];
    const key = decodeURIComponent(rest.join("/"));
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
    this.#filter();
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
    find("filters").replaceChildren(date("from", "from"), date("to", "to"), this.#view.positions ? this.#sessionFilter() : "");
    if (this.#asked.from || this.#asked.to || this.#asked.position) this.#toggleFilters(true);
  }

  #sessionFilter() {
    const select = make("select", "", make("option", "", "any session"));
    select.firstChild.value = "";
    for (const entry of this.#views.sessions.sorted["Newest first"]) {
      const option = make("option", "", `${day(entry.time)} \u00b7 ${entryTitle(entry)}`);
      option.value = String(entry.position);
      select.append(option);
    }
    select.value = this.#asked.position;
    select.addEventListener("change", () => {
      this.#asked.position = select.value;
      this.#search();
    });
    return make("label", "wide", "session", select);
  }

  #toggleFilters(open = find("filters").hidden) {
    find("filters").hidden = !open;
    find("more").setAttribute("aria-expanded", String(open));
  }

  #clear() {
    Object.assign(this.#asked, { query: "", from: "", to: "", position: "", groups: new Set(this.#view.ticked) });
    this.#open(this.#name);
    this.#choose(this.#narrow.matches ? -1 : 0, false);
    find("search").focus();
  }

  #search() {
    this.#asked.query = find("search").value;
    this.#asked.order = find("order").value;
    this.#filter();
    if (!this.#narrow.matches) this.#choose(this.#items.length ? 0 : -1, false);
  }

  #filter() {
    const view = this.#view;
    const { query, from, to, position, groups, order } = this.#asked;
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    this.#asked.words = words;
    const wanted = (item) =>
      groups.has(view.group(item)) &&
      (!from || item.day >= from) &&
      (!to || item.day <= to) &&
      (!position || view.positions(item).includes(Number(position))) &&
      words.every((word) => item.index.includes(word));
    this.#items = view.sorted[order].filter(wanted);
    const [found, all] = [this.#items.length, view.items.filter((item) => groups.has(view.group(item))).length];
    find("count").textContent = found === all ? counted(all, ...view.noun) : `${number(found)} of ${counted(all, ...view.noun)}`;
    find("more").classList.toggle("used", Boolean(from || to || position));
    find("empty").hidden = found > 0;
    find("list").hidden = found === 0;
    find("empty").firstElementChild.textContent = view.items.length ? "Nothing matches." : "Nothing is remembered yet.";
    find("clear").hidden = !view.items.length;
    this.#list.show(this.#items, -1);
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
    if (event.ctrlKey || event.metaKey || event.altKey || find("keys").open) return;
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
      if (this.#list.active < 0) this.#list.active = 0;
      await this.#choose(this.#list.active, true);
      document.body.classList.add("reading");
      find("detail").focus();
    } else if (event.key === "Escape") this.#escape(searching);
    else if (event.key === "/" && !searching) find("search").select();
    else if (event.key === "?" && !searching) find("keys").showModal();
    else if (event.key === "d" && !searching) this.#dark();
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

const source = new ExportSource(find("data").textContent);
find("name").textContent = source.owner;
document.title = `${source.owner} \u00b7 DeltaMem`;
const browse = new Browser(memoryViews(source));
browse.start();
