// Elements are made of text alone: what others say is never read as markup.
export const $ = (id) => document.getElementById(id);

const SVG = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.filter((each) => each !== null && each !== undefined && each !== ""));
  return element;
}

// A name that another peer chose: its direction does not spill into what follows it.
export const named = (text) => el("bdi", {}, String(text));

const time = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const both = new Intl.DateTimeFormat(undefined, { dateStyle: "short", timeStyle: "medium" });

export function when(unixSeconds) {
  const at = new Date(unixSeconds * 1000);
  const today = new Date().toDateString() === at.toDateString();
  return el("time", { datetime: at.toISOString() }, (today ? time : both).format(at));
}

export const clock = (unixSeconds) => time.format(new Date(unixSeconds * 1000));

// Whether something is to be drawn anew.
const drawn = new WeakMap();
export function changed(element, data) {
  const text = JSON.stringify(data);
  if (drawn.get(element) === text) return false;
  drawn.set(element, text);
  return true;
}

// A table without rows is not shown: its count says why.
export function rows(table, items, cells) {
  table.closest(".scroll").hidden = !items.length;
  const labels = [...table.tHead.rows[0].cells].map((each) => each.textContent);
  const made = items.map((item) =>
    el("tr", {}, ...cells(item).map((cell, at) => el("td", { "data-label": labels[at] }, el("div", {}, ...[cell].flat()))))
  );
  table.tBodies[0].replaceChildren(...made);
}

// Previous and next, which keep their focus; `go` gets the offset.
export function pager(place, { offset, total, shown, size }, what, go) {
  if (total <= size) return place.replaceChildren();
  if (!place.children.length) {
    place.append(
      el("button", { type: "button", "aria-label": `Previous ${what}` }, "Previous"),
      el("span", { role: "status" }),
      el("button", { type: "button", "aria-label": `Next ${what}` }, "Next")
    );
  }
  const [before, text, after] = place.children;
  text.textContent = `${offset + 1} to ${offset + shown} of ${total}`;
  before.onclick = () => go(Math.max(0, offset - size));
  after.onclick = () => go(offset + size);
  before.disabled = offset === 0;
  after.disabled = offset + shown >= total;
}
