// Creates elements. Text is always a text node, so the name of a unit cannot become markup.

const SVG = "http://www.w3.org/2000/svg";

/**
 * Make an element. `props`: attributes by name; `dataset` and `style` take objects (the content security policy
 * forbids style attributes, so `style` is set by CSSOM), `onclick` and the like take functions.
 * Children: nodes, text, arrays. Props and children that are null or false are skipped.
 */
export function h(tag, props = {}, ...children) {
  return fill(document.createElement(tag), props, children);
}

/** Make an SVG element; as `h`. */
export function svg(tag, props = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), props, children);
}

function fill(element, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "dataset") Object.assign(element.dataset, value);
    else if (name === "style") setStyle(element, value);
    else if (name === "value" || name === "checked") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  append(element, children);
  return element;
}

function setStyle(element, style) {
  for (const [name, value] of Object.entries(style)) element.style.setProperty(name, value);
}

function append(parent, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Replace the children of an element. */
export function put(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
  return parent;
}

/** Make these nodes the children of an element, in this order; nodes already in place are not moved and keep focus. */
export function arrange(parent, nodes) {
  for (const child of [...parent.childNodes]) if (!nodes.includes(child)) child.remove();
  nodes.forEach((node, i) => node === parent.childNodes[i] || parent.insertBefore(node, parent.childNodes[i] ?? null));
}

/** Announce a text to screen readers. */
export function announce(text) {
  const place = document.getElementById("announcer");
  if (place) place.textContent = text;
}

const scripts = new Map();

/** Load a classic script of this service once; after a failure the next call tries again. */
export function script(source) {
  if (!scripts.has(source)) {
    const loading = new Promise((resolve, reject) => {
      const fail = () => {
        scripts.delete(source);
        reject(new Error(`${source} did not load.`));
      };
      document.head.append(h("script", { src: source, onload: resolve, onerror: fail }));
    });
    scripts.set(source, loading);
  }
  return scripts.get(source);
}
