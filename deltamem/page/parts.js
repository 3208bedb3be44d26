// What several pages draw with. Texts are data: they are only ever set as text.
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
