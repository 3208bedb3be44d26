// An owner's memory, out of an export.
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
  #steps;

  constructor(text) {
    this.read(text);
  }

  read(text) {
    const lines = text.trim().split("\n").map((line) => JSON.parse(line));
    const { owner, entries, dialogues, memories } = lines[0];
    this.owner = owner;
    this.#steps = new Map();
    this.#entries = lines.slice(1, 1 + entries);
    this.#turns = new Map(lines.slice(1 + entries, 1 + entries + dialogues).map((one) => [one.position, one.turns]));
    this.#current = new Map(lines.slice(1 + entries + dialogues).slice(0, memories).map((memory) => [memory.id, memory]));
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

// ----------------------------------------------------------------------------------------------------- an owner's memory

const STATUS = { current: "Current", retracted: "Retracted", erased: "Erased", undone: "Rolled back" };
const ERASED = "The text was erased.";

const tags = (metadata) => Object.entries(metadata ?? {}).map(([key, value]) => quoted("span", "tag", shownValue(key, value)));
const noted = (metadata, before = metadata) => {
  const [now, then] = [metadata, before].map((one) => Object.entries(one ?? {}).map((pair) => shownValue(...pair)));
  const gone = then.filter((one) => !now.includes(one)).map((one) => make("del", "", quoted("span", "tag", one)));
  const present = now.map((one) => make(then.includes(one) ? "span" : "ins", "", quoted("span", "tag", one)));
  return gone.length + present.length ? make("p", "tags", ...gone, ...present) : null;
};
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

/** The views of a source. */
const memoryViews = (source) => {
  const memoryRow = (memory, words, similarity) => [
    quoted("span", memory.status === "current" ? "clamp" : "clamp soft", ...marked(memory.text || ERASED, words)),
    make(
      "span",
      "under",
      make("span", "id", memory.id),
      make("span", "", day(memory.time)),
      similarity === undefined ? null : make("span", "", `${Math.round(100 * similarity)}% similar`),
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

  const historyStep = (step, whole) => {
    const time = step.session_time ?? step.recorded_at;
    const title = link("sessions", step.position, entryTitle(step));
    const line = make("p", "line", sign(step.event), title, make("span", "soft", clock(time)), undoneTag(step));
    return make("li", step.undone ? "undone" : "", line, step.event === "NONE" || whole ? null : changeText(step));
  };

  const memoryDetail = async (memory) => {
    const current = memory.status === "current";
    const steps = await source.history(memory.id);
    const origins = current ? await source.blame(memory.id) : [];
    const badge = current ? null : make("span", "badge", STATUS[memory.status]);
    const whole = steps.length === 1 && current; // The heading says it
    const history = make("ol", "steps", ...steps.map((step) => historyStep(step, whole)));
    return [
      make("p", "eyebrow", make("span", "id", memory.id), moment(memory.time), badge),
      quoted("h2", memory.text ? "" : "soft", memory.text || ERASED),
      noted(memory.metadata),
      current ? section("Where it comes from", make("ol", "steps origins", ...origins.map((one) => origin(one, memory.text)))) : null,
      section("History", history),
    ];
  };

  const tally = (entry) =>
    ["ADD", "UPDATE", "REMOVE", "NONE"].flatMap((event) => {
      const count = entry.changes.filter((change) => change.event === event).length;
      return count ? [make("span", `sign ${event}`, `${SIGNS[event]}${number(count)}`)] : [];
    });

  const entryRow = (entry, words) => {
    const shown = entry.changes.find((change) => change.event !== "NONE") ?? entry.changes[0];
    const text = shown ? (shown.erased ? ERASED : (shown.after ?? shown.before)) : "Nothing to remember.";
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
    narrow.addEventListener("click", () => browse.only("memories", entry.position));
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
    pick: {
      label: "session",
      any: "any session",
      options: () => sessions.sorted["Newest first"].map((entry) => [String(entry.position), `${day(entry.time)} \u00b7 ${entryTitle(entry)}`]),
      of: (memory) => memory.positions.map(String),
    },
    none: "Nothing is remembered yet.",
    row: memoryRow,
    detail: memoryDetail,
    orders: both((one, two) => two.moment - one.moment || two.at - one.at),
  };
  const kinds = { session: "Sessions", edit: "Edits", rollback: "Rollbacks", forget: "Erasures", import: "Imports" };
  const sessions = {
    title: "Sessions",
    noun: ["entry", "entries"],
    hint: "Search sessions and what was said",
    none: "Nothing happened yet.",
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

const embedded = find("data").textContent.trim();
if (embedded) {
  const source = new ExportSource(embedded);
  show(source.owner, memoryViews(source));
}
