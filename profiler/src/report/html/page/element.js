// Creates elements. Strings become text nodes, never markup.

// An element with attributes and children; a child that is a string becomes a text node. `on…` attributes take functions,
// `style` takes an object, and null and false are skipped.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (name.startsWith("on")) {
      made.addEventListener(name.slice(2), value);
    } else if (name === "style") {
      for (const [property, to] of Object.entries(value)) {
        made.style.setProperty(property, to);
      }
    } else {
      made.setAttribute(name, value === true ? "" : String(value));
    }
  }
  made.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

function byId(id) {
  return document.getElementById(id);
}

// Replaces the children of an element.
function fill(parent, ...children) {
  parent.replaceChildren(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
}

// Fills a <select> with `[value, label]` pairs and keeps or sets the selected value.
function fillSelect(select, options, chosen) {
  fill(
    select,
    options.map(([value, label]) => element("option", { value, selected: String(value) === String(chosen) }, label)),
  );
  select.value = String(chosen);
}

// A name in one line, truncated, with a longer title.
function nameElement(name, charsMax) {
  return element("span", { class: "name", title: cut(name, 2000) }, cut(name, charsMax));
}

// Text with code in backticks.
function marked(text) {
  return text.split("`").map((part, at) => (at % 2 === 1 ? element("code", {}, part) : part));
}
