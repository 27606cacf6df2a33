// Parts of the maps: elements, buttons, a stepper, grids of cells, tables of numbers. Words of users only ever become
// text nodes.
const capsuleParts = (() => {
  "use strict";
  const SVG = "http://www.w3.org/2000/svg";
  let unique = 0;

  function add(node, attributes, children) {
    for (const [name, value] of Object.entries(attributes || {})) {
      if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
      else if (value !== null && value !== undefined && value !== false) node.setAttribute(name, value);
    }
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return node;
  }
  const make = (tag, attributes, ...children) => add(document.createElement(tag), attributes, children);
  const draw = (tag, attributes, ...children) => add(document.createElementNS(SVG, tag), attributes, children);
  const short = (text, length) => (text.length > length ? `${text.slice(0, length - 1)}…` : text);

  // The largest width of some labels in pixels, as the style sheet draws them.
  const pen = document.createElement("canvas").getContext("2d");
  function widest(texts) {
    pen.font = `700 12px ${getComputedStyle(document.body).fontFamily}`;  // the chosen row is bold
    return Math.ceil(Math.max(0, ...texts.map((text) => pen.measureText(text).width)));
  }

  // Buttons in a row: hover, focus or click chooses one, the arrow keys move on.
  function choices(labels, name, start, onChoice) {
    const buttons = labels.map((label, index) =>
      make("button", {
        type: "button", class: "choice", "aria-pressed": String(index === start),
        onmouseenter: () => choose(index), onfocus: () => choose(index), onclick: () => choose(index),
        onkeydown: (event) => {
          const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
          if (!step) return;
          event.preventDefault();
          buttons[(index + step + buttons.length) % buttons.length].focus();
        },
      }, label));
    function choose(index) {
      buttons.forEach((button, other) => button.setAttribute("aria-pressed", String(other === index)));
      onChoice(index);
    }
    return make("div", { class: "choices", dir: "auto", role: "group", "aria-label": name }, buttons);
  }

  function stepper(count, onStep) {
    let current = count - 1;
    const label = make("output", { class: "iteration" });
    const back = make("button", { type: "button", "aria-label": "previous iteration", onclick: () => go(-1) }, "‹");
    const on = make("button", { type: "button", "aria-label": "next iteration", onclick: () => go(1) }, "›");
    function go(step) {
      current = Math.min(count - 1, Math.max(0, current + step));
      label.textContent = `iteration ${current + 1} of ${count}`;
      label.dataset.iteration = current + 1;
      back.disabled = current === 0;
      on.disabled = current === count - 1;
      if (step) onStep(current);
    }
    go(0);
    return count > 1 ? make("div", { class: "stepper" }, back, label, on) : null;
  }

  // A grid of cells in SVG. `cell(row, column)` is {parts: [[class, from, to, opacity]…], text, title}. Rows from
  // `contrastFrom` on are the contrasting case, which a gap and a dashed line set apart. The names of the rows stay in
  // sight when a wide grid is scrolled sideways.
  function grid({ rows, columns, cell, contrastFrom = rows.length, width = 30, height = 20, onRow, turned = true }) {
    const left = 14 + widest(rows.map((row) => short(row, 16)));
    const slanted = 0.71 * widest(columns.map((column) => short(column, 14)));  // its width and height at 45 degrees
    const top = turned ? 18 + slanted : 18;
    const y = (row) => top + row * height + (row >= contrastFrom ? 10 : 0);
    const size = [left + columns.length * width + (turned ? Math.max(4, 10 + slanted - width / 2) : 4), y(rows.length - 1) + height + 4];
    const picture = draw("svg", { width: size[0], height: size[1], viewBox: `0 0 ${size[0]} ${size[1]}`, role: "img" });
    columns.forEach((column, index) => {
      const [x, base] = [left + (index + 0.5) * width, top - 6];
      picture.append(draw("text", {
        x, y: base, class: "label", "text-anchor": turned ? "start" : "middle",
        transform: turned ? `rotate(-45 ${x} ${base})` : null,
      }, short(column, 14)));
    });
    const corner = draw("rect", { x: 0, y: 0, width: left, height: size[1], class: "behind-names" });
    const names = [corner];
    picture.append(corner);
    const lines = rows.map((row, index) => {
      const line = draw("g", { class: "grid-row", onmouseenter: onRow ? () => onRow(index) : () => {} });
      const name = draw("g", { class: "row-name" },
        draw("rect", { x: 0, y: y(index), width: left - 2, height, class: "behind-names" }),
        draw("text", { x: left - 8, y: y(index) + height / 2 + 4, class: "label", "text-anchor": "end" }, short(row, 16)));
      names.push(name);
      columns.forEach((_, column) => {
        const { parts, text, title } = cell(index, column);
        const box = draw("g", {}, draw("title", {}, title));
        const inner = [left + column * width + 1, y(index) + 1, width - 2, height - 2];
        box.append(draw("rect", { x: inner[0], y: inner[1], width: inner[2], height: inner[3], class: "cell" }));
        for (const [name, from, to, opacity] of parts) {
          const range = Math.max(0, Math.min(100, to) - from);
          box.append(draw("rect", {
            x: inner[0] + (from / 100) * inner[2], y: inner[1], width: (range / 100) * inner[2], height: inner[3],
            class: name, "fill-opacity": opacity === undefined ? 1 : opacity,
          }));
        }
        if (text) {
          box.append(draw("text", {
            x: inner[0] + inner[2] / 2, y: y(index) + height / 2 + 4, class: "number", "text-anchor": "middle",
          }, text));
        }
        line.append(box);
      });
      line.append(name);
      if (index === contrastFrom) {
        line.prepend(draw("line", { x1: 4, x2: size[0] - 4, y1: y(index) - 5, y2: y(index) - 5, class: "apart" }));
      }
      picture.append(line);
      return line;
    });
    const more = make("p", { class: "more-columns", hidden: "" }, "More columns: scroll sideways →");
    const sayMore = () => { more.hidden = scrolled.scrollLeft + scrolled.clientWidth >= scrolled.scrollWidth - 1; };
    const scrolled = make("div", { class: "scroll", tabindex: 0, onscroll: () => {
      for (const name of names) name.setAttribute("transform", `translate(${scrolled.scrollLeft} 0)`);
      sayMore();
    } }, picture);
    new ResizeObserver(sayMore).observe(scrolled);
    return { node: make("div", {}, scrolled, more), lines };
  }

  // SVG patterns for the three groups, so that they differ without colour.
  function patterns() {
    const name = `stripes-${(unique += 1)}`;
    const stripes = draw("pattern", { id: name, width: 5, height: 5, patternUnits: "userSpaceOnUse",
      patternTransform: "rotate(45)" },
      draw("rect", { width: 5, height: 5, class: "future-light" }),
      draw("rect", { width: 2.5, height: 5, class: "future" }));
    const node = draw("svg", { width: 0, height: 0, "aria-hidden": "true", class: "patterns" },
      draw("defs", {}, stripes));
    return { node, name };
  }

  function numbers(header, rows) {
    return make("details", { class: "numbers" }, make("summary", {}, "Numbers"),
      make("div", { class: "scroll", tabindex: 0 }, make("table", {},
        make("thead", {}, make("tr", {}, header.map((text) => make("th", { scope: "col", dir: "auto" }, text)))),
        make("tbody", {}, rows.map((row) => make("tr", {},
          row.map((text, index) => make(index ? "td" : "th", { dir: "auto" }, String(text)))))))));
  }

  const replace = (place, ...nodes) => place.replaceChildren(...nodes.filter((node) => node));

  return { make, draw, choices, stepper, grid, patterns, numbers, replace };
})();
