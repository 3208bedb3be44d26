// The same page on a running server: what it asks for, and how one signs in.
"use strict";

const LOOK_AGAIN = 5000; // Milliseconds
const MOST_FOUND = 20;
const MOST_LISTED = 100;

/** An answer of the server that is an error, with the sentence in which it says so. */
class Refused extends Error {
  constructor(status, sentence) {
    super(sentence);
    this.status = status;
  }
}

/** The server that this page comes from. The key is sent in a header, and to nobody else. */
class Server {
  #key;

  constructor(key) {
    this.#key = key;
  }

  async ask(method, path, body) {
    if (/[^\x21-\x7e]/.test(this.#key)) throw new Refused(401, "An API key has no spaces and no such letters.");
    const headers = { ...(this.#key && { Authorization: `Bearer ${this.#key}` }), ...(body && { "Content-Type": "application/json" }) };
    const careful = { cache: "no-store", credentials: "omit", redirect: "error" };
    let response;
    try {
      response = await fetch(path, { method, headers, body: body && JSON.stringify(body), ...careful });
    } catch {
      throw new Refused(0, "The server cannot be reached.");
    }
    if (response.ok) return response;
    const problem = await response.json().catch(() => ({}));
    throw new Refused(response.status, sentence(problem.detail ?? `The server answered ${response.status}.`));
  }

  async owners() {
    return (await (await this.ask("GET", "v1/owners")).json()).owners;
  }
}

const sentence = (text) => `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

/**
 * What the page shows of one owner, from the server. The export is read once and again when something changed, so that all
 * views show one state; searching and jobs are asked of the server.
 */
class LiveSource extends ExportSource {
  #server;
  #path;
  #seen;

  static async open(server, owner) {
    const path = `v1/owners/${encodeURIComponent(owner)}`;
    const [seen, text] = await LiveSource.#read(server, path);
    return new LiveSource(server, path, seen, text);
  }

  constructor(server, path, seen, text) {
    super(text);
    this.#server = server;
    this.#path = path;
    this.#seen = seen;
  }

  // The state first: what happens in between is noticed at the next look.
  static async #read(server, path) {
    const seen = await (await server.ask("GET", path)).json();
    return [seen, await (await server.ask("GET", `${path}/export`)).text()];
  }

  async #ask(method, path, body) {
    return (await this.#server.ask(method, this.#path + path, body)).json();
  }

  async refresh() {
    const [seen, text] = await LiveSource.#read(this.#server, this.#path);
    this.#seen = seen;
    this.read(text);
  }

  /** Whether the server knows more than was read. */
  async changed() {
    return JSON.stringify(await this.#ask("GET", "")) !== JSON.stringify(this.#seen);
  }

  /** The ids of the memories that are most similar to a query, each with its similarity. */
  async search(query, conditions) {
    const filters = conditions.length ? { AND: conditions.map(([key, operator, value]) => ({ [key]: { [operator]: value } })) } : {};
    const { results } = await this.#ask("POST", "/search", { queries: [query], k: MOST_FOUND, filters });
    return new Map(results[0].memories.map((memory) => [memory.id, memory.similarity]));
  }

  async jobs() {
    const states = Object.keys(JOB_STATES).map((state) => `state=${state}`);
    return (await this.#ask("GET", `/jobs?${states.join("&")}`)).jobs;
  }
}

// ------------------------------------------------------------------------------------------------------------------ jobs

const JOB_STATES = { queued: "Waiting", running: "Being read", failed: "Failed", done: "Read" };

const jobsView = (source) => {
  const badge = (job) => make("span", `badge state ${job.state}`, JOB_STATES[job.state]);
  const fact = (name, value) => (value === null ? null : make("div", "", make("dt", "", name), make("dd", "", value)));
  return {
    title: "Jobs",
    noun: ["job", "jobs"],
    hint: "Search jobs by session",
    none: "No session was sent to be read.",
    load: async () => (await source.jobs()).map((job) => ({ ...job, time: job.created_at })),
    key: (job) => job.id,
    words: (job) => [job.id, job.session_id, job.last_error ?? ""],
    group: (job) => JOB_STATES[job.state],
    groups: Object.values(JOB_STATES),
    ticked: Object.values(JOB_STATES),
    orders: both((one, two) => two.moment - one.moment || two.at - one.at),
    row: (job, words) => [
      make("span", "line", quoted("strong", "", ...marked(job.session_id, words)), badge(job)),
      quoted("span", "clamp one soft", ...marked(job.last_error ?? "", words)),
      make("span", "under", make("span", "", clock(job.created_at)), make("span", "", counted(job.attempts, "attempt"))),
    ],
    detail: async (job) => [
      make("p", "eyebrow", make("span", "id", job.id), badge(job)),
      quoted("h2", "", job.session_id),
      make(
        "dl",
        "table",
        fact("taken on", clock(job.created_at)),
        fact("last change", clock(job.updated_at)),
        fact("attempts", number(job.attempts)),
        fact("not again before", job.retry_at && clock(job.retry_at)),
        fact("last error", job.last_error && quoted("span", "", job.last_error)),
        fact("journal entry", job.position && link("sessions", job.position, `@${job.position}`)),
      ),
    ],
  };
};

// --------------------------------------------------------------------------------------------------------------- notices

const button = (name, text, act) => {
  const node = make("button", name, text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
};

/** Something to know, with at most one thing to do about it. */
const notice = (text, label, act) => {
  const close = () => find("notice")?.remove();
  close();
  const doing = label && button("", label, () => {
    close();
    act();
  });
  const box = make("div", "notice", quoted("p", "", text), doing, button("plain", "Dismiss", close));
  box.id = "notice";
  box.setAttribute("role", "status");
  document.body.append(box);
};

/** Do something that the server may refuse; then say why. */
const attempt = async (act) => {
  try {
    return await act();
  } catch (refusal) {
    if (!(refusal instanceof Refused)) throw refusal;
    notice(refusal.message);
    return null;
  }
};

const refresh = (source) =>
  attempt(async () => {
    await source.refresh();
    await browse.refresh();
    find("notice")?.remove();
  });

// --------------------------------------------------------------------------------------------------------------- sign in

// Of this tab only, and gone with it.
const [KEY, OWNER] = ["deltamem-key", "deltamem-owner"];

const again = (entries) => {
  for (const [name, value] of Object.entries(entries)) {
    if (value === null) sessionStorage.removeItem(name);
    else sessionStorage.setItem(name, value);
  }
  history.replaceState(null, "", location.pathname);
  location.reload();
};

const gate = (title, ...contents) => {
  document.querySelector("main").hidden = true;
  const box = make("main", "gate", make("form", "card", make("h2", "", title), ...contents));
  const form = box.firstChild;
  form.addEventListener("submit", (event) => event.preventDefault());
  document.body.append(box);
  form.querySelector("input")?.focus();
  return form;
};

const labelled = (label, type) => {
  const input = Object.assign(make("input", ""), { type, autocomplete: "off", spellcheck: false });
  return [make("label", "", label, input), input];
};

const askKey = (why) => {
  const [label, input] = labelled("API key", "password");
  const refused = make("p", "refused", why);
  refused.setAttribute("role", "alert");
  const hint = make("p", "soft", "It stays in this tab and goes to this server only.");
  const enter = make("button", "primary", "Open");
  const form = gate("Sign in", label, hint, refused, enter);
  form.addEventListener("submit", () => {
    if (input.value.trim()) again({ [KEY]: input.value.trim(), [OWNER]: null });
  });
};

const askOwner = (owners) => {
  const [label, input] = labelled("Whose memory?", "search");
  const list = make("ul", "owners");
  const left = make("p", "soft");
  const found = () => owners.filter((owner) => owner.toLowerCase().includes(input.value.toLowerCase()));
  const draw = () => {
    const names = found();
    const line = (owner) => {
      const node = button("", "", () => again({ [OWNER]: owner }));
      node.append(quoted("span", "", owner));
      return make("li", "", node);
    };
    list.replaceChildren(...names.slice(0, MOST_LISTED).map(line));
    const more = names.length - MOST_LISTED;
    left.textContent = more > 0 ? `and ${number(more)} more` : names.length ? "" : owners.length ? "Nobody is called so." : "Nothing is remembered of anybody yet.";
  };
  input.addEventListener("input", draw);
  draw();
  const form = gate("Owners", label, list, left, button("plain", "Use another key", () => again({ [KEY]: null, [OWNER]: null })));
  form.addEventListener("submit", () => {
    const [first] = found();
    if (first !== undefined) again({ [OWNER]: first });
  });
};

const tool = (id, label, shape, act) => {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 20 20");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", shape);
  svg.append(path);
  const node = button("plain line-art", svg, act);
  Object.assign(node, { id, title: label });
  node.setAttribute("aria-label", label);
  return node;
};

/** Look whether something changed; what is being read is not taken away under the reader's eyes. */
const watch = (source) => {
  let known = false;
  setInterval(async () => {
    if (document.hidden || document.querySelector("dialog[open]")) return;
    const changed = await attempt(() => source.changed());
    if (changed && browse.name === "jobs") await refresh(source);
    else if (changed && !known) notice("The memory has changed.", "Refresh", () => refresh(source));
    known = Boolean(changed);
  }, LOOK_AGAIN);
};

const openOwner = async (server, owner) => {
  const source = await LiveSource.open(server, owner);
  const views = { ...memoryViews(source), jobs: jobsView(source) };
  views.memories.search = (query, conditions) => attempt(() => source.search(query, conditions));
  views.memories.hint = "Search memories by meaning";
  const tools = document.querySelector(".tools");
  tools.prepend(
    tool("refresh", "Refresh (r)", "M15.5 6.5A6.5 6.5 0 1 0 16.5 10M16 3v4h-4", () => refresh(source)),
    tool("account", "Owner and key", "M10 10a3.2 3.2 0 1 0 0-6.4 3.2 3.2 0 0 0 0 6.4ZM3.8 17c.6-3.2 3-4.8 6.2-4.8s5.6 1.6 6.2 4.8", () => again({ [OWNER]: "" })),
  );
  find("keys").querySelector("dl").append(make("div", "", make("dt", "", make("kbd", "", "r")), make("dd", "", "refresh")));
  await show(source.owner, views, { r: () => refresh(source) });
  watch(source);
};

const begin = async () => {
  document.body.classList.add("live");
  const [key, chosen] = [KEY, OWNER].map((name) => sessionStorage.getItem(name));
  const server = new Server(key ?? "");
  try {
    const owners = await server.owners();
    // Somebody who wants to choose has chosen the empty name.
    const owner = owners.includes(chosen) ? chosen : owners.length === 1 && chosen === null ? owners[0] : null;
    if (owner === null) askOwner(owners);
    else await openOwner(server, owner);
  } catch (refusal) {
    if (!(refusal instanceof Refused)) throw refusal;
    askKey(refusal.status === 401 && !key ? "" : refusal.message);
  }
};

begin();
