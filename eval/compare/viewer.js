// Sorts tables, and draws the questions of one run, a page at a time. Texts are set as text, never as markup.
"use strict";
(() => {
  // A cell is worth the number that it begins with; text and empty cells come last in either direction. Each body of a table
  // has scores of its own, so rows stay in it.
  const number = (cell) => {
    const text = (cell.firstChild?.nodeType === Node.TEXT_NODE ? cell.firstChild.data : "").replaceAll(",", "").trim();
    return text === "" || Number.isNaN(parseFloat(text)) ? null : parseFloat(text);
  };
  const sort = (table, header, column) => {
    const down = column > 0 ? header.ariaSort !== "descending" : header.ariaSort === "ascending";
    table.querySelectorAll("th[aria-sort]").forEach((one) => one.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const compare = (one, two) => {
      if (column === 0) return one.cells[0].textContent.localeCompare(two.cells[0].textContent, undefined, { numeric: true });
      return number(one.cells[column]) - number(two.cells[column]);
    };
    const last = (row) => column > 0 && number(row.cells[column]) === null;
    for (const body of table.tBodies) {
      const rows = [...body.rows].filter((row) => !row.classList.contains("above"));
      rows.sort((one, two) => last(one) - last(two) || (last(one) ? 0 : (down ? -1 : 1) * compare(one, two)));
      body.append(...rows);
    }
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    for (const header of table.querySelectorAll("th[data-column]")) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = header.textContent.trim() || "name";
      button.addEventListener("click", () => sort(table, header, Number(header.dataset.column)));
      header.replaceChildren(button);
    }
  }
})();
(() => {
  const runs = JSON.parse(document.getElementById("data").textContent);
  const PAGE = 50;
  const inputs = Object.fromEntries(
    ["run", "category", "outcome", "judge", "label", "text"].map((id) => [id, document.getElementById(id)]),
  );
  let place = 0;
  let found = [];

  const make = (tag, name, text) => {
    const node = document.createElement(tag);
    if (name) node.className = name;
    if (text !== undefined && text !== null) node.textContent = text;
    return node;
  };
  const options = (select, names, first) => {
    const before = select.value;
    const all = first === undefined ? [] : [["", first]];
    select.replaceChildren(
      ...[...all, ...names.map((name) => (Array.isArray(name) ? name : [name, name]))].map(([value, text]) => {
        const option = make("option", "", text);
        option.value = value;
        return option;
      }),
    );
    if ([...select.options].some((option) => option.value === before)) select.value = before;
  };
  const current = () => runs[Number(inputs.run.value) || 0];
  const verdicts = (item) =>
    (item.answers || []).flatMap((answer) => Object.entries(answer.verdicts || {}));

  const filterOptions = () => {
    const run = current();
    options(inputs.category, [...new Set(run.items.map((item) => item.category))], "all");
    const judges = new Set(run.items.flatMap((item) => verdicts(item).map(([judge]) => judge)));
    options(inputs.judge, [...judges], "any");
    const labels = new Set(run.items.flatMap((item) => verdicts(item).map(([, verdict]) => verdict.label || "no verdict")));
    options(inputs.label, [...labels], "any");
  };

  const wanted = (item) => {
    const { category, outcome, judge, label, text } = inputs;
    if (category.value && item.category !== category.value) return false;
    if (outcome.value && item.outcome !== outcome.value) return false;
    const fits = ([name, verdict]) =>
      (!judge.value || name === judge.value) && (!label.value || (verdict.label || "no verdict") === label.value);
    if ((judge.value || label.value) && !verdicts(item).some(fits)) return false;
    const sought = text.value.trim().toLowerCase();
    if (!sought) return true;
    const texts = [item.key, item.question, item.gold, ...(item.answers || []).map((answer) => answer.text)];
    return texts.some((one) => one && one.toLowerCase().includes(sought));
  };

  const search = () => {
    found = current().items.filter(wanted);
    place = 0;
    draw();
  };

  const draw = () => {
    const run = current();
    document.getElementById("items").replaceChildren(...found.slice(place, place + PAGE).map((item) => row(run, item)));
    let count = `${found.length} of ${run.items.length} questions`;
    if (run.points[1]) count += ` and memory points (${run.points[0]} of ${run.points[1]} memory points are on this page)`;
    if (run.cut) count += `; passages are cut at ${run.cut} characters`;
    document.getElementById("count").textContent = count;
    const last = Math.min(place + PAGE, found.length);
    document.getElementById("place").textContent = found.length ? `${place + 1} to ${last}` : "none";
    document.getElementById("before").disabled = place === 0;
    document.getElementById("after").disabled = last >= found.length;
  };

  const row = (run, item) => {
    const node = make("details", "item");
    const summary = make("summary");
    summary.append(
      make("span", `outcome ${item.outcome.replace(" ", "-")}`, item.outcome),
      make("span", "", item.question),
      make("span", "id", `${item.key}, ${item.category}`),
    );
    node.append(summary);
    node.addEventListener("toggle", () => {
      if (node.open && node.children.length === 1) node.append(body(run, item));
    });
    return node;
  };

  const part = (node, title, text) => {
    if (text === undefined || text === null || text === "") return;
    node.append(make("h4", "", title), make("p", "said", text));
  };

  const body = (run, item) => {
    const node = make("div", "body");
    part(node, "gold answer", item.gold);
    const ranks = item.ranks || [];
    part(
      node,
      "evidence",
      (item.evidence || []).map((one, n) => (n < ranks.length ? `${one} (rank ${ranks[n] ?? "none"})` : one)).join("\n"),
    );
    part(node, "error", item.error);
    part(node, "notes", (item.notes || []).join("\n"));
    (item.answers || []).forEach((answer, n) => {
      const title = item.answers.length > 1 ? `answer, run ${n + 1}` : "answer";
      part(node, title, answer.error ? `no answer: ${answer.error}` : answer.text);
      const scores = Object.entries(answer.scores || {}).map(([name, score]) => `${name} ${Number(score.toFixed(4))}`);
      if (scores.length) node.append(make("p", "soft", scores.join(", ")));
      for (const [judge, verdict] of Object.entries(answer.verdicts || {})) {
        const flags = Object.entries(verdict.flags || {}).map(([name, value]) => `, ${name}: ${value}`).join("");
        part(node, `${judge} judge: ${verdict.label || "no verdict"}${flags}`, verdict.error || verdict.reason || " ");
      }
    });
    const list = item.found || [];
    if (list.length) {
      const shown = item.shown === undefined ? "" : `, ${item.shown} of them shown in ${item.context_tokens || 0} tokens`;
      node.append(make("h4", "", `${list.length} passages retrieved${shown}`));
      const grid = make("div", "found");
      list.forEach(([number, similarity]) => {
        const [text, time, store, sources] = run.passages[number];
        const origin = [similarity === null ? "" : similarity.toFixed(3), sources].filter(Boolean).join(" ");
        grid.append(make("span", "id", `${store}${time ? `, ${time}` : ""}`), make("span", "id", origin));
        grid.append(make("p", "said", text));
      });
      node.append(grid);
    }
    return node;
  };

  options(inputs.run, runs.map((run, number) => [String(number), `${run.name} (${run.system})`]));
  filterOptions();
  search();
  inputs.run.addEventListener("change", () => {
    filterOptions();
    search();
  });
  for (const name of ["category", "outcome", "judge", "label"]) inputs[name].addEventListener("change", search);
  inputs.text.addEventListener("input", search);
  document.getElementById("before").addEventListener("click", () => {
    place -= PAGE;
    draw();
  });
  document.getElementById("after").addEventListener("click", () => {
    place += PAGE;
    draw();
  });
})();
