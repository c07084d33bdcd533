// Making and updating elements. Text only ever comes in as text: no markup is parsed here.

/** Return an element. props: class, on (listeners), data, style (custom properties), or attributes. */
export function h(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") node.className = value;
    else if (name === "on") for (const [kind, listener] of Object.entries(value)) node.addEventListener(kind, listener);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "style") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

/** Return text of strangers, kept from turning the direction of what stands around it. */
export const theirs = (text) => h("bdi", {}, String(text));

/** Set the text of a node, touching the page only where it differs. */
export function text(node, value) {
  const wanted = value === null || value === undefined ? "" : String(value);
  if (node.textContent !== wanted) node.textContent = wanted;
}

/** Set or remove an attribute, touching the page only where it differs. */
export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

/** Show or hide a node. */
export function shown(node, is) {
  if (node.hidden === is) node.hidden = !is;
}

/**
 * Keep the children of a node in line with items: those with a known key are updated where they
 * stand, so that focus and selection stay; make(item) returns {node, update(item)}.
 */
export function keyed(parent, items, keyOf, make) {
  const known = (parent.known ??= new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, part] of known) {
    if (!wanted.has(key)) {
      part.node.remove();
      known.delete(key);
    }
  }
  // From the end, so that what is already in its place is not moved, and nothing before the first is.
  const parts = items.map((item) => {
    const key = keyOf(item);
    const part = known.get(key) ?? make(item);
    known.set(key, part);
    part.update(item);
    return part;
  });
  let after = null;
  for (const { node } of parts.reverse()) {
    if (node.parentNode !== parent || node.nextElementSibling !== after) parent.insertBefore(node, after);
    after = node;
  }
}

/** Replace the children of a node. */
export function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
}
