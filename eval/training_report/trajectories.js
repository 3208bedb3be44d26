// What a policy did with sessions, beside what it should have done.
"use strict";

const rounded = (value, digits = 3) => value.toFixed(digits);
const heldOut = "Evaluation";
const inTraining = "In training";

/** One operation: what it is, the memory that it replaces or repeats, and its text, of a target with its keywords. */
const operationItem = ({ event, target_memory_id: id, text }, prior, target = null) => {
  const old = event === "ADD" ? null : (prior[id] ?? null);
  const written = event === "UPDATE" && old !== null && !target ? rewritten(old, text) : [text];
  const pieces = target?.pieces.map((piece) => (piece.found === null ? piece.text : make("mark", piece.found ? "found" : "lacking", piece.text)));
  const keywords = target?.keywords.map(({ text: word, found }) => quoted("span", found ? "tag found" : "tag lacking", `${found ? "\u2713" : "\u2717"} ${word}`));
  const was = old !== null && (target || event === "NONE") ? make("div", event === "UPDATE" ? "gone" : "", quoted("p", "", old)) : null;
  return make(
    "li",
    "",
    make("p", "line", sign(event), make("strong", "", event), id ? make("span", "id", id) : null),
    was,
    event === "NONE" && old !== null ? null : quoted("p", "", ...(pieces ?? written)),
    keywords?.length ? make("p", "tags", ...keywords) : null,
    target?.remark ? make("p", "soft facts", target.remark) : null,
  );
};

const turnItem = ({ role, think, queries, memories, rest }) => {
  const found = memories.map((memory) => make("p", "line", make("span", "id", memory.id ?? ""), quoted("span", "", memory.text ?? "")));
  return make(
    "li",
    role,
    make("p", "role", role === "tool" ? "search result" : "policy"),
    think ? quoted("p", "soft think", think) : null,
    queries.length ? make("p", "tags", ...queries.map((query) => quoted("span", "tag", query))) : null,
    ...found,
    role === "tool" && !found.length && !rest ? make("p", "soft", "Nothing was found.") : null,
    rest ? quoted("pre", "", rest) : null,
  );
};

/** What trajectories can be filtered by. */
const filterable = ({ step, score: { reward, recall }, targets, violations }) => ({
  ...(step === null ? {} : { step }),
  reward,
  recall,
  "due operations": targets.filter(({ operation }) => operation.event !== "NONE").length,
  "due updates": targets.filter(({ operation }) => operation.event === "UPDATE").length,
  violations: violations.length,
});

const trajectoryViews = (trajectories) => {
  const where = (one) => (one.step === null ? heldOut : `${inTraining}, step ${number(one.step)}`);
  const bySession = Map.groupBy(trajectories, (one) => one.key);
  const list = (items, none) => (items.length ? make("ol", "steps", ...items) : make("p", "soft", none));

  const detail = async (one) => {
    const { prior, score } = one;
    const said = one.dialogue.map((turn) => make("li", "", make("p", "role", turn.role), quoted("p", "", turn.content)));
    const same = bySession.get(one.key).filter((other) => other !== trajectories[one.at]);
    const others = same.map((other) => make("li", "", link("trajectories", trajectories.indexOf(other), where(other)), ` ${rounded(other.score.reward)}`));
    const pairs = score.pairs.map((pair) =>
      make(
        "li",
        "",
        make("p", "line", make("span", "soft", `similarity ${rounded(pair.similarity, 2)}, score ${rounded(pair.score, 2)}`)),
        quoted("p", "", ...rewritten(pair.predicted, pair.target)),
      ),
    );
    const alone = (title, entries) => entries.map(({ text, origin }) => make("li", "", make("p", "line soft", `${title} (${origin.replaceAll("_", " ")})`), quoted("p", "", text)));
    const unmatched = [...alone("only the policy has it", score.unmatched_predicted), ...alone("only the target has it", score.unmatched_target)];
    const made = one.operations === null ? make("p", "refused", "No outputs that could be read.") : list(one.operations.map((operation) => operationItem(operation, prior)), "None: the memory stays as it is.");
    const due = list(one.targets.map((target) => operationItem(target.operation, prior, target)), "None: nothing worth remembering was said.");
    const parts = `format ${score.format}, retrieval ${score.retrieval}, transition ${rounded(score.transition)}, precision ${rounded(score.precision, 2)}, recall ${rounded(score.recall, 2)}`;
    const left = make(
      "div",
      "",
      section("How it went", make("ol", "turns policy", ...one.turns.map(turnItem)), one.violations.length ? make("p", "refused", one.violations.map((name) => name.replaceAll("_", " ")).join(", ")) : null),
      section("Session", make("ol", "turns", ...said)),
    );
    const right = make(
      "div",
      "",
      section("Matching, from the policy's memory to the target's", list([...pairs, ...unmatched], "Nothing to match.")),
      others.length ? section("The same session", make("ul", "", ...others)) : null,
    );
    return [
      make("p", "eyebrow", make("span", "", where(one)), moment(one.time)),
      quoted("h2", "", `${rounded(score.reward)} \u00b7 ${one.key}`),
      make("p", "soft facts", parts),
      make("div", "sides", section("Operations of the policy", made), section("Target operations", due)),
      make("div", "sides", left, right),
    ];
  };

  const trajectory = {
    title: "Trajectories",
    noun: ["trajectory", "trajectories"],
    hint: "Search what was said, done and due",
    none: "No trajectories.",
    load: async () => trajectories.map((one) => ({ ...one, metadata: filterable(one) })),
    key: (one) => String(one.at),
    words: (one) => [one.key, ...one.dialogue.map((turn) => turn.content), ...one.turns.map((turn) => turn.rest), ...one.targets.map((target) => target.operation.text)],
    group: (one) => (one.step === null ? heldOut : inTraining),
    groups: [heldOut, inTraining],
    ticked: [heldOut, inTraining],
    pick: {
      label: "session",
      any: "any session",
      options: () => [...bySession.keys()].sort().map((key) => [key, key]),
      of: (one) => [one.key],
    },
    orders: {
      "Best first": (one, two) => two.score.reward - one.score.reward,
      "Worst first": (one, two) => one.score.reward - two.score.reward,
      "By session and step": (one, two) => (one.key < two.key ? -1 : one.key > two.key ? 1 : (one.step ?? Infinity) - (two.step ?? Infinity) || 0),
    },
    row: (one, words) => [
      make("span", "line", make("strong", "", rounded(one.score.reward)), make("span", "badge", where(one))),
      quoted("span", "clamp one soft", ...marked(one.dialogue[0]?.content ?? "", words)),
      make("span", "under", quoted("span", "", ...marked(one.key, words)), make("span", "", day(one.time))),
    ],
    detail,
  };
  return { trajectories: trajectory };
};

const [{ run }, ...read] = find("data").textContent.trim().split("\n").map((line) => JSON.parse(line));
show(run, trajectoryViews(read));
